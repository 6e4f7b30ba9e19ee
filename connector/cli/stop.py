"""``barrier stop``: end a query at its final checkpoint."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, QueryStopped, options_given, seconds
from connector.cli.place import open_journal
from connector.cli.report import Location, Output, OutputOption, Report, reporting
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
    location: Location,
    timeout: Annotated[
        float, typer.Option(callback=seconds, metavar="SECONDS", help="How long to wait for its end.")
    ] = 120.0,
    savepoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Then copy its last checkpoint there.", show_default=False),
    ] = None,
    query_stopped: QueryStopped = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a query at its final checkpoint, so that nothing is left prepared and no reader is held back.

    A running query ends by itself: with its next micro-batch, a supervised one at once. If its driver is gone, it is ended
    from here, as `barrier recover` does. Exit status 5: it was asked to, and has not ended within --timeout.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report:
        place, _ = open_journal(location, "no query to stop")
        if savepoint is not None:
            free_folder(place, savepoint)  # before the query is stopped
        report.facts.update(location=place.path)
        try:
            done = recover(place, Upkeep(given), query_stopped=query_stopped)
            if not done and savepoint is None:
                report.status = "nothing to do"
            report.say(f"no query runs here: {done}")
        except QueryRunsError:
            if not _wait(place, timeout, report):
                return
        if savepoint is not None:
            take(place.path, savepoint)
            report.say(f"savepoint: {savepoint}")
            report.facts.update(savepoint=savepoint)


def _wait(place: CheckpointLocation, timeout: float, report: Report) -> bool:
    """Ask, and wait; return False, and report why, if the query still runs."""
    end = time.monotonic() + timeout
    asked = request_stop(place)
    report.say("asked to stop: its next micro-batch closes the final checkpoint")
    while not (found := _look(place)).stopped and time.monotonic() < end:
        if not found.ledger.stop_asked and not found.ledger.rewinding:  # started again meanwhile, by its supervisor
            asked = request_stop(place)
        time.sleep(LOOK_SECONDS)
    report.facts.update(run=found.run.token if found.run else 0, prepared=list(found.prepared), idle=found.idle)
    if found.stopped:
        report.say("stopped: everything is committed, and nothing is open")
        return True
    report.pending("asked for")
    report.say(_why_not(found, asked))
    return False


def _look(place: CheckpointLocation) -> Standing:
    """Return how far the query is, while it goes on here."""
    found = standing(place)
    if found.ledger.moved:
        raise moved_on(found.ledger.moved)
    return found


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
