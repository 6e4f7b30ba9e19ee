"""Restart strategies: they decide whether and when a supervisor starts a failed query again.

The strategies have the same names and meanings as Flink's. Time and random numbers are parameters, so strategies are
pure.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transactional.clock import Clock, SystemClock
from transactional.errors import OptionError

KEPT_LIVES = 10_000
"""The number of past lives that `Restarts` keeps. Every `FailureRate.max_failures` must be lower."""


class Life(NamedTuple):
    """One life of a query, from a start to its failure. Both times are in seconds, on the same clock."""

    began: float
    failed: float


class RestartStrategy(ABC):
    """Base class of restart strategies. A strategy decides whether and when a failed query is started again.

    Strategies are immutable.
    """

    @abstractmethod
    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the delay before the next start, in seconds; None to stop restarting.

        Parameters
        ----------
        restarts : int
            The number of restarts so far.
        lives : Sequence[Life]
            The most recent lives of the query, oldest first; the last one has just failed.
        chance : float
            A random number from 0 to 1.
        """


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """Restart strategy: never restart. The first failure ends the query."""

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the delay before the next start, in seconds; None to stop restarting."""
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """Restart strategy: a limited number of restarts in total, each after the same delay.

    Parameters
    ----------
    attempts : int
        The number of restarts, 0 or more.
    delay : float
        Seconds before each restart.
    """

    attempts: int = 1
    delay: float = 1.0

    def __post_init__(self) -> None:
        _check("attempts", self.attempts, self.attempts >= 0, "0 or more")
        _check("delay", self.delay, self.delay >= 0, "0 seconds or more")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the delay before the next start, in seconds; None to stop restarting."""
        return self.delay if restarts < self.attempts else None


@dataclass(frozen=True)
class FailureRate(RestartStrategy):
    """Restart strategy: restart until more than `max_failures` failures have occurred within the last `interval` seconds.

    Parameters
    ----------
    max_failures : int
        1 or more. With 3, the query ends at the fourth failure within the interval.
    interval : float
        The length of the interval, in seconds.
    delay : float
        Seconds before each restart.
    """

    max_failures: int = 1
    interval: float = 60.0
    delay: float = 1.0

    def __post_init__(self) -> None:
        _check("max_failures", self.max_failures, 1 <= self.max_failures < KEPT_LIVES, f"1 or more, below {KEPT_LIVES}")
        _check("interval", self.interval, self.interval > 0, "more than 0 seconds")
        _check("delay", self.delay, self.delay >= 0, "0 seconds or more")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the delay before the next start, in seconds; None to stop restarting."""
        now = lives[-1].failed
        recent = sum(now - life.failed <= self.interval for life in lives)
        return self.delay if recent <= self.max_failures else None


@dataclass(frozen=True)
class ExponentialDelay(RestartStrategy):
    """Restart strategy: restart without limit. The delay grows with each failure, up to a maximum.

    If the query runs for `reset_after` seconds before it fails, the delay is `initial` again.

    Parameters
    ----------
    initial, maximum : float
        The first and the longest delay, in seconds.
    multiplier : float
        Each delay is the previous delay times this factor.
    reset_after : float
        If the query has run for this number of seconds, the next delay is `initial` again.
    jitter : float
        From 0 to 1: the largest random change of a delay, as a fraction of the delay. With it, queries that failed together
        do not restart together. The delay stays between `initial` and `maximum`.
    """

    initial: float = 1.0
    maximum: float = 60.0
    multiplier: float = 1.5
    reset_after: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _check("initial", self.initial, self.initial > 0, "more than 0 seconds")
        _check("maximum", self.maximum, self.maximum >= self.initial, "the initial delay or more")
        _check("multiplier", self.multiplier, self.multiplier > 1, "more than 1")
        _check("reset_after", self.reset_after, self.reset_after > 0, "more than 0 seconds")
        _check("jitter", self.jitter, 0 <= self.jitter <= 1, "a number from 0 to 1")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the delay before the next start, in seconds; None to stop restarting."""
        found = self.initial
        for life in list(lives)[:0:-1]:  # the first life did not follow a restart
            if life.failed - life.began >= self.reset_after or found >= self.maximum:
                break
            found *= self.multiplier
        return max(self.initial, min(found * (1 + self.jitter * (2 * chance - 1)), self.maximum))


class Restarts:
    """Records one query's lives and restarts. After each failure, it asks a strategy whether and when to restart."""

    def __init__(
        self, strategy: RestartStrategy, clock: Clock | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        self.strategy = strategy
        self.number = 0  # The number of restarts that the strategy has allowed so far.
        self._clock = clock or SystemClock()  # Default: the machine's clock.
        self._chance = chance  # Returns a random number from 0 to 1.
        self._lives: deque[Life] = deque(maxlen=KEPT_LIVES)
        self._began = self._clock.monotonic()

    def began(self) -> None:
        """Record that the query starts now."""
        self._began = self._clock.monotonic()

    def failed(self) -> float | None:
        """Record that the query has failed now. Return the delay before the next start, in seconds; None to stop restarting."""
        self._lives.append(Life(self._began, self._clock.monotonic()))
        delay = self.strategy.pause(self.number, list(self._lives), self._chance())
        self.number += delay is not None
        return delay


def _check(what: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise _invalid(what, str(value), expected)


def _invalid(what: str, value: str, expected: str) -> OptionError:
    return OptionError("INVALID_OPTION", owner="The restart strategy", option=what, value=value, expectation=expected)
