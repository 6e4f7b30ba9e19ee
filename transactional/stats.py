"""Figures and history of a query's checkpoints, from the ledger's records alone: so they survive every restart.

Times are milliseconds since the epoch, by the clocks of the drivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ClosingReason
from transactional.ledger import CheckpointRecord, CheckpointState, FailureRecord, Ledger, between

__all__ = [
    "CheckpointHistory",
    "Pending",
    "Restored",
    "Unsettled",
    "counts",
    "figures",
    "history",
    "newest_completed",
    "pending",
    "restored",
    "unsettled",
]


@dataclass(frozen=True)
class CheckpointHistory:
    """The record of one checkpoint in the journal, and how long it took; listeners get it.

    Parameters
    ----------
    id : int
        The number of its decision in the journal; if it was not decided, of the entry that records this.
    status : CheckpointState
    batches : Sequence[int]
        Its micro-batches.
    reason : str
        Why it was closed (a name of `ClosingReason`) or why it failed (a name of `CheckpointFailureReason`). Empty if an older
        release wrote the entry.
    sentence : str
        The reason in words.
    detail : str
        The error, if it failed.
    barrier : int or None
        When the source made its barrier; None if no barrier closed it, or there was no decision.
    prepared : int or None
        When all tasks had acknowledged its last micro-batch.
    decided : int or None
        When it was decided; None if it failed.
    committed : int or None
        When all of its rows were visible.
    failed : int or None
        When it was declined or aborted.
    preparing_ms, deciding_ms, committing_ms : int or None
        From the barrier until all was prepared, from then until the decision, from the decision until all was visible.
    rows, bytes, handles : int
        Their numbers; 0 for a failed checkpoint.
    output : Mapping[str, Any]
        Where its rows are, as its sink reports: an offset for each partition, a version of a table.
    hooks : Sequence[str]
        Identifiers of the hooks whose states it keeps.
    subsumes : Sequence[int]
        Micro-batches that this checkpoint took over from declined checkpoints.
    subsumed_by : int or None
        For a declined checkpoint: the checkpoint that took over its micro-batch.
    routes : Mapping[str, int]
        Rows of each route, for a sink that combines several.
    cut : Mapping[str, Any] or None
        For a query that follows other queries' barriers: the newest barriers that it contains (`lineage`), whether it contains
        no row after them (`exact`), and how many milliseconds the marks of each channel `waited` for the marks of others.
    """

    id: int
    status: CheckpointState
    batches: Sequence[int]
    reason: str = ""
    sentence: str = ""
    detail: str = ""
    barrier: int | None = None
    prepared: int | None = None
    decided: int | None = None
    committed: int | None = None
    failed: int | None = None
    preparing_ms: int | None = None
    deciding_ms: int | None = None
    committing_ms: int | None = None
    rows: int = 0
    bytes: int = 0
    handles: int = 0
    output: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[str] = field(default_factory=list)
    subsumes: Sequence[int] = field(default_factory=list)
    subsumed_by: int | None = None
    routes: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, Any] | None = None

    @property
    def time(self) -> int:
        """When it entered its state."""
        return next(at for at in (self.committed, self.decided, self.failed, 0) if at is not None)

    def to_json(self) -> dict[str, Any]:
        """Return JSON types only."""
        return {**asdict(self), "status": self.status.value}


@dataclass(frozen=True)
class Restored:
    """A run that began after a checkpoint.

    Parameters
    ----------
    run : int
        Its token.
    checkpoint : int
        The newest decision before it that the journal keeps.
    """

    run: int
    checkpoint: int


@dataclass(frozen=True)
class Pending:
    """The micro-batches that are prepared, and in no checkpoint yet.

    Parameters
    ----------
    batches : Sequence[int]
    rows, bytes, handles : int
    oldest_age : float or None
        Seconds since the oldest transaction that is neither committed nor given up (of a decision that is not settled,
        too) came into the journal; its store has counted from a little earlier on. None if there is none.
    lifetime : float or None
        Seconds that the store keeps it; None for ever, or unknown.
    """

    batches: Sequence[int] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    handles: int = 0
    oldest_age: float | None = None
    lifetime: float | None = None

    @property
    def overdue(self) -> bool:
        """Whether the store may have given the oldest one up."""
        return self.oldest_age is not None and self.lifetime is not None and self.oldest_age >= self.lifetime


@dataclass(frozen=True)
class Unsettled:
    """A decision whose transactions are not all known to be committed.

    Parameters
    ----------
    checkpoint : int
    batches : Sequence[int]
    rows : int
    open, lost, committed : int
        Its parts, by what is known of the last transaction of each.
    """

    checkpoint: int
    batches: Sequence[int]
    rows: int
    open: int
    lost: int
    committed: int


def counts(ledger: Ledger) -> dict[str, int]:
    """Return the numbers since the journal was begun.

    Returns
    -------
    dict[str, int]
        ``triggered``: checkpoints that were decided, declined, or given up before that; ``completed``: settled ones;
        ``failed``: given up before their decision, or void after it (a micro-batch whose prepared transactions were lost,
        too); ``declined``; ``restored``: runs that went on after a settled checkpoint; ``restarts``: times that a supervisor
        started the query again.
    """
    counted = ("triggered", "completed", "failed", "declined", "restored", "restarts")
    return {**dict.fromkeys(counted, 0), **ledger.counts}


def figures(ledger: Ledger, now: float) -> dict[str, Any]:
    """Return the ledger's records, and what follows from them and the time (seconds since the epoch), as JSON types."""
    run, rewinding, moved, restored = ledger.newest_run, ledger.rewinding, ledger.moved, ledger.restored
    last = newest_completed(ledger)
    return {
        "now": int(now * 1000),
        "location": ledger.location,
        "query": ledger.query,
        "counts": counts(ledger),
        "totals": dict(ledger.totals),
        "accounted": ledger.accounted,
        "decided": ledger.decided,
        "completed": None if last is None else last.to_json(),
        "pending": asdict(pending(ledger, now)),
        "unsettled": [asdict(each) for each in unsettled(ledger)],
        "voided": sorted(ledger.voided),
        "declined": len(ledger.declined),
        "requested": ledger.request is not None,
        "run": None if run is None else asdict(run),
        "rewinding": None if rewinding is None else asdict(rewinding),
        "moved": None if moved is None else asdict(moved),
        "restored": None if restored is None else asdict(restored),
        "stopping": ledger.stopping,
        "restarts": [asdict(each) for each in ledger.restarts],
    }


def history(ledger: Ledger) -> list[CheckpointHistory]:
    """Return the checkpoints that the journal keeps, and the last failures, in the order of their numbers.

    How many: the option ``retainedCheckpoints``, and `transactional.ledger.fold.KEPT_FAILURES`.
    """
    checkpoints = sorted(ledger.checkpoints.values(), key=lambda checkpoint: checkpoint.id)
    found = [_of_checkpoint(checkpoint) for checkpoint in checkpoints]
    found += [_of_failure(failure, checkpoints) for failure in ledger.failures]
    return sorted(found, key=lambda each: each.id)


def newest_completed(ledger: Ledger) -> CheckpointHistory | None:
    """Return the newest checkpoint whose rows are visible; None if there is none."""
    return None if ledger.completed is None else _of_checkpoint(ledger.completed)


def restored(ledger: Ledger) -> list[Restored]:
    """Return the last runs that began after a checkpoint, oldest first."""
    checkpoints = sorted(ledger.checkpoints)
    found = []
    for token, run in sorted(ledger.runs.items()):
        before = run.restored or max((number for number in checkpoints if number < token), default=None)
        if before is not None:
            found.append(Restored(token, before))
    return found


def _of_checkpoint(found: CheckpointRecord) -> CheckpointHistory:
    return CheckpointHistory(
        id=found.id,
        status=found.state,
        batches=list(found.batches),
        reason=found.reason,
        sentence=ClosingReason[found.reason].value if found.reason in ClosingReason.__members__ else "",
        barrier=found.barrier,
        prepared=found.began or None,
        decided=found.time,
        committed=found.settled_at,
        preparing_ms=between(found.barrier, found.began or None),
        deciding_ms=between(found.began or None, found.time),
        committing_ms=between(found.time, found.settled_at),
        rows=found.rows,
        bytes=found.bytes,
        handles=found.handles,
        output=dict(found.output),
        hooks=sorted(found.hooks),
        subsumes=list(found.subsumed),
        routes=dict(found.routes),
        cut=found.cut,
    )


def _of_failure(found: FailureRecord, checkpoints: Sequence[CheckpointRecord]) -> CheckpointHistory:
    known = CheckpointFailureReason.__members__
    declined = found.state is CheckpointState.DECLINED
    later = [c.id for c in checkpoints if declined and c.id > found.entry and set(found.batches) & set(c.subsumed)]
    return CheckpointHistory(
        id=found.entry,
        status=found.state,
        batches=list(found.batches),
        reason=found.reason,
        sentence=known[found.reason].value if found.reason in known else "",
        detail=found.detail,
        failed=found.time,
        subsumed_by=min(later, default=None),
    )


def pending(ledger: Ledger, now: float) -> Pending:
    """Return what is prepared, at a time in seconds since the epoch."""
    undecided = ledger.undecided()
    parts = [part for record in undecided for part in record.parts]
    decided = [ledger.batches[batch] for checkpoint in ledger.unsettled() for batch in checkpoint.batches]
    waiting = [record for record in [*undecided, *decided] if any(part.open for part in record.parts)]
    oldest = min(waiting, key=lambda record: record.time, default=None)
    run = None if oldest is None else ledger.runs.get(oldest.run) or ledger.newest_run
    return Pending(
        batches=[record.batch for record in undecided],
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        handles=sum(bool(part.handles) for part in parts),
        oldest_age=None if oldest is None else max(0.0, round(now - oldest.time / 1000, 3)),
        lifetime=None if run is None else run.lifetime,
    )


def unsettled(ledger: Ledger) -> list[Unsettled]:
    """Return the decisions that are not settled, oldest first."""
    found = []
    for checkpoint in ledger.unsettled():
        parts = [part for part in ledger.parts_of(checkpoint) if part.handles]
        states = {name: sum(getattr(part, name) for part in parts) for name in ("open", "lost", "committed")}
        found.append(Unsettled(checkpoint.id, list(checkpoint.batches), checkpoint.rows, **states))
    return found
