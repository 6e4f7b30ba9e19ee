"""Functions with which commands open a checkpoint location and its journal."""

from __future__ import annotations

import os

from connector.location.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ownership import unfinished


def find_location(path: str, new: bool = False, first_start: bool = False) -> CheckpointLocation:
    """Return the location at a path. Refuse a path that can't be a query's checkpoint location.

    Parameters
    ----------
    path : str
        The path that the user passed.
    new : bool
        Accept a location at which no query has run yet. A folder that has files, but neither Spark's logs nor a journal, is
        still refused.
    first_start : bool
        Accept a location that does not exist.

    Raises
    ------
    LocationError
        ``LOCATION_NOT_A_FOLDER``: the path is a file, does not exist, or (with `new`) has files, but neither Spark's logs nor
        a journal.
    """
    location = CheckpointLocation(path)
    if location.is_local:
        found = os.path.join(location.path, "barrier", "log")
        while not os.path.lexists(found):
            found = os.path.dirname(found)
        if not os.path.isdir(found):
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{found} is a file")
        if new and _is_foreign(location):
            reason = f"{location.path} has files, but neither Spark's metadata nor a journal"
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=reason)
    if not first_start and _is_missing(location, new):
        way = " (if the query has never started, pass --first-start)" if new else ""
        raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{location.path} does not exist{way}")
    return location


def _is_missing(location: CheckpointLocation, new: bool) -> bool:
    """Return whether the location does not exist.

    A location in an object store counts as missing only if `new` is set and the location has no files.
    """
    if location.is_local:
        return not os.path.isdir(location.path)
    return new and not location.files.names("")


def _is_foreign(location: CheckpointLocation) -> bool:
    names = location.files.names("")
    return bool(names) and not {"metadata", "barrier", "offsets"} & set(names)


def load_journal(path: str, new: bool = False, first_start: bool = False) -> tuple[CheckpointLocation, Journal]:
    """Return the location (see `find_location`) and its loaded journal, which is empty if the location has none."""
    location = find_location(path, new, first_start)
    journal = location.journal()
    journal.load()
    return location, journal


def open_journal(path: str, nothing: str) -> tuple[CheckpointLocation, Journal]:
    """Return the location and its loaded journal. Refuse a location without a journal.

    Parameters
    ----------
    path : str
        The path that the user passed.
    nothing : str
        The reason in the error message, if there is no journal.

    Raises
    ------
    LocationError
        ``NO_JOURNAL`` if there is no journal, ``RESTORE_UNFINISHED`` if a restore to the location has not finished.
    """
    location, journal = load_journal(path)
    if not journal.ledger.position:
        raise LocationError("NO_JOURNAL", location=location.path, reason=nothing)
    if journal.ledger.restoring is not None:
        raise unfinished(journal.ledger.restoring)
    return location, journal
