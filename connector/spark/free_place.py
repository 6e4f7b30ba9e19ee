"""Whether a savepoint may be restored to a place: the place is free, or was restored and never used."""

from __future__ import annotations

import os
from collections.abc import Sequence

from connector.spark.location import CheckpointLocation
from connector.spark.manifest import Savepoint, refuse_inside
from transactional.errors import JournalError, LocationError
from transactional.ledger import Ledger, Origin
from transactional.restore import is_unused

__all__ = ["can_be_made_anew", "is_missing", "mounted", "moving", "refuse_unless_free"]

SPARKS = frozenset({"metadata", "offsets", "commits", "sources", "state", "barrier"})
"""What Spark and the journal have in a checkpoint location."""


def is_missing(location: CheckpointLocation) -> bool:
    """Whether the place is not there, or empty."""
    try:
        return not os.listdir(location.path)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def refuse_unless_free(location: CheckpointLocation, savepoint: Savepoint, claim: bool, closed: bool = False) -> bool:
    """N1: the place is not there, empty, or was restored of this savepoint and never used; True for the last.

    Parameters
    ----------
    location : CheckpointLocation
    savepoint : Savepoint
    claim : bool
        The query itself is to go on there.
    closed : bool
        The old place is closed, and names this one: no other will do.

    Raises
    ------
    LocationError
        ``LOCATION_NOT_EMPTY``, ``LOCATION_IS_MOUNTED``, ``INSIDE_A_SAVEPOINT``, ``INSIDE_THE_ORIGIN``
    """
    if os.path.ismount(location.path):
        raise mounted(location)
    refuse_inside(location.path, "a checkpoint location")
    origin = CheckpointLocation(savepoint.location).path
    if location.path.startswith(origin + os.sep):
        raise LocationError(
            "INSIDE_THE_ORIGIN",
            f"{location.path} lies in {origin}, of which the savepoint was taken, and would be deleted with it. Name a folder "
            "beside it",
            path=location.path,
            origin=origin,
        )
    if is_missing(location):
        return False
    try:
        found = sorted(os.listdir(location.path))
    except NotADirectoryError:
        found = ["a file"]
    unreadable = ""
    try:
        ledger = location.journal().load()
    except (JournalError, OSError) as problem:
        ledger, unreadable = Ledger(), f"Its journal can't be read: {problem}"
    more = [name for name in found if name not in SPARKS and not (name[0] == "." and name.endswith(".crc"))]
    anew = can_be_made_anew(ledger, location, savepoint, claim)
    if anew and not more:
        return True
    if unreadable:
        way_out = unreadable
    elif anew:
        way_out = f"{_listed(more)} would be deleted with it: move that away, and say the same command again"
    else:
        way_out = _way_out(ledger.restored, location.path, origin, savepoint, claim, closed)
    raise LocationError(
        "LOCATION_NOT_EMPTY",
        f"{location.path} holds {_listed(found)}: a savepoint is restored into a checkpoint location that is new. {way_out}",
        path=location.path,
    )


def _way_out(restored: Origin | None, path: str, origin: str, savepoint: Savepoint, claim: bool, closed: bool) -> str:
    """What to do where somebody uses the place."""
    if claim and restored is not None and (restored.savepoint, restored.claim) == (savepoint.id, True):
        done = "This savepoint was restored here, and the query has gone on here since"
        if closed or path == origin:
            return f"{done}: nothing is left to do. Where it does not run, start it here"
        return (
            f"{done}. {origin}, of which it was taken, is not closed: where it is there, start nothing there; delete it"
        )
    if not claim and restored is not None and restored.claim:
        return "It is where a query itself goes on: name another place for the copy"
    if closed:
        return (
            "The old place is closed and names this one: stop the query that was started here too early, move this folder "
            "away (what that query wrote stays written), and say the same command again"
        )
    return "Name one that is not there yet"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def mounted(location: CheckpointLocation) -> LocationError:
    """The error of a restore to a mount point."""
    return LocationError(
        "LOCATION_IS_MOUNTED",
        f"{location.path} is a mount point: no folder can be renamed to its name, and the location has to appear whole or not "
        f"at all. Name a folder inside it ({os.path.join(location.path, 'checkpoint')})",
        path=location.path,
    )


def can_be_made_anew(ledger: Ledger, location: CheckpointLocation, savepoint: Savepoint, claim: bool) -> bool:
    """Whether a place was restored of this savepoint in this way, and no query has begun there."""
    restored, begun = ledger.restored, ledger.rewinding
    if restored is None or (restored.savepoint, restored.claim) != (savepoint.id, claim) or not is_unused(ledger):
        return False
    return begun is None or begun.moving == moving(location, savepoint)


def moving(location: CheckpointLocation, savepoint: Savepoint) -> dict[str, str]:
    """In `rewind begun`: which restore has begun it."""
    return {"location": location.path, "savepoint": savepoint.id}
