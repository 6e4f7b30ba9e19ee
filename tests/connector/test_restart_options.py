"""Restart strategies as a configuration, the environment and a command name them."""

from __future__ import annotations

import pytest

from connector.operations.restart_options import from_config
from transactional.errors import OptionError
from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart


def test_a_configuration_is_written_as_flink_s() -> None:
    assert from_config({}) == ExponentialDelay(1, 60, 1.5, 3600, 0.1)
    assert from_config({"restart-strategy.type": "disable", "parallelism.default": "2"}) == NoRestart()
    fixed = {"restart-strategy.type": "fixeddelay", "restart-strategy.fixed-delay.attempts": "7"}
    assert from_config({**fixed, "restart-strategy.fixed-delay.delay": "10 s"}) == FixedDelay(7, 10)
    rate = {
        "restart-strategy.type": "failure-rate",
        "restart-strategy.failure-rate.max-failures-per-interval": "3",
        "restart-strategy.failure-rate.failure-rate-interval": "5 min",
        "restart-strategy.failure-rate.delay": "500",
    }
    assert from_config(rate) == FailureRate(3, 300, 0.5)
    exponential = {
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "2s",
        "restart-strategy.exponential-delay.max-backoff": "2 min",
        "restart-strategy.exponential-delay.backoff-multiplier": "2.5",
        "restart-strategy.exponential-delay.reset-backoff-threshold": "10min",
        "restart-strategy.exponential-delay.jitter-factor": "0",
    }
    assert from_config(exponential) == ExponentialDelay(2, 120, 2.5, 600, 0)


def test_a_configuration_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_TYPE", "fixed-delay")
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS", "4")
    assert from_config() == FixedDelay(4, 1)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"restart-strategy.type": "sometimes"}, "exponential-delay"),
        ({"restart-strategy.fixed-delay.atempts": "3"}, "restart-strategy.fixed-delay.attempts"),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "many"}, "a whole number"),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "soon"}, "a duration"),
        (
            {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "9" * 320 + " d"},
            "10000 days",
        ),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "9" * 5000}, "10000 days"),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10001 d"}, "10000 days"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(config: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        from_config(config)


@pytest.mark.parametrize("name", ["BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATEMPTS", "BARRIER_RESTART_STRATGY_TYPE"])
def test_a_variable_that_is_misspelt_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "fixed-delay")
    with pytest.raises(OptionError, match=f"UNKNOWN_OPTION.*{name}.*did you mean BARRIER_RESTART_STRATEGY_"):
        from_config()
