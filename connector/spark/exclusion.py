"""The checks that a rewind is alone on its location: no query runs, and no other rewind."""

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

__all__ = ["QueryRunsError", "earlier_at_work", "exclusive_access", "query_at_work", "rewind_at_work"]

log = logging.getLogger(__name__)


class QueryRunsError(FencedError):
    """The query runs, or its driver can't be seen from here."""


def query_at_work(location: CheckpointLocation, run: RunRecord, stopped: bool) -> FencedError | None:
    """Return why the query may be running, as far as its driver's process shows; None if it is not."""
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
    """Return which earlier driver lives here and has not ended its run; None if none does.

    It may stand still, and not know that it was superseded: after a rewind its next write into Spark's logs would tear them.
    """
    for _, run in sorted(ledger.runs.items()):
        is_other = run.process != newest.process and run.driver not in stopped
        if is_other and not run.ended and is_alive(run.process):
            return QueryRunsError("QUERY_RUNS", run=run.token, driver=process_text(run.process))
    return None


def rewind_at_work(rewind: Rewind, stopped: bool) -> FencedError | None:
    """Return why the rewind that was begun may still be running; None if it is not."""
    process = rewind.request.get("process", {})
    alive = False if process == this_process() else is_alive(process)
    if alive:
        return FencedError(
            "LOCATION_BUSY", reason=f"the rewind of journal entry {rewind.token} is running ({process_text(process)})"
        )
    if alive is None and not stopped:
        return FencedError("REWIND_UNKNOWN", rewind=rewind.token, process=process_text(process))
    return None


@contextmanager
def exclusive_access(location: CheckpointLocation) -> Iterator[None]:
    """Keep other rewinds out: they would delete files under the query that is started after the first."""
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
                "LOCATION_BUSY", reason="another command (a rewind, a stop, a restore) is changing it"
            ) from None
        except OSError:
            log.warning("%s can't be locked: make sure that no other command changes it", location.path)
        yield
    finally:
        os.close(folder)
