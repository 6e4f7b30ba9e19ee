"""The checks that a rewind is alone on its location: no query runs, and no other rewind."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from connector.location.location import CheckpointLocation
from connector.spark.process import driver_text, is_alive, this_process
from transactional.errors import FencedError
from transactional.ledger import Rewind, RunRecord

__all__ = ["alone", "query_at_work", "rewind_at_work"]

log = logging.getLogger(__name__)

STOPPED = (
    "Stop the query first. If its driver outlives it (a notebook, a driver of several queries) or can't be seen from here, "
    "pass --query-stopped (`barrier run`: --single-driver; supervise: single_driver=True); a query that was not stopped is "
    "fenced then: it dies at its next micro-batch"
)


STATE = (
    "Spark's state stores outlive the query in its driver, and may write a snapshot of what is given up over what comes after "
    "it (a minute later, by default). End the driver's process (restart the notebook's kernel; --query-stopped is not enough), "
    "then run `barrier recover LOCATION`. `barrier run` keeps a driver program up, and does this between two drivers"
)


def query_at_work(location: CheckpointLocation, run: RunRecord, stopped: bool) -> FencedError | None:
    """Return why the query may be running, as far as its driver's process shows; None if it is not.

    Parameters
    ----------
    location : CheckpointLocation
    run : RunRecord
        The newest.
    stopped : bool
        The user asserts that. It is not enough if the query has state and its driver lives.
    """
    alive = is_alive(run.process)
    if alive and stopped and location.files.exists("state"):
        shown = driver_text(run.process, alive)
        return FencedError("DRIVER_HOLDS_STATE", f"the driver of run {run.token}: {shown}. {STATE}")
    if alive is False or stopped:
        return None
    condition = "QUERY_RUNS" if alive else "DRIVER_UNKNOWN"
    return FencedError(condition, f"the driver of run {run.token}: {driver_text(run.process, alive)}. {STOPPED}")


def rewind_at_work(rewind: Rewind, stopped: bool) -> FencedError | None:
    """Return why the rewind that was begun may still be running; None if it is not."""
    process = rewind.request.get("process", {})
    alive = False if process == this_process() else is_alive(process)
    rewinds = f"the rewind that was begun (journal entry {rewind.token}): {driver_text(process, alive)}"
    if alive:
        return FencedError("REWIND_RUNS", f"{rewinds}. Let it finish, or kill it")
    if alive is None and not stopped:
        return FencedError("REWIND_UNKNOWN", f"{rewinds}. If neither it nor the query runs, pass --query-stopped")
    return None


@contextmanager
def alone(location: CheckpointLocation) -> Iterator[None]:
    """Keep other rewinds out: they would delete files under the query that is started after the first.

    Raises
    ------
    FencedError
        ``REWIND_RUNS``
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
                "REWIND_RUNS",
                "another command (a rewind, a stop, a restore) is changing this location: let it finish, or kill it",
            ) from None
        except OSError:
            log.warning("%s can't be locked: make sure that no other command changes it", location.path)
        yield
    finally:
        os.close(folder)
