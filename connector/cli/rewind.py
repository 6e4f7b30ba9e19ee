"""``barrier rewind``: a stopped query goes back to an earlier checkpoint, in place; `transactional.rewind` does it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from connector.cli.given import GivenFile, GivenOptions, QueryStopped, options_given
from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, Report, Yes, reporting
from connector.cli.rewind_plan import Request, emission, goes_on, tell, tell_begun
from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import LocationLogs, check_target
from connector.spark.exclusion import earlier_at_work, exclusive_access, query_at_work, rewind_at_work
from connector.spark.location_owner import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import this_process
from connector.spark.recorded_sink import recorded_run, recorded_sink
from connector.views.words import batches_text
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal
from transactional.rewind import Rewinder

__all__ = ["rewind"]


def rewind(
    location: Location,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="CHECKPOINT", help="Go back to this one (`barrier checkpoints list`); needed.", show_default=False
        ),
    ] = None,
    allow_reemit: Annotated[
        bool,
        typer.Option(
            "--allow-reemit",
            help="Output that was committed after that checkpoint stays, and its rows are written again.",
        ),
    ] = False,
    restore_tables: Annotated[
        bool, typer.Option("--restore-tables", help="Take the output back, too, if the sink can (Delta tables).")
    ] = False,
    query_stopped: QueryStopped = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would do, and what it would need.")] = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a stopped query back to an earlier checkpoint, its state included; started again, it goes on from there.

    Transactions that no checkpoint has decided are aborted, and their rows are written again. It can be killed at any moment:
    a query that is started then stops. Run the same command again, or `barrier recover`, which finishes it.
    """
    if to is None:
        raise typer.BadParameter(
            "pass --to CHECKPOINT. `barrier recover LOCATION` goes back to where nothing is written twice, if it has to, and "
            "finishes a rewind that was begun"
        )
    given = options_given(option, options_file)
    request = Request(to, allow_reemit, restore_tables, dry_run)
    with reporting(output, given) as report:
        place, journal = open_journal(location, "nothing to go back to")
        refuse_batch_writes(place, "each of its versions is written once, there is nothing to go back in")
        refuse_elsewhere(place, journal.ledger)
        report.facts.update(location=place.path)
        run = recorded_run(journal.ledger)
        sink = recorded_sink(run, place, given)
        try:
            rewinder = Rewinder(journal, sink, LocationLogs(place), place.query_id(), run.prefix)
            running = query_at_work(place, run, query_stopped)
            if running is None and not query_stopped:
                running = earlier_at_work(journal.ledger, run)
            if running is not None and not dry_run:
                raise running
            begun = journal.ledger.rewinding
            body: dict[str, Any] = {"process": this_process()}
            if begun is not None and goes_on(begun, request):
                body |= tell_begun(begun, request, report)
                need: TwoPhaseCommitError | None = rewind_at_work(begun, query_stopped)
                begin = rewinder.again
            else:
                preview = rewinder.preview(to)
                check_target(place, journal.ledger, preview)
                tell(journal.ledger, preview, request, report)
                need = emission(preview, sink, request)
                body |= {"restoreTables": restore_tables, "allowReemit": allow_reemit}
                begin = partial(rewinder.begin, preview)
            if _refused(request, report, running, need):
                return
            report.confirm(yes)
            with exclusive_access(place):
                begin(body)
                _finish(place, journal, rewinder, report)
        finally:
            sink.close()


def _refused(request: Request, report: Report, *needs: TwoPhaseCommitError | None) -> bool:
    """Raise the first; a dry run prints all instead, and returns True."""
    standing = [need for need in needs if need is not None]
    if not request.dry_run:
        for need in standing:
            raise need
        return False
    report.status = "dry run"
    report.facts.update(needs=[need.condition for need in standing])
    report.say(*(f"it would be refused: {need}" for need in standing))
    return True


def _finish(place: CheckpointLocation, journal: Journal, rewinder: Rewinder, report: Report) -> None:
    before, spark = journal.ledger.copy(), offset_log.newest(place, "offsets")
    try:
        batch = rewinder.finish()
    except BaseException:
        report.complain("the rewind was begun, and is not done: `barrier recover LOCATION` finishes it")
        raise
    after = journal.ledger
    void = [batch for failure in after.failures if failure.entry > before.position for batch in failure.batches]
    settled = [c.id for c in before.unsettled() if not set(c.batches) & set(void)]
    gone = sorted(set(before.checkpoints) - set(after.checkpoints))
    aborted = [record.batch for record in before.undecided()]
    report.say("rewound:")
    for what, numbers in (
        ("checkpoints committed first", settled),
        ("checkpoints that count for nothing any more", gone),
        ("prepared micro-batches that were aborted", aborted),
    ):
        if numbers:
            report.say(f"  {what}: {batches_text(numbers)}")
    report.say(f"  Spark's logs went from micro-batch {spark} to {offset_log.newest(place, 'offsets')}")
    report.say(f"the query goes on after micro-batch {batch}: start it")
    report.facts.update(batch=batch, settled=settled, gone=gone, aborted=aborted)
