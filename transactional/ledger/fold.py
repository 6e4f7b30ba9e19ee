"""Functions that apply the journal's entries to the ledger: how each kind of entry changes the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from transactional import entries
from transactional.checkpoint import CheckpointFailureReason, ClosingReason
from transactional.entry import UNFIT, Entry, EntryKind
from transactional.errors import JournalError
from transactional.ledger.ledger import LAST_WRITTEN, Ledger
from transactional.ledger.records import (
    BatchRecord,
    CheckpointRecord,
    Declined,
    FailureRecord,
    Moved,
    PartRecord,
    RestartRecord,
    Rewind,
    RunRecord,
    between,
)
from transactional.ledger.states import CheckpointState, enter
from transactional.ledger.written import Written

KEPT_BATCHES = 150  # the engine keeps 100 micro-batches by default; only the last can be replayed
KEPT_FAILURES = 50  # for people
KEPT_RESTARTS = 50  # for people
KEPT_RUNS = 50  # enough to name the run that fenced a driver
KEPT_UNMARKED = 5  # runs that could not guard their prefix: an outage makes many of them


def apply(ledger: Ledger, entry: Entry) -> None:
    """Apply the journal's next entry to the ledger."""
    if entry.number != ledger.position + 1:
        reason = f"{entry.number}.json follows entry {ledger.position}, but entries in between are missing"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, expected=ledger.position + 1, found=entry.number)
    try:
        fact = entries.fact_of(entry.kind, entry.body)
        _FOLDS[type(fact)](ledger, entry, fact)
    except UNFIT as error:
        refers = isinstance(error, KeyError)
        why = f"refers to {error}, which the journal does not contain" if refers else f"can't be read: {error}"
        reason = f"{entry.number}.json ({entry.kind}) {why}"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number, kind=entry.kind) from error
    ledger.position = max(entry.number, ledger.position)  # `opened` and `run` may have raised it further


def _run(ledger: Ledger, entry: Entry, fact: entries.RunClaimed) -> None:
    ledger.runs[entry.number] = RunRecord(
        token=entry.number,
        driver=fact.driver,
        settings=fact.settings,
        sink=fact.sink,
        location=fact.location,
        prefix=fact.prefix,
        identity=dict(fact.identity),
        lifetime=fact.lifetime,
        process=dict(fact.process),
        setup=dict(fact.setup),
        seen=fact.seen,
    )
    ledger.position = max(entry.number, fact.above)
    ledger.known = max(ledger.known, fact.above)
    for token, run in ledger.runs.items():
        if token != entry.number:
            run.setup = {}
    ledger.retained = fact.retained
    if ledger.completed is not None:
        _count(ledger, "restored")
    ledger.location = fact.location
    ledger.query = fact.query_id
    unmarked = [token for token, run in sorted(ledger.runs.items()) if run.mark is None]
    for token in unmarked[:-KEPT_UNMARKED]:
        del ledger.runs[token]
    for token in sorted(ledger.runs)[:-KEPT_RUNS]:
        del ledger.runs[token]


def _mark(ledger: Ledger, entry: Entry, fact: entries.MarkTaken) -> None:
    run = ledger.runs[fact.run]
    run.marks = [*run.marks, *([] if run.mark is None else [run.mark])]
    run.mark = dict(fact.mark)
    newest = ledger.newest_run
    if newest is not None and newest is not run:
        newest.overtaken = True


def _record(ledger: Ledger, entry: Entry, fact: entries.Prepared, checkpoint: int | None) -> BatchRecord:
    parts = [
        PartRecord(
            batch=fact.batch,
            partition=p["partition"],
            rows=p["rows"],
            bytes=p["bytes"],
            digest=p["digest"],
            handles=[p["handle"]] if p["handle"] is not None else [],
            verdicts=[None] if p["handle"] is not None else [],
            route=p.get("route", ""),
        )
        for p in fact.parts
    ]
    ledger.wrote = [*ledger.wrote, [part.partition for part in parts if part.rows]][-LAST_WRITTEN:]
    ledger.voided = [number for number in ledger.voided if number != fact.batch]
    ledger.logs.pop(fact.batch, None)
    if fact.log:
        ledger.logs[fact.batch] = fact.log
    if ledger.replay is not None and fact.batch > ledger.accounted:
        ledger.replay = None
    written = Written.of(fact.parts) if fact.reason == ClosingReason.WRITE.name else None
    known = (fact.batch, fact.sources, fact.writers, entry.number, fact.run, parts, checkpoint, entry.time)
    return BatchRecord(*known, written=written, left=dict(fact.left or {}))


def _prepared(ledger: Ledger, entry: Entry, fact: entries.Prepared) -> None:
    ledger.batches[fact.batch] = _record(ledger, entry, fact, None)
    _keep_logs(ledger)


def _keep_logs(ledger: Ledger) -> None:
    last = ledger.accounted
    ledger.logs = {
        n: text for n, text in ledger.logs.items() if n in ledger.batches and n in (last, last - 1, ledger.decided)
    }


def _decided(ledger: Ledger, entry: Entry, fact: entries.Decided) -> None:
    ledger.origin = fact.origin or ledger.origin
    ledger.known = entry.number
    covered = [b.batch for b in ledger.undecided()]
    if fact.covers != covered:
        reason = f"entry {entry.number} decides the micro-batches {fact.covers}, but the prepared ones are {covered}"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    for number in covered:
        ledger.batches[number].checkpoint = entry.number
    batches = list(covered)
    if fact.batch not in covered:  # otherwise the micro-batch is already prepared
        ledger.batches[fact.batch] = _record(ledger, entry, fact, entry.number)
        batches.append(fact.batch)
    parts = [p for b in batches for p in ledger.batches[b].parts]
    settled = not any(p.handles for p in parts) and not fact.marked  # a mark still has to be published
    ledger.checkpoints[entry.number] = CheckpointRecord(
        id=entry.number,
        batches=batches,
        time=entry.time,
        rows=sum(p.rows for p in parts),
        barrier=fact.barrier,
        began=fact.began,
        bytes=sum(p.bytes for p in parts),
        handles=sum(bool(p.handles) for p in parts),
        reason=fact.reason,
        hooks=dict(fact.hooks),
        subsumed=[declined.batch for declined in ledger.declined if declined.batch != fact.batch],
        routes=_rows_of_routes(parts),
        cut=fact.cut,
        marked=fact.marked,
    )
    enter(ledger.checkpoints[entry.number], CheckpointState.DECIDED)
    _count(ledger, "triggered")
    ledger.declined = []
    ledger.request = None
    if settled:
        _settle(ledger, entry.number, entry.time)
    _trim(ledger)
    _keep_logs(ledger)


def _rows_of_routes(parts: Iterable[PartRecord]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for part in parts:
        if part.route:
            rows[part.route] = rows.get(part.route, 0) + part.rows
    return rows


def _settle(ledger: Ledger, number: int, time: int) -> None:
    checkpoint = ledger.checkpoints[number]
    enter(checkpoint, CheckpointState.SETTLED)
    checkpoint.settled_at = time
    for batch in checkpoint.batches:
        ledger.batches[batch].parts = []
    _count(ledger, "completed")
    taken = {
        "prepared_ms": between(checkpoint.barrier, checkpoint.began or None),
        "decided_ms": between(checkpoint.began or None, checkpoint.time),
        "committed_ms": between(checkpoint.time, time),
    }
    _add(ledger, rows=checkpoint.rows, bytes=checkpoint.bytes, **{step: ms or 0 for step, ms in taken.items()})


def _count(ledger: Ledger, what: str) -> None:
    ledger.counts[what] = ledger.counts.get(what, 0) + 1


def _add(ledger: Ledger, **sums: int) -> None:
    for name, value in sums.items():
        ledger.totals[name] = ledger.totals.get(name, 0) + value


def _failed(ledger: Ledger, entry: Entry, what: str, reason: str, batches: list[int], detail: str = "") -> None:
    _count(ledger, what)
    failure = FailureRecord(entry.number, entry.time, reason, batches, detail)
    ledger.failures = [*ledger.failures, failure][-KEPT_FAILURES:]


def _settled(ledger: Ledger, entry: Entry, fact: entries.Settled) -> None:
    ledger.stamp = max(ledger.stamp, fact.stamp or 0)
    ledger.raise_stamps(fact.stamps or {})
    run, parts = ledger.runs.get(fact.run), ledger.parts_of(ledger.checkpoints[fact.checkpoint])
    if run is not None:
        for key in {run.store_key(part.route) for part in parts if part.handles and not part.accepted}:
            ledger.newest[key] = max(ledger.newest.get(key, 0), fact.checkpoint)
    ledger.checkpoints[fact.checkpoint].output = dict(fact.output)
    _settle(ledger, fact.checkpoint, entry.time)


def _verdict(ledger: Ledger, entry: Entry, fact: entries.Verdict) -> None:
    for judged in fact.parts:
        part = ledger.part_of(judged)
        part.verdicts[judged["handle"]] = judged["verdict"]


def _repair(ledger: Ledger, entry: Entry, fact: entries.Repair) -> None:
    for repaired in fact.parts:
        part = ledger.part_of(repaired)
        if repaired["handle"] is None:  # an operator accepted the difference, and the replay has no rows
            part.verdicts[-1] = "accepted"
            continue
        part.handles.append(repaired["handle"])
        part.verdicts.append(None)
        _add(ledger, repaired=1)


def _resolve(ledger: Ledger, entry: Entry, fact: entries.Resolve) -> None:
    ledger.accept_store()
    part = ledger.part(fact.batch, fact.partition, fact.route)
    part.verdicts[-1] = {"accept-loss": "accepted"}.get(fact.decision, "lost")
    if fact.decision == "accept-difference":
        part.free = True
        ledger.batches[fact.batch].written = None


def _void(ledger: Ledger, entry: Entry, fact: entries.Void) -> None:
    if fact.checkpoint is not None:
        checkpoint = ledger.checkpoints.pop(fact.checkpoint)
        enter(checkpoint, CheckpointState.VOID)
        batches = checkpoint.batches
    elif fact.prepared is not None:
        batches = [fact.prepared]
    else:
        raise KeyError("prepared")
    for batch in batches:
        del ledger.batches[batch]
        ledger.logs.pop(batch, None)
    ledger.voided += batches
    _failed(ledger, entry, "failed", CheckpointFailureReason.VOID.name, batches)


def _end_run(ledger: Ledger, entry: Entry, fact: entries.Aborted | entries.Fenced | entries.Stopped) -> None:
    if fact.run in ledger.runs:
        ledger.runs[fact.run].ended = entry.kind
    if isinstance(fact, entries.Aborted):
        _count(ledger, "triggered")
        _failed(ledger, entry, "failed", CheckpointFailureReason.ABORTED.name, [fact.batch])


def _declined(ledger: Ledger, entry: Entry, fact: entries.Declined) -> None:
    _count(ledger, "triggered")
    ledger.declined.append(Declined(fact.batch, entry.time, fact.reason, fact.detail))
    _failed(ledger, entry, "declined", fact.reason, [fact.batch], fact.detail)


def _restored(ledger: Ledger, entry: Entry, fact: entries.Restored) -> None:
    ledger.runs[fact.run].restored = fact.checkpoint or 0


def _requested(ledger: Ledger, entry: Entry, fact: entries.Request) -> None:
    if fact.what == "stop":
        ledger.stop = fact.run
    else:
        ledger.request = entry.number


def _restarted(ledger: Ledger, entry: Entry, fact: entries.Restarted) -> None:
    _count(ledger, "restarts")
    ledger.restarts = [*ledger.restarts, RestartRecord(entry.number, entry.time, **fact.to_json())][-KEPT_RESTARTS:]


def _rewind_begun(ledger: Ledger, entry: Entry, fact: entries.RewindBegun) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or entry.kind
    ledger.rewinding = Rewind(entry.number, fact.checkpoint, dict(fact.request))


def _rewind_done(ledger: Ledger, entry: Entry, fact: entries.RewindDone) -> None:
    """Drop the records of undone micro-batches, except those of a partly committed checkpoint, which the query runs again."""
    last, kept = fact.batch, fact.keep
    _add(ledger, rewound=1)
    ledger.rewinding, ledger.rewound = None, entry.number
    ledger.reached = max(ledger.reached, ledger.accounted, *ledger.voided)
    ledger.batches = {n: b for n, b in ledger.batches.items() if n <= last or (kept and b.checkpoint == kept)}
    ledger.checkpoints = {k: c for k, c in ledger.checkpoints.items() if max(c.batches) <= last or k == kept}
    ledger.voided = [number for number in ledger.voided if number <= last]
    ledger.declined = []
    ledger.base = min(ledger.base, last)
    ledger.replay = last + 1 if kept else None
    ledger.logs = {number: text for number, text in ledger.logs.items() if number <= last}


def _moved(ledger: Ledger, entry: Entry, fact: entries.Moved) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or entry.kind
    ledger.rewinding = None
    ledger.request = None
    ledger.moved = Moved(entry.number, fact.location, fact.savepoint, fact.checkpoint)


def _begin_restore(ledger: Ledger, entry: Entry, fact: entries.RestoreBegun) -> None:
    if entry.number != 1:
        reason = f"entry {entry.number} begins a restore, but the journal is already in use"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    ledger.restoring = fact


def _opened(ledger: Ledger, entry: Entry, fact: entries.Opened) -> None:
    if ledger.restoring is None:
        reason = f"entry {entry.number} opens a journal that is already open"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    vars(ledger).update(vars(Ledger.opened(ledger.restoring, fact.position, fact.origin)))


def _adopt(ledger: Ledger, entry: Entry, fact: entries.Adopt) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or EntryKind.ADOPT
    ledger.accept_store()
    ledger.location = fact.location
    ledger.query = ""  # the next run records it
    if fact.suffix != ledger.identity_suffix:
        ledger.originals = sorted({*ledger.originals, *(run.prefix for run in ledger.runs.values())})
    ledger.identity_suffix = fact.suffix
    ledger.base = fact.base
    ledger.logs, ledger.reached = {}, -1  # the query's logs are accepted as they are
    if fact.drop:  # the unsettled entries are of another location, or of batches that the query no longer has
        ledger.checkpoints = {
            k: c for k, c in ledger.checkpoints.items() if c.settled and max(c.batches) <= ledger.base
        }
        ledger.batches = {k: b for k, b in ledger.batches.items() if b.checkpoint in ledger.checkpoints}
        ledger.voided = []
        if fact.sources is not None and fact.base in ledger.batches:
            ledger.batches[fact.base].sources = fact.sources


def _trim(ledger: Ledger) -> None:
    """Drop the records of old micro-batches and checkpoints that no recovery needs anymore."""
    keep = max(sorted(ledger.batches)[:-KEPT_BATCHES], default=-1)  # by count: the versions of batch writes have gaps
    if ledger.replay is not None:  # micro-batches from there on run again
        keep = min(keep, ledger.replay - 2)
    for number in [n for n, b in ledger.batches.items() if n <= keep]:
        record = ledger.batches[number]
        checkpoint = ledger.checkpoints.get(record.checkpoint or 0)
        if record.checkpoint is not None and (checkpoint is None or checkpoint.settled):
            ledger.base = max(ledger.base, number)
            del ledger.batches[number]
    for number in [k for k, c in sorted(ledger.checkpoints.items()) if c.settled][: -ledger.retained]:
        del ledger.checkpoints[number]


_FOLDS: Final[Mapping[type[entries.Fact], Callable[[Ledger, Entry, Any], None]]] = {
    entries.RunClaimed: _run,
    entries.MarkTaken: _mark,
    entries.Prepared: _prepared,
    entries.Decided: _decided,
    entries.Settled: _settled,
    entries.Verdict: _verdict,
    entries.Repair: _repair,
    entries.Void: _void,
    entries.Aborted: _end_run,
    entries.Fenced: _end_run,
    entries.Stopped: _end_run,
    entries.Resolve: _resolve,
    entries.Adopt: _adopt,
    entries.Declined: _declined,
    entries.Restored: _restored,
    entries.Request: _requested,
    entries.Restarted: _restarted,
    entries.RewindBegun: _rewind_begun,
    entries.RewindDone: _rewind_done,
    entries.Moved: _moved,
    entries.RestoreBegun: _begin_restore,
    entries.Opened: _opened,
}
