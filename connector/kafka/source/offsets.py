"""The end offset of a micro-batch, as Spark keeps it in its offset log: one serialiser, one canonical text.

Spark compares offsets as JSON *text*, so keys are always in the same order: alphabetical, partitions by number.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from transactional.barrier import CheckpointBarrier
from transactional.errors import LocationError

__all__ = [
    "SOURCE_NAME",
    "VERSION",
    "Loss",
    "Partition",
    "Positions",
    "Reason",
    "SetAside",
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


class Reason(enum.Enum):
    """Why rows that a query had not read yet are gone."""

    EXPIRED = "expired"
    """The partition begins behind the query's position: retention, or an administrator's deletion of records."""
    TRUNCATED = "truncated"
    """The partition ends before the query's position: an unclean leader election."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    GONE = "gone"
    """The partition can't be found."""


@dataclass(frozen=True)
class Loss:
    """A partition whose micro-batch does not begin where the one before it ended.

    Parameters
    ----------
    position : int
        The offset that was to be read next.
    resumes : int or None
        The offset that is read instead; None where nothing is.
    reason : Reason
    """

    position: int
    resumes: int | None
    reason: Reason

    @property
    def rows(self) -> int | None:
        """How many rows are lost at most (offsets count markers and aborted rows, too); None where nobody can tell."""
        return self.resumes - self.position if self.reason is Reason.EXPIRED and self.resumes is not None else None

    def to_json(self) -> dict[str, Any]:
        """For people, too: it stands in Spark's progress."""
        return {"from": self.position, "to": self.resumes, "why": self.reason.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Loss:
        """Inverse of `to_json`."""
        to = value["to"]
        return cls(int(value["from"]), None if to is None else int(to), Reason(value["why"]))


@dataclass(frozen=True)
class SetAside:
    """A topic's partitions that can't be found now, and would be read on if the same topic came back.

    Parameters
    ----------
    identity : str
        The topic's id; empty where it is not known.
    positions : Mapping[int, int]
        Partition to the offset of the next row.
    """

    identity: str
    positions: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """Partitions by number."""
        return {"id": self.identity, "partitions": {str(n): self.positions[n] for n in sorted(self.positions)}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SetAside:
        """Inverse of `to_json`."""
        return cls(str(value["id"]), {int(number): int(offset) for number, offset in value["partitions"].items()})


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
    lost : Mapping[Partition, Loss]
        Where the micro-batch does not begin where the one before it ended (``failOnDataLoss=false``). Recorded, so that
        a replay has the same ranges, and for people who ask what was lost.
    gone : Mapping[str, SetAside]
        Topics with partitions that were lost because they could not be found. Should it be for a moment only, they
        must not be read from their first row again.
    missed : Mapping[Partition, tuple[Loss, ...]]
        Offsets of earlier micro-batches that went between their planning and the end of their tasks
        (``failOnDataLoss=false``), from `Loss.position` to `Loss.resumes`. They stand here because the offsets of those
        micro-batches were written already. For people: nothing is decided by it.
    may_miss : bool
        Whether this micro-batch's tasks go on behind rows that retention removes while they run
        (``failOnDataLoss=false``).
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
    lost: Mapping[Partition, Loss] = field(default_factory=dict)
    gone: Mapping[str, SetAside] = field(default_factory=dict)
    missed: Mapping[Partition, tuple[Loss, ...]] = field(default_factory=dict)
    may_miss: bool = False

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
        gone = {"gone": {topic: self.gone[topic].to_json() for topic in sorted(self.gone)}} if self.gone else {}
        return {
            "barrier": self.barrier.to_json() if self.barrier else None,
            "barrierEmpty": self.barrier_empty,
            "barrierRows": self.barrier_rows,
            **gone,
            "ids": dict(sorted(self.ids.items())),
            "interval": self.interval,
            **({"lost": _losses_to_json(self.lost)} if self.lost else {}),
            **({"mayMiss": True} if self.may_miss else {}),
            "minPause": self.min_pause,
            **({"missed": _missed_to_json(self.missed)} if self.missed else {}),
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
            lost=_losses_from_json(value.get("lost", {})),
            gone={topic: SetAside.from_json(aside) for topic, aside in value.get("gone", {}).items()},
            missed=_missed_from_json(value.get("missed", {})),
            may_miss=bool(value.get("mayMiss", False)),
        )


def _losses_to_json(lost: Mapping[Partition, Loss]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for partition in sorted(lost):
        found.setdefault(partition.topic, {})[str(partition.number)] = lost[partition].to_json()
    return found


def _losses_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Loss]:
    found = {Partition(topic, int(n)): Loss.from_json(loss) for topic, of in value.items() for n, loss in of.items()}
    return {partition: found[partition] for partition in sorted(found)}


def _missed_to_json(missed: Mapping[Partition, tuple[Loss, ...]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for partition in sorted(missed):
        losses = [loss.to_json() for loss in missed[partition]]
        found.setdefault(partition.topic, {})[str(partition.number)] = losses
    return found


def _missed_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Partition, tuple[Loss, ...]]:
    found = {
        Partition(topic, int(number)): tuple(map(Loss.from_json, losses))
        for topic, of in value.items()
        for number, losses in of.items()
    }
    return {partition: found[partition] for partition in sorted(found)}
