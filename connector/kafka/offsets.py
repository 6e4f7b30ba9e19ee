"""The end offset of a micro-batch, as Spark keeps it in its offset log: one serialiser, one canonical text.

Spark compares offsets as JSON *text*, so keys are always in the same order: alphabetical, partitions by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    barrier_empty : int
        How many barriers in a row, up to `barrier`, had no row before them.
    min_pause : int
        Milliseconds from the end of a checkpoint to the next barrier.
    planned : tuple[SourceOffset, ...]
        The ends of the micro-batches that follow, put here by a rewind: they had been picked once, and parts of them
        are committed. None of them has planned ends itself. A micro-batch's digest leaves them out.
    """

    topics: Positions
    start: Positions
    barrier: CheckpointBarrier | None = None
    barrier_rows: bool = False
    interval: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    barrier_empty: int = 0
    min_pause: int = 0
    planned: tuple[SourceOffset, ...] = ()

    def next_planned(self) -> SourceOffset:
        """The first of the planned ends, which carries the others."""
        first, *others = self.planned
        return replace(first, planned=tuple(others))

    def same_end(self, other: SourceOffset) -> bool:
        """Whether no micro-batch lies between the two, whatever is planned behind them."""
        return replace(self, planned=()) == replace(other, planned=())

    def to_json(self) -> dict[str, Any]:
        """The dict that Spark makes the text of; equal offsets give equal texts."""
        planned = {"planned": [end.to_json() for end in self.planned]} if self.planned else {}
        return {
            "barrier": self.barrier.to_json() if self.barrier else None,
            "barrierEmpty": self.barrier_empty,
            "barrierRows": self.barrier_rows,
            "ids": dict(sorted(self.ids.items())),
            "interval": self.interval,
            "minPause": self.min_pause,
            **planned,
            "source": SOURCE_NAME,
            "start": positions_to_json(self.start),
            "topics": positions_to_json(self.topics),
            "version": VERSION,
        }

    @classmethod
    def from_json(cls, value: Any) -> SourceOffset:
        """Inverse of `to_json`; what an older release did not write has its default.

        Raises
        ------
        LocationError
            ``NOT_OUR_OFFSET`` or ``UNKNOWN_OFFSET_VERSION``: the checkpoint is another source's, or a newer release's;
            ``PLANNED_ENDS_NESTED``: a planned end that has planned ends itself.
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
        planned = tuple(cls.from_json(end) for end in value.get("planned", ()))
        if any(end.planned for end in planned):
            raise LocationError(
                "PLANNED_ENDS_NESTED",
                f"The checkpoint's offset of {SOURCE_NAME} has planned ends that have planned ends themselves: a rewind "
                "writes one list. The file was edited: restore it, or start on a new location.",
            )
        return cls(
            topics=positions_from_json(value["topics"]),
            start=positions_from_json(value["start"]),
            barrier=CheckpointBarrier.from_json(barrier) if barrier else None,
            barrier_rows=bool(value["barrierRows"]),
            interval=int(value["interval"]),
            ids=dict(value["ids"]),
            barrier_empty=int(value.get("barrierEmpty", 0)),
            min_pause=int(value.get("minPause", 0)),
            planned=planned,
        )
