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
