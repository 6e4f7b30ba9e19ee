"""``barrier adopt``: accept a moved, restored or copied checkpoint location."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from connector.cli.given import claims
from connector.cli.place import load_journal, unchanged
from connector.cli.report import Location, Output, OutputOption, Report, Yes, reporting
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from connector.spark.location_owner import refuse_batch_writes
from transactional.barrier import sources_digest
from transactional.entries import Adopt
from transactional.errors import LocationError
from transactional.ledger import Ledger
from transactional.ownership import moved_on, unfinished

__all__ = ["adopt"]


def adopt(
    location: Location,
    claim: Annotated[
        bool, typer.Option("--claim", help="The query goes on at this location; the other one is gone.")
    ] = False,
    no_claim: Annotated[
        bool, typer.Option("--no-claim", help="This is a copy, and gets an identity of its own.")
    ] = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Accept a moved, restored or copied checkpoint location.

    Stop every query on it first. Without --yes it asks, after it has printed what may be lost or doubled.
    """
    claims(claim, no_claim)
    with reporting(output) as report:
        _adopt(location, claim, yes, report)


def _adopt(path: str, claim: bool, yes: bool, report: Report) -> None:
    location, journal = load_journal(path)
    ledger = journal.ledger
    if ledger.moved is not None:
        raise moved_on(ledger.moved)
    if ledger.restoring is not None:
        raise unfinished(ledger.restoring)
    refuse_batch_writes(location, "go on with a new checkpointLocation, from the first version that the target lacks")
    location.query_id()  # refused if Spark has no metadata: nothing ever ran here
    if ledger.rewinding is not None and not claim:
        raise LocationError("REWIND_NOT_DONE", rewind=ledger.rewinding.token)
    committed = newest(location, "commits")
    if committed > newest(location, "offsets"):
        raise LocationError(
            "LOGS_INCONSISTENT",
            reason=f"commits/{committed} exists without its offsets/{committed}",
            committed=committed,
        )
    drop = not claim or not _agrees(location, ledger, committed)
    suffix = ledger.identity_suffix if claim else f"-{os.urandom(4).hex()}"
    base = committed if drop else ledger.base
    consequences = list(_consequences(location, ledger, committed, claim, drop, suffix))
    report.say(*consequences)
    report.facts.update(
        location=location.path,
        recorded=ledger.location,
        accounted=ledger.accounted,
        committed=committed,
        suffix=suffix,
        dropped=drop,
        consequences=consequences,
    )
    report.confirm(yes)
    sources = None
    if drop and committed in ledger.batches:  # the next start compares this file
        sources = sources_digest(source_lines(location, committed))
    fact = Adopt(location=location.path, suffix=suffix, base=base, drop=drop, sources=sources)
    journal.append(fact, lambda found: unchanged(found, ledger.position))
    rewinds = ledger.rewinding is not None
    report.say(f"adopted: {'finish the rewind (`barrier recover LOCATION`)' if rewinds else 'start the query'}")


def _consequences(
    location: CheckpointLocation, ledger: Ledger, committed: int, claim: bool, drop: bool, suffix: str
) -> Iterator[str]:
    if not ledger.position:
        yield f"{location.path} holds no journal: the query had another sink so far, or the journal was deleted."
        yield "Rows of a micro-batch that another sink, or a lost journal, had only half done may be DOUBLED or LOST."
    else:
        yield f"{location.path}: the journal (of {ledger.location}) accounts for micro-batches up to {ledger.accounted},"
    yield f"Spark has committed micro-batches up to {committed}."
    if claim and ledger.position:
        yield "If this is an older copy, what was committed after it was made is written AGAIN: DOUBLED."
        yield "If the store is an older copy, what was committed after it was made is LOST: rewind before you adopt."
    if not claim:
        yield (
            f"The copy gets transactional ids of its own (suffix {suffix}; a transactionalIdPrefix that the query sets must "
            f"be a new one) and goes on after micro-batch {committed}."
        )
    for checkpoint in ledger.unsettled() if drop else ():
        batches, rows = checkpoint.batches, checkpoint.rows
        yield f"Checkpoint {checkpoint.id} (micro-batches {batches}, {rows} rows) is decided, not settled:"
        yield ("  what is not committed of it is LOST." if claim else "  the original commits it; the copy does not.")
    for record in ledger.undecided() if drop else ():
        rows = sum(part.rows for part in record.parts)
        yield f"Micro-batch {record.batch} ({rows} rows) is prepared, and in no checkpoint yet:"
        if record.batch > committed:
            yield "  it is written again."
        elif claim:
            yield "  what was prepared of it is aborted, and LOST."
        else:
            yield "  the original commits it; the copy does not."
    if drop and ledger.accounted > committed:
        again = f"{committed + 1} to {ledger.accounted}"
        yield f"Micro-batches {again} were handled before, and are written AGAIN: DOUBLED there."
    if drop and ledger.accounted == committed and not _same_sources(location, ledger):
        yield (
            f"offsets/{committed} is not the one that the journal recorded: rows between the two ends are LOST, or DOUBLED. "
            f"{'`barrier recover LOCATION` puts the recorded one back instead.' if committed in ledger.logs else ''}"
        )
    if drop and claim and ledger.accounted < committed:
        yield (f"Micro-batches {ledger.accounted + 1} to {committed} count as handled; the journal can't show it.")


def _agrees(location: CheckpointLocation, ledger: Ledger, committed: int) -> bool:
    """Return whether the journal and Spark's logs agree."""
    return committed <= ledger.accounted <= committed + 1 and _same_sources(location, ledger)


def _same_sources(location: CheckpointLocation, ledger: Ledger) -> bool:
    """Return whether Spark's file of the journal's last micro-batch is the one that the journal recorded."""
    last = ledger.accounted
    record = ledger.batches.get(last)
    try:
        return record is None or sources_digest(source_lines(location, last)) == record.sources
    except LocationError:
        return False
