"""``barrier recover``: leave nothing of a dead query open, before it is started again."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, QueryStopped, options_given
from connector.cli.place import load_journal
from connector.cli.report import Location, Output, OutputOption, reporting
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover

__all__ = ["recover_query"]


def recover_query(
    location: Location,
    query_stopped: QueryStopped = False,
    first_start: Annotated[
        bool,
        typer.Option("--first-start", help="The query may never have started: LOCATION need not be there."),
    ] = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recover a query that does not run: before a start, as systemd's ExecStartPre or a container's first command.

    A rewind that was begun is finished; what is decided is settled, what is prepared committed. If it was lost, or Spark's logs
    are not the journal's any more, the query goes back to a point from which nothing is written twice, and reads those rows
    again. If no query has run at LOCATION, there is nothing to do; if LOCATION is not there, pass --first-start.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report:
        place, journal = load_journal(location, new=True, first_start=first_start)
        done = recover(place, Upkeep(given), query_stopped=query_stopped)
        if not done:
            report.status = "nothing to do"
        report.facts.update(location=place.path, batch=done.batch)
        report.say(f"{place.path}: {done if done or journal.ledger.newest_run else _nothing(place)}")


def _nothing(place: CheckpointLocation) -> str:
    absent = place.is_local and not os.path.isdir(place.path)
    return f"{'it does not exist: ' if absent else ''}no query has run here, there was nothing to do"
