"""A checkpoint location as commands open it."""

from __future__ import annotations

import os

from connector.location.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ownership import unfinished

__all__ = ["find_location", "load_journal", "open_journal"]


def find_location(path: str, new: bool = False, first_start: bool = False) -> CheckpointLocation:
    """Return the location, of which it is known that it is a folder."""
    location = CheckpointLocation(path)
    if location.is_local:
        found = os.path.join(location.path, "barrier", "log")
        while not os.path.lexists(found):
            found = os.path.dirname(found)
        if not os.path.isdir(found):
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{found} is a file")
        if new and _is_foreign(location):
            reason = f"{location.path} has files, and neither Spark's metadata nor a journal"
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=reason)
    if not first_start and _is_missing(location, new):
        way = " (if the query has never started: --first-start)" if new else ""
        raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{location.path} does not exist{way}")
    return location


def _is_missing(location: CheckpointLocation, new: bool) -> bool:
    """Return whether there is no such folder; of an object store, that has none, nothing below it."""
    if location.is_local:
        return not os.path.isdir(location.path)
    return new and not location.files.names("")


def _is_foreign(location: CheckpointLocation) -> bool:
    names = location.files.names("")
    return bool(names) and not {"metadata", "barrier", "offsets"} & set(names)


def load_journal(path: str, new: bool = False, first_start: bool = False) -> tuple[CheckpointLocation, Journal]:
    """Return the location, see `find_location`, and its journal, loaded; the journal is empty if there is none."""
    location = find_location(path, new, first_start)
    journal = location.journal()
    journal.load()
    return location, journal


def open_journal(path: str, nothing: str) -> tuple[CheckpointLocation, Journal]:
    """Return the location and its journal, loaded."""
    location, journal = load_journal(path)
    if not journal.ledger.position:
        raise LocationError("NO_JOURNAL", location=location.path, reason=nothing)
    if journal.ledger.restoring is not None:
        raise unfinished(journal.ledger.restoring)
    return location, journal
