"""``barrier recover``: finish the transactions of a dead query, before the query is started again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from connector.cli.arguments import Location, QueryStopped
from connector.cli.place import load_journal
from connector.cli.report import Report
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover


def recover_query(
    report: Report,
    location: Location,
    given: Mapping[str, str],
    query_stopped: QueryStopped = False,
    first_start: Annotated[
        bool,
        typer.Option("--first-start", help="If LOCATION does not exist, do nothing: the query may never have started."),
    ] = False,
) -> None:
    """Before you start a query, or after a crash: finish the transactions that a dead driver has left open.

    Run the command as systemd's ExecStartPre, or as a container's first command. It finishes an interrupted rewind, settles
    decided checkpoints and commits prepared micro-batches. If prepared rows are lost, or if Spark's logs no longer match the
    journal, the command rewinds the query to a point from which it can continue without writing a row twice. The query then
    reads the rows after that point again.

    If no query has run at LOCATION, there is nothing to do. If LOCATION may not exist, pass --first-start.
    """
    place, journal = load_journal(location, new=True, first_start=first_start)
    done = recover(place, Upkeep(given), query_stopped=query_stopped)
    if not done:
        report.status = "nothing to do"
    report.facts.update(location=place.path, batch=done.batch)
    report.say(f"{place.path}: {done if done or journal.ledger.newest_run else _nothing(place)}")


def _nothing(place: CheckpointLocation) -> str:
    absent = place.is_local and not os.path.isdir(place.path)
    return f"{'it does not exist: ' if absent else ''}no query has run here, so there is nothing to do"
