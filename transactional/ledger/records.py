"""The records of the ledger: runs, parts, micro-batches, checkpoints, failures, restarts, rewinds, moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ExpectedPart, PartKey
from transactional.ledger.states import CheckpointState
from transactional.ledger.written import Written


def between(begin: int | None, end: int | None) -> int | None:
    """Return the time from `begin` to `end`; None if either is unknown.

    Return 0 if `end` is earlier, because the clocks of two drivers may differ.
    """
    return None if begin is None or end is None else max(0, end - begin)


@dataclass
class RunRecord:
    """A run: one driver's claim on the location."""

    token: int
    driver: str
    settings: str
    sink: str
    location: str
    prefix: str
    identity: dict[str, str]
    mark: dict[str, Any] | None = None
    ended: str | None = None
    # How long the store keeps the run's prepared transactions, in seconds; None if it keeps them forever.
    lifetime: float | None = None
    # The driver's process, as the engine's adapter identifies it.
    process: dict[str, Any] = field(default_factory=dict)
    # Everything that a tool needs to build the sink: format, options without secrets, schema. Empty for all but the newest run.
    setup: dict[str, Any] = field(default_factory=dict)
    # The checkpoint from which this run restored the hooks; 0 if there was no checkpoint. None until the hooks are restored.
    restored: int | None = None
    # The state of the store when the run began, as `history_seen` returned it.
    seen: dict[str, Any] | None = None
    # True if the store must not hold more than the journal knows. False after an operator has accepted the store as it is.
    binding: bool = True
    # Earlier marks of this run, if the sink returned a different mark when the run guarded the prefix again.
    marks: list[dict[str, Any]] = field(default_factory=list)
    # True if an earlier run journaled its mark while this run was the newest. Then the earlier run may have guarded the prefix
    # last.
    overtaken: bool = False

    def identified(self, what: str, route: str = "") -> str | None:
        """Return one value of the store's identity, such as ``cluster``; None if the identity does not have it.

        If `route` is given, return the value of that route's store.
        """
        return self.identity.get(f"{route}.{what}" if route else what)

    @property
    def routes(self) -> frozenset[str]:
        """The names of the sinks that the run's sink combines; empty for a single sink."""
        return frozenset(key.removesuffix(".cluster") for key in self.identity if key.endswith(".cluster"))

    def store_key(self, route: str = "") -> str:
        """Return the key of the run's store and prefix in `Ledger.newest`."""
        return json.dumps([self.sink, self.prefix, self.identified("cluster", route), *([route] if route else [])])

    def is_at(self, key: str, route: str = "") -> bool:
        """Return whether a key of `Ledger.newest` belongs to the run's store, under any prefix."""
        sink, _, *store = json.loads(key)
        return [sink, *store] == [self.sink, self.identified("cluster", route), *([route] if route else [])]


@dataclass
class PartRecord:
    """A prepared part, with its handles (the original one, then one for each repair) and a verdict on each handle.

    `verdicts[i]` is the verdict on `handles[i]`: ``committed``, ``lost``, None while the transaction is open, or ``accepted``
    if an operator has accepted that its rows may be missing.
    """

    batch: int
    partition: int
    rows: int
    bytes: int
    digest: str
    handles: list[dict[str, Any]]
    verdicts: list[str | None]
    free: bool = False
    route: str = ""

    @property
    def key(self) -> PartKey:
        """The partition id and the route, which together identify the part in its micro-batch."""
        return self.partition, self.route

    @property
    def named(self) -> dict[str, Any]:
        """The keys and values that identify the part in a journal entry; see `Ledger.part_of`."""
        return {"batch": self.batch, "partition": self.partition, **({"route": self.route} if self.route else {})}

    def __str__(self) -> str:
        return f"partition {self.partition}{f', sink {self.route}' if self.route else ''}"

    @property
    def open(self) -> bool:
        """True if the last handle has no verdict yet."""
        return bool(self.handles) and self.verdicts[-1] is None

    @property
    def lost(self) -> bool:
        """True if the last handle was judged lost, so that the part has to be repaired."""
        return bool(self.handles) and self.verdicts[-1] == "lost"

    @property
    def committed(self) -> bool:
        """True if the last handle was judged committed, or accepted (see `accepted`)."""
        return bool(self.handles) and self.verdicts[-1] in ("committed", "accepted")

    @property
    def accepted(self) -> bool:
        """True if an operator has accepted that the part's rows may be missing. The part then counts as committed."""
        return bool(self.handles) and self.verdicts[-1] == "accepted"

    def copy(self) -> PartRecord:
        """Return an independent copy, which shares the handles, because these never change."""
        part = copy(self)
        part.handles, part.verdicts = list(self.handles), list(self.verdicts)
        return part

    def expected(self) -> ExpectedPart:
        """Return the row count, size and digest that the rows of a repair must have."""
        return ExpectedPart(self.partition, self.rows, self.bytes, self.digest, self.free)


@dataclass
class BatchRecord:
    """A micro-batch that is prepared or decided. `checkpoint` is None until it is decided."""

    batch: int
    sources: str
    writers: int
    entry: int
    run: int
    parts: list[PartRecord]
    checkpoint: int | None = None
    time: int = 0
    # For a batch write: a record of the rows. None if the rows are unknown, because an operator has accepted a difference.
    written: Written | None = None
    # Where the sources stopped that the query no longer had: name → topic → id and ends (`recovery.evolution.Left`).
    left: dict[str, Any] = field(default_factory=dict)


@dataclass
class CheckpointRecord:
    """A checkpoint that was decided. Times are milliseconds since the epoch."""

    id: int
    batches: list[int]
    time: int  # When the checkpoint was decided.
    # Totals of its micro-batches.
    rows: int
    state: CheckpointState = CheckpointState.PENDING
    # When the source made the barrier that closed the checkpoint; None if no barrier closed it.
    barrier: int | None = None
    began: int = 0  # When all tasks of its last micro-batch had acknowledged.
    settled_at: int | None = None  # When all its rows were known to be visible; None before that.
    bytes: int = 0
    handles: int = 0
    reason: str = ""  # Name of the `ClosingReason`.
    # The states of the checkpoint hooks, in base64, by the hooks' identifiers.
    hooks: dict[str, str] = field(default_factory=dict)
    # The positions of the rows in the store, as `ReportsOutput.output` returned them.
    output: dict[str, Any] = field(default_factory=dict)
    # Micro-batches whose own checkpoint was declined, so that this checkpoint contains them.
    subsumed: list[int] = field(default_factory=list)
    # The number of rows of each route, for a sink that combines several sinks.
    routes: dict[str, int] = field(default_factory=dict)
    cut: dict[str, Any] | None = None  # The value of `cut_of`, if the sources follow the barriers of other queries.
    marked: bool = False  # Whether the sink publishes a mark of the checkpoint.

    @property
    def settled(self) -> bool:
        """True if all rows of the checkpoint are visible."""
        return self.state is CheckpointState.SETTLED

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON types, for a snapshot."""
        value = asdict(self)
        del value["state"]
        return {**value, "settled": self.settled}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointRecord:
        """Build a record from the value of `to_json`."""
        fields = {name: each for name, each in value.items() if name != "settled"}
        return cls(**fields, state=CheckpointState.SETTLED if value["settled"] else CheckpointState.DECIDED)


@dataclass
class Declined:
    """A checkpoint that could not be decided. The micro-batch `batch` waits for the next checkpoint."""

    batch: int
    time: int
    reason: str
    detail: str


@dataclass
class FailureRecord:
    """A checkpoint that failed: aborted, void or declined. `reason` is the name of a `CheckpointFailureReason`."""

    entry: int
    time: int
    reason: str
    batches: list[int]
    detail: str = ""

    @property
    def state(self) -> CheckpointState:
        """The final state of the checkpoint."""
        return _FAILED.get(self.reason, CheckpointState.ABORTED)


_FAILED = {
    CheckpointFailureReason.VOID.name: CheckpointState.VOID,
    CheckpointFailureReason.HOOK_FAILED.name: CheckpointState.DECLINED,
    CheckpointFailureReason.JOURNAL_REFUSED.name: CheckpointState.DECLINED,
}


@dataclass
class RestartRecord:
    """A restart of the query by a supervisor, with its reason."""

    entry: int
    time: int  # Milliseconds since the epoch.
    by: str  # The name of the supervisor.
    number: int  # How many restarts the supervisor has made, including this one.
    delay: float  # How long the supervisor waits before the start, in seconds.
    condition: str  # The condition of the query's error; empty if the error is not one of this project's.
    reason: str  # The text of the error, shortened.
    rewound: bool  # Whether the query was rewound first.


@dataclass
class Rewind:
    """A rewind that has started and has not finished."""

    token: int  # Number of the `rewind begun` entry. Only the process that wrote this entry owns the location.
    # The checkpoint that the user chose. If None, the rewind goes to the newest one from which the query can continue without
    # writing a row twice.
    checkpoint: int | None
    request: dict[str, Any]  # The options of the rewind, and the process that runs it.


@dataclass
class Moved:
    """The query's final move to another location. No entry follows the `moved` entry."""

    entry: int  # Number of the `moved` entry. The numbers of the new location's journal continue from there.
    location: str  # The new location.
    savepoint: str  # Identifier of the savepoint that was restored there.
    checkpoint: int  # The checkpoint from which the query continues there.


@dataclass
class Origin:
    """The restore that created this journal."""

    savepoint: str  # Identifier of the savepoint.
    origin: str  # The location from which the savepoint was taken.
    # The restored checkpoint, and its last micro-batch.
    checkpoint: int
    batch: int
    position: int  # The `Ledger.position` of this journal when it was opened.
    claim: bool  # True if the query itself continues here, False if this location is a copy.
