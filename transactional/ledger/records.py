"""The records of the ledger: runs, parts, micro-batches, checkpoints, failures, restarts, rewinds, moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ExpectedPart, PartKey
from transactional.digest import ENCODING_VERSION, encoding_of
from transactional.ledger.states import CheckpointState
from transactional.ledger.written import Written

__all__ = [
    "BatchRecord",
    "CheckpointRecord",
    "Declined",
    "FailureRecord",
    "Moved",
    "Origin",
    "PartRecord",
    "RestartRecord",
    "Rewind",
    "RunRecord",
    "between",
]


def between(begin: int | None, end: int | None) -> int | None:
    """Return how long it took, never below 0: two drivers' clocks may disagree; None if one of the two is not known."""
    return None if begin is None or end is None else max(0, end - begin)


@dataclass
class RunRecord:
    """One driver's claim on the location.

    Attributes
    ----------
    lifetime : float or None
        Seconds that its prepared transactions live at the store; None for ever.
    process : dict[str, Any]
        The driver's process, as the engine's adapter identifies it.
    setup : dict[str, Any]
        Of the newest run only: what a tool needs to build the sink (format, options without secrets, schema).
    seen : dict[str, Any] or None
        What the store held of the query when it began: `TwoPhaseCommitSink.checkHistory`. None in an older format.
    binding : bool
        What the store holds beyond the journal is not accounted for. False since an operator has accepted it.
    marks : list[dict[str, Any]]
        Former ones, of a sink that returns another mark when it is asked again.
    overtaken : bool
        While it was the newest, an earlier run has journalled its mark: that one may have guarded the prefix last.
    restored : int or None
        The checkpoint whose states its hooks got back; 0 if there was none, None until they were asked.
    """

    token: int
    driver: str
    settings: str
    sink: str
    location: str
    prefix: str
    identity: dict[str, str]
    mark: dict[str, Any] | None = None
    ended: str | None = None
    lifetime: float | None = None
    process: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    restored: int | None = None
    seen: dict[str, Any] | None = None
    binding: bool = True
    marks: list[dict[str, Any]] = field(default_factory=list)
    overtaken: bool = False

    def identified(self, what: str, route: str = "") -> str | None:
        """Return a part of its store's identity; of a sink that is several, of the route's store."""
        return self.identity.get(f"{route}.{what}" if route else what)

    @property
    def routes(self) -> frozenset[str]:
        """Of a sink that is several: their names."""
        return frozenset(key.removesuffix(".cluster") for key in self.identity if key.endswith(".cluster"))

    def store_key(self, route: str = "") -> str:
        """Return the name of its store and prefix in `Ledger.newest`."""
        return json.dumps([self.sink, self.prefix, self.identified("cluster", route), *([route] if route else [])])

    def is_at(self, key: str, route: str = "") -> bool:
        """Return whether a name in `Ledger.newest` is of its store: a checkpoint is the query's, whatever the prefix was."""
        sink, _, *store = json.loads(key)
        return [sink, *store] == [self.sink, self.identified("cluster", route), *([route] if route else [])]


@dataclass
class PartRecord:
    """A prepared part: its handles (the original, then repairs) and what was judged of each.

    `verdicts[i]` belongs to `handles[i]`: ``committed``, ``lost``, None while it is open, or ``accepted`` if an operator has
    accepted that its rows may be missing.
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
        """Which part of its micro-batch it is."""
        return self.partition, self.route

    @property
    def named(self) -> dict[str, Any]:
        """What names it in the elements of an entry: `Ledger.part_of`."""
        return {"batch": self.batch, "partition": self.partition, **({"route": self.route} if self.route else {})}

    def __str__(self) -> str:
        return f"partition {self.partition}{f', sink {self.route}' if self.route else ''}"

    @property
    def open(self) -> bool:
        """Whether its last handle is neither known to be committed nor known to be lost."""
        return bool(self.handles) and self.verdicts[-1] is None

    @property
    def lost(self) -> bool:
        """Whether its last handle was judged lost: a repair is due."""
        return bool(self.handles) and self.verdicts[-1] == "lost"

    @property
    def committed(self) -> bool:
        """Whether its last handle was judged committed, or counts as such."""
        return bool(self.handles) and self.verdicts[-1] in ("committed", "accepted")

    @property
    def accepted(self) -> bool:
        """Whether an operator has accepted that its rows may be missing: it counts as committed."""
        return bool(self.handles) and self.verdicts[-1] == "accepted"

    def copy(self) -> PartRecord:
        """Return an independent record; its handles, which nothing changes, are shared."""
        part = copy(self)
        part.handles, part.verdicts = list(self.handles), list(self.verdicts)
        return part

    def expected(self) -> ExpectedPart:
        """Return the rows that a repair has to equal."""
        return ExpectedPart(self.partition, self.rows, self.bytes, self.digest, self.free)


@dataclass
class BatchRecord:
    """A micro-batch whose handles the journal holds. `checkpoint` is None while it is prepared only.

    Attributes
    ----------
    written : Written or None
        Of a batch write: what its version holds. None if that is not known: an earlier format did not keep it, or an
        operator has accepted a difference.
    """

    batch: int
    sources: str
    writers: int
    entry: int
    run: int
    parts: list[PartRecord]
    checkpoint: int | None = None
    time: int = 0
    written: Written | None = None

    @property
    def encoding(self) -> int:
        """The encoding of the recorded digests: in it the tasks of a replay digest their rows."""
        digests = [part.digest for part in self.parts] + ([self.written.digest] if self.written else [])
        return min((known for known in map(encoding_of, digests) if known is not None), default=ENCODING_VERSION)


@dataclass
class CheckpointRecord:
    """A checkpoint that was decided. Times are milliseconds since the epoch.

    Attributes
    ----------
    time : int
        Of the decision.
    barrier : int or None
        When the source made the barrier that closed it; None if no barrier did.
    began : int
        When its last micro-batch was acknowledged by all its tasks.
    settled_at : int or None
        When all its handles were known to be committed.
    rows, bytes, handles : int
    reason : str
        Name of the `ClosingReason`; empty if an older format did not keep it.
    hooks : dict[str, str]
        States of the checkpoint's hooks, by their identifiers, in base64.
    output : dict[str, Any]
        Where its rows are, as its sink reports.
    subsumed : list[int]
        Micro-batches whose own checkpoint had been declined.
    routes : dict[str, int]
        Of a sink that is several: rows of each route.
    cut : dict[str, Any] or None
        If its sources follow other queries' barriers: as `cut_of` returns it.
    marked : bool
        Whether its sink publishes a mark of it.
    """

    id: int
    batches: list[int]
    time: int
    rows: int
    state: CheckpointState = CheckpointState.PENDING
    barrier: int | None = None
    began: int = 0
    settled_at: int | None = None
    bytes: int = 0
    handles: int = 0
    reason: str = ""
    hooks: dict[str, str] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    subsumed: list[int] = field(default_factory=list)
    routes: dict[str, int] = field(default_factory=dict)
    cut: dict[str, Any] | None = None
    marked: bool = False

    @property
    def settled(self) -> bool:
        """Whether all of its rows are visible."""
        return self.state is CheckpointState.SETTLED

    def to_json(self) -> dict[str, Any]:
        """Return the record as it stands in a snapshot."""
        value = asdict(self)
        del value["state"]
        return {**value, "settled": self.settled}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointRecord:
        """Return a record from what `to_json` returned."""
        fields = {name: each for name, each in value.items() if name != "settled"}
        return cls(**fields, state=CheckpointState.SETTLED if value["settled"] else CheckpointState.DECIDED)


@dataclass
class Declined:
    """A checkpoint that could not be decided, and whose micro-batch waits for the next one."""

    batch: int
    time: int
    reason: str
    detail: str


@dataclass
class FailureRecord:
    """A checkpoint that failed, for people: aborted, void, or declined, by its `CheckpointFailureReason`."""

    entry: int
    time: int
    reason: str
    batches: list[int]
    detail: str = ""

    @property
    def state(self) -> CheckpointState:
        """The state in which it ended."""
        return _FAILED.get(self.reason, CheckpointState.ABORTED)


_FAILED = {
    CheckpointFailureReason.VOID.name: CheckpointState.VOID,
    CheckpointFailureReason.HOOK_FAILED.name: CheckpointState.DECLINED,
    CheckpointFailureReason.JOURNAL_REFUSED.name: CheckpointState.DECLINED,
}


@dataclass
class RestartRecord:
    """The reason why a supervisor started the query again.

    Attributes
    ----------
    entry : int
    time : int
        Milliseconds since the epoch.
    by : str
        Which supervisor.
    number : int
        How many restarts it has made, with this one.
    delay : float
        Seconds that it waits.
    condition : str
        Of the error that the query failed with; empty if it was none of ours.
    reason : str
        The error, cut short.
    rewound : bool
        Whether the query was rewound first.
    """

    entry: int
    time: int
    by: str
    number: int
    delay: float
    condition: str
    reason: str
    rewound: bool


@dataclass
class Rewind:
    """A rewind that was begun and is not done.

    Attributes
    ----------
    token : int
        Number of its entry; the process that holds it owns the location.
    checkpoint : int or None
        The target that a user has named; None to find the newest from which nothing is written twice.
    request : dict[str, Any]
        The options that allow it, and the process that does it.
    """

    token: int
    checkpoint: int | None
    request: dict[str, Any]


@dataclass
class Moved:
    """A final move: the query goes on elsewhere, and no entry follows this one.

    Attributes
    ----------
    entry : int
        Its number; the journal at the new location begins there.
    location : str
        The new location.
    savepoint : str
        Identifier of the savepoint that was restored there.
    checkpoint : int
        The checkpoint that the query went on from.
    """

    entry: int
    location: str
    savepoint: str
    checkpoint: int


@dataclass
class Origin:
    """The restore that began the journal.

    Attributes
    ----------
    savepoint : str
        Its identifier.
    origin : str
        The location that it was taken of.
    checkpoint, batch : int
        Which was restored, and its last micro-batch.
    position : int
        Of the journal when it was begun.
    claim : bool
        Whether the query goes on here, or this is a copy.
    """

    savepoint: str
    origin: str
    checkpoint: int
    batch: int
    position: int
    claim: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origin:
        """Return what a snapshot holds; an older release kept ``allowed`` with it, which is an option of the query now."""
        return cls(**{key: each for key, each in value.items() if key != "allowed"})
