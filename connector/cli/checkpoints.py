"""``barrier checkpoints``: list and show a query's checkpoints, and ask for one."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.arguments import Location
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.spark.location_owner import refuse_batch_writes
from connector.spark.process import is_alive
from connector.views.queries import FAILURES, checkpoint_pairs, processes_alive, query_pairs
from connector.views.words import batches_text, duration_text, status_text, time_text
from transactional.clock import SystemClock
from transactional.entries import Request
from transactional.errors import FencedError, LocationError
from transactional.ledger import Ledger
from transactional.ownership import must_own, newest_run
from transactional.stats import CheckpointHistory, counts, figures, history

__all__ = ["list_checkpoints", "show", "trigger"]


def list_checkpoints(
    report: Report,
    location: Location,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 20,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed or were declined.")] = False,
) -> None:
    """To see how a query gets on, or to choose a checkpoint to go back to: list its checkpoints, oldest first.

    The list has those that the journal keeps, and the last failures. ID is the number that `barrier rewind --to` takes. Works
    while the query runs.
    """
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
    report: Report,
    location: Location,
    identifier: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="The newest by default.", show_default=False)
    ] = None,
) -> None:
    """To see the state of a query now: one checkpoint, the newest by default, its driver, and what is open.

    It also says whether a rewind is in progress. Works while the query runs.
    """
    place, journal = open_journal(location, "no sink of ours has run on it")
    chosen = _choose(journal.ledger, identifier)
    found, now = journal.ledger, SystemClock().now()
    alive, doing = processes_alive(found)
    document = figures(found, now)
    if found.newest_run:
        document["run"]["alive"] = alive
    if found.rewinding:
        document["rewinding"]["alive"] = doing
    report.facts.update(location=place.path, checkpoint=chosen.to_json() if chosen else None, stats=document)
    if chosen is not None:
        report.pairs(f"Checkpoint {chosen.id}: {status_text(chosen)}", checkpoint_pairs(chosen))
    report.pairs(f"Query {found.query or '(accepted as it is)'}", query_pairs(place.path, found, now, alive, doing))


def _choose(ledger: Ledger, identifier: int | None) -> CheckpointHistory | None:
    found = {each.id: each for each in history(ledger)}
    if identifier is None:
        return found[max(found)] if found else None
    if identifier not in found:
        raise LocationError("UNKNOWN_CHECKPOINT", checkpoint=identifier, kept=sorted(found))
    return found[identifier]


def trigger(report: Report, location: Location) -> None:
    """When you need a checkpoint soon: ask the query to close one with its next micro-batch, whatever its barrierInterval.

    The command neither waits for the checkpoint nor makes a micro-batch: a query without new rows closes one when rows come.
    If the query has ended, or its driver is gone, the command is refused.
    """
    place, journal = open_journal(location, "no query to ask")
    refuse_batch_writes(place, "each of its writes is a checkpoint")
    report.facts.update(location=place.path)
    _refuse_unless_running(journal.ledger)
    asked = journal.ledger.request
    if asked is not None:
        report.status = "nothing to do"
        report.say(f"a checkpoint was asked for already (journal entry {asked}), and no micro-batch has come since")
    else:
        asked = journal.ask(_due, _refuse_unless_running).request
        report.say("asked for: the next micro-batch closes a checkpoint")
    report.facts.update(request=asked)


def _due(ledger: Ledger) -> Request | None:
    return Request(what="checkpoint") if ledger.request is None else None


def _refuse_unless_running(ledger: Ledger) -> None:
    run = newest_run(ledger)
    must_own(run.token)(ledger)
    if is_alive(run.process) is False:
        raise FencedError("RUN_ENDED", run=run.token, ended="its driver is gone")
