"""Describe a query and its checkpoints as pairs of a name and a value."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from connector.spark.process import driver_text, is_alive
from connector.views.words import batches_text, duration_text, output_text, time_text
from transactional.entry import EntryKind
from transactional.ledger import CheckpointState, Ledger
from transactional.stats import CheckpointHistory, counts, pending, unsettled

FAILURES = (CheckpointState.ABORTED, CheckpointState.VOID, CheckpointState.DECLINED)

SHOWN_RESTARTS = 3
"""Only this many of the newest restarts are shown. A JSON document has all restarts that the journal keeps."""


class QueryState(enum.Enum):
    """The state of a query, as its journal and the processes of this machine show it."""

    EMPTY = "has not run"
    BEGUN = "started, no run yet"
    RESTORING = "restore unfinished"
    MOVED = "moved"
    REWINDING = "rewinding"
    STOPPED = "stopped"
    ENDED = "ended"
    GONE = "driver gone"
    STOPPING = "stopping"
    RUNNING = "driver runs"
    UNSEEN = "driver not seen"


def state_of(ledger: Ledger, alive: bool | None) -> tuple[QueryState, str]:
    """Return a query's state and a sentence about it. `alive` is whether the driver is running; None if unknown."""
    run = ledger.newest_run
    if ledger.restoring is not None:
        return QueryState.RESTORING, "A restore to this location is unfinished: run the restore again."
    if ledger.moved is not None:
        return QueryState.MOVED, f"The query was moved to {ledger.moved.location}."
    if ledger.rewinding is not None:
        return (
            QueryState.REWINDING,
            "A rewind was started and has not finished: run `barrier recover LOCATION` to finish it.",
        )
    if run is None:
        return QueryState.EMPTY, "No run of the query has begun yet."
    if run.ended == EntryKind.STOPPED:
        return QueryState.STOPPED, "The query was stopped gracefully: everything that it prepared is committed."
    left = (
        "its prepared rows wait for the next start"
        if ledger.undecided() or ledger.unsettled()
        else "all rows that it prepared are committed"
    )
    how = f"Run {run.token} has ended ({run.ended})" if run.ended else ""
    if alive is False:
        gone = f"the driver's process of run {run.token} is gone; {left}."
        return QueryState.GONE, f"{how}, and {gone}" if how else f"T{gone[1:]}"
    if how:
        there = "is still running" if alive else "can't be seen from here"
        return (
            QueryState.ENDED,
            f"{how}; the run's driver process {there}. The query has not begun another run; {left}.",
        )
    if ledger.stopping:
        return QueryState.STOPPING, "The query was asked to stop, and ends after its final checkpoint."
    if alive is None:
        return (
            QueryState.UNSEEN,
            f"The query's driver is on {run.process.get('host') or 'an unknown host'}, which can't be seen from here.",
        )
    return QueryState.RUNNING, f"The driver's process of run {run.token} is running."


def processes_alive(ledger: Ledger) -> tuple[bool | None, bool | None]:
    """Return whether the driver's process is running, and whether the rewind's process is.

    Each of the two values is None if it is unknown, or if no such process exists.
    """
    alive = is_alive(ledger.newest_run.process) if ledger.newest_run else None
    return alive, is_alive(ledger.rewinding.request.get("process", {})) if ledger.rewinding else None


def checkpoint_pairs(found: CheckpointHistory) -> list[tuple[str, str]]:
    """Return the facts about a checkpoint as pairs of a name and a value."""
    why = f"{found.reason}: {found.sentence}" if found.sentence else found.reason or "-"
    rows = [("micro-batches", batches_text(found.batches)), ("why", why)]
    if found.detail:
        rows.append(("detail", found.detail))
    if found.failed is not None:
        return [*rows, ("at", time_text(found.failed))]
    return [
        *rows,
        ("rows", f"{found.rows} in {found.handles} transactions, {found.bytes} bytes"),
        *([("rows of sinks", output_text(found.routes))] if found.routes else []),
        *_cut_pairs(found),
        ("barrier", time_text(found.barrier)),
        ("prepared", f"{time_text(found.prepared)}  after {duration_text(found.preparing_ms)}"),
        ("decided", f"{time_text(found.decided)}  after {duration_text(found.deciding_ms)}"),
        ("committed", f"{time_text(found.committed)}  after {duration_text(found.committing_ms)}"),
        ("output", output_text(found.output)),
        ("hooks", ", ".join(found.hooks) or "-"),
    ]


def _cut_pairs(found: CheckpointHistory) -> list[tuple[str, str]]:
    """Return pairs about the other queries' barriers in a checkpoint, and about how long it waited for their marks."""
    if found.cut is None:
        return []
    exact = "" if found.cut["exact"] else ", and rows after them"
    waited = ", ".join(f"{name} {duration_text(ms)}" for name, ms in sorted(found.cut["waited"].items()))
    return [
        ("barriers", f"{output_text(found.cut['lineage'])}{exact}"),
        *([("marks waited", waited)] if waited else []),
    ]


def query_pairs(path: str, found: Ledger, now: float, alive: bool | None, doing: bool | None) -> list[tuple[str, str]]:
    """Return the facts about a query as pairs of a name and a value.

    `now` is in seconds since 1970; `alive` and `doing` are the results of `processes_alive`.
    """
    return [*_progress(path, found, alive), *_waiting(found, now), *_events(found), *_rewind_begun(found, doing)]


def _progress(path: str, found: Ledger, alive: bool | None) -> Iterator[tuple[str, str]]:
    number = counts(found)
    moved = "" if found.location == path else f" (the journal names {found.location}: run `barrier restore --as-is`)"
    totals = f"{number['triggered']} triggered, {number['completed']} completed, {number['failed']} failed"
    yield "location", f"{path}{moved}"
    yield "checkpoints", f"{totals}, {number['declined']} declined, {number['restored']} restored"
    yield "newest completed", str(found.completed.id) if found.completed else "none"
    yield "micro-batches", f"decided up to {found.decided}, prepared up to {found.accounted}"
    run = found.newest_run
    if run is not None:
        ended = f", ended ({run.ended})" if run.ended else ""
        yield "run", f"{run.token}{ended}, {run.sink}, transactions under {run.prefix}"
        yield "driver", driver_text(run.process, alive)


def _waiting(found: Ledger, now: float) -> Iterator[tuple[str, str]]:
    waiting = pending(found, now)
    undecided = f"micro-batches {batches_text(waiting.batches)}: {waiting.rows} rows in {waiting.handles} transactions"
    yield "undecided", undecided if waiting.batches else "nothing"
    if waiting.oldest_age is not None:
        limit = "no timeout known" if waiting.lifetime is None else f"timeout {waiting.lifetime:g} s"
        late = ", OVER the timeout: it may be lost" if waiting.overdue else ""
        yield "oldest transaction", f"{waiting.oldest_age:.0f} s old, {limit}{late}"
    for each in unsettled(found):
        which = f"checkpoint {each.checkpoint}, micro-batches {batches_text(each.batches)}, {each.rows} rows"
        yield "not settled", f"{which}: parts open {each.open}, lost {each.lost}, committed {each.committed}"
    if found.voided:
        yield "to run again", f"micro-batches {batches_text(found.voided)}: their transactions were lost"


def _events(found: Ledger) -> Iterator[tuple[str, str]]:
    if found.declined:
        yield "declined in a row", str(len(found.declined))
    if found.request is not None:
        yield "asked for", "the next micro-batch closes a checkpoint"
    if found.moved is not None:
        yield "MOVED", f"to {found.moved.location} (journal entry {found.moved.entry}): start it there"
    if found.restored is not None:
        how = "the query continues here" if found.restored.claim else "a copy"
        yield "restored", f"checkpoint {found.restored.checkpoint} of {found.restored.origin}; {how}"
    if found.stopping:
        yield "asked for", "the query stops after its final checkpoint"
    for again in found.restarts[-SHOWN_RESTARTS:]:
        what = "rewound, and started again" if again.rewound else "started again"
        restart = f"{time_text(again.time)}  {what} by {again.by} (number {again.number}, after {again.delay:g} s)"
        yield "restart", f"{restart}: {again.reason}"


def _rewind_begun(found: Ledger, doing: bool | None) -> Iterator[tuple[str, str]]:
    if found.rewinding is not None:
        to = found.rewinding.checkpoint
        target = f"to checkpoint {to}" if to is not None else "to a point from which nothing is written twice"
        who = driver_text(found.rewinding.request.get("process", {}), doing)
        yield "REWIND", f"{target}, started but not finished; {who}. `barrier recover LOCATION` finishes it"
