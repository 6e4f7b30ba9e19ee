"""The end offset of a micro-batch. Spark writes it to its offset log as JSON, which only this module produces.

Spark compares offsets as JSON *text*, so keys are always in the same order: alphabetical, and partitions by number.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connector.kafka.client.topics import Partition
from connector.kafka.source.alignment.cut import Cut
from connector.kafka.source.task_limits import TaskLimits
from transactional.barrier import CheckpointBarrier
from transactional.entry import UNFIT
from transactional.errors import LocationError

SOURCE_NAME: Final = "barrier-kafka"
VERSION: Final = 1


Positions = Mapping[Partition, int]
"""The offset of the next row, per partition."""


def positions_to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """Return ``{topic: {partition: offset}}``, always in the same order."""
    return _by_topic({partition: int(offset) for partition, offset in positions.items()})


def positions_from_json(value: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """Parse the result of `positions_to_json`."""
    return {partition: int(offset) for partition, offset in _by_partition(value).items()}


class Reason(enum.Enum):
    """The reason why rows were gone before a query could read them."""

    EXPIRED = "expired"
    """The partition begins after the query's position: retention or an administrator removed the rows."""
    TRUNCATED = "truncated"
    """The partition ends before the query's position: an unclean leader election lost the rows."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    GONE = "gone"
    """The partition can't be found."""


@dataclass(frozen=True)
class Loss:
    """Rows lost in one partition. In this partition, a micro-batch does not begin where the previous micro-batch ended."""

    position: int  # The offset that would have been read next.
    resumes: int | None  # The offset that is read next instead; None if the query no longer reads the partition.
    reason: Reason

    @property
    def rows(self) -> int | None:
        """The maximum number of lost rows (offsets also count markers and aborted rows); None if unknown."""
        return self.resumes - self.position if self.reason is Reason.EXPIRED and self.resumes is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the loss as the offset log stores it and Spark's progress shows it."""
        return {"from": self.position, "to": self.resumes, "why": self.reason.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Loss:
        """Parse the result of `to_json`."""
        to = value["to"]
        return cls(int(value["from"]), None if to is None else int(to), Reason(value["why"]))


@dataclass(frozen=True)
class SetAside:
    """A query's positions in those partitions of a topic that can't be found.

    If the partitions are found again, reading continues at these positions.
    """

    identity: str  # The topic's id; empty if it is not known.
    positions: Mapping[int, int]  # Partition number → the offset of the next row.

    def to_json(self) -> dict[str, Any]:
        """Return the positions as the offset log stores them, with partitions sorted by number."""
        return {"id": self.identity, "partitions": {str(n): self.positions[n] for n in sorted(self.positions)}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SetAside:
        """Parse the result of `to_json`."""
        return cls(str(value["id"]), {int(number): int(offset) for number, offset in value["partitions"].items()})


@dataclass(frozen=True)
class SourceOffset:
    """The end of a micro-batch, as this source writes it into Spark's offset log."""

    topics: Positions  # Where the micro-batch ends.
    # Where the micro-batch begins, for each partition of `topics`. This is recorded because Spark calls ``initialOffset()``
    # again when it replays the first micro-batch, and with ``startingOffsets=latest`` the answer is then different.
    start: Positions
    barrier: CheckpointBarrier | None = None  # The last barrier at or before the end; None before the first barrier.
    barrier_rows: bool = False  # Whether rows lie between that barrier and the end.
    interval: int = 0  # Milliseconds between barriers; 0 puts a barrier after every micro-batch with rows.
    # Topic → its id. If a topic is deleted and created again, it has a new id, and different rows at these offsets.
    ids: Mapping[str, str] = field(default_factory=dict)
    barrier_empty: int = 0  # How many barriers in a row, up to and including `barrier`, came without new rows.
    min_pause: int = 0  # Milliseconds from the end of a checkpoint to the next barrier.
    # The ends that the next micro-batches must have. A rewind records them: these micro-batches had already been picked before
    # the rewind, and some of their rows are committed. A planned end has no planned ends itself. The digest of a micro-batch
    # does not cover planned ends.
    planned: tuple[SourceOffset, ...] = ()
    # Partitions in which the micro-batch does not begin where the previous one ended (``failOnDataLoss=false``). They are
    # recorded so that a replay has the same ranges, and so that people can see what was lost.
    lost: Mapping[Partition, Loss] = field(default_factory=dict)
    # Topic → its partitions that could not be found, and so counted as lost. If they are found again, reading continues at
    # these positions, and not at their first rows.
    gone: Mapping[str, SetAside] = field(default_factory=dict)
    # Whether several tasks may read one partition's rows (``allowReordering``). If so, the order of the written rows is not
    # guaranteed.
    reordered: bool = False
    # Where the micro-batch ends among the barriers of other queries, if the query follows any (``alignOn``).
    cut: Cut | None = None
    # How the ranges are divided among tasks, whatever the options are when the micro-batch is replayed. None if an older
    # release wrote the offset: its tasks follow from the options.
    tasks: TaskLimits | None = None

    def next_planned(self) -> SourceOffset:
        """Return the end that a rewind planned for the next micro-batch. The result contains the remaining planned ends."""
        first, *others = self.planned
        return replace(first, planned=tuple(others))

    def same_end(self, other: SourceOffset) -> bool:
        """Return whether both offsets are equal, apart from the ends that a rewind has planned for later micro-batches."""
        return replace(self, planned=()) == replace(other, planned=())

    def to_json(self) -> dict[str, Any]:
        """Return the dict that Spark serializes. Equal offsets are serialized to the same string."""
        planned = {"planned": [end.to_json() for end in self.planned]} if self.planned else {}
        gone = {"gone": {topic: self.gone[topic].to_json() for topic in sorted(self.gone)}} if self.gone else {}
        return {
            "barrier": self.barrier.to_json() if self.barrier else None,
            "barrierEmpty": self.barrier_empty,
            "barrierRows": self.barrier_rows,
            **({"cut": self.cut.to_json()} if self.cut is not None else {}),
            **gone,
            "ids": dict(sorted(self.ids.items())),
            "interval": self.interval,
            **({"lost": _losses_to_json(self.lost)} if self.lost else {}),
            "minPause": self.min_pause,
            **planned,
            **({"reordered": True} if self.reordered else {}),
            "source": SOURCE_NAME,
            "start": positions_to_json(self.start),
            **({"tasks": self.tasks.to_json()} if self.tasks is not None else {}),
            "topics": positions_to_json(self.topics),
            "version": VERSION,
        }

    @classmethod
    def from_json(cls, value: Any) -> SourceOffset:
        """Parse the result of `to_json`. Fields that an older release did not write get their defaults."""
        try:
            return cls._from_json(value)
        except UNFIT as error:
            raise LocationError(
                "OFFSETS_DISAGREE", reason=f"an offset can't be parsed: {error!r}", partitions=[]
            ) from error

    @classmethod
    def _from_json(cls, value: Any) -> SourceOffset:
        if not isinstance(value, Mapping) or value.get("source") != SOURCE_NAME:
            source = value.get("source") if isinstance(value, Mapping) else type(value).__name__
            raise LocationError("NOT_OUR_OFFSET", found=str(source))
        if value.get("version") != VERSION:
            raise LocationError(
                "FORMAT_UNKNOWN",
                what=f"The {SOURCE_NAME} offset in the checkpoint location",
                found=f"version {value.get('version')}",
                known=f"version {VERSION}",
            )
        barrier = value.get("barrier")
        planned = tuple(cls.from_json(end) for end in value.get("planned", ()))
        if any(end.planned for end in planned):
            raise LocationError(
                "OFFSETS_DISAGREE",
                reason="a planned end offset contains planned end offsets itself, which is not possible",
                partitions=[],
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
            reordered=bool(value.get("reordered", False)),
            cut=Cut.from_json(value["cut"]) if value.get("cut") is not None else None,
            tasks=TaskLimits.from_json(value["tasks"]) if value.get("tasks") is not None else None,
        )


def _losses_to_json(lost: Mapping[Partition, Loss]) -> dict[str, dict[str, Any]]:
    return _by_topic({partition: loss.to_json() for partition, loss in lost.items()})


def _losses_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Loss]:
    return {partition: Loss.from_json(loss) for partition, loss in _by_partition(value).items()}


def _by_topic(values: Mapping[Partition, Any]) -> dict[str, dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for partition in sorted(values):
        topics.setdefault(partition.topic, {})[str(partition.number)] = values[partition]
    return topics


def _by_partition(value: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Any]:
    values = {
        Partition(topic, int(number)): entry for topic, of_topic in value.items() for number, entry in of_topic.items()
    }
    return {partition: values[partition] for partition in sorted(values)}
