"""Restart strategies: how many restarts, and how far apart, by a clock that is told."""

from __future__ import annotations

import pytest

from transactional.errors import OptionError
from transactional.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    Restarts,
    RestartStrategy,
    from_config,
    from_settings,
)
from transactional.testing import FakeClock


def lives(strategy: RestartStrategy, *seconds: float, chance: float = 0.5) -> list[float | None]:
    """The delays after lives that lasted so long, each begun when the delay before it was over."""
    clock = FakeClock()
    restarts = Restarts(strategy, clock, lambda: chance)
    found = []
    for life in seconds:
        restarts.began()
        clock.advance(life)
        delay = restarts.failed()
        found.append(delay)
        clock.advance(delay or 0)
    assert restarts.number == sum(delay is not None for delay in found)
    return found


def test_without_restarts_the_first_failure_is_the_last() -> None:
    assert lives(NoRestart(), 5) == [None]


def test_a_fixed_delay_restarts_so_often_however_long_the_query_ran() -> None:
    assert lives(FixedDelay(3, 10), 1, 100_000, 1, 1, 1) == [10, 10, 10, None, None]
    assert lives(FixedDelay(0, 10), 1) == [None]


def test_a_failure_rate_gives_up_at_the_failure_that_is_one_too_many_within_the_interval() -> None:
    assert lives(FailureRate(3, 60, 1), 1, 1, 1, 1) == [1, 1, 1, None]


def test_a_failure_rate_forgets_failures_that_left_the_interval() -> None:
    strategy = FailureRate(2, 60, 0)
    assert lives(strategy, 10, 10, 61, 10, 10) == [0, 0, 0, 0, None]
    assert lives(strategy, 30, 30, 30) == [0, 0, None]  # 60 s apart is within still
    assert lives(strategy, 30, 30, 30.5) == [0, 0, 0]


def test_an_exponential_delay_grows_up_to_its_limit_and_never_gives_up() -> None:
    assert lives(ExponentialDelay(1, 10, 2, 3600, 0), *[1] * 6) == [1, 2, 4, 8, 10, 10]
    assert lives(ExponentialDelay(1, 60, 1.5, 3600, 0), *[1] * 2000)[-1] == 60  # 1.5 ** 2000 is no float any more


def test_an_exponential_delay_begins_anew_after_a_life_that_was_long_enough() -> None:
    strategy = ExponentialDelay(1, 60, 2, 100, 0)
    assert lives(strategy, 1, 1, 99.9, 100, 1, 1) == [1, 2, 4, 1, 2, 4]
    assert lives(strategy, 500, 1) == [1, 2]


def test_jitter_stays_in_its_part_and_within_the_limits() -> None:
    strategy = ExponentialDelay(10, 100, 2, 3600, 0.25)
    assert lives(strategy, 1, 1, 1, chance=0) == [10, 15, 30]
    assert lives(strategy, 1, 1, 1, chance=0.5) == [10, 20, 40]
    assert lives(strategy, 1, 1, 1, 1, 1, chance=1) == [12.5, 25, 50, 100, 100]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedDelay(-1, 1),
        lambda: FixedDelay(1, -1),
        lambda: FailureRate(0, 1, 1),
        lambda: FailureRate(1, 0, 1),
        lambda: FailureRate(10_000, 1, 1),
        lambda: ExponentialDelay(0, 1),
        lambda: ExponentialDelay(2, 1),
        lambda: ExponentialDelay(multiplier=1),
        lambda: ExponentialDelay(reset_after=0),
        lambda: ExponentialDelay(jitter=1.1),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(OptionError, match="INVALID_OPTION"):
        make()


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


def test_settings_stand_over_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_TYPE", "failure-rate")
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FAILURE_RATE_DELAY", "7 s")
    monkeypatch.setenv("BARRIER_RESTART_STRATEGY_FIXED_DELAY_DELAY", "9 s")
    assert from_settings({}) == FailureRate(1, 60, 7)
    assert from_settings({"restart-strategy.failure-rate.delay": "8 s"}) == FailureRate(1, 60, 8)
    assert from_settings({"restart-strategy.type": "fixed-delay"}) == FixedDelay(1, 9)
    with pytest.raises(OptionError, match="counts for nothing, as the strategy is failure-rate"):
        from_settings({"restart-strategy.fixed-delay.delay": "8 s"})
    with pytest.raises(OptionError, match=r"did you mean restart-strategy\.type"):
        from_settings({"restart-stratgy.type": "none"})
