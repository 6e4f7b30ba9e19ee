"""The end offset of a micro-batch, as Spark keeps it in its offset log: one serialiser, one canonical text.

Spark compares offsets as JSON *text*, so keys are always in the same order: alphabetical, partitions by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from transactional.barrier import CheckpointBarrier
from transactional.errors import LocationError

__all__ = [
    "SOURCE_NAME",
    "VERSION",
    "Partition",
    "Positions",
    "SourceOffset",
    "positions_from_json",
    "positions_to_json",
]

SOURCE_NAME: Final = "barrier-kafka"
VERSION: Final = 1


class Partition(NamedTuple):
    """A partition of a topic; orders by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


Positions = Mapping[Partition, int]
"""The offset of the next row, per partition."""


def positions_to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """``{topic: {partition: offset}}``, always in the same order."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(positions):
        found.setdefault(partition.topic, {})[str(partition.number)] = int(positions[partition])
    return found


def positions_from_json(value: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """Inverse of `positions_to_json`."""
    found = {Partition(topic, int(number)): int(offset) for topic, of in value.items() for number, offset in of.items()}
    return {partition: found[partition] for partition in sorted(found)}


@dataclass(frozen=True)
class SourceOffset:
    """What stands in one of our lines of the offset log.

    Parameters
    ----------
    topics : Positions
        Where the micro-batch ends.
    start : Positions
        Where it began, for each partition of `topics`. Recorded, because ``initialOffset()`` is asked again when the
        first micro-batch is replayed, and ``startingOffsets=latest`` answers differently then.
    barrier : CheckpointBarrier or None
        The last one at or before the end; None before the first.
    barrier_rows : bool
        Whether rows followed that barrier.
    interval : int
        Milliseconds between barriers; 0 is a barrier after every micro-batch with rows.
    ids : Mapping[str, str]
        The topics' ids: a topic that was deleted and created again has another one, and other rows at these offsets.
    """

    topics: Positions
    start: Positions
    barrier: CheckpointBarrier | None = None
    barrier_rows: bool = False
    interval: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The dict that Spark makes the text of; equal offsets give equal texts."""
        return {
            "barrier": self.barrier.to_json() if self.barrier else None,
            "barrierRows": self.barrier_rows,
            "ids": dict(sorted(self.ids.items())),
            "interval": self.interval,
            "source": SOURCE_NAME,
            "start": positions_to_json(self.start),
            "topics": positions_to_json(self.topics),
            "version": VERSION,
        }

    @classmethod
    def from_json(cls, value: Any) -> SourceOffset:
        """Inverse of `to_json`.

        Raises
        ------
        LocationError
            ``NOT_OUR_OFFSET`` or ``UNKNOWN_OFFSET_VERSION``: the checkpoint is another source's, or a newer release's.
        """
        if not isinstance(value, Mapping) or value.get("source") != SOURCE_NAME:
            found = value.get("source") if isinstance(value, Mapping) else type(value).__name__
            raise LocationError(
                "NOT_OUR_OFFSET",
                f"The checkpoint's offset was not written by {SOURCE_NAME} (found {found!r}): the query reads another "
                "source than before. Start it on a new checkpoint location.",
                found=str(found),
            )
        if value.get("version") != VERSION:
            raise LocationError(
                "UNKNOWN_OFFSET_VERSION",
                f"The checkpoint's offset has version {value.get('version')!r}, and this release of {SOURCE_NAME} "
                f"reads {VERSION}: run the release that wrote it, or a newer one.",
                version=value.get("version"),
                known=VERSION,
            )
        barrier = value.get("barrier")
        return cls(
            topics=positions_from_json(value["topics"]),
            start=positions_from_json(value["start"]),
            barrier=CheckpointBarrier.from_json(barrier) if barrier else None,
            barrier_rows=bool(value["barrierRows"]),
            interval=int(value["interval"]),
            ids=dict(value["ids"]),
        )
