"""The ledger: everything that is known about a query, computed by applying the journal's entries in order (the fold)."""

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

LAST_WRITTEN = 2  # micro-batches

MOST_LIKELY = 1000
"""The maximum number of likely partition ids in a plan (see `Ledger.likely`). If there are more, the plan lists none,
because a warm-up then saves too little."""


@dataclass
class Ledger:
    """The state of a location, after the journal's entries up to number `position` were applied in order."""

    position: int = 0  # Number of the last folded entry; 0 for an empty journal.
    # The highest id of all checkpoints that were ever decided here, before a rewind as well, or that an operator has accepted.
    # If the store holds a higher id, the location is an older copy.
    known: int = 0
    # The micro-batches up to this one need no record, because they were adopted or their records are no longer kept. -1 at the
    # beginning.
    base: int = -1
    location: str = ""
    identity_suffix: str = ""
    query: str = ""  # The engine's id of the query; empty before the first run, and after `adopt`.
    # If this location is an adopted copy: the prefixes of the original query, which the copy must not use.
    originals: list[str] = field(default_factory=list)
    origin: str = ""  # For batch writes: the streaming query whose batch ids are the versions; empty if there is none.
    voided: list[int] = field(default_factory=list)  # Micro-batches that were voided and have not been recorded again.
    retained: int = 100  # How many settled checkpoints the ledger keeps.
    # How many checkpoints were triggered, completed, failed, declined and restored since the beginning, and how many restarts
    # there were.
    counts: dict[str, int] = field(default_factory=dict)
    # The checkpoints that were declined since the last decision, in order.
    declined: list[Declined] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)  # The last checkpoints that failed.
    rewinding: Rewind | None = None  # The rewind that has started and has not finished.
    # The highest micro-batch that was recorded before a rewind; -1 without a rewind. A driver that was paused during the rewind
    # may still write ``commits/N`` of micro-batches up to this one, although the rewind deleted them.
    reached: int = -1
    rewound: int = 0  # Number of the last `rewind done` entry; 0 if there is none.
    # If a rewind kept a checkpoint that is committed only in part: its first micro-batch that runs again. Otherwise None.
    replay: int | None = None
    request: int | None = None  # Number of the entry that requests a checkpoint; None once a decision has fulfilled it.
    moved: Moved | None = None  # The move of the query to another location.
    restored: Origin | None = None  # The restore with which this journal began.
    restoring: RestoreBegun | None = None  # The unfinished restore to this location.
    # Token of the run that was asked to stop. The request counts only while that run is the newest.
    stop: int | None = None
    restarts: list[RestartRecord] = field(default_factory=list)  # The last restarts by a supervisor.
    runs: dict[int, RunRecord] = field(default_factory=dict)
    batches: dict[int, BatchRecord] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)
    # The text of ``offsets/<batch>``, for the last two micro-batches and the last decided one. A driver that was paused may
    # overwrite such a file; a rewind then puts the recorded text back.
    logs: dict[int, str] = field(default_factory=dict)
    stamp: int = 0  # The highest `KeepsEvidence.stamp` of all settled checkpoints.
    # The highest stamp of each route, for a sink that combines several sinks.
    stamps: dict[str, int] = field(default_factory=dict)
    # The newest settled checkpoint with rows for each sink, prefix and store, by `RunRecord.store_key`.
    newest: dict[str, int] = field(default_factory=dict)
    # Partition ids that had rows, for each of the two micro-batches that were recorded last.
    wrote: list[list[int]] = field(default_factory=list, compare=False)  # a hint: no recovery depends on it
    # Sums since the beginning, or since the first release that kept them: `rows` and `bytes` of settled checkpoints, the
    # milliseconds of their steps (`prepared_ms`, `decided_ms`, `committed_ms`), parts that were `repaired`, and rewinds
    # (`rewound`).
    totals: dict[str, int] = field(default_factory=dict, compare=False)  # for people

    # -- questions --------------------------------------------------------------------------------------------------

    @property
    def newest_run(self) -> RunRecord | None:
        """The run with the highest token."""
        return self.runs[max(self.runs)] if self.runs else None

    @property
    def stop_asked(self) -> bool:
        """True if the newest run was asked to stop and has not stopped yet, even if it has failed in the meantime."""
        newest = self.newest_run
        return newest is not None and newest.token == self.stop and newest.ended != EntryKind.STOPPED

    @property
    def stopping(self) -> bool:
        """True if the newest run was asked to stop, and has not ended in any way."""
        newest = self.newest_run
        return self.stop_asked and newest is not None and not newest.ended

    @property
    def accounted(self) -> int:
        """The last micro-batch that is decided or prepared."""
        return max([self.base, *self.batches])

    @property
    def decided(self) -> int:
        """The last decided micro-batch; all earlier micro-batches are decided as well."""
        return max([self.base, *(number for number, record in self.batches.items() if record.checkpoint is not None)])

    @property
    def completed(self) -> CheckpointRecord | None:
        """The newest checkpoint that is settled."""
        settled = [checkpoint for checkpoint in self.checkpoints.values() if checkpoint.settled]
        return max(settled, key=lambda checkpoint: checkpoint.id, default=None)

    def identity(self, query: str) -> str:
        """Return the query's id for the names of its transactions. If the location is a copy, the id has a suffix."""
        return query + self.identity_suffix

    @property
    def settled(self) -> int:
        """The highest micro-batch N for which all micro-batches up to N are committed."""
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
        """Return the parts of all micro-batches of a checkpoint, in order."""
        return [part for batch in checkpoint.batches for part in self.batches[batch].parts]

    def left_after(self, batch: int) -> Mapping[str, Any]:
        """Return the offsets at which removed sources had stopped, as the journal recorded them with a micro-batch.

        Return an empty mapping if the micro-batch has no record.
        """
        record = self.batches.get(batch)
        return {} if record is None else record.left

    def likely(self) -> frozenset[int]:
        """Return the partition ids that probably get rows in the next micro-batch.

        These are the partition ids that had rows in each of the last two micro-batches. If there are more than
        `MOST_LIKELY`, the set is empty.
        """
        both = (
            frozenset(self.wrote[0]).intersection(*self.wrote[1:]) if len(self.wrote) == LAST_WRITTEN else frozenset()
        )
        return both if len(both) <= MOST_LIKELY else frozenset()

    def part(self, batch: int, partition: int, route: str = "") -> PartRecord:
        """Return a part of a micro-batch; raise KeyError if it does not exist."""
        for part in self.batches[batch].parts:
            if part.key == (partition, route):
                return part
        raise KeyError(f"partition {partition}{f' of sink {route}' if route else ''} of micro-batch {batch}")

    def part_of(self, named: Mapping[str, Any]) -> PartRecord:
        """Return the part that a journal entry identifies (see `PartRecord.named`); raise KeyError if it does not exist."""
        return self.part(named["batch"], named["partition"], named.get("route", ""))

    def known_handles(self) -> list[dict[str, Any]]:
        """Return the handles that no sweep may abort: the open handles of prepared micro-batches and unsettled checkpoints."""
        parts = [p for c in self.unsettled() for p in self.parts_of(c)]
        parts += [p for b in self.undecided() for p in b.parts]
        return [p.handles[-1] for p in parts if p.open]

    def cutoff(self, queryId: str, token: int) -> Cutoff:
        """Return the cut-off for a sweep by the run `token` (see `Cutoff`).

        The transactions of earlier runs are before the cut-off, and so are this run's transactions up to micro-batch
        `settled`.
        """
        return Cutoff(self.identity(queryId), token, self.settled + 1)

    def copy(self) -> Ledger:
        """Return an independent copy, which shares handles and other JSON values of entries, because these never change."""
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
        """Accept the store as it is, as an operator decided: it may now hold more or less than the journal knows."""
        for run in self.runs.values():
            run.binding = False
        self.newest = {}

    def raise_stamps(self, stamps: Mapping[str, int]) -> None:
        """Replace the stamp of each route by the given one (see `KeepsEvidence.stamp`), if the given one is higher."""
        for route, stamp in stamps.items():
            self.stamps[route] = max(self.stamps.get(route, 0), stamp)

    def newest_at(self, run: RunRecord, route: str = "") -> int:
        """Return the id of the newest checkpoint that has rows and was committed to the store of `run`, under any prefix.

        Return 0 if there is none, or if an operator has since accepted the store as it is.
        """
        return max((newest for key, newest in self.newest.items() if run.is_at(key, route)), default=0)

    def known_at_store(self, routes: Iterable[str]) -> dict[str, int]:
        """Return, for each route, the newest settled checkpoint that committed rows to the newest run's store.

        Routes without such a checkpoint are omitted.
        """
        run = self.newest_run
        found = {route: self.newest_at(run, route) for route in ("", *routes)} if run is not None else {}
        return {route: checkpoint for route, checkpoint in found.items() if checkpoint}

    def store_record(self) -> dict[str, Any]:
        """Return the runs, stamps and newest checkpoints as JSON types. A restored journal inherits these facts."""
        runs = {str(token): asdict(run) for token, run in self.runs.items()}
        return {"runs": runs, "stamp": self.stamp, "stamps": self.stamps, "newest": self.newest}

    # -- snapshots --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the whole ledger as JSON, for a snapshot."""
        checkpoints = {number: checkpoint.to_json() for number, checkpoint in self.checkpoints.items()}
        return {**asdict(self), "checkpoints": checkpoints}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """Build a ledger from the value of `to_json`. Attributes that an older snapshot lacks get their defaults."""
        held = [each.name for each in fields(cls) if value.get(each.name) is not None]
        return cls(**{name: _READERS.get(name, copy)(value[name]) for name in held})

    @classmethod
    def opened(cls, begun: RestoreBegun, position: int, origin: Mapping[str, Any] | None = None) -> Ledger:
        """Return the first ledger of a restored journal.

        If the restore moves the query (a claim), `origin` is the `store_record` of the ledger at the query's old location.
        `origin` is None for a copy, or if the old journal can't be read.
        """
        found = cls.from_json(begun.ledger)
        batch = max(found.checkpoints[begun.checkpoint].batches)
        found.restored = Origin(begun.savepoint, begun.origin, begun.checkpoint, batch, position, begun.claim)
        found.location, found.position, found.reached = begun.location, position, -1
        found.known = position  # the query may have decided checkpoints up to there at its original location
        if origin is not None:
            found.runs = {int(token): RunRecord(**run) for token, run in origin["runs"].items()}
            found.stamp = max(found.stamp, origin["stamp"])
            found.raise_stamps(origin.get("stamps", {}))
            found.newest = dict(origin.get("newest", {}))
        else:
            found.accept_store()  # runs after the savepoint have changed the store
        if begun.claim:
            for run in found.runs.values():
                run.ended = run.ended or EntryKind.MOVED
        else:  # a copy, which must never use a prefix of the original
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
    "restored": lambda value: Origin(**value),
    "restoring": RestoreBegun.from_json,
    "runs": _numbered(lambda value: RunRecord(**value)),
    "batches": _numbered(_batch),
    "checkpoints": _numbered(CheckpointRecord.from_json),
    "logs": _numbered(str),
}
"""Functions that build an attribute's value from a snapshot's JSON, for each attribute that is not plain JSON."""
