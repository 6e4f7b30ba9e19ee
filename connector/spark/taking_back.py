"""Spark's logs of a location as a rewind's `QueryLogs`: for commands and `connector.operations.recovery`."""

from __future__ import annotations

from contextlib import suppress

from connector.location import log_rewind, offset_log
from connector.location.location import CheckpointLocation
from transactional.errors import RewindRequiredError
from transactional.ledger import Ledger
from transactional.recovery import check_sources
from transactional.rewind import Preview

__all__ = ["NOTHING", "LocationLogs", "check_target"]

NOTHING = ("NOTHING_TO_REWIND",)
"""Conditions of a location that has nothing to go back from."""


class LocationLogs:
    """Spark's logs of a location on any store, as a `transactional.rewind.QueryLogs`."""

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location

    def highest(self) -> tuple[int, int]:
        """See `QueryLogs`."""
        return offset_log.newest(self._location, "offsets"), offset_log.newest(self._location, "commits")

    def check_can_go_back(self, batch: int) -> None:
        """See `QueryLogs`."""
        log_rewind.check_can_go_back(self._location, batch)

    def delete_after(self, batch: int) -> None:
        """See `QueryLogs`."""
        log_rewind.delete_after(self._location, batch)

    def replay(self, first: int, last: int) -> None:
        """See `QueryLogs`."""
        log_rewind.replay(self._location, first, last)

    def is_replaced(self, batch: int, text: str) -> bool:
        """See `QueryLogs`."""
        return log_rewind.is_replaced(self._location, batch, text)

    def put_back(self, batch: int, text: str) -> None:
        """See `QueryLogs`."""
        log_rewind.put_back(self._location, batch, text)


def check_target(location: CheckpointLocation, ledger: Ledger, preview: Preview) -> None:
    """Check that Spark's files of the target are those that the journal recorded, or that the rewind can put them back: R1.

    Raises
    ------
    LocationError
        ``BATCHES_NOT_ACCOUNTED``: the journal has no copy.
    """
    if preview.batch >= 0:
        with suppress(RewindRequiredError):  # the rewind puts back what the journal keeps
            check_sources(ledger, offset_log.spark_view(location, preview.batch))
