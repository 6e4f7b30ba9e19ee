"""``barrier rewind``: a stopped query goes back to an earlier checkpoint, in place; `transactional.rewind` does it."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, Report, Yes, reporting
from connector.cli.rewind_plan import Request, Sink, emission, tell
from connector.cli.words import batches_text
from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.spark.alone import alone, query_at_work, rewind_at_work
from connector.spark.belonging import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import this_process
from connector.spark.recorded import recorded_run, recorded_sink
from connector.spark.taking_back import NOTHING, LocationLogs, check_target
from transactional.errors import LocationError, TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import RunRecord
from transactional.rewind import Rewinder
from transactional.secrets import hiding, secrets_of

__all__ = ["rewind"]


def rewind(
    location: Location,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Go back to this one (`barrier checkpoints list`). Without it: to the newest from which nothing is written "
            "twice.",
            show_default=False,
        ),
    ] = None,
    allow_reemit: Annotated[
        bool,
        typer.Option(
            "--allow-reemit",
            help="With --to: output that was committed after that checkpoint stays, and its rows are written again. With "
            "--resume: leave the tables as they are, if they were to be restored.",
        ),
    ] = False,
    restore_tables: Annotated[
        bool,
        typer.Option("--restore-tables", help="With --to: take the output back, too, if the sink can (Delta tables)."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a rewind that was begun.")] = False,
    query_stopped: Annotated[
        bool,
        typer.Option(
            "--query-stopped", help="The query was stopped, though its driver's process runs or can't be seen."
        ),
    ] = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would do, and what it would need.")] = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a stopped query back to an earlier checkpoint, its state included; started again, it goes on from there.

    Transactions that no checkpoint has decided are aborted, and their rows are written again. It can be killed at any moment:
    a query that is started then stops with an error that names --resume, which finishes the rewind.
    """
    if resume and (to is not None or restore_tables):
        raise typer.BadParameter("--resume goes on with what was begun: --to and --restore-tables were given then")
    if restore_tables and to is None:
        raise typer.BadParameter("--restore-tables takes output back that was committed: name the checkpoint with --to")
    given = options_given(option, options_file)
    request = Request(to, allow_reemit, restore_tables, resume, query_stopped, given, dry_run, yes)
    with reporting(output) as report, hiding(secrets_of(given)):
        try:
            _rewind(location, request, report)
        except LocationError as nothing:
            if nothing.condition not in NOTHING:
                raise
            report.status = "nothing to do"
            report.facts.update(message=nothing.message)
            report.say(f"nothing to do: {nothing.message}")


def _rewind(path: str, request: Request, report: Report) -> None:
    location, journal = open_journal(path, "nothing to go back to")
    refuse_batch_writes(location, "each of its versions is written once, there is nothing to go back in")
    refuse_elsewhere(location, journal.ledger)
    report.facts.update(location=location.path)
    run = recorded_run(journal.ledger)
    sink = recorded_sink(run, location, request.given)
    try:
        work = _Work(location, journal, run, sink, request, report)
        work.resume() if request.resume else work.begin()
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


class _Work:
    """One rewind, from its preview to its end."""

    def __init__(
        self,
        location: CheckpointLocation,
        journal: Journal,
        run: RunRecord,
        sink: Sink,
        request: Request,
        report: Report,
    ) -> None:
        self._location = location
        self._journal = journal
        self._run = run
        self._sink = sink
        self._request = request
        self._report = report
        self._rewinder = Rewinder(journal, sink, LocationLogs(location), location.query_id(), run.prefix)

    def begin(self) -> None:
        """Go back, from the beginning."""
        request, report, ledger = self._request, self._report, self._journal.ledger
        running = query_at_work(self._location, self._run, request.query_stopped)
        if running is not None and not request.dry_run:
            raise running
        preview = self._rewinder.preview(request.to)
        check_target(self._location, ledger, preview)
        tell(ledger, preview, request, self._report)
        if _refused(request, report, running, emission(preview, self._sink, request)):
            return
        self._report.confirm(request.yes)
        with alone(self._location):
            body = {"restoreTables": request.restore_tables, "allowReemit": request.allow_reemit}
            self._rewinder.begin(preview, {**body, "process": this_process()})
            self._finish()

    def resume(self) -> None:
        """Finish the rewind that was begun."""
        request, report = self._request, self._report
        begun = self._rewinder.begun()
        target = (
            f"checkpoint {begun.checkpoint}"
            if begun.checkpoint is not None
            else "a point from which nothing is written twice"
        )
        report.say(f"A rewind to {target} was begun (journal entry {begun.token}).")
        report.facts.update(checkpoint=begun.checkpoint, rewind=begun.token)
        gives_up = bool(begun.request.get("restoreTables")) and request.allow_reemit
        if gives_up:
            report.say("It was to take tables back. It will not: what is committed stays, and is written AGAIN.")
        other = rewind_at_work(begun, request.query_stopped)
        if _refused(request, report, other, query_at_work(self._location, self._run, request.query_stopped)):
            return
        if gives_up:
            report.confirm(request.yes)
        with alone(self._location):
            self._journal.load()
            self._rewinder.begun()  # still: it may have been finished, and the query started, before the door was shut
            body = {"restoreTables": False, "allowReemit": True} if gives_up else {}
            self._rewinder.again({**body, "process": this_process()})
            self._finish()

    def _finish(self) -> None:
        report, before = self._report, self._journal.ledger.copy()
        spark = offset_log.newest(self._location, "offsets")
        try:
            batch = self._rewinder.finish()
        except BaseException:
            report.complain("the rewind was begun, and is not done: `barrier rewind LOCATION --resume` finishes it")
            raise
        after = self._journal.ledger
        kept = [c.id for c in after.unsettled()]
        void = [batch for failure in after.failures if failure.entry > before.position for batch in failure.batches]
        settled = [c.id for c in before.unsettled() if c.id not in kept and not set(c.batches) & set(void)]
        gone = sorted(set(before.checkpoints) - set(after.checkpoints))
        aborted = [record.batch for record in before.undecided()]
        report.say("rewound:")
        for what, numbers in (
            ("checkpoints committed first", settled),
            ("checkpoints that count for nothing any more", gone),
            ("part-committed checkpoints whose lost parts are written again", kept),
            ("prepared micro-batches that were aborted", aborted),
        ):
            if numbers:
                report.say(f"  {what}: {batches_text(numbers)}")
        report.say(f"  Spark's logs went from micro-batch {spark} to {offset_log.newest(self._location, 'offsets')}")
        report.say(f"the query goes on after micro-batch {batch}: start it")
        report.facts.update(batch=batch, settled=settled, gone=gone, kept=kept, aborted=aborted)
