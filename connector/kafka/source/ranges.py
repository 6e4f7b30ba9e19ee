"""Offset ranges: what one reader task reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from connector.kafka.source.offsets import Partition, Positions
from transactional.errors import StoreError

__all__ = ["OffsetRange", "Splitting", "ranges_between"]


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
    """Into how many tasks ranges are split.

    Parameters
    ----------
    least : int or None
        ``minPartitions``: about so many tasks, at least.
    longest : int or None
        ``maxRecordsPerPartition``: offsets of one task.
    """

    least: int | None = None
    longest: int | None = None

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Split what is too long, evenly; the order of the rows of a partition is that of its ranges.

        First by `longest`, then, where that makes fewer tasks than `least`, by share of all offsets: a range that is
        small stays whole, and the others share the tasks that are left. A function of ranges and options alone, so that a
        replay has the same tasks.

        Parameters
        ----------
        ranges : Sequence[OffsetRange]
            None of them empty.
        """
        found = list(ranges)
        if self.longest is not None:
            found = [part for each in found for part in _parts(each, -(-len(each) // self.longest))]
        if self.least is None or len(found) >= self.least:
            return found
        total = sum(map(len, found))
        small = [each for each in found if _share(len(each), total, self.least) == 1]
        whole = set(small)
        rest, tasks = total - sum(map(len, small)), max(self.least - len(small), 1)
        return [part for each in found for part in _parts(each, 1 if each in whole else _share(len(each), rest, tasks))]


def _share(length: int, total: int, tasks: int) -> int:
    """Tasks of a range, by its share of all offsets; half a task is one."""
    return max(1, (2 * length * tasks + total) // (2 * total))


def _parts(whole: OffsetRange, number: int) -> list[OffsetRange]:
    number = min(number, len(whole))
    cuts = [whole.start + len(whole) * cut // number for cut in range(number + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(cuts)]


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """What lies between two positions, in order of topic and partition; empty ranges are left out.

    Raises
    ------
    StoreError
        ``OFFSETS_WENT_BACK``: an end before its start; ``PARTITIONS_GONE``: a partition that has a start but no end,
        or an end but no start.
    """
    if set(start) != set(end):
        lonely = sorted(set(start) ^ set(end))
        raise StoreError(
            "PARTITIONS_GONE",
            f"Start and end of a micro-batch do not name the same partitions; only one names {_listed(lonely)}.",
            partitions=[str(partition) for partition in lonely],
        )
    back = [partition for partition in sorted(end) if end[partition] < start[partition]]
    if back:
        told = ", ".join(f"{p} (read up to {start[p]}, ends at {end[p]})" for p in back[:10])
        raise StoreError(
            "OFFSETS_WENT_BACK",
            f"The topic ends before what was read already: {told}. It was deleted and created again, or lost rows in "
            "an unclean leader election. Once it is clear what was lost, set failOnDataLoss to false for one run (it goes on "
            "at the end that is there), or start the query on a new checkpoint location.",
            partitions=[str(partition) for partition in back],
        )
    return [OffsetRange(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def _listed(partitions: list[Partition]) -> str:
    return ", ".join(str(partition) for partition in partitions[:10]) + (", ..." if len(partitions) > 10 else "")
