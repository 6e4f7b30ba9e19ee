"""``barrier rewind``: take a stopped query back to an earlier checkpoint, in place, with `transactional.rewind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from connector.cli.arguments import Location, QueryStopped, Yes
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import LocationLogs, check_target
from connector.spark.exclusion import earlier_at_work, exclusive_access, query_at_work, rewind_at_work
from connector.spark.location_owner import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import this_process
from connector.spark.recorded_sink import recorded_run, recorded_sink
from connector.views.words import batches_text, output_text
from transactional.errors import StoreError, TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger, Rewind
from transactional.rewind import Preview, Rewinder, output_ranges
from transactional.sink import TwoPhaseCommitSink, restorable

Sink = TwoPhaseCommitSink[Any, Any]

MOST_NAMED = 20
"""The maximum number of checkpoints that an error names: the newest ones. The plan, which is printed before the error,
names all checkpoints."""


@dataclass(frozen=True)
class Request:
    """The options that the operator passed to ``barrier rewind``."""

    to: int
    allow_reemit: bool
    restore_tables: bool
    dry_run: bool


def rewind(
    report: Report,
    location: Location,
    given: Mapping[str, str],
    to: Annotated[
        int | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="The id of the checkpoint to go back to, from `barrier checkpoints list`. Required.",
            show_default=False,
        ),
    ] = None,
    allow_reemit: Annotated[
        bool,
        typer.Option(
            "--allow-reemit",
            help="Accept duplicates: rows committed after the checkpoint stay in the output, and the query writes them again.",
        ),
    ] = False,
    restore_tables: Annotated[
        bool,
        typer.Option(
            "--restore-tables",
            help="Also roll the output back to the checkpoint, if the sink supports it (Delta tables).",
        ),
    ] = False,
    query_stopped: QueryStopped = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing: print what the rewind would do and, if it would be refused, every reason.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """When a query's output or state has gone wrong: take the stopped query back to an earlier checkpoint, with its state.

    When you start the query again, it continues from that checkpoint. The command aborts open transactions that no checkpoint
    has decided, and the query writes their rows again. If the command is killed, run it again, or run `barrier recover
    LOCATION`, which finishes the rewind. Until then, a query that is started at LOCATION stops immediately.
    """
    if to is None:
        raise typer.BadParameter(
            "pass --to CHECKPOINT. To repair the query without writing any row twice, or to finish an interrupted rewind, "
            "run `barrier recover LOCATION`"
        )
    request = Request(to, allow_reemit, restore_tables, dry_run)
    place, journal = open_journal(location, "there is no checkpoint to go back to")
    refuse_batch_writes(place, "each of its versions is written once, so there is no checkpoint to go back to")
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
        if begun is not None and _goes_on(begun, request):
            body |= _tell_begun(begun, request, report)
            need: TwoPhaseCommitError | None = rewind_at_work(begun, query_stopped) or rewinder.older_copy()
            begin = rewinder.again
        else:
            preview = rewinder.preview(to)
            check_target(place, journal.ledger, preview)
            _tell(journal.ledger, preview, request, report)
            need = _emission(preview, sink, request)
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
    """Raise the first error that forbids the rewind. In a dry run, print all of them instead, and return True."""
    standing = [need for need in needs if need is not None]
    if not request.dry_run:
        for need in standing:
            raise need
        return False
    report.status = "dry run"
    report.facts.update(needs=[need.condition for need in standing])
    report.say(*(f"the rewind would be refused: {need}" for need in standing))
    return True


def _finish(place: CheckpointLocation, journal: Journal, rewinder: Rewinder, report: Report) -> None:
    before, spark = journal.ledger.copy(), offset_log.newest(place, "offsets")
    try:
        batch = rewinder.finish()
    except BaseException:
        report.complain("the rewind has started but not finished: run `barrier recover LOCATION` to finish it")
        raise
    after = journal.ledger
    void = [batch for failure in after.failures if failure.entry > before.position for batch in failure.batches]
    settled = [c.id for c in before.unsettled() if not set(c.batches) & set(void)]
    gone = sorted(set(before.checkpoints) - set(after.checkpoints))
    aborted = [record.batch for record in before.undecided()]
    report.say("rewound:")
    for what, numbers in (
        ("checkpoints that the rewind committed first", settled),
        ("checkpoints that are no longer valid", gone),
        ("prepared micro-batches that were aborted", aborted),
    ):
        if numbers:
            report.say(f"  {what}: {batches_text(numbers)}")
    report.say(f"  Spark's logs were rolled back from micro-batch {spark} to {offset_log.newest(place, 'offsets')}")
    report.say(f"start the query: it continues after micro-batch {batch}")
    report.facts.update(batch=batch, settled=settled, gone=gone, aborted=aborted)


def _goes_on(begun: Rewind, request: Request) -> bool:
    """Return whether a request continues the rewind `begun`: it has the same target, and does not add ``--restore-tables``."""
    return begun.checkpoint == request.to and (bool(begun.request.get("restoreTables")) or not request.restore_tables)


def _tell_begun(begun: Rewind, request: Request, report: Report) -> dict[str, Any]:
    """Print that this command continues an earlier rewind. Return the changes to the recorded request of that rewind."""
    report.say(
        f"The rewind to checkpoint {begun.checkpoint} was started (journal entry {begun.token}), and now continues."
    )
    report.facts.update(checkpoint=begun.checkpoint, rewind=begun.token)
    if not begun.request.get("restoreTables"):
        return {}
    if request.restore_tables or not request.allow_reemit:
        report.say(
            "This rewind also rolls tables back. To leave the tables as they are, pass --allow-reemit without --restore-tables."
        )
        return {}
    report.say("The tables are no longer rolled back: committed rows stay, and are written AGAIN.")
    return {"restoreTables": False, "allowReemit": True}


def _emission(preview: Preview, sink: Sink, request: Request) -> TwoPhaseCommitError | None:
    """Return an error if the tables can't be rolled back as requested, or rows would be written twice without permission."""
    if request.restore_tables:
        return _restoring(preview, sink)
    if preview.emitted and not request.allow_reemit:
        rows = sum(each.rows for each in preview.emitted)
        where = "; ".join(f"checkpoint {each.id}: {output_text(each.output)}" for each in preview.emitted[-MOST_NAMED:])
        return StoreError(
            "OUTPUT_COMMITTED",
            rows=rows,
            count=len(preview.emitted),
            checkpoints=[each.id for each in preview.emitted],
            target=preview.checkpoint,
            where=where,
            alternative="" if _restoring(preview, sink) else ". Or roll the tables back with --restore-tables",
        )
    return None


def _restoring(preview: Preview, sink: Sink) -> TwoPhaseCommitError | None:
    if preview.restored is not None and not preview.restored.output:
        return StoreError(
            "NOT_RESTORABLE",
            sink=sink.name(),
            reason=f"the journal does not contain the output's position after checkpoint {preview.checkpoint} (the "
            "checkpoint had no rows, or the entry was removed)",
        )
    try:
        restorable(sink).checkRestore(preview.restored.output if preview.restored is not None else {})
    except TwoPhaseCommitError as problem:
        return problem
    return None


def _tell(ledger: Ledger, preview: Preview, request: Request, report: Report) -> None:
    """Print what the rewind will do."""
    undecided, unsettled = ledger.undecided(), ledger.unsettled()
    report.say(f"The query goes back to checkpoint {preview.checkpoint}, after micro-batch {preview.batch}.")
    report.say(f"Micro-batches that run again: {batches_text(preview.rewritten)}.")
    for checkpoint in unsettled:
        report.say(
            f"Checkpoint {checkpoint.id} (micro-batches {batches_text(checkpoint.batches)}, {checkpoint.rows} rows) is "
            "decided but not settled: the rewind commits it first, or discards it if its transactions are lost."
        )
    if undecided:
        rows = sum(part.rows for record in undecided for part in record.parts)
        numbers = batches_text([record.batch for record in undecided])
        report.say(
            f"Micro-batches {numbers} ({rows} rows) are prepared but not decided: the rewind aborts them, "
            "and the query writes their rows again."
        )
    ranges = _ranges(ledger, preview)
    what = "ROLLED BACK" if request.restore_tables else "written AGAIN"
    for emitted in preview.emitted:
        state = "committed" if emitted.settled else "decided, perhaps committed"
        report.say(
            f"Checkpoint {emitted.id} (micro-batches {batches_text(emitted.batches)}, {emitted.rows} rows) is {state}, and "
            f"will be {what}. Output: {output_text(emitted.output)}"
        )
    for name, (begin, end) in ranges.items():
        report.say(f"  {name}: from {'unknown' if begin is None else begin} to {end}")
    report.facts.update(
        checkpoint=preview.checkpoint,
        batch=preview.batch,
        rewritten=list(preview.rewritten),
        prepared=[record.batch for record in undecided],
        emitted=[
            {"checkpoint": e.id, "batches": list(e.batches), "rows": e.rows, "settled": e.settled, "output": e.output}
            for e in preview.emitted
        ],
        ranges={name: list(places) for name, places in ranges.items()},
        restoreTables=request.restore_tables,
    )


def _ranges(ledger: Ledger, preview: Preview) -> dict[str, tuple[int | None, int]]:
    target = preview.checkpoint or 0
    earlier = [checkpoint.output for number, checkpoint in ledger.checkpoints.items() if number <= target]
    return output_ranges(earlier, [checkpoint.output for checkpoint in preview.emitted])
