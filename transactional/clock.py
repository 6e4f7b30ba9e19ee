"""Time as a parameter."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "Deadline", "SystemClock"]


class Clock(Protocol):
    """What the protocol needs of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
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
        """Seconds left, never below 0."""
        return max(0.0, self._end - self._clock.monotonic())

    def passed(self) -> bool:
        """Whether nothing is left."""
        return self.left() <= 0.0
