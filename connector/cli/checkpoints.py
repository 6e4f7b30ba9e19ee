"""``barrier checkpoints``: list and show a query's checkpoints, and request a new one."""

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


def list_checkpoints(
    report: Report,
    location: Location,
    limit: Annotated[
        int, typer.Option(min=1, help="The maximum number of checkpoints to show; the newest are shown.")
    ] = 20,
    failed: Annotated[
        bool, typer.Option("--failed", help="Show only checkpoints that failed or were declined.")
    ] = False,
) -> None:
    """To check on a query, or choose a checkpoint: list the query's checkpoints, oldest first.

    The list contains the checkpoints that the journal still keeps, and the latest failures. To go back to a checkpoint, pass
    its ID to `barrier rewind --to`. The command works while the query runs.
    """
    place, journal = open_journal(location, "no sink of barrier-kafka has run there")
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
        report.say(f"{len(found) - len(shown)} older checkpoints are not shown; to see them, pass --limit {len(found)}")


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
        int | None,
        typer.Argument(
            metavar="[ID]",
            help="The id of the checkpoint to show. By default, the newest checkpoint.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """When you want to know how a query is doing: show its newest checkpoint, its driver and its open transactions.

    If you pass an ID, the command shows that checkpoint instead of the newest. The command also shows whether a rewind is in
    progress. It works while the query runs.
    """
    place, journal = open_journal(location, "no sink of barrier-kafka has run there")
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
    report.pairs(
        f"Query {found.query or '(id unknown until its next start)'}", query_pairs(place.path, found, now, alive, doing)
    )


def _choose(ledger: Ledger, identifier: int | None) -> CheckpointHistory | None:
    found = {each.id: each for each in history(ledger)}
    if identifier is None:
        return found[max(found)] if found else None
    if identifier not in found:
        raise LocationError("UNKNOWN_CHECKPOINT", checkpoint=identifier, kept=sorted(found))
    return found[identifier]


def trigger(report: Report, location: Location) -> None:
    """When you need a checkpoint soon: ask the query to close one with its next micro-batch, regardless of barrierInterval.

    The command does not wait for the checkpoint, and does not start a micro-batch: a query without new rows closes the
    checkpoint when rows arrive. If the query has ended, or its driver is gone, the command is refused.
    """
    place, journal = open_journal(location, "there is no query to ask")
    refuse_batch_writes(place, "each df.write is a checkpoint")
    report.facts.update(location=place.path)
    _refuse_unless_running(journal.ledger)
    asked = journal.ledger.request
    if asked is not None:
        report.status = "nothing to do"
        report.say(f"a checkpoint was already requested (journal entry {asked}), and no micro-batch has run since")
    else:
        asked = journal.ask(_due, _refuse_unless_running).request
        report.say("requested: the next micro-batch closes a checkpoint")
    report.facts.update(request=asked)


def _due(ledger: Ledger) -> Request | None:
    return Request(what="checkpoint") if ledger.request is None else None


def _refuse_unless_running(ledger: Ledger) -> None:
    run = newest_run(ledger)
    must_own(run.token)(ledger)
    if is_alive(run.process) is False:
        raise FencedError("RUN_ENDED", run=run.token, ended="its driver is gone")
