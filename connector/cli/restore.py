"""``barrier restore``: a query goes on from a savepoint at a new checkpoint location, or a copy of it does."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.given import claims
from connector.cli.report import Output, OutputOption, Report, Yes, reporting
from connector.cli.savepoint import Saved
from connector.location.location import CheckpointLocation
from connector.savepoints.restore import Restore
from transactional.errors import TwoPhaseCommitError

__all__ = ["restore"]


def restore(
    saved: Saved,
    location: Annotated[
        str,
        typer.Argument(metavar="NEW_LOCATION", help="The checkpointLocation of the query: new.", show_default=False),
    ],
    claim: Annotated[
        bool,
        typer.Option("--claim", help="The query goes on there; the location that it was taken of is closed for ever."),
    ] = False,
    no_claim: Annotated[
        bool, typer.Option("--no-claim", help="A copy, with an identity of its own: the query itself may run on.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --claim, if the old location is lost: what it committed since is DOUBLED."),
    ] = False,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Give the state this number of partitions, with Spark's own repartition.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a new checkpoint location from a savepoint.

    With --claim stop the query first (`barrier stop LOCATION --savepoint DIR`). If it is killed, run the same command again.
    """
    if not claims(claim, no_claim) and force:
        raise typer.BadParameter("--force is of --claim: a copy leaves the query alone")
    with reporting(output) as report:
        place = CheckpointLocation(location)
        restored = Restore(saved, place, claim, force, shuffle_partitions)
        _tell(restored, place, claim, shuffle_partitions, report)
        if restored.is_open:
            report.status = "nothing to do"
            report.say(f"nothing to do: the savepoint was restored to {place.path} before. Start the query there")
            return
        report.confirm(yes)
        try:
            report.facts.update(query=restored.run(), repartitioned=restored.repartitioned)
        except (TwoPhaseCommitError, OSError, KeyboardInterrupt):
            if restored.is_begun:
                report.complain(f"{place.path} stays closed until the restore is finished: run the same command again")
            raise
        report.say(f"restored: start the query with {place.path} as its checkpointLocation")


def _tell(restored: Restore, place: CheckpointLocation, claim: bool, partitions: int | None, report: Report) -> None:
    report.facts.update(location=place.path, claim=claim, partitions=partitions)
    saved = restored.savepoint
    if saved is None:
        report.say("The savepoint is not there any more, and not needed: the query was moved already.")
        return
    report.facts.update(
        savepoint=saved.path, id=saved.id, origin=saved.location, checkpoint=saved.checkpoint, batch=saved.batch
    )
    report.say(f"Checkpoint {saved.checkpoint} of query {saved.query}, up to micro-batch {saved.batch}.")
    if partitions is not None:
        report.say(f"The state gets {partitions} partitions: it had {saved.partitions or 'unknown'}.")
    if restored.is_open:
        return
    if restored.lost is not None:
        report.say(
            str(restored.lost),
            f"--force: what the query has committed since checkpoint {saved.checkpoint} is written AGAIN: DOUBLED, and it is "
            "unknown how much. If it still runs somewhere, two queries have one identity: stop it first.",
        )
    elif claim:
        report.say(f"{saved.location} is closed for ever: a query that starts there stops, and reports where it went.")
    else:
        report.say(
            "A copy, with transactional ids of its own (a transactionalIdPrefix that the query sets must be a new one). What "
            f"comes after micro-batch {saved.batch} it writes, too: give it an output of its own, unless that is meant."
        )
