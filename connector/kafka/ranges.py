"""Offset ranges: what one reader task reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from connector.kafka.offsets import Partition, Positions
from transactional.errors import StoreError

__all__ = ["OffsetRange", "ranges_between"]


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
            "an unclean leader election. Start the query on a new checkpoint location once it is clear what was lost.",
            partitions=[str(partition) for partition in back],
        )
    return [OffsetRange(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def _listed(partitions: list[Partition]) -> str:
    return ", ".join(str(partition) for partition in partitions[:10]) + (", ..." if len(partitions) > 10 else "")
