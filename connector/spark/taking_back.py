"""A rewind without a person: what recovery asks for, done between two runs of a query. `barrier rewind` shares its parts."""

from __future__ import annotations

import logging
from contextlib import suppress

from connector.location import log_rewind, offset_log
from connector.location.location import CheckpointLocation
from connector.spark.alone import alone, query_at_work, rewind_at_work
from connector.spark.belonging import refuse_elsewhere
from connector.spark.process import is_alive, this_process
from connector.spark.recorded import fitting, naming_secrets, recorded_run, recorded_sink
from connector.spark.upkeep import Upkeep
from transactional.errors import LocationError, RewindRequiredError
from transactional.ledger import Ledger
from transactional.recovery import check_sources
from transactional.rewind import Preview, Rewinder

__all__ = ["NOTHING", "LocationLogs", "check_target", "take_back"]

log = logging.getLogger(__name__)

NOTHING = ("NOTHING_TO_REWIND", "NO_REWIND")
"""Conditions that say that there is nothing to go back from."""


class LocationLogs:
    """Spark's logs of a location on any store, as a rewind wants them; see `transactional.rewind.SparkLogs`."""

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location

    def highest(self) -> tuple[int, int]:
        """See `SparkLogs`."""
        return offset_log.newest(self._location, "offsets"), offset_log.newest(self._location, "commits")

    def check_can_go_back(self, batch: int) -> None:
        """See `SparkLogs`."""
        log_rewind.check_can_go_back(self._location, batch)

    def delete_after(self, batch: int) -> None:
        """See `SparkLogs`."""
        log_rewind.delete_after(self._location, batch)

    def replay(self, first: int, last: int) -> None:
        """See `SparkLogs`."""
        log_rewind.replay(self._location, first, last)

    def is_replaced(self, batch: int, text: str) -> bool:
        """See `SparkLogs`."""
        return log_rewind.is_replaced(self._location, batch, text)

    def put_back(self, batch: int, text: str) -> None:
        """See `SparkLogs`."""
        log_rewind.put_back(self._location, batch, text)


def check_target(location: CheckpointLocation, ledger: Ledger, preview: Preview) -> None:
    """R1: Spark's files of the target are those that the journal recorded, or are put back by the rewind.

    Raises
    ------
    LocationError
        ``BATCH_HAS_OTHER_SOURCES``: the journal has no copy.
    """
    if preview.batch >= 0:
        with suppress(RewindRequiredError):  # the rewind puts back what the journal keeps
            check_sources(ledger, offset_log.spark_view(location, preview.batch))


def take_back(location: CheckpointLocation, upkeep: Upkeep) -> int | None:
    """Take a query that does not run back to where nothing is written twice, or finish a rewind that was begun.

    *Called between two runs, by who keeps the query up.* It can be killed at any moment, and is called again then.

    Parameters
    ----------
    location : CheckpointLocation
    upkeep : Upkeep

    Returns
    -------
    int or None
        The micro-batch after which the query goes on; None where there is nothing to go back from.

    Raises
    ------
    FencedError
        ``DRIVER_HOLDS_STATE``, ``QUERY_RUNS``, ``DRIVER_UNKNOWN``,
        ``REWIND_RUNS``, ``REWIND_UNKNOWN``
    LocationError, OptionError, StoreError, AmbiguousOutcomeError
        As `transactional.rewind`.
    """
    journal = location.journal()
    ledger = journal.load()
    refuse_elsewhere(location, ledger)
    run = recorded_run(ledger)
    unseen = is_alive(run.process) is None and upkeep.single_driver
    at_work = query_at_work(location, run, run.driver in upkeep.drivers or unseen)
    if at_work is not None:
        raise at_work
    process = {"process": this_process()}
    given = fitting(run, upkeep.given)
    with naming_secrets(run, given):
        sink = recorded_sink(run, location, given)
        try:
            rewinder = Rewinder(journal, sink, LocationLogs(location), location.query_id(), run.prefix)
            if ledger.rewinding is not None:
                other = rewind_at_work(ledger.rewinding, upkeep.single_driver)
                if other is not None:
                    raise other
                with alone(location):
                    journal.load()
                    rewinder.again(process)
                    return rewinder.finish()
            preview = rewinder.preview()
            check_target(location, ledger, preview)
            with alone(location):
                rewinder.begin(preview, {"restoreTables": False, "allowReemit": False, **process})
                batch = rewinder.finish()
        except LocationError as nothing:
            if nothing.condition not in NOTHING:
                raise
            return None
        finally:
            sink.close()
    log.warning("%s was taken back: the query goes on after micro-batch %d", location.path, batch)
    return batch
