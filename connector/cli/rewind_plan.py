"""The preview of a rewind, in words and figures, and the reasons to refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from connector.cli.report import Report
from connector.views.words import batches_text, output_text
from transactional.errors import StoreError, TwoPhaseCommitError
from transactional.ledger import Ledger, Rewind
from transactional.rewind import Preview, output_ranges
from transactional.sink import TwoPhaseCommitSink, restorable

__all__ = ["Request", "Sink", "emission", "goes_on", "tell", "tell_begun"]

Sink = TwoPhaseCommitSink[Any, Any]

MOST_NAMED = 20
"""Checkpoints, the newest, that an error names; the plan before it names all."""


@dataclass(frozen=True)
class Request:
    """The arguments of ``barrier rewind``."""

    to: int
    allow_reemit: bool
    restore_tables: bool
    dry_run: bool


def goes_on(begun: Rewind, request: Request) -> bool:
    """Return whether the request is that of the rewind that was begun; its tables may be left as they are now."""
    return begun.checkpoint == request.to and (bool(begun.request.get("restoreTables")) or not request.restore_tables)


def tell_begun(begun: Rewind, request: Request, report: Report) -> dict[str, Any]:
    """Print that a rewind goes on; return what is changed of its request."""
    report.say(f"The rewind to checkpoint {begun.checkpoint} was begun (journal entry {begun.token}), and goes on.")
    report.facts.update(checkpoint=begun.checkpoint, rewind=begun.token)
    if not begun.request.get("restoreTables"):
        return {}
    if request.restore_tables or not request.allow_reemit:
        report.say(
            "Its tables are taken back still: pass --allow-reemit, without --restore-tables, to leave them as they are."
        )
        return {}
    report.say("It was to take tables back. It will not: what is committed stays, and is written AGAIN.")
    return {"restoreTables": False, "allowReemit": True}


def emission(preview: Preview, sink: Sink, request: Request) -> TwoPhaseCommitError | None:
    """Return the error of a rewind whose committed output stands in its way; None if nothing does."""
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
            alternative="" if _restoring(preview, sink) else ", or take the tables back with --restore-tables",
        )
    return None


def _restoring(preview: Preview, sink: Sink) -> TwoPhaseCommitError | None:
    if preview.restored is not None and not preview.restored.output:
        return StoreError(
            "NOT_RESTORABLE",
            sink=sink.name(),
            reason=f"the journal does not hold the output's position after checkpoint {preview.checkpoint} (no "
            "rows, or cleaned up)",
        )
    try:
        restorable(sink).checkRestore(preview.restored.output if preview.restored is not None else {})
    except TwoPhaseCommitError as problem:
        return problem
    return None


def tell(ledger: Ledger, preview: Preview, request: Request, report: Report) -> None:
    """Print what the rewind will do."""
    undecided, unsettled = ledger.undecided(), ledger.unsettled()
    report.say(f"Back to checkpoint {preview.checkpoint}: after micro-batch {preview.batch}.")
    report.say(f"Micro-batches that run again: {batches_text(preview.rewritten)}.")
    for checkpoint in unsettled:
        report.say(
            f"Checkpoint {checkpoint.id} (micro-batches {batches_text(checkpoint.batches)}, {checkpoint.rows} rows) is "
            "decided, not settled: it is committed first, or discarded if its transactions are lost."
        )
    if undecided:
        rows = sum(part.rows for record in undecided for part in record.parts)
        numbers = batches_text([record.batch for record in undecided])
        report.say(f"Micro-batches {numbers} ({rows} rows) are prepared, not decided: aborted, and written again.")
    ranges = _ranges(ledger, preview)
    what = "TAKEN BACK" if request.restore_tables else "written AGAIN"
    for emitted in preview.emitted:
        state = "committed" if emitted.settled else "decided, perhaps committed"
        report.say(
            f"Checkpoint {emitted.id} (micro-batches {batches_text(emitted.batches)}, {emitted.rows} rows) is {state}, and "
            f"{what}. Output: {output_text(emitted.output)}"
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
