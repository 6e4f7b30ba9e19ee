"""Offsets that can be read now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Loss, Positions, SourceOffset

__all__ = ["Available"]


@dataclass(frozen=True)
class Available:
    """Offsets that can be read now.

    Parameters
    ----------
    before : SourceOffset
        The end of the micro-batch before, with the positions at which reading continues.
    ends : Positions
        Where reading could end.
    first : Positions
        Where partitions begin that `before` does not have; 0 by default.
    lost : Mapping[Partition, Loss]
        Losses that the positions of `before` skip. They are recorded in a micro-batch even if it has no rows.
    """

    before: SourceOffset
    ends: Positions
    first: Positions = field(default_factory=dict)
    lost: Mapping[Partition, Loss] = field(default_factory=dict)

    @property
    def begin(self) -> dict[Partition, int]:
        """Where the next micro-batch begins. Partitions that came while the query ran are read from their first row."""
        known = {**self.first, **self.before.topics}
        return {partition: known.get(partition, 0) for partition in self.ends}

    @property
    def waiting(self) -> int:
        """How many offsets can be read."""
        begin = {**self.first, **self.before.topics}
        return sum(offset - begin.get(partition, 0) for partition, offset in self.ends.items())
