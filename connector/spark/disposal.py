"""The end of a savepoint: deleted where no claim needs it any more."""

from __future__ import annotations

import os

from connector.spark.draft import delete_folder, delete_leftovers
from connector.spark.location import CheckpointLocation
from connector.spark.manifest import MANIFEST, Savepoint, folder_of
from transactional.errors import LocationError, TwoPhaseCommitError
from transactional.ledger import MOVING, Ledger

__all__ = ["dispose", "finish_disposal"]


def dispose(savepoint: Savepoint) -> None:
    """Delete a savepoint: from the first step on nothing that looks like one is there.

    Raises
    ------
    LocationError
        ``SAVEPOINT_HOLDS_MORE``, ``SAVEPOINT_NEEDED``
    """
    _refuse_more(savepoint)
    _refuse_needed(savepoint)
    delete_folder(savepoint.path)


def finish_disposal(path: str) -> bool:
    """Delete what is left of a savepoint whose disposal was interrupted.

    Parameters
    ----------
    path : str
        Of the savepoint.

    Returns
    -------
    bool
        False where nothing is left of one, or a folder is there under its name again.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_LOCAL``
    """
    folder = folder_of(path)
    return not os.path.lexists(folder) and delete_leftovers(folder)


def _refuse_more(savepoint: Savepoint) -> None:
    """Nothing else lies in its folder."""
    known = {MANIFEST}
    for file in savepoint.files:
        parts = file.path.split("/")
        known.update(os.path.join(*parts[:length]) for length in range(1, len(parts) + 1))
    more = []
    for folder, folders, names in os.walk(savepoint.path):
        inside = [os.path.relpath(os.path.join(folder, name), savepoint.path) for name in (*folders, *names)]
        more += sorted(path for path in inside if path not in known)
    if more:
        raise LocationError(
            "SAVEPOINT_HOLDS_MORE",
            f"in {savepoint.path} lies what is not of the savepoint ({', '.join(more[:5])}{', ...' if len(more) > 5 else ''}): "
            "another savepoint, or the checkpoint location of a query? Nothing was deleted. Move it away first",
            path=savepoint.path,
            found=more[:5],
        )


def _refuse_needed(savepoint: Savepoint) -> None:
    """No claim of it was begun at the place that it was taken of and is not done, as far as that place can be read."""
    try:
        origin = CheckpointLocation(savepoint.location)
        ledger = origin.journal().load()
    except (TwoPhaseCommitError, OSError):
        return
    moved = ledger.moved
    if moved is not None and moved.savepoint == savepoint.id and not _is_made(moved.location, savepoint):
        raise _needed(
            savepoint,
            moved.location,
            f"{origin.path} is closed for ever, and {moved.location}, where the query goes on, is not made of it",
            f"Where the query is given up, or goes on elsewhere by now: delete {origin.path} first",
        )
    if _begun(ledger, savepoint):
        assert ledger.rewinding is not None
        raise _needed(
            savepoint,
            ledger.rewinding.request[MOVING]["location"],
            f"a claim of it was begun at {origin.path} and is not done",
            f"`barrier rewind {origin.path} --resume` gives it up",
        )


def _is_made(location: str, savepoint: Savepoint) -> bool:
    """Whether the place that was claimed with it is there, and is not being replaced."""
    try:
        ledger = CheckpointLocation(location).journal().load()
    except (TwoPhaseCommitError, OSError):
        return False
    made = ledger.restored
    return made is not None and made.claim and made.savepoint == savepoint.id and not _begun(ledger, savepoint)


def _begun(ledger: Ledger, savepoint: Savepoint) -> bool:
    """Whether a restore of it was begun in a place's journal, and is not done."""
    moving = ledger.rewinding.request.get(MOVING) if ledger.rewinding is not None else None
    return moving is not None and moving["savepoint"] == savepoint.id


def _needed(savepoint: Savepoint, location: str, why: str, otherwise: str) -> LocationError:
    return LocationError(
        "SAVEPOINT_NEEDED",
        f"{savepoint.path} is needed: {why}. Nothing was deleted. Finish the claim: `barrier restore {savepoint.path} "
        f"{location} --claim`. {otherwise}",
        path=savepoint.path,
        location=location,
    )
