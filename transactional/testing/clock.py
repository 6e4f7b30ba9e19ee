"""A clock for tests."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A clock that moves only if it is advanced, or slept on.

    Parameters
    ----------
    start : float
        Seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self.passed = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._start + self.passed

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return self.passed

    def sleep(self, seconds: float) -> None:
        """Return at once, that much later."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.passed += seconds
