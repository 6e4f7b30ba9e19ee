"""Check that a location belongs to a streaming query, and that the query was not moved to another location."""

from __future__ import annotations

from connector.location.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.ledger import Ledger
from transactional.ownership import moved_on, unfinished
from transactional.recovery import QueryView, check_location


def refuse_batch_writes(location: CheckpointLocation, instead: str) -> None:
    """If the location belongs to ``df.write``, raise `LocationError`, whose message ends with `instead`."""
    from connector.spark.batch_writer import WHOSE

    if location.files.exists(f"barrier/{WHOSE}"):
        raise LocationError(
            "LOCATION_TAKEN",
            location=location.path,
            reason=f"it belongs to df.write, not to a streaming query: {instead}",
        )


def refuse_elsewhere(location: CheckpointLocation, ledger: Ledger) -> None:
    """Check that the journal belongs to this location and query, and that no move or unfinished restore closed it."""
    if ledger.moved is not None:
        raise moved_on(ledger.moved)
    if ledger.restoring is not None:
        raise unfinished(ledger.restoring)
    check_location(ledger, QueryView(location.query_id(), location.path, -1, -1, [], None))
