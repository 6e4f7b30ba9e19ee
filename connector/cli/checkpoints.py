"""``barrier checkpoints``: list and show a query's checkpoints, and ask for one."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, reporting
from connector.cli.words import batches_text, duration_text, output_text, status_text, time_text
from connector.location.location import CheckpointLocation
from connector.spark.belonging import refuse_batch_writes
from connector.spark.process import driver_text, is_alive
from transactional.clock import SystemClock
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError
from transactional.ledger import CheckpointState, Ledger
from transactional.ownership import must_own, newest_run
from transactional.stats import CheckpointHistory, Pending, counts, figures, history, pending, unsettled

__all__ = ["list_checkpoints", "show", "trigger"]

SHOWN_RESTARTS = 3
"""The newest; the JSON document has those that the journal keeps."""

FAILURES = (CheckpointState.ABORTED, CheckpointState.VOID, CheckpointState.DECLINED)


def list_checkpoints(
    location: Location,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 20,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed or were declined.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a query's checkpoints, oldest first: those that the journal keeps, and the last failures.

    ID is what `barrier rewind --to` takes. Works while the query runs.
    """
    with reporting(output) as report:
        place, journal = open_journal(location, "no sink of ours has run on it")
        found = [each for each in history(journal.ledger) if not failed or each.status in FAILURES]
        shown = found[-limit:]
        report.facts.update(
            location=place.path,
            total=len(found),
            checkpoints=[each.to_json() for each in shown],
            counts=counts(journal.ledger),
        )
        heads = ("ID", "STATUS", "BATCHES", "ROWS", "AT", "TOOK", "WHY")
        report.table(heads, [_row(each) for each in shown], wraps=("STATUS", "BATCHES", "WHY"))
        if len(shown) < len(found):
            report.say(f"{len(found) - len(shown)} older ones are not shown: --limit {len(found)}")


def _row(found: CheckpointHistory) -> tuple[str, ...]:
    took = None if found.committing_ms is None else found.committing_ms + (found.preparing_ms or 0)
    return (
        str(found.id),
        status_text(found, brief=True),
        batches_text(found.batches),
        "-" if found.status in FAILURES else str(found.rows),
        time_text(found.time),
        duration_text(took),
        found.reason.lower().replace("_", " ") or "-",
    )


def show(
    location: Location,
    identifier: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="The newest by default.", show_default=False)
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one checkpoint, the newest by default, and how the query stands.

    That is: what is prepared and undecided, whether the driver runs, whether a rewind is in progress. Works while the
    query runs.
    """
    with reporting(output) as report:
        place, journal = open_journal(location, "no sink of ours has run on it")
        chosen = _choose(journal.ledger, identifier)
        found, now = journal.ledger, SystemClock().now()
        alive = is_alive(found.newest_run.process) if found.newest_run else None
        doing = is_alive(found.rewinding.request.get("process", {})) if found.rewinding else None
        document = figures(found, now)
        if found.newest_run:
            document["run"]["alive"] = alive
        if found.rewinding:
            document["rewinding"]["alive"] = doing
        report.facts.update(location=place.path, checkpoint=chosen.to_json() if chosen else None, stats=document)
        if chosen is not None:
            report.pairs(f"Checkpoint {chosen.id}: {status_text(chosen)}", _checkpoint_pairs(chosen))
        report.pairs(
            f"Query {found.query or '(adopted)'}", _query_pairs(place, found, pending(found, now), alive, doing)
        )


def _choose(ledger: Ledger, identifier: int | None) -> CheckpointHistory | None:
    found = {each.id: each for each in history(ledger)}
    if identifier is None:
        return found[max(found)] if found else None
    if identifier not in found:
        raise LocationError("UNKNOWN_CHECKPOINT", checkpoint=identifier, kept=sorted(found))
    return found[identifier]


def _checkpoint_pairs(found: CheckpointHistory) -> list[tuple[str, str]]:
    why = f"{found.reason}: {found.sentence}" if found.sentence else found.reason or "-"
    rows = [("micro-batches", batches_text(found.batches)), ("why", why)]
    if found.detail:
        rows.append(("detail", found.detail))
    if found.failed is not None:
        return [*rows, ("at", time_text(found.failed))]
    return [
        *rows,
        ("rows", f"{found.rows} in {found.handles} transactions, {found.bytes} bytes"),
        ("barrier", time_text(found.barrier)),
        ("prepared", f"{time_text(found.prepared)}  after {duration_text(found.preparing_ms)}"),
        ("decided", f"{time_text(found.decided)}  after {duration_text(found.deciding_ms)}"),
        ("committed", f"{time_text(found.committed)}  after {duration_text(found.committing_ms)}"),
        ("output", output_text(found.output)),
        ("hooks", ", ".join(found.hooks) or "-"),
    ]


def _query_pairs(
    place: CheckpointLocation, found: Ledger, pending: Pending, alive: bool | None, doing: bool | None
) -> list[tuple[str, str]]:
    number = counts(found)
    moved = "" if found.location == place.path else f" (the journal was written at {found.location}: `barrier adopt`)"
    totals = f"{number['triggered']} triggered, {number['completed']} completed, {number['failed']} failed"
    rows = [
        ("location", f"{place.path}{moved}"),
        ("checkpoints", f"{totals}, {number['declined']} declined, {number['restored']} restored"),
        ("newest completed", str(found.completed.id) if found.completed else "none"),
        ("micro-batches", f"decided up to {found.decided}, prepared up to {found.accounted}"),
    ]
    run = found.newest_run
    if run is not None:
        ended = f", ended ({run.ended})" if run.ended else ""
        rows.append(("run", f"{run.token}{ended}, {run.sink}, transactions under {run.prefix}"))
        rows.append(("driver", driver_text(run.process, alive)))
    undecided = f"micro-batches {batches_text(pending.batches)}: {pending.rows} rows in {pending.handles} transactions"
    rows.append(("undecided", undecided if pending.batches else "nothing"))
    if pending.oldest_age is not None:
        limit = "no timeout known" if pending.lifetime is None else f"timeout {pending.lifetime:g} s"
        late = ", OVER it: it may be lost" if pending.overdue else ""
        rows.append(("oldest transaction", f"{pending.oldest_age:.0f} s old, {limit}{late}"))
    for each in unsettled(found):
        which = f"checkpoint {each.checkpoint}, micro-batches {batches_text(each.batches)}, {each.rows} rows"
        rows.append(("not settled", f"{which}: parts open {each.open}, lost {each.lost}, committed {each.committed}"))
    if found.voided:
        rows.append(("to run again", f"micro-batches {batches_text(found.voided)}: their transactions were lost"))
    if found.declined:
        rows.append(("declined in a row", str(len(found.declined))))
    if found.request is not None:
        rows.append(("asked for", "the next micro-batch closes a checkpoint"))
    if found.moved is not None:
        rows.append(("MOVED", f"to {found.moved.location} (journal entry {found.moved.entry}): start it there"))
    if found.restored is not None:
        how = "the query goes on here" if found.restored.claim else "a copy"
        rows.append(("restored", f"checkpoint {found.restored.checkpoint} of {found.restored.origin}; {how}"))
    if found.stopping:
        rows.append(("asked for", "the query stops: its final checkpoint, then `stopped`"))
    for again in found.restarts[-SHOWN_RESTARTS:]:
        what = "rewound, and started again" if again.rewound else "started again"
        restart = f"{time_text(again.time)}  {what} by {again.by} (number {again.number}, after {again.delay:g} s)"
        rows.append(("restart", f"{restart}: {again.reason}"))
    if found.rewinding is not None:
        to = found.rewinding.checkpoint
        target = f"to checkpoint {to}" if to is not None else "to a point from which nothing is written twice"
        who = driver_text(found.rewinding.request.get("process", {}), doing)
        rows.append(("REWIND", f"{target}, begun and not done; {who}. `barrier recover LOCATION` finishes it"))
    return rows


def trigger(location: Location, output: OutputOption = Output.TABLE) -> None:
    """Ask for a checkpoint: the next micro-batch of the query closes one, whatever its barrierInterval.

    The command does not wait for the checkpoint, and makes no micro-batch: a query without new rows closes one when rows come.
    If the query has ended, or its driver is gone, there is none to ask.
    """
    with reporting(output) as report:
        place, journal = open_journal(location, "no query to ask")
        refuse_batch_writes(place, "each of its writes is a checkpoint")
        report.facts.update(location=place.path)
        _refuse_unless_running(journal.ledger)
        asked = journal.ledger.request
        if asked is None:
            asked = journal.append(EntryKind.REQUEST, {"what": "checkpoint"}, _refuse_unless_running).number
            report.say("asked for: the next micro-batch closes a checkpoint")
        else:
            report.status = "nothing to do"
            report.say(f"a checkpoint was asked for already (journal entry {asked}), and no micro-batch has come since")
        report.facts.update(request=asked)


def _refuse_unless_running(ledger: Ledger) -> None:
    run = newest_run(ledger)
    must_own(run.token)(ledger)
    if is_alive(run.process) is False:
        raise FencedError("RUN_ENDED", run=run.token, ended="its driver is gone")
