"""The kinds of journal entries: a class for each kind, which converts the entry's body to JSON and back.

A field that was added in a later version is optional, because older entries lack the field. Unknown keys in the JSON are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Final

from transactional.entry import EntryKind

Json = Mapping[str, Any]


ALWAYS: Final = {"always": True}
"""The metadata of a field that is required in the JSON, although the class has a default for it."""

RARE: Final = {"rare": True}
"""The metadata of a field that is left out of the JSON if its value is the default."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The body of a journal entry. Nested values, such as parts, handles and hook states, are plain JSON."""

    kind: ClassVar[str]
    """The kind of the entry: one of `EntryKind`."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry's body as JSON."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {_name(of): value for of, value in values if not of.metadata.get("rare") or value != of.default}

    @classmethod
    def from_json(cls, body: Json) -> Fact:
        """Build the fact from a body that `to_json` wrote, in this or an earlier version."""
        known = {each: body[_name(each)] for each in fields(cls) if _is_required(each) or _name(each) in body}
        return cls(**{of.name: value for of, value in known.items()})


def _name(of: Field[Any]) -> str:
    return str(of.metadata.get("key") or of.name)


def _is_required(of: Field[Any]) -> bool:
    return of.default is MISSING or bool(of.metadata.get("always"))


@dataclass(frozen=True, kw_only=True)
class RunClaimed(Fact):
    """A driver has started a new run. Earlier runs can't decide anything anymore."""

    kind = EntryKind.RUN

    driver: str
    settings: str
    sink: str
    location: str
    prefix: str
    identity: Json
    query_id: str = field(metadata={"key": "queryId"})
    lifetime: float | None
    process: Json
    setup: Json
    retained: int
    seen: dict[str, Any] | None = None
    above: int = 0


@dataclass(frozen=True, kw_only=True)
class MarkTaken(Fact):
    """A run has claimed its prefix at the store; `mark` is the value that `GuardsRuns.guardRun` returned."""

    kind = EntryKind.MARK

    run: int
    mark: Json


@dataclass(frozen=True, kw_only=True)
class Prepared(Fact):
    """All tasks of a micro-batch have prepared their rows. No checkpoint with this micro-batch is decided yet."""

    kind = EntryKind.PREPARED

    run: int
    batch: int
    sources: str
    began: int
    writers: int = field(default=0, metadata=ALWAYS)
    origin: str = ""
    parts: Sequence[Json] = field(default=(), metadata=ALWAYS)
    barrier: int | None = field(default=None, metadata=ALWAYS)
    reason: str = field(default="", metadata=ALWAYS)
    hooks: Json = field(default_factory=dict, metadata=ALWAYS)
    log: str = field(default="", metadata=RARE)
    left: Json | None = field(default=None, metadata=RARE)

    def decided(self, **more: Any) -> Decided:
        """Return the decision of the checkpoint that this micro-batch closes. `more` has the fields that only `Decided` has."""
        return Decided(**{**{each.name: getattr(self, each.name) for each in fields(self)}, **more})


@dataclass(frozen=True, kw_only=True)
class Decided(Prepared):
    """A checkpoint is decided: its micro-batch and the prepared ones in `covers` will be committed, even after a crash."""

    kind = EntryKind.DECIDED

    covers: Sequence[int]
    cut: dict[str, Any] | None = field(default=None, metadata=RARE)
    marked: bool = field(default=False, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Settled(Fact):
    """All rows of a checkpoint are committed and can be read."""

    kind = EntryKind.SETTLED

    checkpoint: int
    run: int
    output: Json
    stamp: int | None = field(default=None, metadata=RARE)
    stamps: Json | None = field(default=None, metadata=RARE)
    repaired: Sequence[Json] = field(default=(), metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Verdict(Fact):
    """The outcomes of some handles of a decided checkpoint: each is committed or lost, with the evidence."""

    kind = EntryKind.VERDICT

    checkpoint: int
    run: int
    parts: Sequence[Json]
    out_of_order: Any = field(default=None, metadata={**RARE, "key": "outOfOrder"})


@dataclass(frozen=True, kw_only=True)
class Repair(Fact):
    """A replay has written lost parts of a decided checkpoint again; `parts` has their new handles."""

    kind = EntryKind.REPAIR

    checkpoint: int
    run: int
    parts: Sequence[Json]


@dataclass(frozen=True, kw_only=True)
class Void(Fact):
    """A decided checkpoint or a prepared micro-batch no longer counts, because its transactions are lost or expire too soon.

    The rows are written again.
    """

    kind = EntryKind.VOID

    run: int
    checkpoint: int | None = field(default=None, metadata=RARE)
    evidence: Sequence[Json] | None = field(default=None, metadata=RARE)
    prepared: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Aborted(Fact):
    """A run has ended because one of its micro-batches failed."""

    kind = EntryKind.ABORTED

    run: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Fenced(Fact):
    """A driver found a newer run (`by`) in the journal, so it ended its own run."""

    kind = EntryKind.FENCED

    run: int
    by: int


@dataclass(frozen=True, kw_only=True)
class Stopped(Fact):
    """A run has ended cleanly: none of its transactions is open."""

    kind = EntryKind.STOPPED

    run: int


@dataclass(frozen=True, kw_only=True)
class Resolve(Fact):
    """An operator has decided how to treat a part, because its outcome is unknown or its rows differ."""

    kind = EntryKind.RESOLVE

    checkpoint: int | None
    batch: int
    partition: int
    route: str = field(default="", metadata=RARE)
    decision: str


@dataclass(frozen=True, kw_only=True)
class Adopt(Fact):
    """An operator has accepted the current state of the location, for example after it was moved, copied or restored."""

    kind = EntryKind.ADOPT

    location: str
    suffix: str
    base: int
    drop: bool
    sources: str | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Declined(Fact):
    """The checkpoint that micro-batch `batch` closes could not be decided. The micro-batch waits for the next checkpoint."""

    kind = EntryKind.DECLINED

    run: int
    batch: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Restored(Fact):
    """A new run has given the checkpoint hooks their saved states."""

    kind = EntryKind.RESTORED

    run: int
    checkpoint: int | None


@dataclass(frozen=True, kw_only=True)
class Request(Fact):
    """Another process has asked the running query to close a checkpoint or to stop."""

    kind = EntryKind.REQUEST

    what: str
    run: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Restarted(Fact):
    """A supervisor is about to start the query again. The entry says why."""

    kind = EntryKind.RESTARTED

    by: str
    number: int
    delay: float
    condition: str
    reason: str
    rewound: bool


@dataclass(frozen=True, kw_only=True)
class RewindBegun(Fact):
    """A rewind has begun. It ends the query's runs; until `RewindDone`, no query can run at the location."""

    kind = EntryKind.REWIND_BEGUN

    checkpoint: int | None
    request: Json
    """The options of the rewind. In the JSON, these options are next to ``checkpoint``, not in an object of their own."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry's body as JSON."""
        return {**self.request, "checkpoint": self.checkpoint}

    @classmethod
    def from_json(cls, body: Json) -> RewindBegun:
        """Build the fact from a body that `to_json` wrote."""
        return cls(checkpoint=body["checkpoint"], request={key: body[key] for key in body if key != "checkpoint"})


@dataclass(frozen=True, kw_only=True)
class RewindDone(Fact):
    """A rewind has finished. The query's logs now end with micro-batch `batch`."""

    kind = EntryKind.REWIND_DONE

    begun: int
    batch: int
    keep: int | None


@dataclass(frozen=True, kw_only=True)
class Moved(Fact):
    """The query was moved to another location. This is the last entry of the journal."""

    kind = EntryKind.MOVED

    location: str
    savepoint: str
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class RestoreBegun(Fact):
    """A restore of a savepoint has begun. This is the new journal's first entry. Until `Opened`, no query may start."""

    kind = EntryKind.RESTORING

    # See `transactional.ledger.Origin`.
    savepoint: str
    origin: str
    checkpoint: int
    claim: bool
    location: str  # The new location.
    query: str  # Spark's id of the query at the new location.
    partitions: int | None  # The number of shuffle partitions that the state gets; None to keep the current number.
    # True if the user claimed the query although the origin's journal could not be read. If that journal can be read later and
    # has a `Moved` entry that names this location, a different claim wrote that entry.
    forced: bool
    ledger: Json  # The ledger of the savepoint, as JSON. When the new journal is opened, it continues with this ledger.


@dataclass(frozen=True, kw_only=True)
class Opened(Fact):
    """A restore has finished. The query may start at this location."""

    kind = EntryKind.OPENED

    position: int
    origin: Json | None = field(default=None, metadata=RARE)


_ALL: Final[Sequence[type[Fact]]] = (*Fact.__subclasses__(), Decided)

KINDS: Final = {each.kind: each for each in _ALL}
"""The class of each kind of entry. Snapshots have no class, because their body is a ledger (`Ledger.to_json`)."""


def fact_of(kind: str, body: Json) -> Fact:
    """Parse the body of a journal entry of this kind, and return the fact."""
    return KINDS[kind].from_json(body)
