"""Check that no query and no other rewind is using a location, before a rewind changes that location."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from connector.location.location import CheckpointLocation
from connector.spark.process import is_alive, process_text, this_process
from transactional.errors import FencedError
from transactional.ledger import Ledger, Rewind, RunRecord

log = logging.getLogger(__name__)


class QueryRunsError(FencedError):
    """The query's driver is running, or this process can't see whether it is."""


def query_at_work(location: CheckpointLocation, run: RunRecord, stopped: bool) -> FencedError | None:
    """Return an error if the query's driver may be running; else None.

    If `stopped`, the operator confirms that the query has stopped. In that case, an error is returned only if the driver is
    alive and may still have the query's state in memory.
    """
    alive = is_alive(run.process)
    driver = process_text(run.process)
    if alive and stopped and location.files.exists("state"):
        return FencedError("DRIVER_HOLDS_STATE", driver=driver, run=run.token)
    if alive is False or stopped:
        return None
    if alive:
        return QueryRunsError("QUERY_RUNS", run=run.token, driver=driver)
    return QueryRunsError("DRIVER_UNKNOWN", run=run.token, driver=driver)


def earlier_at_work(ledger: Ledger, newest: RunRecord, stopped: Collection[str] = ()) -> FencedError | None:
    """Return an error if the driver of an earlier run is alive on this machine and its run has not ended; else None.

    Such a driver may be paused, and may not know that it was superseded. If such a driver wrote to Spark's logs after
    a rewind, the logs would be damaged. Drivers in `stopped` are not checked.
    """
    for _, run in sorted(ledger.runs.items()):
        is_other = run.process != newest.process and run.driver not in stopped
        if is_other and not run.ended and is_alive(run.process):
            return QueryRunsError("QUERY_RUNS", run=run.token, driver=process_text(run.process))
    return None


def rewind_at_work(rewind: Rewind, stopped: bool) -> FencedError | None:
    """Return an error if the process of a started rewind may still be running; else None.

    If `stopped`, a process that can't be seen from here counts as ended.
    """
    process = rewind.request.get("process", {})
    alive = False if process == this_process() else is_alive(process)
    if alive:
        return FencedError(
            "LOCATION_BUSY",
            reason=f"the rewind that began with journal entry {rewind.token} is running ({process_text(process)})",
        )
    if alive is None and not stopped:
        return FencedError("REWIND_UNKNOWN", rewind=rewind.token, process=process_text(process))
    return None


@contextmanager
def exclusive_access(location: CheckpointLocation) -> Iterator[None]:
    """Lock a location while a block runs, so that no other command changes it.

    Without the lock, a second rewind could delete the files of a query that was started after the first rewind. If the
    location is not on a local disk, it can't be locked, and only a warning is logged.

    Raises
    ------
    FencedError
        ``LOCATION_BUSY``: another command holds the lock.
    """
    if not location.is_local:
        log.warning("%s can't be locked: make sure that no other command changes it", location.path)
        yield
        return
    folder = os.open(os.path.join(location.path, "barrier", "log"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FencedError(
                "LOCATION_BUSY", reason="another command (such as rewind, stop or restore) is changing the location"
            ) from None
        except OSError:
            log.warning("%s can't be locked: make sure that no other command changes it", location.path)
        yield
    finally:
        os.close(folder)
