"""Statistics and history of a query's checkpoints, computed only from the ledger, so that they survive every restart.

Times are milliseconds since the epoch, by the clocks of the drivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ClosingReason
from transactional.ledger import CheckpointRecord, CheckpointState, FailureRecord, Ledger, between


@dataclass(frozen=True)
class CheckpointHistory:
    """The record of one checkpoint in the journal, with its durations. Passed to listeners.

    Times are in milliseconds since the epoch.

    Parameters
    ----------
    id : int
        The checkpoint's id: the number of its decision in the journal. If it was not decided, the number of the entry that
        records the failure.
    status : CheckpointState
        The checkpoint's state.
    batches : Sequence[int]
        The micro-batches in the checkpoint.
    reason : str
        The reason why the checkpoint was closed (a name of `ClosingReason`) or failed (a name of `CheckpointFailureReason`).
    sentence : str
        The reason in words.
    detail : str
        The error, if the checkpoint failed.
    barrier : int or None
        When the source made the checkpoint's barrier; None if no barrier closed the checkpoint, or if it failed.
    prepared : int or None
        When all tasks of the checkpoint's last micro-batch had prepared their rows.
    decided : int or None
        When the checkpoint was decided; None if it failed.
    committed : int or None
        When all rows of the checkpoint were visible; None before that.
    failed : int or None
        When the checkpoint failed: it was declined, aborted or void. None if it did not fail.
    preparing_ms, deciding_ms, committing_ms : int or None
        The durations of three steps, in milliseconds: from the barrier until all rows were prepared, from then until the
        decision, and from the decision until all rows were visible. A duration is None if its start or end is not known.
    rows, bytes, handles : int
        The numbers of rows, bytes and handles in the checkpoint; 0 if the checkpoint failed.
    output : Mapping[str, Any]
        The position of the rows, as the sink reports it: for example an offset for each partition, or the version of a table.
    hooks : Sequence[str]
        The identifiers of the hooks whose states the checkpoint contains.
    subsumes : Sequence[int]
        Micro-batches that this checkpoint took over from declined checkpoints.
    subsumed_by : int or None
        For a declined checkpoint: the checkpoint that took over its micro-batch.
    routes : Mapping[str, int]
        If the sink combines several sinks, the number of rows of each route; otherwise empty.
    cut : Mapping[str, Any] or None
        None if the query follows no other query. Otherwise a mapping with three keys. `lineage`: for each followed query, its
        newest barrier in this checkpoint. `exact`: true if the checkpoint contains no row after these barriers. `waited`: for
        each barrier topic, how many milliseconds its mark waited for the marks of the other topics.
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
        """The time when the checkpoint entered its current state, in milliseconds since the epoch."""
        return next(at for at in (self.committed, self.decided, self.failed, 0) if at is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a mapping with JSON types only."""
        return {**asdict(self), "status": self.status.value}


@dataclass(frozen=True)
class Restored:
    """A run that continued from a checkpoint.

    Parameters
    ----------
    run : int
        The run's token.
    checkpoint : int
        The id of the newest decided checkpoint before the run, among those that the journal keeps.
    """

    run: int
    checkpoint: int


@dataclass(frozen=True)
class Pending:
    """The micro-batches that are prepared but in no checkpoint yet, and the age of the oldest open transaction."""

    batches: Sequence[int] = field(default_factory=list)  # The numbers of the micro-batches.
    # The numbers of rows, bytes and handles in these micro-batches.
    rows: int = 0
    bytes: int = 0
    handles: int = 0
    # The seconds since the journal recorded the oldest open transaction, prepared or decided. In the store, the transaction is
    # a little older. None if no transaction is open.
    oldest_age: float | None = None
    # How many seconds the store keeps this transaction; None if forever, or if it is not known.
    lifetime: float | None = None

    @property
    def overdue(self) -> bool:
        """True if the store may have aborted the oldest open transaction, because its lifetime has expired."""
        return self.oldest_age is not None and self.lifetime is not None and self.oldest_age >= self.lifetime


@dataclass(frozen=True)
class Unsettled:
    """A decided checkpoint that is not settled, because some of its transactions may not be committed yet."""

    checkpoint: int  # The checkpoint's id.
    batches: Sequence[int]  # The micro-batches in the checkpoint.
    rows: int  # The number of rows in the checkpoint.
    # The number of parts whose newest transaction is open, lost or committed, according to the journal.
    open: int
    lost: int
    committed: int


def counts(ledger: Ledger) -> dict[str, int]:
    """Return the numbers of checkpoints and restarts since the journal began.

    Returns
    -------
    dict[str, int]
        ``triggered``: checkpoints that were decided, declined or aborted. ``completed``: checkpoints that were settled.
        ``failed``: checkpoints that were aborted, and decided checkpoints or prepared micro-batches that became void.
        ``declined``: checkpoints that were declined. ``restored``: runs that continued from a settled checkpoint.
        ``restarts``: restarts by a supervisor.
    """
    counted = ("triggered", "completed", "failed", "declined", "restored", "restarts")
    return {**dict.fromkeys(counted, 0), **ledger.counts}


def figures(ledger: Ledger, now: float) -> dict[str, Any]:
    """Return a query's state and statistics from its ledger, as JSON types. `now` is in seconds since the epoch."""
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
    """Return all checkpoints that the journal keeps, including failed ones, ordered by id.

    The journal keeps as many settled checkpoints as the option ``retainedCheckpoints`` says, and the last
    `transactional.ledger.fold.KEPT_FAILURES` failures.
    """
    checkpoints = sorted(ledger.checkpoints.values(), key=lambda checkpoint: checkpoint.id)
    found = [_of_checkpoint(checkpoint) for checkpoint in checkpoints]
    found += [_of_failure(failure, checkpoints) for failure in ledger.failures]
    return sorted(found, key=lambda each: each.id)


def newest_completed(ledger: Ledger) -> CheckpointHistory | None:
    """Return the newest checkpoint whose rows are visible; None if there is none."""
    return None if ledger.completed is None else _of_checkpoint(ledger.completed)


def restored(ledger: Ledger) -> list[Restored]:
    """Return the recorded runs that continued from a checkpoint, oldest first."""
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
    """Return the prepared, undecided micro-batches, and the age of the oldest open transaction.

    `now` is the time in seconds since the epoch.
    """
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
    """Return the decided checkpoints that are not settled, oldest first."""
    found = []
    for checkpoint in ledger.unsettled():
        parts = [part for part in ledger.parts_of(checkpoint) if part.handles]
        states = {name: sum(getattr(part, name) for part in parts) for name in ("open", "lost", "committed")}
        found.append(Unsettled(checkpoint.id, list(checkpoint.batches), checkpoint.rows, **states))
    return found
