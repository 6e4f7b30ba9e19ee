"""A clock for tests."""

from __future__ import annotations


class FakeClock:
    """A test clock that moves only when a test calls `advance` or the code calls `sleep`.

    Parameters
    ----------
    start : float
        The first time, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self.passed = 0.0

    def now(self) -> float:
        """Return the seconds since the epoch, by this clock."""
        return self._start + self.passed

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self.passed

    def sleep(self, seconds: float) -> None:
        """Advance the clock by this number of seconds, and return immediately."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock by this number of seconds."""
        self.passed += seconds
