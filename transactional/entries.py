"""What each kind of journal entry says: a class per kind, and the one way to and from the JSON of an entry's body.

A field that a later version has added is optional, as older entries lack it. A key that no field has is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Final

from transactional.entry import EntryKind

__all__ = [
    "KINDS",
    "Aborted",
    "Adopt",
    "Decided",
    "Declined",
    "Fact",
    "Fenced",
    "MarkTaken",
    "Moved",
    "Opened",
    "Prepared",
    "Repair",
    "Request",
    "Resolve",
    "Restarted",
    "RestoreBegun",
    "Restored",
    "RewindBegun",
    "RewindDone",
    "RunClaimed",
    "Settled",
    "Stopped",
    "Verdict",
    "Void",
    "fact_of",
]

Json = Mapping[str, Any]


ALWAYS: Final = {"always": True}
"""The metadata of a field that the JSON always has, though a micro-batch without rows leaves it as it is."""

RARE: Final = {"rare": True}
"""The metadata of a field that the JSON has only if it differs from the default."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The body of an entry. Parts of micro-batches, handles, setups and hook states are the JSON that their owners made."""

    kind: ClassVar[str]
    """Of `EntryKind`."""

    def to_json(self) -> dict[str, Any]:
        """Return the body."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {_name(of): value for of, value in values if not of.metadata.get("rare") or value != of.default}

    @classmethod
    def from_json(cls, body: Json) -> Fact:
        """Return what `to_json` gave, as this version or an earlier one wrote it."""
        known = {each: body[_name(each)] for each in fields(cls) if _is_required(each) or _name(each) in body}
        return cls(**{of.name: value for of, value in known.items()})


def _name(of: Field[Any]) -> str:
    return str(of.metadata.get("key") or of.name)


def _is_required(of: Field[Any]) -> bool:
    return of.default is MISSING or bool(of.metadata.get("always"))


@dataclass(frozen=True, kw_only=True)
class RunClaimed(Fact):
    """A driver has begun a run: from here on no former run decides anything."""

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
    """A run has guarded its prefix at the store."""

    kind = EntryKind.MARK

    run: int
    mark: Json


@dataclass(frozen=True, kw_only=True)
class Prepared(Fact):
    """All tasks of a micro-batch have prepared; no checkpoint is decided yet."""

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

    def decided(self, **more: Any) -> Decided:
        """Return the decision that this micro-batch closes: with ``covers``, and other fields of `Decided`."""
        return Decided(**{**{each.name: getattr(self, each.name) for each in fields(self)}, **more})


@dataclass(frozen=True, kw_only=True)
class Decided(Prepared):
    """A checkpoint counts: its micro-batch, and the prepared ones that it covers, are committed whatever dies."""

    kind = EntryKind.DECIDED

    covers: Sequence[int]
    cut: dict[str, Any] | None = field(default=None, metadata=RARE)
    marked: bool = field(default=False, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Settled(Fact):
    """All of a checkpoint is committed and can be read."""

    kind = EntryKind.SETTLED

    checkpoint: int
    run: int
    output: Json
    stamp: int | None = field(default=None, metadata=RARE)
    stamps: Json | None = field(default=None, metadata=RARE)
    repaired: Sequence[Json] = field(default=(), metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Verdict(Fact):
    """What was found out about single handles of a decided checkpoint."""

    kind = EntryKind.VERDICT

    checkpoint: int
    run: int
    parts: Sequence[Json]
    out_of_order: Any = field(default=None, metadata={**RARE, "key": "outOfOrder"})


@dataclass(frozen=True, kw_only=True)
class Repair(Fact):
    """A replay has written lost parts again."""

    kind = EntryKind.REPAIR

    checkpoint: int
    run: int
    parts: Sequence[Json]


@dataclass(frozen=True, kw_only=True)
class Void(Fact):
    """A checkpoint that lost all its transactions, or a prepared micro-batch, is written again."""

    kind = EntryKind.VOID

    run: int
    checkpoint: int | None = field(default=None, metadata=RARE)
    evidence: Sequence[Json] | None = field(default=None, metadata=RARE)
    prepared: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Aborted(Fact):
    """A run ended, as a micro-batch of it failed."""

    kind = EntryKind.ABORTED

    run: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Fenced(Fact):
    """A driver has seen that a newer run is there, and ends its own."""

    kind = EntryKind.FENCED

    run: int
    by: int


@dataclass(frozen=True, kw_only=True)
class Stopped(Fact):
    """A run ended cleanly: nothing of it is open."""

    kind = EntryKind.STOPPED

    run: int


@dataclass(frozen=True, kw_only=True)
class Resolve(Fact):
    """An operator has decided about a part whose outcome can't be known."""

    kind = EntryKind.RESOLVE

    checkpoint: int | None
    batch: int
    partition: int
    route: str = field(default="", metadata=RARE)
    decision: str


@dataclass(frozen=True, kw_only=True)
class Adopt(Fact):
    """An operator has accepted the location as it is."""

    kind = EntryKind.ADOPT

    location: str
    suffix: str
    base: int
    drop: bool
    sources: str | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Declined(Fact):
    """A checkpoint could not be decided; its micro-batch waits for the next one."""

    kind = EntryKind.DECLINED

    run: int
    batch: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Restored(Fact):
    """A run has given the hooks their states back."""

    kind = EntryKind.RESTORED

    run: int
    checkpoint: int | None


@dataclass(frozen=True, kw_only=True)
class Request(Fact):
    """Another process asks the running query for a checkpoint, a savepoint, or its end."""

    kind = EntryKind.REQUEST

    what: str
    run: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, kw_only=True)
class Restarted(Fact):
    """A supervisor starts the query again, and why."""

    kind = EntryKind.RESTARTED

    by: str
    number: int
    delay: float
    condition: str
    reason: str
    rewound: bool


@dataclass(frozen=True, kw_only=True)
class RewindBegun(Fact):
    """Only this rewind owns the location."""

    kind = EntryKind.REWIND_BEGUN

    checkpoint: int | None
    request: Json
    """Its items stand beside the checkpoint in the JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the body."""
        return {**self.request, "checkpoint": self.checkpoint}

    @classmethod
    def from_json(cls, body: Json) -> RewindBegun:
        """Return what `to_json` gave."""
        return cls(checkpoint=body["checkpoint"], request={key: body[key] for key in body if key != "checkpoint"})


@dataclass(frozen=True, kw_only=True)
class RewindDone(Fact):
    """The query's logs end with a micro-batch again."""

    kind = EntryKind.REWIND_DONE

    begun: int
    batch: int
    keep: int | None


@dataclass(frozen=True, kw_only=True)
class Moved(Fact):
    """The query goes on at another location; no entry follows."""

    kind = EntryKind.MOVED

    location: str
    savepoint: str
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class RestoreBegun(Fact):
    """The first entry of a restored journal: until `Opened`, no query may start here.

    Parameters
    ----------
    savepoint, origin, checkpoint, claim
        As in `transactional.ledger.Origin`.
    location : str
        The new location.
    query : str
        Spark's id of the query there.
    partitions : int or None
        Shuffle partitions that the state gets; None to keep its own.
    forced : bool
        A claim although the journal of the origin can't be read: a `Moved` that names this location is of another claim.
    ledger : Mapping[str, Any]
        The journal as of the checkpoint, with which this one continues when it is opened.
    """

    kind = EntryKind.RESTORING

    savepoint: str
    origin: str
    checkpoint: int
    claim: bool
    location: str
    query: str
    partitions: int | None
    forced: bool
    ledger: Json


@dataclass(frozen=True, kw_only=True)
class Opened(Fact):
    """The restore is done: the query may start here."""

    kind = EntryKind.OPENED

    position: int
    origin: Json | None = field(default=None, metadata=RARE)


_ALL: Final[Sequence[type[Fact]]] = (*Fact.__subclasses__(), Decided)

KINDS: Final = {each.kind: each for each in _ALL}
"""All but snapshots, which hold a ledger: `Ledger.to_json`."""


def fact_of(kind: str, body: Json) -> Fact:
    """Return the fact of an entry."""
    return KINDS[kind].from_json(body)
