"""``barrier checkpoints``: list and show a query's checkpoints, and ask for one."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, reporting
from connector.spark.location_owner import refuse_batch_writes
from connector.spark.process import is_alive
from connector.views.queries import FAILURES, checkpoint_pairs, query_pairs
from connector.views.words import batches_text, duration_text, status_text, time_text
from transactional.clock import SystemClock
from transactional.errors import FencedError, LocationError
from transactional.ledger import Ledger
from transactional.ownership import must_own, newest_run
from transactional.stats import CheckpointHistory, counts, figures, history

__all__ = ["list_checkpoints", "show", "trigger"]


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
            report.pairs(f"Checkpoint {chosen.id}: {status_text(chosen)}", checkpoint_pairs(chosen))
        report.pairs(f"Query {found.query or '(adopted)'}", query_pairs(place.path, found, now, alive, doing))


def _choose(ledger: Ledger, identifier: int | None) -> CheckpointHistory | None:
    found = {each.id: each for each in history(ledger)}
    if identifier is None:
        return found[max(found)] if found else None
    if identifier not in found:
        raise LocationError("UNKNOWN_CHECKPOINT", checkpoint=identifier, kept=sorted(found))
    return found[identifier]


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
            asked = journal.ask("checkpoint", _refuse_unless_running)
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
