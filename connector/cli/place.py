"""A checkpoint location as commands open it."""

from __future__ import annotations

import os

from connector.spark.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.recovery import SparkView, check_place

__all__ = ["open_journal", "refuse_batch_writes", "refuse_elsewhere", "unchanged"]


def open_journal(path: str, nothing: str) -> tuple[CheckpointLocation, Journal]:
    """The location and its journal, loaded.

    Parameters
    ----------
    path : str
    nothing : str
        What an empty journal means for the command.

    Raises
    ------
    LocationError
        ``NO_JOURNAL``
    """
    location = CheckpointLocation(path)
    journal = location.journal()
    if not journal.load().position:
        raise LocationError("NO_JOURNAL", f"{location.path} holds no journal: {nothing}", path=location.path)
    return location, journal


def unchanged(found: Ledger, position: int) -> None:
    """The journal has not grown since it was shown.

    Raises
    ------
    LocationError
        ``LOCATION_BUSY``
    """
    if found.position != position:
        raise LocationError(
            "LOCATION_BUSY",
            "the journal grew meanwhile: a query is at work on this location; stop it first",
            position=position,
        )


def refuse_batch_writes(location: CheckpointLocation, instead: str) -> None:
    """The location is a streaming query's.

    Raises
    ------
    LocationError
        ``LOCATION_OF_BATCH_WRITES``
    """
    from connector.spark.batch_writer import WHOSE

    if os.path.exists(os.path.join(location.path, "barrier", WHOSE)):
        raise LocationError(
            "LOCATION_OF_BATCH_WRITES",
            f"{location.path} belongs to df.write, not to a streaming query: {instead}",
            path=location.path,
        )


def refuse_elsewhere(location: CheckpointLocation, ledger: Ledger) -> None:
    """The journal was written at this place, for the query that is here.

    Raises
    ------
    LocationError
    """
    check_place(ledger, SparkView(location.query_id(), location.path, -1, -1, [], None))
