"""``barrier recover``: leave nothing of a dead query open, before it is started again."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.place import load_journal
from connector.cli.report import Location, Output, OutputOption, reporting
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover
from transactional.secrets import hiding, secrets_of

__all__ = ["recover_query"]


def recover_query(
    location: Location,
    query_stopped: Annotated[
        bool,
        typer.Option(
            "--query-stopped",
            help="No query runs, though its driver's process does or can't be seen (it was in another container).",
        ),
    ] = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recover a query that does not run: before a start, in an init container or systemd's ExecStartPre.

    A rewind that was begun is finished; what is decided is settled, what is prepared committed. If it was lost, the query
    goes back to a point from which nothing is written twice, and reads those rows again. If no query has run at LOCATION,
    there is nothing to do.
    """
    given = options_given(option, options_file)
    with reporting(output) as report, hiding(secrets_of(given)):
        place = CheckpointLocation(location)
        run = load_journal(place).ledger.newest_run
        done = recover(place, Upkeep(given, [run.driver] if run and query_stopped else [], query_stopped))
        if not done:
            report.status = "nothing to do"
        report.facts.update(location=place.path, batch=done.batch)
        report.say(f"{place.path}: {done}")
