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

LOOK_SECONDS = 0.5
"""Seconds between two reads of the journal."""


def stop(
    report: Report,
    location: Location,
    given: Mapping[str, str],
    timeout: Annotated[
        float, typer.Option(callback=seconds, metavar="SECONDS", help="How many seconds to wait for the query to end.")
    ] = 120.0,
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="After the query has ended, save its last checkpoint as a savepoint in this folder.",
            show_default=False,
        ),
    ] = None,
    query_stopped: QueryStopped = False,
) -> None:
    """Before maintenance, an upgrade or a move: end a query at a final checkpoint, so that no transaction stays open.

    A running query ends with its next micro-batch. A supervised query ends even if no new rows arrive. If the query's driver
    is dead, the command finishes the open transactions, as `barrier recover LOCATION` does. Exit status 5 means that the
    query was asked to stop, but did not end within --timeout.
    """
    place, _ = open_journal(location, "there is no query to stop")
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
    """Ask the query to stop, and wait. If it still runs when the timeout has expired, report why, and return False."""
    end = time.monotonic() + timeout
    asked = request_stop(place)
    report.say("asked to stop: the query's next micro-batch closes the final checkpoint")
    while True:
        found = standing(place)
        if found.ledger.moved:
            raise moved_on(found.ledger.moved)
        if found.stopped or time.monotonic() >= end:
            break
        if not found.ledger.stop_asked and not found.ledger.rewinding:  # its supervisor has restarted it
            asked = request_stop(place)
        time.sleep(LOOK_SECONDS)
    report.facts.update(run=found.run.token if found.run else 0, prepared=list(found.prepared), idle=found.idle)
    if found.stopped:
        report.say("stopped: everything is committed, and no transaction is open")
    else:
        report.pending("asked for")
        report.say(_why_not(found, asked))
    return found.stopped


def _why_not(found: Standing, asked: int | None) -> str:
    run = found.run
    if run is not None and run.ended is not None:
        return (
            f"Run {asked or run.token} failed ({run.ended}) before its final checkpoint, but its driver is still alive. "
            "If nothing restarts the query, end the driver, and run this command again."
        )
    if found.clean and found.idle:
        return (
            "Everything is committed and no micro-batch is running, but the query has not ended: it gets no rows, and ends "
            "with its next micro-batch. You can safely end it now: call query.stop(), or end its driver."
        )
    waiting = batches_text(found.prepared)
    return (
        f"The query has not ended yet. These micro-batches are prepared and wait for the final checkpoint: {waiting}."
    )
