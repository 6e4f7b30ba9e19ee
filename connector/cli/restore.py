"""``barrier restore``: create a checkpoint location from a savepoint, or accept one that you moved, copied or put back."""

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


def restore(
    report: Report,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SAVEPOINT",
            help="The savepoint's folder. With --as-is, pass the checkpoint location instead.",
            show_default=False,
        ),
    ],
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[NEW_LOCATION]",
            help="The query's new checkpointLocation. Do not pass it with --as-is.",
            show_default=False,
        ),
    ] = None,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is",
            help="Copy nothing. Accept the location and the sink's store as they are now. Use this if you moved, copied or put "
            "back the location yourself, or if the sink now has a different store.",
        ),
    ] = False,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim",
            help="Continue the same query at the new location. The savepoint's original location is closed for good. "
            "With --as-is, no other location is closed: make sure that the query never starts at another one.",
        ),
    ] = False,
    no_claim: Annotated[
        bool, typer.Option("--no-claim", help="Make a copy with its own identity. The original query may keep running.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --claim: continue although the original location is lost. Rows committed there after the savepoint are "
            "DUPLICATED.",
        ),
    ] = False,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repartition the query's state into this number of shuffle partitions.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """To move, copy or put back a query: create a checkpoint location that the query can start from.

    The command copies SAVEPOINT into NEW_LOCATION. If you use --claim, stop the query first (`barrier stop LOCATION --savepoint
    DIR`). If the command is killed, run it again.

    With --as-is, the command copies nothing. Instead of SAVEPOINT, pass a location that you moved, copied or put back yourself,
    or whose sink now has a different store. Stop every query on this location first. The command prints which rows may be lost
    or duplicated, and asks for confirmation.
    """
    if claim is no_claim:
        raise typer.BadParameter(f"pass {'only ' if claim else ''}one of --claim and --no-claim")
    if force and no_claim:
        raise typer.BadParameter("--force works only with --claim: a copy does not touch the original query")
    if as_is:
        if location is not None or force or shuffle_partitions is not None:
            raise typer.BadParameter("--as-is takes one LOCATION, and neither --force nor --shuffle-partitions")
        _accept(source, claim, yes, report)
    elif location is None:
        raise typer.BadParameter("pass NEW_LOCATION, or pass --as-is to accept a location as it is")
    else:
        place = CheckpointLocation(location)
        restored = Restore(source, place, claim, force, shuffle_partitions)
        _tell(restored, place, claim, shuffle_partitions, report)
        if restored.is_open:
            report.status = "nothing to do"
            report.say(f"nothing to do: the savepoint was already restored to {place.path}. Start the query there")
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
        report.say("The savepoint no longer exists. It is not needed, because the query was already moved.")
        return
    report.facts.update(
        savepoint=saved.path, id=saved.id, origin=saved.location, checkpoint=saved.checkpoint, batch=saved.batch
    )
    report.say(f"Checkpoint {saved.checkpoint} of query {saved.query}, up to micro-batch {saved.batch}.")
    if partitions is not None:
        report.say(
            f"The state will have {partitions} partitions. Before, it had {saved.partitions or 'an unknown number'}."
        )
    if restored.is_open:
        return
    if restored.lost is not None:
        report.say(
            str(restored.lost),
            f"--force: rows that the query committed after checkpoint {saved.checkpoint} are written AGAIN: they are "
            "DUPLICATED. Their number is unknown. If the query still runs somewhere, stop it first: two queries would have the "
            "same identity.",
        )
    elif claim:
        report.say(
            f"{saved.location} is closed for good: a query that starts there stops, and reports the new location."
        )
    else:
        report.say(
            "The copy has its own transactional ids. If the query sets transactionalIdPrefix, set another prefix for the copy. "
            f"The copy also writes all rows after micro-batch {saved.batch}: unless you want these rows twice, give "
            "the copy its own output."
        )
