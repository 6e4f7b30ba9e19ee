"""Offset ranges: each reader task reads one. Pure."""

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
    """Offsets from `start` (included) to `end` (excluded) of one partition.

    Under read_committed not every offset in it is a row: aborted rows and transaction markers take offsets too.
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
        ``minPartitions``: the minimum number of tasks, about.
    longest : int or None
        ``maxRecordsPerPartition``: the maximum number of offsets of one task.
    """

    least: int | None = None
    longest: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether a partition may have several tasks."""
        return self.least is not None or self.longest is not None

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Split ranges that are too long, evenly; a partition's rows keep their order.

        First by `longest`; then, if that makes fewer tasks than `least`, by share of all offsets: a small range stays
        whole, and the others share the tasks that are left. The result depends on ranges and options alone, so that a
        replay has the same tasks.
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
    """Return how many tasks a range gets by its share of all offsets; half a task is one."""
    return max(1, (2 * length * tasks + total) // (2 * total))


def _parts(whole: OffsetRange, number: int) -> list[OffsetRange]:
    number = min(number, len(whole))
    cuts = [whole.start + len(whole) * cut // number for cut in range(number + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(cuts)]


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges between two positions, in order of topic and partition; empty ranges are left out."""
    if set(start) != set(end):
        lonely = sorted(set(start) ^ set(end))
        raise StoreError(
            "OFFSETS_DISAGREE",
            reason=f"start and end of a micro-batch do not name the same partitions; only one names {listed(lonely)}",
            partitions=[str(partition) for partition in lonely],
        )
    back = {p: Loss(start[p], end[p], Reason.TRUNCATED) for p in end if end[p] < start[p]}
    if back:
        raise lost_error(back)
    return [OffsetRange(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def narrow(
    ranges: Sequence[OffsetRange], unreadable: Collection[Partition], earliest: Positions, latest: Positions
) -> list[OffsetRange]:
    """Cut a replay's ranges to the rows that are left. Pure.

    Ranges of which nothing is left stay, empty: the number and the order of the tasks are those of the first time, so that
    a task's rows are compared with those that the same task committed then.
    """
    narrowed = []
    for whole in ranges:
        if whole.partition in unreadable:
            narrowed.append(replace(whole, end=whole.start))
        else:
            start = min(max(whole.start, earliest[whole.partition]), whole.end)
            narrowed.append(OffsetRange(whole.partition, start, max(start, min(whole.end, latest[whole.partition]))))
    return narrowed
