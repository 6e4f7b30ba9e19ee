"""The fold over the journal: the effect of each entry on the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ClosingReason
from transactional.entry import UNFIT, Entry, EntryKind
from transactional.errors import JournalError
from transactional.ledger.ledger import LAST_WRITTEN, Ledger, Restoring
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

__all__ = ["apply"]

KEPT_BATCHES = 150  # the engine keeps 100 micro-batches by default; only the last can be replayed
KEPT_FAILURES = 50  # for people
KEPT_RESTARTS = 50  # for people
KEPT_RUNS = 50  # ended ones; enough to name the run that fenced a driver
KEPT_UNMARKED = 5  # of those that could not guard their prefix: an outage makes many


def apply(ledger: Ledger, entry: Entry) -> None:
    """Fold the next entry.

    Raises
    ------
    JournalError
        ``JOURNAL_DAMAGED``: the entry does not fit, as the journal was changed from outside.
    """
    if entry.number != ledger.position + 1:
        reason = f"{entry.number}.json follows entry {ledger.position}, and entries in between are missing"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, expected=ledger.position + 1, found=entry.number)
    try:
        _FOLDS[entry.kind](ledger, entry, entry.body)
    except UNFIT as error:
        refers = isinstance(error, KeyError)
        why = f"refers to {error}, which the journal does not hold" if refers else f"can't be read: {error}"
        reason = f"{entry.number}.json ({entry.kind}) {why}"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number, kind=entry.kind) from error
    ledger.position = max(entry.number, ledger.position)  # `opened` and `run` go on above others' numbers


def _run(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.runs[entry.number] = RunRecord(
        token=entry.number,
        driver=body["driver"],
        settings=body["settings"],
        sink=body["sink"],
        location=body["location"],
        prefix=body["prefix"],
        identity=dict(body["identity"]),
        lifetime=body["lifetime"],
        process=dict(body["process"]),
        setup=dict(body["setup"]),
        seen=body.get("seen"),  # not in older entries
    )
    ledger.position = max(entry.number, body.get("above", 0))
    for token, run in ledger.runs.items():
        if token != entry.number:
            run.setup = {}
    ledger.retained = body["retained"]
    if ledger.completed is not None:
        _count(ledger, "restored")
    ledger.location = body["location"]
    ledger.query = body["queryId"]
    unmarked = [token for token, run in sorted(ledger.runs.items()) if run.mark is None]
    for token in unmarked[:-KEPT_UNMARKED]:
        del ledger.runs[token]
    for token in sorted(ledger.runs)[:-KEPT_RUNS]:
        del ledger.runs[token]


def _mark(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    run = ledger.runs[body["run"]]
    run.marks = [*run.marks, *([] if run.mark is None else [run.mark])]
    run.mark = dict(body["mark"])
    newest = ledger.newest_run
    if newest is not None and newest is not run:
        newest.overtaken = True


def _record(ledger: Ledger, entry: Entry, body: Mapping[str, Any], checkpoint: int | None) -> BatchRecord:
    parts = [
        PartRecord(
            batch=body["batch"],
            partition=p["partition"],
            rows=p["rows"],
            bytes=p["bytes"],
            digest=p["digest"],
            handles=[p["handle"]] if p["handle"] is not None else [],
            verdicts=[None] if p["handle"] is not None else [],
            route=p.get("route", ""),
        )
        for p in body["parts"]
    ]
    ledger.wrote = [*ledger.wrote, [part.partition for part in parts if part.rows]][-LAST_WRITTEN:]
    ledger.voided = [number for number in ledger.voided if number != body["batch"]]
    ledger.logs.pop(body["batch"], None)
    if body.get("log"):
        ledger.logs[body["batch"]] = body["log"]
    if ledger.replay is not None and body["batch"] > ledger.accounted:
        ledger.replay = None
    written = Written.of(body["parts"]) if body["reason"] == ClosingReason.WRITE.name else None
    batch, sources, writers, run = (body[key] for key in ("batch", "sources", "writers", "run"))
    return BatchRecord(batch, sources, writers, entry.number, run, parts, checkpoint, entry.time, written)


def _prepared(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.batches[body["batch"]] = _record(ledger, entry, body, None)
    _keep_logs(ledger)


def _keep_logs(ledger: Ledger) -> None:
    last = ledger.accounted
    ledger.logs = {
        n: text for n, text in ledger.logs.items() if n in ledger.batches and n in (last, last - 1, ledger.decided)
    }


def _decided(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.origin = body.get("origin") or ledger.origin
    covered = [b.batch for b in ledger.undecided()]
    if body["covers"] != covered:
        reason = (
            f"entry {entry.number} decides the prepared micro-batches {body['covers']}, the journal holds {covered}"
        )
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    for number in covered:
        ledger.batches[number].checkpoint = entry.number
    batches = list(covered)
    if body["batch"] not in covered:  # else: a prepared micro-batch closed later
        ledger.batches[body["batch"]] = _record(ledger, entry, body, entry.number)
        batches.append(body["batch"])
    parts = [p for b in batches for p in ledger.batches[b].parts]
    settled = not any(p.handles for p in parts) and not body.get("marked")  # a mark has to be published
    ledger.checkpoints[entry.number] = CheckpointRecord(
        id=entry.number,
        batches=batches,
        time=entry.time,
        rows=sum(p.rows for p in parts),
        barrier=body["barrier"],
        began=body["began"],
        bytes=sum(p.bytes for p in parts),
        handles=sum(bool(p.handles) for p in parts),
        reason=body["reason"],
        hooks=dict(body["hooks"]),
        subsumed=[declined.batch for declined in ledger.declined if declined.batch != body["batch"]],
        routes=_rows_of_routes(parts),
        cut=body.get("cut"),
        marked=body.get("marked", False),
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


def _settled(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.stamp = max(ledger.stamp, body.get("stamp", 0))
    ledger.raise_stamps(body.get("stamps", {}))
    run, parts = ledger.runs.get(body["run"]), ledger.parts_of(ledger.checkpoints[body["checkpoint"]])
    if run is not None:
        for key in {run.store_key(part.route) for part in parts if part.handles and not part.accepted}:
            ledger.newest[key] = max(ledger.newest.get(key, 0), body["checkpoint"])
    ledger.checkpoints[body["checkpoint"]].output = dict(body["output"])
    _settle(ledger, body["checkpoint"], entry.time)


def _verdict(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    for judged in body["parts"]:
        part = ledger.part_of(judged)
        part.verdicts[judged["handle"]] = judged["verdict"]


def _repair(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    for repaired in body["parts"]:
        part = ledger.part_of(repaired)
        if repaired["handle"] is None:  # an accepted difference: its replay has no rows
            part.verdicts[-1] = "accepted"
            continue
        part.handles.append(repaired["handle"])
        part.verdicts.append(None)
        _add(ledger, repaired=1)


def _resolve(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.accept_store()
    part = ledger.part_of(body)
    part.verdicts[-1] = {"accept-loss": "accepted"}.get(body["decision"], "lost")
    if body["decision"] == "accept-difference":
        part.free = True
        ledger.batches[body["batch"]].written = None


def _void(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    if "checkpoint" in body:
        checkpoint = ledger.checkpoints.pop(body["checkpoint"])
        enter(checkpoint, CheckpointState.VOID)
        batches = checkpoint.batches
    else:
        batches = [body["prepared"]]
    for batch in batches:
        del ledger.batches[batch]
        ledger.logs.pop(batch, None)
    ledger.voided += batches
    _failed(ledger, entry, "failed", CheckpointFailureReason.VOID.name, batches)


def _end_run(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    if body["run"] in ledger.runs:
        ledger.runs[body["run"]].ended = entry.kind
    if entry.kind == EntryKind.ABORTED:
        _count(ledger, "triggered")
        _failed(ledger, entry, "failed", CheckpointFailureReason.ABORTED.name, [body["batch"]])


def _declined(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    _count(ledger, "triggered")
    ledger.declined.append(Declined(body["batch"], entry.time, body["reason"], body["detail"]))
    _failed(ledger, entry, "declined", body["reason"], [body["batch"]], body["detail"])


def _restored(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    ledger.runs[body["run"]].restored = body["checkpoint"] or 0


def _requested(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    if body.get("what") == "stop":
        ledger.stop = body["run"]
    else:
        ledger.request = entry.number


def _restarted(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    _count(ledger, "restarts")
    ledger.restarts = [*ledger.restarts, RestartRecord(entry.number, entry.time, **body)][-KEPT_RESTARTS:]


def _rewind_begun(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or entry.kind
    request = {key: value for key, value in body.items() if key != "checkpoint"}
    ledger.rewinding = Rewind(entry.number, body["checkpoint"], request)


def _rewind_done(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    """Forget entries about later micro-batches, but for those of a part-committed checkpoint that it keeps."""
    last, kept = body["batch"], body["keep"]
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


def _moved(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or entry.kind
    ledger.rewinding = None
    ledger.request = None
    ledger.moved = Moved(entry.number, body["location"], body["savepoint"], body["checkpoint"])


def _begin_restore(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    if entry.number != 1:
        reason = f"entry {entry.number} begins a restore in a journal in use"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    ledger.restoring = Restoring(**body)


def _opened(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    if ledger.restoring is None:
        reason = f"entry {entry.number} opens a journal that is open"
        raise JournalError("JOURNAL_DAMAGED", reason=reason, number=entry.number)
    vars(ledger).update(vars(ledger.restoring.opened(body["position"], body.get("origin"))))


def _adopt(ledger: Ledger, entry: Entry, body: Mapping[str, Any]) -> None:
    for run in ledger.runs.values():
        run.ended = run.ended or EntryKind.ADOPT
    ledger.accept_store()
    ledger.location = body["location"]
    ledger.query = ""  # the next run records it
    if body["suffix"] != ledger.identity_suffix:
        ledger.originals = sorted({*ledger.originals, *(run.prefix for run in ledger.runs.values())})
    ledger.identity_suffix = body["suffix"]
    ledger.base = body["base"]
    ledger.logs, ledger.reached = {}, -1  # the query's logs are accepted as they are
    if body["drop"]:  # the unsettled entries are another location's, or about batches that the query no longer has
        ledger.checkpoints = {
            k: c for k, c in ledger.checkpoints.items() if c.settled and max(c.batches) <= ledger.base
        }
        ledger.batches = {k: b for k, b in ledger.batches.items() if b.checkpoint in ledger.checkpoints}
        ledger.voided = []
        if "sources" in body and body["base"] in ledger.batches:
            ledger.batches[body["base"]].sources = body["sources"]


def _trim(ledger: Ledger) -> None:
    """Forget records that no recovery needs."""
    keep = max(ledger.batches) - KEPT_BATCHES
    if ledger.replay is not None:  # from there on they run again
        keep = min(keep, ledger.replay - 2)
    for number in [n for n, b in ledger.batches.items() if n <= keep]:
        record = ledger.batches[number]
        checkpoint = ledger.checkpoints.get(record.checkpoint or 0)
        if record.checkpoint is not None and (checkpoint is None or checkpoint.settled):
            ledger.base = max(ledger.base, number)
            del ledger.batches[number]
    for number in [k for k, c in sorted(ledger.checkpoints.items()) if c.settled][: -ledger.retained]:
        del ledger.checkpoints[number]


_FOLDS: dict[str, Callable[[Ledger, Entry, Mapping[str, Any]], None]] = {
    EntryKind.RUN: _run,
    EntryKind.MARK: _mark,
    EntryKind.PREPARED: _prepared,
    EntryKind.DECIDED: _decided,
    EntryKind.SETTLED: _settled,
    EntryKind.VERDICT: _verdict,
    EntryKind.REPAIR: _repair,
    EntryKind.VOID: _void,
    EntryKind.ABORTED: _end_run,
    EntryKind.FENCED: _end_run,
    EntryKind.RESOLVE: _resolve,
    EntryKind.ADOPT: _adopt,
    EntryKind.DECLINED: _declined,
    EntryKind.RESTORED: _restored,
    EntryKind.REQUEST: _requested,
    EntryKind.STOPPED: _end_run,
    EntryKind.RESTARTED: _restarted,
    EntryKind.REWIND_BEGUN: _rewind_begun,
    EntryKind.REWIND_DONE: _rewind_done,
    EntryKind.MOVED: _moved,
    EntryKind.RESTORING: _begin_restore,
    EntryKind.OPENED: _opened,
}
