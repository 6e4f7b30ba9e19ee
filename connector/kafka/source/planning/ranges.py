"""Makes the ranges of offsets that tasks read. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from connector.kafka.client.topics import Partition, listed
from connector.kafka.source.offsets import Loss, Positions, Reason
from connector.kafka.source.planning.data_loss import lost_error
from transactional.errors import StoreError


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


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges from `start` to `end`, sorted by topic and partition, without empty ranges."""
    if set(start) != set(end):
        lonely = sorted(set(start) ^ set(end))
        raise StoreError(
            "OFFSETS_DISAGREE",
            reason=f"the start offset and the end offset of a micro-batch do not have the same partitions: only one of the two "
            f"has {listed(lonely)}",
            partitions=[str(partition) for partition in lonely],
        )
    back = {p: Loss(start[p], end[p], Reason.TRUNCATED) for p in end if end[p] < start[p]}
    if back:
        raise lost_error(back)
    return [OffsetRange(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def narrow(
    ranges: Sequence[OffsetRange], unreadable: Collection[Partition], earliest: Positions, latest: Positions
) -> list[OffsetRange]:
    """Shorten the ranges of a micro-batch that runs again: keep only the rows that still exist.

    If no row of a range exists, the result has an empty range instead. So the tasks and their order stay the same, and the
    rows of each task can be compared with the rows that this task committed before.
    """
    narrowed = []
    for whole in ranges:
        if whole.partition in unreadable:
            narrowed.append(replace(whole, end=whole.start))
        else:
            start = min(max(whole.start, earliest[whole.partition]), whole.end)
            narrowed.append(OffsetRange(whole.partition, start, max(start, min(whole.end, latest[whole.partition]))))
    return narrowed
