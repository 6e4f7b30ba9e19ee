"""A checkpoint location as commands open it."""

from __future__ import annotations

import os

from connector.location.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.ownership import unfinished

__all__ = ["load_journal", "open_journal", "unchanged"]


def load_journal(location: CheckpointLocation) -> Journal:
    """Return the location's journal, loaded; empty if there is none.

    Raises
    ------
    LocationError
        ``LOCATION_NOT_A_FOLDER``: the location, or a folder above or inside it, is a file.
    """
    journal = location.journal()
    try:
        journal.load()
    except NotADirectoryError as error:
        path = os.path.join(location.path, "barrier", "log")
        while not os.path.lexists(path):
            path = os.path.dirname(path)
        raise LocationError("LOCATION_NOT_A_FOLDER", path=path) from error
    return journal


def open_journal(path: str, nothing: str) -> tuple[CheckpointLocation, Journal]:
    """Return the location and its journal, loaded.

    Parameters
    ----------
    path : str
    nothing : str
        What an empty journal means for the command.

    Raises
    ------
    LocationError
        ``NO_JOURNAL``, ``LOCATION_NOT_A_FOLDER``, ``RESTORE_UNFINISHED``
    """
    location = CheckpointLocation(path)
    journal = load_journal(location)
    if not journal.ledger.position:
        raise LocationError("NO_JOURNAL", location=location.path, reason=nothing)
    if journal.ledger.restoring is not None:
        raise unfinished(journal.ledger)
    return location, journal


def unchanged(found: Ledger, position: int) -> None:
    """Check that the journal has not grown since it was shown.

    Raises
    ------
    LocationError
        ``LOCATION_BUSY``
    """
    if found.position != position:
        raise LocationError("LOCATION_BUSY", reason="its journal grew since it was read", position=position)
