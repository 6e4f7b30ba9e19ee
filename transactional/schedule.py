"""The schedule of checkpoint barriers: it determines which micro-batches end with a barrier.

The code is pure: time and events are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from transactional.barrier import BarrierKind, CheckpointBarrier

EMPTY_BARRIER_MS: Final = 10_000
"""The minimum wait before the first empty barrier, in milliseconds. The wait doubles with each further empty barrier.

A barrier is empty if no rows were read since the previous one. If no new rows arrive, an empty barrier commits rows whose
checkpoint was declined. That is rarely needed, and an empty micro-batch takes half a second. So a source that gets rows every
few seconds makes no empty barriers.
"""

EMPTY_BARRIERS: Final = 10
"""The maximum number of empty barriers in a row. The last one comes after almost three hours at the earliest. By that
time, the prepared transactions have expired."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of a source's barriers, each of which closes a checkpoint."""

    # The minimum time between two barriers, in milliseconds. With 0, every micro-batch with rows has a barrier.
    interval_ms: int = 0
    min_pause_ms: int = 0  # The minimum time from the end of a checkpoint to the next barrier, in milliseconds.

    def due(
        self,
        last: CheckpointBarrier | None,
        now: int,
        *,
        rows: bool,
        empty: int = 0,
        completed: int | None = None,
        at_target: bool = False,
    ) -> BarrierKind | None:
        """Return the kind of barrier at the end of the next micro-batch; None if it has no barrier.

        If a barrier is due and there are no rows, the source makes an empty micro-batch, so that the barrier has a
        place. If the clock was set back and a recorded time is now in the future, the wait is treated as over, because
        an extra barrier does little harm.

        Parameters
        ----------
        last : CheckpointBarrier or None
            The last barrier; None if there was none.
        now : int
            The current time, in milliseconds since the epoch.
        rows : bool
            True if the micro-batch has rows, or if any earlier micro-batch since the last barrier has rows.
        empty : int
            The number of barriers without rows since the last barrier with rows.
        completed : int or None
            When the last barrier's checkpoint was completed, in milliseconds since the epoch. None if that is not known.
        at_target : bool
            True if the query ends after this micro-batch, because all available rows are read.
        """
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
