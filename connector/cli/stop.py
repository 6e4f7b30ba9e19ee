"""``barrier stop``: end a query at its final checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

import typer

from connector.cli.arguments import Location, QueryStopped, seconds
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover
from connector.operations.stopping import Standing, request_stop, standing
from connector.savepoints.take import free_folder, take
from connector.spark.exclusion import QueryRunsError
from connector.views.words import batches_text
from transactional.ownership import moved_on

__all__ = ["stop"]

LOOK_SECONDS = 0.5
"""Seconds between two reads of the journal."""


def stop(
    report: Report,
    location: Location,
    given: Mapping[str, str],
    timeout: Annotated[
        float, typer.Option(callback=seconds, metavar="SECONDS", help="How long to wait for its end.")
    ] = 120.0,
    savepoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Then copy its last checkpoint there.", show_default=False),
    ] = None,
    query_stopped: QueryStopped = False,
) -> None:
    """Before maintenance, an upgrade or a move: end a query at a final checkpoint, so that no transaction stays open.

    A running query ends with its next micro-batch; a supervised one ends even without new rows. If its driver is gone, this
    command ends it, as `barrier recover` does. Exit status 5: the query was asked to stop, and has not ended within --timeout.
    """
    place, _ = open_journal(location, "no query to stop")
    if savepoint is not None:
        free_folder(place, savepoint)  # before the query is stopped
    report.facts.update(location=place.path)
    try:
        done = recover(place, Upkeep(given), query_stopped=query_stopped)
    except QueryRunsError:
        if not _wait(place, timeout, report):
            return
    else:
        report.say(f"no query runs here: {done}")
        if not done and savepoint is None:
            report.status = "nothing to do"
    if savepoint is not None:
        take(place.path, savepoint)
        report.say(f"savepoint: {savepoint}")
        report.facts.update(savepoint=savepoint)


def _wait(place: CheckpointLocation, timeout: float, report: Report) -> bool:
    """Ask, and wait; return False, and report why, if the query still runs."""
    end = time.monotonic() + timeout
    asked = request_stop(place)
    report.say("asked to stop: its next micro-batch closes the final checkpoint")
    while True:
        found = standing(place)
        if found.ledger.moved:
            raise moved_on(found.ledger.moved)
        if found.stopped or time.monotonic() >= end:
            break
        if not found.ledger.stop_asked and not found.ledger.rewinding:  # started again meanwhile, by its supervisor
            asked = request_stop(place)
        time.sleep(LOOK_SECONDS)
    report.facts.update(run=found.run.token if found.run else 0, prepared=list(found.prepared), idle=found.idle)
    if found.stopped:
        report.say("stopped: everything is committed, and nothing is open")
    else:
        report.pending("asked for")
        report.say(_why_not(found, asked))
    return found.stopped


def _why_not(found: Standing, asked: int | None) -> str:
    run = found.run
    if run is not None and run.ended is not None:
        return (
            f"Run {asked or run.token} failed ({run.ended}) before its final checkpoint, and its driver lives. If nothing "
            "starts it again, end the driver, and run the command again."
        )
    if found.clean and found.idle:
        return (
            "Everything is committed and nothing is running, but the query lives: it gets no rows, and ends with its next "
            "micro-batch. To end it now is safe, too: query.stop(), or end its driver."
        )
    waiting = batches_text(found.prepared)
    return f"It has not ended yet. Micro-batches that are prepared and wait for its final checkpoint: {waiting}."
