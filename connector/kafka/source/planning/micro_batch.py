"""Picks the end of the next micro-batch: divides the limit among the partitions, and adds a barrier if one is due.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from connector.kafka.client.topics import Partition
from connector.kafka.source.alignment.aim import Aim
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.planning.available import Available
from connector.kafka.source.planning.ranges import ranges_between
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.schedule import Schedule

K = TypeVar("K", bound=Hashable)


def share_out(backlog: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Divide a limit on offsets among partitions, by the size of their backlogs.

    Every partition with a backlog gets at least one offset, so that large partitions do not starve small ones. The rest of
    the limit is divided in proportion to the backlogs, and the largest remainders are rounded up. If the limit is less
    than the number of partitions with a backlog, these partitions take turns; `turn` is the number of the turn.
    """
    waiting = [key for key, rows in backlog.items() if rows > 0]
    total = sum(backlog[key] for key in waiting)
    shares = dict.fromkeys(backlog, 0)
    if total <= limit:
        return {key: max(0, rows) for key, rows in backlog.items()}
    if limit < len(waiting):
        # Each turn begins where the previous turn ended.
        first = turn * limit % len(waiting)
        for index in range(limit):
            shares[waiting[(first + index) % len(waiting)]] = 1
        return shares
    # One offset for each partition, the rest in proportion. All in integers, because a float loses rows past 2**53.
    spare, rest = limit - len(waiting), total - len(waiting)
    remainders = []
    for position, key in enumerate(waiting):
        whole, part = divmod(spare * (backlog[key] - 1), rest)
        shares[key] = 1 + whole
        remainders.append((-part, position, key))
    for _, _, key in sorted(remainders, key=lambda entry: entry[:2])[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


@dataclass(frozen=True)
class TriggerLimits:
    """The limits on the size of a micro-batch."""

    most: int | None = None  # ``maxOffsetsPerTrigger``.
    least: int | None = None  # ``minOffsetsPerTrigger``.
    delay_ms: int = 900_000  # ``maxTriggerDelay``, in milliseconds.

    def hold_back(self, waiting: int, since: int | None, now: int) -> bool:
        """Return whether to wait for more rows.

        Wait if fewer than `least` rows are waiting, and less than `delay_ms` has passed after `since`.
        """
        if self.least is None or since is None or waiting >= self.least:
            return False
        return 0 <= now - since < self.delay_ms


@dataclass(frozen=True)
class Timing:
    """The times that decide whether a barrier is due."""

    schedule: Schedule
    now: int  # The time, in milliseconds since the epoch.
    # When the source first saw that the last barrier's checkpoint was completed, in milliseconds since the epoch. None if it
    # has not seen that yet.
    completed: int | None = None
    ends: bool = False  # Whether the query ends when all available rows are read.


def next_offset(available: Available, limit: int | None, timing: Timing, aim: Aim | None = None) -> SourceOffset | None:
    """Return the end of the next micro-batch, or None if there is nothing to read and no barrier is due."""
    before, schedule = available.before, timing.schedule
    begin, end = available.begin, _end(available, limit)
    # Record the loss in a new partition only when the partition is read.
    lost = {p: loss for p, loss in available.lost.items() if p in end or p not in available.first}
    rows_now = end != begin or bool(lost)
    cut = aim.cut_at(end) if aim is not None else None
    moved = cut is not None and not cut.same_marks(before.cut)
    kind = schedule.due(
        before.barrier,
        timing.now,
        rows=rows_now or moved or before.barrier_rows,
        empty=before.barrier_empty,
        completed=timing.completed,
        at_target=timing.ends and end == available.ends,
    )
    if aim is not None and aim.closes_at_cuts and cut is not None:
        if kind is None and aim.joins and moved:
            kind = BarrierKind.CHECKPOINT
        kind = kind if cut.exact else None
        rows_now = rows_now or moved  # a cut without rows also needs a micro-batch: later rows come after the cut
    if kind is None and not rows_now:
        return None
    picked = SourceOffset(
        topics=end,
        start=begin,
        barrier=before.barrier,
        barrier_rows=True,
        interval=schedule.interval_ms,
        ids=before.ids,
        barrier_empty=before.barrier_empty,
        min_pause=schedule.min_pause_ms,
        lost=lost,
        gone=before.gone,
        cut=cut,
    )
    if kind is None:
        return picked
    return replace(
        picked,
        barrier=CheckpointBarrier(before.barrier.number + 1 if before.barrier else 1, kind, timing.now),
        barrier_rows=False,
        barrier_empty=0 if rows_now or moved or before.barrier_rows else before.barrier_empty + 1,
    )


def _end(available: Available, limit: int | None) -> dict[Partition, int]:
    """Return the micro-batch's end: for each partition, the beginning plus the partition's share of the limit."""
    begin = available.begin
    shares = {wanted.partition: len(wanted) for wanted in ranges_between(begin, available.ends)}
    if limit is not None:
        # If the limit is too small for all partitions, each micro-batch adds exactly the limit to the sum of the offsets.
        shares = share_out(shares, limit, turn=sum(begin.values()) // limit)
    return {partition: offset + shares.get(partition, 0) for partition, offset in begin.items()}
