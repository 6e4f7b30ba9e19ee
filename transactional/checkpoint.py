"""A checkpoint before and after its decision, and the acknowledgements of its tasks."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.digest import ENCODING_VERSION, RowDigest, encoding_of

__all__ = [
    "AcknowledgeResult",
    "Acknowledgement",
    "CheckpointFailureReason",
    "CheckpointMark",
    "ClosingReason",
    "DecidedCheckpoint",
    "ExpectedPart",
    "Mode",
    "Part",
    "PartKey",
    "PendingCheckpoint",
    "TaskPlan",
]


PartKey = tuple[int, str]
"""Partition id and route: which part of its micro-batch one is."""


@dataclass(frozen=True)
class CheckpointMark:
    """The published facts about a checkpoint whose rows can be read, for queries that follow it.

    Parameters
    ----------
    query : str
        The query's id. It stays the same if the query moves to another location.
    checkpoint : int
    after : int
        The query's previous checkpoint with a mark; 0 for the first.
    lineage : Mapping[str, int]
        The newest barrier of each origin that the checkpoint contains: the queries that its rows come from, and its own query.
    exact : bool
        True if the checkpoint contains no row after those barriers.
    rows : int
    timestamp : int
        The time of its decision, in milliseconds since the epoch.
    restarted : bool
        True if rows of checkpoints after `after` are written again, because a rewind allowed it.
    """

    query: str
    checkpoint: int
    after: int
    lineage: Mapping[str, int]
    exact: bool
    rows: int
    timestamp: int
    restarted: bool


@dataclass(frozen=True)
class Part:
    """The part of a micro-batch that one writer task prepared, in one sink.

    Parameters
    ----------
    partition : int
        The task's partition id.
    handle : Mapping[str, Any] or None
        None if the task had no row, or if its rows are visible already (at-least-once).
    rows, bytes : int
    digest : str
        See `transactional.digest`.
    route : str
        Of a sink that is several (`TwoPhaseCommitSink.routes`): the name of the one; else empty.
    """

    partition: int
    handle: Mapping[str, Any] | None
    rows: int
    bytes: int
    digest: str
    route: str = ""

    @property
    def key(self) -> PartKey:
        """Its partition id and route: no other part of the micro-batch has them."""
        return self.partition, self.route

    def to_json(self) -> dict[str, Any]:
        """Return the part as it stands in the journal."""
        value = asdict(self)
        if not self.route:
            del value["route"]
        return value


class Mode(str, enum.Enum):
    """The way in which the tasks of a micro-batch treat their rows."""

    WRITE = "write"
    DRAIN = "drain"
    REPAIR = "repair"


@dataclass(frozen=True)
class ExpectedPart:
    """The rows that a repair of a lost part has to equal; `free` after an operator accepted a difference."""

    partition: int
    rows: int
    bytes: int
    digest: str
    free: bool = False


@dataclass(frozen=True)
class TaskPlan:
    """The plan that the tasks of one micro-batch get. Pickled to executors.

    Parameters
    ----------
    token : int
        The run: journal number of its `run` entry.
    batch : int
    mode : Mode
    queryId : str
        As the tasks know it.
    identity : str
        The query's, for the names of its transactions: `queryId`, with a suffix if the location is an adopted copy.
    prefix : str
    sources : str
        Digest of the source lines that the tasks read.
    writers : int or None
        Writer tasks that the micro-batch had when it was prepared, if it is.
    repairs : Mapping[PartKey, ExpectedPart]
        By partition id and route, in mode REPAIR.
    encoding : int
        Of the digests of rows that nothing is recorded of, or that a task discards: that of the record.
    likely : frozenset[int]
        Partition ids that probably get rows: see `Ledger.likely`.
    """

    token: int
    batch: int
    mode: Mode
    queryId: str
    identity: str
    prefix: str
    sources: str = ""
    writers: int | None = None
    repairs: Mapping[PartKey, ExpectedPart] = field(default_factory=dict)
    encoding: int = ENCODING_VERSION
    likely: frozenset[int] = frozenset()

    def drains(self, partition: int) -> bool:
        """Return whether a task has nothing to write: all its rows are prepared or decided already."""
        return self.mode is Mode.DRAIN or (
            self.mode is Mode.REPAIR and all(partition != lost for lost, _ in self.repairs)
        )

    def digest(self, partition: int, route: str = "") -> RowDigest:
        """Return an empty digest for a part's rows; of the encoding of the record that they are compared with."""
        expected = self.repairs.get((partition, route))
        recorded = encoding_of(expected.digest) if expected is not None else None
        return RowDigest(encoding=recorded or self.encoding)


@dataclass(frozen=True)
class Acknowledgement:
    """A writer task's report; travels as its commit message.

    Parameters
    ----------
    token : int
        From the plan.
    batch, partition, taskAttemptId : int
    drained : bool
        True if the task wrote nothing because its rows are prepared or decided already.
    parts : Sequence[Part]
        What was prepared, one for each route of the sink. Without a handle: it had no rows, or they are prepared or decided.
    sources : str
        From the plan: of what the rows were read.
    """

    token: int
    batch: int
    partition: int
    taskAttemptId: int
    drained: bool
    parts: Sequence[Part]
    sources: str = ""

    @property
    def handles(self) -> list[Mapping[str, Any]]:
        """Of the prepared parts."""
        return [part.handle for part in self.parts if part.handle is not None]


class ClosingReason(str, enum.Enum):
    """The reason why a micro-batch closes a checkpoint."""

    BARRIER = "a barrier of the source"
    FINAL = "the final barrier of the source"
    FIRST = "the query's first micro-batch, which no barrier closed"
    OTHER_SOURCE = "a source that carries no barriers"
    NO_DATA = "a micro-batch without data, made for a watermark"
    WRITE = "a batch write"
    ENOUGH = "maxBatchesPerCheckpoint"
    RETAINED = "minBatchesToRetain: files that a rewind would need are about to be purged"
    AGE = "its oldest prepared transaction has used half of its timeout"
    REQUEST = "it was requested"
    REPARTITION = "a repartition of the state of a stopped query, which adds a micro-batch"
    STOP = "a stop was requested: this is the final checkpoint"


class CheckpointFailureReason(str, enum.Enum):
    """The reason why a checkpoint failed. The journal holds the names."""

    ABORTED = "aborted before its decision: a task failed, the query was stopped, or its commit failed"
    VOID = "its prepared transactions were lost and none was committed, so its rows are written again"
    HOOK_FAILED = "declined: a checkpoint hook failed"
    JOURNAL_REFUSED = "declined: the decision could not be written to the journal"


class AcknowledgeResult(enum.Enum):
    """The fate of an acknowledgement; late and repeated ones are normal."""

    SUCCESS = "taken"
    DUPLICATE = "the same partition acknowledged before"
    UNKNOWN = "of another micro-batch or run"
    DISCARDED = "the checkpoint is decided or aborted already"


class PendingCheckpoint:
    """Collects the acknowledgements of one micro-batch. Decided, or aborted, exactly once.

    Parameters
    ----------
    token : int
        The run whose acknowledgements count.
    batch : int
    """

    def __init__(self, token: int, batch: int) -> None:
        self.token = token
        self.batch = batch
        self._tasks: dict[int, Acknowledgement] = {}
        self._over = False

    def acknowledge(self, message: Acknowledgement) -> AcknowledgeResult:
        """Record a task's report."""
        if self._over:
            return AcknowledgeResult.DISCARDED
        if (message.token, message.batch) != (self.token, self.batch):
            return AcknowledgeResult.UNKNOWN
        if message.partition in self._tasks:
            return AcknowledgeResult.DUPLICATE
        self._tasks[message.partition] = message
        return AcknowledgeResult.SUCCESS

    @property
    def parts(self) -> list[Part]:
        """The written parts, by partition."""
        written = [message for _, message in sorted(self._tasks.items()) if not message.drained]
        return [part for message in written for part in message.parts]

    def finish(self) -> None:
        """Discard later acknowledgements: it is decided or aborted."""
        self._over = True


@dataclass(frozen=True)
class DecidedCheckpoint:
    """A checkpoint whose commit is decided in the journal; `TwoPhaseCommitSink.commit` gets it.

    Parameters
    ----------
    id : int
        The number of its journal entry. Later checkpoints have higher ids.
    batches : Sequence[int]
        The micro-batches in the checkpoint.
    timestamp : int
        When it was decided, in milliseconds since the epoch.
    queryId, prefix : str
        As in `TransactionContext`.
    after : int
        The newest earlier checkpoint with rows that was committed to the same store; see `History.newest`.
    routes : Mapping[str, int]
        The value of `after` for each route, for a sink that combines several (`Routes`).
    last : bool
        False if this call of `commit` gets only the first micro-batches of the checkpoint, and another call follows.
    """

    id: int
    batches: Sequence[int]
    timestamp: int
    queryId: str = ""
    prefix: str = ""
    after: int = 0
    routes: Mapping[str, int] = field(default_factory=dict)
    last: bool = True

    @property
    def completed(self) -> int:
        """The newest checkpoint whose rows are all in the store after this call of `commit`. Store this id with the rows.

        It is `id` in the last call, and `after` in the calls before it.
        """
        return self.id if self.last else self.after
