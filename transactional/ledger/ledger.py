"""The coordinator's whole knowledge: the state after a number of entries of the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from transactional.entries import RestoreBegun
from transactional.entry import EntryKind
from transactional.ledger.records import (
    BatchRecord,
    CheckpointRecord,
    Declined,
    FailureRecord,
    Moved,
    Origin,
    PartRecord,
    RestartRecord,
    Rewind,
    RunRecord,
)
from transactional.ledger.written import Written
from transactional.transaction import Cutoff

__all__ = ["LAST_WRITTEN", "Ledger"]

LAST_WRITTEN = 2  # micro-batches

MOST_LIKELY = 1000
"""Partition ids that a plan carries to every task, at most. With more of them, a warm-up is the least of their costs."""


@dataclass
class Ledger:
    """The state after `position` entries.

    Attributes
    ----------
    position : int
        Number of the last folded entry; 0 for an empty journal.
    base : int
        Batches up to it need no record (adopted, or trimmed); -1 at the beginning.
    query : str
        The engine's id of the query; empty before the first run, and after `adopt`.
    originals : list[str]
        Prefixes of the query of which this location is an adopted copy.
    origin : str
        Of batch writes: the streaming query whose batch ids are their versions.
    voided : list[int]
        Micro-batches whose record was voided, until they are recorded again.
    retained : int
        Settled checkpoints that are kept.
    counts : dict[str, int]
        Since the beginning: triggered, completed, failed, declined, restored.
    totals : dict[str, int]
        Sums since the beginning, or since a release kept them: `rows` and `bytes` of settled checkpoints, milliseconds until
        they were `prepared`, `decided` and `committed`, parts that were `repaired`, rewinds (`rewound`).
    declined : list[Declined]
        Since the last decision, one after the other.
    failures : list[FailureRecord]
        The last ones.
    rewinding : Rewind or None
    reached : int
        The last micro-batch that was recorded before a rewind took the query back: a driver that stood still may write
        ``commits/N`` up to it, of micro-batches that are not done any more. -1 without a rewind.
    rewound : int
        Entry of the last rewind that was done; 0 without one.
    replay : int or None
        A rewind kept a part-committed checkpoint: its micro-batches run again from this one.
    request : int or None
        Entry of a request to close a checkpoint that no decision has fulfilled yet.
    moved : Moved or None
    restored : Origin or None
        If a savepoint was restored here.
    restoring : RestoreBegun or None
        A restore to this location is unfinished.
    stop : int or None
        Token of the run that was asked to stop; it counts only while that run is the newest.
    restarts : list[RestartRecord]
        The last ones.
    stamp : int
        The highest of a settled checkpoint: `TwoPhaseCommitSink.stamp`.
    stamps : dict[str, int]
        Of a sink that is several: the same for each route.
    newest : dict[str, int]
        The newest settled checkpoint with rows, by sink, prefix and store: `RunRecord.store_key`.
    logs : dict[int, str]
        ``offsets/<batch>``, whole, of the last two micro-batches and of the last decided one: a driver that stood still may
        replace the file, and the query would go on where the late one ends.
    wrote : list[list[int]]
        Partition ids that had rows in the two micro-batches that were recorded last.
    """

    position: int = 0
    base: int = -1
    location: str = ""
    identity_suffix: str = ""
    query: str = ""
    originals: list[str] = field(default_factory=list)
    origin: str = ""
    voided: list[int] = field(default_factory=list)
    retained: int = 100
    counts: dict[str, int] = field(default_factory=dict)
    declined: list[Declined] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)
    rewinding: Rewind | None = None
    reached: int = -1
    rewound: int = 0
    replay: int | None = None
    request: int | None = None
    moved: Moved | None = None
    restored: Origin | None = None
    restoring: RestoreBegun | None = None
    stop: int | None = None
    restarts: list[RestartRecord] = field(default_factory=list)
    runs: dict[int, RunRecord] = field(default_factory=dict)
    batches: dict[int, BatchRecord] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)
    stamp: int = 0
    stamps: dict[str, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    wrote: list[list[int]] = field(default_factory=list, compare=False)  # a hint: no recovery rests on it
    totals: dict[str, int] = field(default_factory=dict, compare=False)  # for people

    # -- questions --------------------------------------------------------------------------------------------------

    @property
    def newest_run(self) -> RunRecord | None:
        """The run with the highest token."""
        return self.runs[max(self.runs)] if self.runs else None

    @property
    def stop_asked(self) -> bool:
        """Whether the newest run was asked to stop, and has not done so; it may have failed meanwhile."""
        newest = self.newest_run
        return newest is not None and newest.token == self.stop and newest.ended != EntryKind.STOPPED

    @property
    def stopping(self) -> bool:
        """Whether the newest run was asked to stop, and has not ended."""
        newest = self.newest_run
        return self.stop_asked and newest is not None and not newest.ended

    @property
    def accounted(self) -> int:
        """The last micro-batch that is decided or prepared."""
        return max([self.base, *self.batches])

    @property
    def decided(self) -> int:
        """The last micro-batch that is decided, and all before it."""
        return max([self.base, *(number for number, record in self.batches.items() if record.checkpoint is not None)])

    @property
    def completed(self) -> CheckpointRecord | None:
        """The newest checkpoint that is settled."""
        settled = [checkpoint for checkpoint in self.checkpoints.values() if checkpoint.settled]
        return max(settled, key=lambda checkpoint: checkpoint.id, default=None)

    def identity(self, query: str) -> str:
        """Return the query's identity in the names of its transactions; that of an adopted copy differs."""
        return query + self.identity_suffix

    @property
    def settled(self) -> int:
        """The last micro-batch up to which all are committed."""
        pending = [batch for checkpoint in self.unsettled() for batch in checkpoint.batches]
        pending += [record.batch for record in self.undecided()] + self.voided
        return min(pending) - 1 if pending else self.accounted

    def unsettled(self) -> list[CheckpointRecord]:
        """Return the decided checkpoints whose handles may not all be committed yet, oldest first."""
        return [c for _, c in sorted(self.checkpoints.items()) if not c.settled]

    def undecided(self) -> list[BatchRecord]:
        """Return the prepared micro-batches that no decision covers, in order."""
        return [b for _, b in sorted(self.batches.items()) if b.checkpoint is None]

    def parts_of(self, checkpoint: CheckpointRecord) -> list[PartRecord]:
        """Return a checkpoint's parts, by batch and partition."""
        return [part for batch in checkpoint.batches for part in self.batches[batch].parts]

    def likely(self) -> frozenset[int]:
        """Return the partition ids that probably get rows in the next micro-batch; none if they are very many."""
        both = (
            frozenset(self.wrote[0]).intersection(*self.wrote[1:]) if len(self.wrote) == LAST_WRITTEN else frozenset()
        )
        return both if len(both) <= MOST_LIKELY else frozenset()

    def part(self, batch: int, partition: int, route: str = "") -> PartRecord:
        """Return one part; KeyError if there is none."""
        for part in self.batches[batch].parts:
            if part.key == (partition, route):
                return part
        raise KeyError(f"partition {partition}{f' of sink {route}' if route else ''} of micro-batch {batch}")

    def part_of(self, named: Mapping[str, Any]) -> PartRecord:
        """Return the part that an element of an entry names; KeyError if there is none."""
        return self.part(named["batch"], named["partition"], named.get("route", ""))

    def known_handles(self) -> list[dict[str, Any]]:
        """Return the last handles that a sweep must not touch: of prepared micro-batches and of unsettled decisions."""
        parts = [p for c in self.unsettled() for p in self.parts_of(c)]
        parts += [p for b in self.undecided() for p in b.parts]
        return [p.handles[-1] for p in parts if p.open]

    def cutoff(self, queryId: str, token: int) -> Cutoff:
        """Return the point before which a run's sweep finds nothing that can still be decided."""
        return Cutoff(self.identity(queryId), token, self.settled + 1)

    def copy(self) -> Ledger:
        """Return an independent ledger. Handles and other JSON of entries, which nothing changes, are shared."""
        ledger = copy(self)
        for name in ("originals", "voided", "declined", "failures", "restarts", "wrote"):
            setattr(ledger, name, list(getattr(self, name)))
        ledger.counts, ledger.logs, ledger.totals = dict(self.counts), dict(self.logs), dict(self.totals)
        ledger.newest, ledger.stamps = dict(self.newest), dict(self.stamps)
        ledger.runs = {token: copy(run) for token, run in self.runs.items()}
        ledger.checkpoints = {number: copy(checkpoint) for number, checkpoint in self.checkpoints.items()}
        ledger.batches = {number: copy(record) for number, record in self.batches.items()}
        for record in ledger.batches.values():
            record.parts = [part.copy() for part in record.parts]
        return ledger

    def accept_store(self) -> None:
        """Accept the store as it is, at an operator's request: its content beyond the journal is not checked."""
        for run in self.runs.values():
            run.binding = False
        self.newest = {}

    def raise_stamps(self, stamps: Mapping[str, int]) -> None:
        """Take in the stamps of a checkpoint's routes."""
        for route, stamp in stamps.items():
            self.stamps[route] = max(self.stamps.get(route, 0), stamp)

    def newest_at(self, run: RunRecord, route: str = "") -> int:
        """Return the newest checkpoint with rows that was committed to a run's store, under whatever prefix.

        0 if there is none, or an operator has accepted the store as it is since.
        """
        return max((newest for key, newest in self.newest.items() if run.is_at(key, route)), default=0)

    def known_at_store(self, routes: Iterable[str]) -> dict[str, int]:
        """Return the newest settled checkpoint with rows of the newest run's store, by route; those without are left out."""
        run = self.newest_run
        found = {route: self.newest_at(run, route) for route in ("", *routes)} if run is not None else {}
        return {route: checkpoint for route, checkpoint in found.items() if checkpoint}

    def store_record(self) -> dict[str, Any]:
        """Return what the journal knows of the store (`transactional.history`), as JSON types."""
        runs = {str(token): asdict(run) for token, run in self.runs.items()}
        return {"runs": runs, "stamp": self.stamp, "stamps": self.stamps, "newest": self.newest}

    # -- snapshots --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the whole state, for a snapshot."""
        checkpoints = {number: checkpoint.to_json() for number, checkpoint in self.checkpoints.items()}
        return {**asdict(self), "checkpoints": checkpoints}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """Return a ledger from what `to_json` returned; what an older snapshot does not have is as at the beginning."""
        held = [each.name for each in fields(cls) if value.get(each.name) is not None]
        return cls(**{name: _READERS.get(name, copy)(value[name]) for name in held})

    @classmethod
    def opened(cls, begun: RestoreBegun, position: int, origin: Mapping[str, Any] | None = None) -> Ledger:
        """Return the ledger with which a restored journal continues; `origin` is the `store_record` of a claim's origin."""
        found = cls.from_json(begun.ledger)
        batch = max(found.checkpoints[begun.checkpoint].batches)
        found.restored = Origin(begun.savepoint, begun.origin, begun.checkpoint, batch, position, begun.claim)
        found.location, found.position, found.reached = begun.location, position, -1
        if origin is not None:
            found.runs = {int(token): RunRecord(**run) for token, run in origin["runs"].items()}
            found.stamp = max(found.stamp, origin["stamp"])
            found.raise_stamps(origin.get("stamps", {}))
            found.newest = dict(origin.get("newest", {}))
        else:
            found.accept_store()  # runs that came after the savepoint have left their marks there
        if begun.claim:
            for run in found.runs.values():
                run.ended = run.ended or EntryKind.MOVED
        else:  # another query, which must never use a prefix of the first
            found.originals = sorted({*found.originals, *(run.prefix for run in found.runs.values())})
            found.runs, found.query, found.identity_suffix, found.newest = {}, "", "", {}
        return found


def _numbered(read: Callable[..., Any]) -> Callable[[Mapping[str, Any]], dict[int, Any]]:
    return lambda values: {int(number): read(each) for number, each in values.items()}


def _batch(value: Mapping[str, Any]) -> BatchRecord:
    written = Written(**value["written"]) if value.get("written") else None
    if written is not None:
        written = replace(written, routes={route: (rows, digest) for route, (rows, digest) in written.routes.items()})
    return BatchRecord(**{**value, "parts": [PartRecord(**part) for part in value["parts"]], "written": written})


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "declined": lambda values: [Declined(**each) for each in values],
    "failures": lambda values: [FailureRecord(**each) for each in values],
    "restarts": lambda values: [RestartRecord(**each) for each in values],
    "rewinding": lambda value: Rewind(**value),
    "moved": lambda value: Moved(**value),
    "restored": Origin.from_json,
    "restoring": RestoreBegun.from_json,
    "runs": _numbered(lambda value: RunRecord(**{"binding": False, **value})),  # not in older ones
    "batches": _numbered(_batch),
    "checkpoints": _numbered(CheckpointRecord.from_json),
    "logs": _numbered(str),
}
"""The attributes of a ledger that are no plain JSON, and how each is read from a snapshot."""
