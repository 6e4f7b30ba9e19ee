"""The end of a savepoint: deleted where no claim needs it any more."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from connector.spark.arrival import Arrival
from connector.spark.draft import delete_folder, delete_leftovers
from connector.spark.location import CheckpointLocation
from connector.spark.manifest import MANIFEST, Savepoint, folder_of
from transactional.errors import LocationError, TwoPhaseCommitError
from transactional.ledger import Ledger

__all__ = ["dispose", "finish_disposal", "held"]

log = logging.getLogger(__name__)


@contextmanager
def held(savepoint: Savepoint) -> Iterator[None]:
    """It is restored: nobody disposes of it. Where nothing can be locked, nobody is held back.

    Raises
    ------
    LocationError
        ``SAVEPOINT_NOT_FOUND``: it is disposed of just now.
    """
    with _locked(savepoint, fcntl.LOCK_SH) as locked:
        if not locked:
            raise LocationError(
                "SAVEPOINT_NOT_FOUND", f"{savepoint.path} is being disposed of: restore another", path=savepoint.path
            )
        yield


def dispose(savepoint: Savepoint) -> None:
    """Delete a savepoint: from the first step on nothing that looks like one is there.

    Raises
    ------
    LocationError
        ``SAVEPOINT_HOLDS_MORE``, ``SAVEPOINT_NEEDED``
    """
    with _locked(savepoint, fcntl.LOCK_EX) as locked:
        if not locked:
            raise LocationError(
                "SAVEPOINT_NEEDED",
                f"a `barrier restore` of {savepoint.path} is at work: nothing was deleted",
                path=savepoint.path,
            )
        _refuse_more(savepoint)
        _refuse_needed(savepoint)
        delete_folder(savepoint.path)


@contextmanager
def _locked(savepoint: Savepoint, how: int) -> Iterator[bool]:
    """Its manifest is locked; False where another process has done so."""
    manifest = os.open(os.path.join(savepoint.path, MANIFEST), os.O_RDONLY)
    try:
        locked = True
        try:
            fcntl.flock(manifest, how | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:
            log.warning("%s can't be locked: restore and dispose of it one after the other", savepoint.path)
        yield locked
    finally:
        os.close(manifest)


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
    if moved is not None and moved.savepoint == savepoint.id and not _is_made(origin, moved.location, savepoint):
        raise _needed(
            savepoint,
            moved.location,
            f"{origin.path} is closed for ever, and {moved.location}, where the query goes on, is not made of it",
            f"Where the query is given up, or goes on elsewhere by now: delete {origin.path} first",
        )
    begun = _begun(ledger, savepoint)
    if begun is not None:
        raise _needed(
            savepoint,
            begun,
            f"a claim of it was begun at {origin.path} and is not done",
            f"`barrier rewind {origin.path} --resume` gives it up",
        )


def _is_made(origin: CheckpointLocation, location: str, savepoint: Savepoint) -> bool:
    """Whether the place that was claimed with it is there, or was, and is not being replaced."""
    new = CheckpointLocation(location)
    try:
        ledger = new.journal().load()
    except (TwoPhaseCommitError, OSError):
        ledger = Ledger()
    made = ledger.restored
    there = made is not None and made.claim and made.savepoint == savepoint.id
    return _begun(ledger, savepoint) is None and (there or Arrival(origin, new).happened())


def _begun(ledger: Ledger, savepoint: Savepoint) -> str | None:
    """Where to a restore of it was begun in a place's journal, and is not done."""
    moving = ledger.rewinding.moving if ledger.rewinding is not None else None
    return moving["location"] if moving is not None and moving["savepoint"] == savepoint.id else None


def _needed(savepoint: Savepoint, location: str, why: str, otherwise: str) -> LocationError:
    return LocationError(
        "SAVEPOINT_NEEDED",
        f"{savepoint.path} is needed: {why}. Nothing was deleted. Finish the claim: `barrier restore {savepoint.path} "
        f"{location} --claim`. {otherwise}",
        path=savepoint.path,
        location=location,
    )
