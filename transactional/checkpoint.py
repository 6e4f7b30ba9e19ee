"""Types that describe a checkpoint before and after its decision: the tasks' plan, acknowledgements and parts."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PartKey = tuple[int, str]
"""A partition id and a route, which together identify a part within its micro-batch."""


@dataclass(frozen=True)
class CheckpointMark:
    """A record that a query publishes about a checkpoint as soon as the checkpoint's rows can be read.

    Other queries that follow this query read its marks.

    Parameters
    ----------
    query : str
        The query's id, which stays the same if the query moves to another location.
    checkpoint : int
    after : int
        The id of the query's previous checkpoint with a mark; 0 for the first.
    lineage : Mapping[str, int]
        For each origin, by its query id: its newest barrier in this checkpoint. The origins are this query and the queries
        whose output this query reads, directly or indirectly.
    exact : bool
        True if the checkpoint contains no row after those barriers.
    rows : int
    timestamp : int
        The time of the checkpoint's decision, in milliseconds since the epoch.
    restarted : bool
        True if a rewind has undone checkpoints that are newer than `after`, so their rows are written again.
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
    """One writer task's part of a micro-batch, as the task prepared it in one sink."""

    partition: int  # The task's partition id.
    # The handle of the prepared transaction. None if the task had no row, or if its rows are visible already (at-least-once).
    handle: Mapping[str, Any] | None
    # The number of rows, and their size in bytes (see `RowDigest`).
    rows: int
    bytes: int
    digest: str  # The digest of the rows, with its encoding: see `transactional.digest`.
    route: str = ""  # One of `Routes.routes`, for a sink that combines several; otherwise empty.

    @property
    def key(self) -> PartKey:
        """The partition id and the route. No other part of the micro-batch has the same key."""
        return self.partition, self.route

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON for the journal."""
        value = asdict(self)
        if not self.route:
            del value["route"]
        return value


class Mode(str, enum.Enum):
    """The mode of a micro-batch's tasks: write all rows, discard all (DRAIN), or write only lost parts (REPAIR)."""

    WRITE = "write"
    DRAIN = "drain"
    REPAIR = "repair"


@dataclass(frozen=True)
class ExpectedPart:
    """The recorded row count, size and digest of a part whose transaction was lost. The rewritten rows must match all three.

    If `free` is True, nothing is compared, because an operator has accepted a difference.
    """

    partition: int
    rows: int
    bytes: int
    digest: str
    free: bool = False


@dataclass(frozen=True)
class TaskPlan:
    """The plan for the tasks of one micro-batch. The driver pickles the plan and sends it to the executors."""

    token: int  # The token of the run: the number of its `run` entry in the journal.
    batch: int  # The number of the micro-batch.
    mode: Mode
    queryId: str  # Spark's id of the query.
    # The query's id in the names of its transactions: `queryId`, with a suffix if the location is a copy (``--no-claim``).
    identity: str
    prefix: str  # The value of the option ``transactionalIdPrefix``.
    sources: str = ""  # The digest of the micro-batch's source lines.
    # The number of writer tasks when the micro-batch was prepared. None if the micro-batch is not in the journal yet.
    writers: int | None = None
    # The lost parts that the tasks write again, in mode REPAIR.
    repairs: Mapping[PartKey, ExpectedPart] = field(default_factory=dict)
    likely: frozenset[int] = frozenset()  # The partition ids that probably get rows: see `Ledger.likely`.

    def drains(self, partition: int) -> bool:
        """Return whether the task of a partition discards all of its rows, because they are already prepared or decided."""
        return self.mode is Mode.DRAIN or (
            self.mode is Mode.REPAIR and all(partition != lost for lost, _ in self.repairs)
        )


@dataclass(frozen=True)
class Acknowledgement:
    """A writer task's report to the driver. Spark delivers it as the task's commit message."""

    token: int  # The run's token, from the plan.
    # Spark's numbers of the micro-batch, the partition and the task attempt.
    batch: int
    partition: int
    taskAttemptId: int
    drained: bool  # True if the task discarded its rows, because they are already prepared or decided.
    # The task's part for each route of the sink. A part has no handle if it has no rows, if its rows were discarded, or if its
    # rows are visible already.
    parts: Sequence[Part]
    sources: str = ""  # The digest of the source lines, from the plan.

    @property
    def handles(self) -> list[Mapping[str, Any]]:
        """The handles of the parts that the task prepared."""
        return [part.handle for part in self.parts if part.handle is not None]


class ClosingReason(str, enum.Enum):
    """The reason why a micro-batch closes a checkpoint."""

    BARRIER = "a barrier of the source"
    FINAL = "the final barrier of the source"
    FIRST = "the query's first micro-batch, which no barrier closed"
    OTHER_SOURCE = "a source without barriers"
    NO_DATA = "a micro-batch without data, made for a watermark"
    WRITE = "a batch write"
    ENOUGH = "maxBatchesPerCheckpoint is reached"
    RETAINED = "minBatchesToRetain: files that a rewind would need are about to be purged"
    AGE = "the oldest prepared transaction has used half of its timeout"
    REQUEST = "a checkpoint or a savepoint was requested"
    REPARTITION = "a repartition of the state of a stopped query, which adds a micro-batch"
    STOP = "a stop was requested: this is the final checkpoint"


class CheckpointFailureReason(str, enum.Enum):
    """The reason why a checkpoint failed. The journal stores the member's name, not its value."""

    ABORTED = "aborted before its decision: a task failed, the query was stopped, or its commit failed"
    VOID = "its prepared transactions were lost and none was committed, so its rows are written again"
    HOOK_FAILED = "declined: a checkpoint hook failed"
    JOURNAL_REFUSED = "declined: the decision could not be written to the journal"


class AcknowledgeResult(enum.Enum):
    """The result of `PendingCheckpoint.acknowledge`. Late and repeated acknowledgements are normal."""

    SUCCESS = "recorded"
    DUPLICATE = "the partition was acknowledged earlier"
    UNKNOWN = "it belongs to a different micro-batch or run"
    DISCARDED = "the checkpoint is already decided or aborted"


class PendingCheckpoint:
    """The acknowledgements of one micro-batch, until its checkpoint is decided or aborted."""

    def __init__(self, token: int, batch: int) -> None:
        self.token = token  # The token of the run. Acknowledgements of other runs are not recorded.
        self.batch = batch  # The number of the micro-batch.
        self._tasks: dict[int, Acknowledgement] = {}
        self._over = False

    def acknowledge(self, message: Acknowledgement) -> AcknowledgeResult:
        """Record a task's acknowledgement. Return SUCCESS, or the reason why it was not recorded."""
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
        """The parts that tasks wrote, ordered by partition id. Tasks that discarded their rows have no part."""
        written = [message for _, message in sorted(self._tasks.items()) if not message.drained]
        return [part for message in written for part in message.parts]

    def finish(self) -> None:
        """Discard all later acknowledgements, because the checkpoint is decided or aborted."""
        self._over = True


@dataclass(frozen=True)
class DecidedCheckpoint:
    """A checkpoint that will be committed, according to the journal. Passed to `TwoPhaseCommitSink.commit`.

    Parameters
    ----------
    id : int
        The number of the journal entry with the decision. Later checkpoints have higher ids.
    batches : Sequence[int]
        The micro-batches in the checkpoint.
    timestamp : int
        The time of the decision, in milliseconds since the epoch.
    queryId, prefix : str
        The query's id and the value of its option ``transactionalIdPrefix``; see `TransactionContext`.
    after : int
        The newest earlier checkpoint that committed rows to the same store; see `History.newest`.
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
        """The id of the newest checkpoint whose rows are all in the store when this call of `commit` has returned.

        A sink stores this id with the rows. Several calls can commit one checkpoint: in the last call, the value is `id`; in
        all earlier calls, it is `after`.
        """
        return self.id if self.last else self.after
