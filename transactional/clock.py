"""Clocks that are passed as parameters, so that tests can control the time; deadlines and rate limits that use them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock that the protocol uses. In tests, pass a clock of your own, such as `FakeClock`."""

    def now(self) -> float:
        """Return the current time, in seconds since the epoch."""

    def monotonic(self) -> float:
        """Return a number of seconds that never decreases, for measuring durations."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return the current time, in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return a number of seconds that never decreases, for measuring durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""
        time.sleep(seconds)


class Deadline:
    """A point in time that several blocking calls share as their limit.

    Parameters
    ----------
    seconds : float
        The time until the deadline, from now.
    clock : Clock, optional
        Default: the machine's clock.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._end = self._clock.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until the deadline, or 0 if it has passed."""
        return max(0.0, self._end - self._clock.monotonic())

    def passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left() <= 0.0


class Pace:
    """A rate limiter: lets a loop do something at most once every `seconds`."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds  # The minimum time between two actions. The first action may be done immediately.
        self._clock = clock
        self._next = Deadline(0.0, clock)

    def due(self) -> bool:
        """Return whether the action may be done now. If True, it counts as done, and is due again after `seconds`."""
        if not self._next.passed():
            return False
        self._next = Deadline(self._seconds, self._clock)
        return True
