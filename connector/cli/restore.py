"""``barrier restore``: a checkpoint location from a savepoint, or one that was moved, copied or put back by other means."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.arguments import Yes
from connector.cli.place import find_location
from connector.cli.report import Report
from connector.location.location import CheckpointLocation
from connector.operations.adoption import Adoption
from connector.savepoints.restore import Restore
from transactional.errors import TwoPhaseCommitError

__all__ = ["restore"]


def restore(
    report: Report,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SAVEPOINT", help="The savepoint's folder; with --as-is the location itself.", show_default=False
        ),
    ],
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[NEW_LOCATION]", help="The query's new checkpointLocation; not with --as-is.", show_default=False
        ),
    ] = None,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is", help="Accept a location that you moved, copied or put back, and what its sink's store holds."
        ),
    ] = False,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim",
            help="The query goes on there. The location of the savepoint is closed for good; with --as-is "
            "you make sure that no other location of the query is used.",
        ),
    ] = False,
    no_claim: Annotated[
        bool, typer.Option("--no-claim", help="A copy with its own identity: the query itself may keep running.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --claim, if the old location is lost: what it has committed since is DOUBLED."
        ),
    ] = False,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Give the state this number of partitions, with Spark's own repartition.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """To move or copy a query, or after its location was moved or put back: make a location that the query can start from.

    SAVEPOINT is copied into NEW_LOCATION. With --claim stop the query first (`barrier stop LOCATION --savepoint DIR`). If the
    command is killed, run it again.

    With --as-is nothing is copied: you name a location that you moved, copied or put back yourself, or whose sink has another
    store now. Stop every query on it first. The command prints what may be lost or doubled, and asks.
    """
    if claim is no_claim:
        raise typer.BadParameter(f"pass {'only ' if claim else ''}one of them: --claim or --no-claim")
    if force and no_claim:
        raise typer.BadParameter("--force is of --claim: a copy leaves the query alone")
    if as_is:
        if location is not None or force or shuffle_partitions is not None:
            raise typer.BadParameter("--as-is takes one LOCATION, and neither --force nor --shuffle-partitions")
        _accept(source, claim, yes, report)
    elif location is None:
        raise typer.BadParameter("name NEW_LOCATION; to accept a location as it is, pass --as-is")
    else:
        place = CheckpointLocation(location)
        restored = Restore(source, place, claim, force, shuffle_partitions)
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


def _accept(path: str, claim: bool, yes: bool, report: Report) -> None:
    location = find_location(path)
    adoption = Adoption(location, claim)
    ledger, consequences = adoption.ledger, list(adoption.consequences())
    report.say(*consequences)
    report.facts.update(
        location=location.path,
        recorded=ledger.location,
        accounted=ledger.accounted,
        committed=adoption.committed,
        suffix=adoption.suffix,
        dropped=adoption.drop,
        consequences=consequences,
    )
    report.confirm(yes)
    adoption.run()
    rewinds = ledger.rewinding is not None
    report.say(f"accepted: {'finish the rewind (`barrier recover LOCATION`)' if rewinds else 'start the query'}")


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
