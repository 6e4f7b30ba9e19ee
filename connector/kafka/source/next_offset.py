"""Where a micro-batch ends: the limit shared out, and a barrier where one is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connector.kafka.source.offsets import Loss, Partition, Positions, SourceOffset
from connector.kafka.source.ranges import ranges_between
from connector.kafka.source.rate_limit import share_out
from transactional.barrier import CheckpointBarrier
from transactional.schedule import Schedule

__all__ = ["next_offset"]


def next_offset(
    before: SourceOffset,
    available: Positions,
    limit: int | None,
    schedule: Schedule,
    now: int,
    *,
    completed: int | None = None,
    ends: bool = False,
    first: Positions | None = None,
    lost: Mapping[Partition, Loss] | None = None,
    missed: Mapping[Partition, tuple[Loss, ...]] | None = None,
) -> SourceOffset | None:
    """The end of the next micro-batch, or None where there is none. Pure.

    Parameters
    ----------
    before : SourceOffset
        The end of the micro-batch before.
    available : Positions
        Where reading could end.
    limit : int or None
        At most so many offsets.
    schedule : Schedule
    now : int
        Milliseconds since the epoch.
    completed : int, optional
        When the checkpoint of the last barrier was first seen completed.
    ends : bool
        Whether the query ends where all of `available` is read.
    first : Positions, optional
        Where partitions begin that `before` does not have; 0 by default.
    lost : Mapping[Partition, Loss], optional
        What `before` stands behind already. A micro-batch is made to record it, also without rows.
    missed : Mapping[Partition, tuple[Loss, ...]], optional
        See `SourceOffset.missed`. It is recorded in the same way.

    Raises
    ------
    StoreError
        ``OFFSETS_WENT_BACK``, ``PARTITIONS_GONE``.
    """
    # Partitions that came while the query ran are read from their first row.
    known = {**(first or {}), **before.topics}
    begin = {partition: known.get(partition, 0) for partition in available}
    shares = {wanted.partition: len(wanted) for wanted in ranges_between(begin, available)}
    if limit is not None:
        # Where not all partitions can have a share, the sum of the offsets grows by the limit in each micro-batch.
        shares = share_out(shares, limit, turn=sum(begin.values()) // limit)
    end = {partition: offset + shares.get(partition, 0) for partition, offset in begin.items()}
    # New partitions that are not read yet have lost nothing yet.
    lost = {p: loss for p, loss in (lost or {}).items() if p in end or p not in (first or {})}
    rows_now = end != begin or bool(lost) or bool(missed)
    last = before.barrier
    kind = schedule.due(
        last,
        now,
        rows_now=rows_now,
        rows_since=before.barrier_rows,
        empty=before.barrier_empty,
        completed=completed,
        at_target=ends and end == available,
    )
    if kind is None and not rows_now:
        return None
    picked = SourceOffset(
        topics=end,
        start=begin,
        barrier=last,
        barrier_rows=True,
        interval=schedule.interval_ms,
        ids=before.ids,
        barrier_empty=before.barrier_empty,
        min_pause=schedule.min_pause_ms,
        lost=lost,
        gone=before.gone,
        missed=missed or {},
    )
    if kind is None:
        return picked
    return replace(
        picked,
        barrier=CheckpointBarrier(last.number + 1 if last else 1, kind, now),
        barrier_rows=False,
        barrier_empty=0 if rows_now or before.barrier_rows else before.barrier_empty + 1,
    )
