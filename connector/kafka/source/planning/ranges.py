"""Ranges of offsets: each reader task reads one range. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from connector.kafka.client.topics import Partition, listed
from connector.kafka.source.offsets import Loss, Positions, Reason
from connector.kafka.source.planning.data_loss import lost_error
from transactional.errors import StoreError

__all__ = ["OffsetRange", "Splitting", "narrow", "ranges_between"]


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets of one partition from `start` (included) to `end` (excluded).

    Under read_committed, not every offset is a row: aborted rows and transaction markers also use up offsets.
    """

    partition: Partition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class Splitting:
    """How ranges are split into tasks.

    Parameters
    ----------
    least : int or None
        ``minPartitions``: the approximate minimum number of tasks.
    longest : int or None
        ``maxRecordsPerPartition``: the maximum number of offsets per task.
    """

    least: int | None = None
    longest: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether several tasks may read one partition."""
        return self.least is not None or self.longest is not None

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Split ranges that are too long into even parts, and return them in order.

        Ranges that are longer than `longest` are split first. If there are still fewer tasks than `least`, the ranges are split
        again: each gets a number of tasks for its share of all offsets, but at least one. The result depends only on the
        ranges and the options, so that a replay has the same tasks.
        """
        parts = list(ranges)
        if self.longest is not None:
            parts = [
                part for whole_range in parts for part in _parts(whole_range, -(-len(whole_range) // self.longest))
            ]
        if self.least is None or len(parts) >= self.least:
            return parts
        total = sum(map(len, parts))
        small = [whole_range for whole_range in parts if _share(len(whole_range), total, self.least) == 1]
        whole = set(small)
        rest, tasks = total - sum(map(len, small)), max(self.least - len(small), 1)
        return [
            part
            for whole_range in parts
            for part in _parts(whole_range, 1 if whole_range in whole else _share(len(whole_range), rest, tasks))
        ]


def _share(length: int, total: int, tasks: int) -> int:
    """Return how many tasks a range gets for its share of all offsets, rounded, but at least one."""
    return max(1, (2 * length * tasks + total) // (2 * total))


def _parts(whole: OffsetRange, number: int) -> list[OffsetRange]:
    number = min(number, len(whole))
    cuts = [whole.start + len(whole) * cut // number for cut in range(number + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(cuts)]


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges from `start` to `end`, sorted by topic and partition, without empty ranges."""
    if set(start) != set(end):
        lonely = sorted(set(start) ^ set(end))
        raise StoreError(
            "OFFSETS_DISAGREE",
            reason=f"start and end of a micro-batch do not name the same partitions: only one of them names {listed(lonely)}",
            partitions=[str(partition) for partition in lonely],
        )
    back = {p: Loss(start[p], end[p], Reason.TRUNCATED) for p in end if end[p] < start[p]}
    if back:
        raise lost_error(back)
    return [OffsetRange(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def narrow(
    ranges: Sequence[OffsetRange], unreadable: Collection[Partition], earliest: Positions, latest: Positions
) -> list[OffsetRange]:
    """Cut a replay's ranges to the rows that still exist. Pure.

    If no row of a range exists, the result has an empty range in its place. So the replay has the same tasks in the same
    order, and each task's rows are compared with the rows that this task committed before.
    """
    narrowed = []
    for whole in ranges:
        if whole.partition in unreadable:
            narrowed.append(replace(whole, end=whole.start))
        else:
            start = min(max(whole.start, earliest[whole.partition]), whole.end)
            narrowed.append(OffsetRange(whole.partition, start, max(start, min(whole.end, latest[whole.partition]))))
    return narrowed
