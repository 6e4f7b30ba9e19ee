"""`Available`: the offsets that a stream can read now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Loss, Positions, SourceOffset


@dataclass(frozen=True)
class Available:
    """The offsets that can be read now, and the lost rows that the next micro-batch has to record."""

    # The end of the previous micro-batch. If rows were lost, its positions are already after the lost rows.
    before: SourceOffset
    ends: Positions  # The offsets up to which the partitions can be read.
    # The first offset of each partition that `before` does not contain. If a partition is missing here, it is 0.
    first: Positions = field(default_factory=dict)
    # The losses that the positions in `before` skip. The next micro-batch records them, even if it has no rows.
    lost: Mapping[Partition, Loss] = field(default_factory=dict)

    @property
    def begin(self) -> dict[Partition, int]:
        """The offsets at which the next micro-batch begins. A partition that is new to the query begins at its first row."""
        known = {**self.first, **self.before.topics}
        return {partition: known.get(partition, 0) for partition in self.ends}

    @property
    def waiting(self) -> int:
        """The number of offsets that can be read."""
        begin = {**self.first, **self.before.topics}
        return sum(offset - begin.get(partition, 0) for partition, offset in self.ends.items())
