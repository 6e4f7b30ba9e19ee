"""The schedule of checkpoint barriers behind a source's micro-batches. Pure: time and events are parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from transactional.barrier import BarrierKind, CheckpointBarrier

__all__ = ["EMPTY_BARRIERS", "EMPTY_BARRIER_MS", "Schedule"]

EMPTY_BARRIER_MS: Final = 10_000
"""Minimum time for which a quiet source waits for its first empty barrier, in milliseconds; twice as long for each next one.

The checkpoint that such a barrier rescues was declined, which is rare, and every stream that pauses pays an empty
micro-batch (half a second) for it: so rows that come every few seconds never meet one.
"""

EMPTY_BARRIERS: Final = 10
"""At most this many: the last comes after three hours at the earliest, when what was prepared has expired."""


@dataclass(frozen=True)
class Schedule:
    """The schedule by which checkpoints close.

    Parameters
    ----------
    interval_ms : int
        Minimum milliseconds from barrier to barrier; 0 is a barrier behind every micro-batch with rows.
    min_pause_ms : int
        Minimum milliseconds from the end of one checkpoint to the next barrier.
    """

    interval_ms: int = 0
    min_pause_ms: int = 0

    def due(
        self,
        last: CheckpointBarrier | None,
        now: int,
        *,
        rows_now: bool,
        rows_since: bool = False,
        empty: int = 0,
        completed: int | None = None,
        at_target: bool = False,
    ) -> BarrierKind | None:
        """Return the barrier that the micro-batch which ends now carries; None for none.

        If it is due and the micro-batch has no rows, an empty one is made to carry it. A clock that went back to
        before a time counts as if the wait from that time were over: a barrier too many costs little.
        """
        rows = rows_now or rows_since
        if at_target:
            ended = last is None or last.kind is BarrierKind.FINAL
            return BarrierKind.FINAL if rows or not ended else None
        if last is None:
            return BarrierKind.CHECKPOINT if rows else None
        if not rows and empty >= EMPTY_BARRIERS:
            return None
        wait = self.interval_ms if rows else max(self.interval_ms, EMPTY_BARRIER_MS) << empty
        rested = _over(last.timestamp if completed is None else completed, self.min_pause_ms, now)
        return BarrierKind.CHECKPOINT if rested and _over(last.timestamp, wait, now) else None


def _over(since: int, wait: int, now: int) -> bool:
    return now < since or now - since >= wait
