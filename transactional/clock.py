"""Time as a parameter."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "Deadline", "Pace", "SystemClock"]


class Clock(Protocol):
    """The clock that the protocol needs."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Deadline:
    """One limit shared by several blocking calls.

    Parameters
    ----------
    seconds : float
        From now.
    clock : Clock, optional
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._end = self._clock.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, never below 0."""
        return max(0.0, self._end - self._clock.monotonic())

    def passed(self) -> bool:
        """Return whether nothing is left."""
        return self.left() <= 0.0


class Pace:
    """A limiter that holds back calls that come more often than they may.

    Parameters
    ----------
    seconds : float
        Minimum time between two of them.
    clock : Clock
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = Deadline(0.0, clock)

    def due(self) -> bool:
        """Return whether it is time; if so, the next is `seconds` from now."""
        if not self._next.passed():
            return False
        self._next = Deadline(self._seconds, self._clock)
        return True
