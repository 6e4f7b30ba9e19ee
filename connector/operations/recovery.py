"""Recover a query that is not running: commit the dead driver's prepared rows, or rewind the query to write them again.

`recover` does this before a start that can't recover by itself, at the end of a query that was stopped, and for the commands
``barrier recover`` and ``barrier stop``. The steps:

1. If a driver of the query is running, or if this process can't find out, raise an error and change nothing.
2. If a rewind was started, finish it.
3. Settle decided checkpoints, commit prepared micro-batches, abort transactions that were never recorded, and journal
   `stopped` (`transactional.coordinator`, E1 to E4).
4. If prepared transactions are lost, or Spark's logs no longer match the journal, take the query back to a point from
   which no row is written twice (`transactional.rewind`). The remaining transactions are aborted, and their rows read again.

Prepared micro-batches are committed, not read again, because a commit needs neither Spark's logs nor its state. So a commit
is possible even if a query with state has stopped but its driver still runs, or if a topic gets no more rows.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import LocationLogs, check_target, delete_after, torn_newest
from connector.spark import first_start
from connector.spark.exclusion import QueryRunsError, earlier_at_work, exclusive_access, query_at_work, rewind_at_work
from connector.spark.location_owner import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import is_alive, this_process
from connector.spark.recorded_sink import fitting, naming_secrets, recorded_host, recorded_sink
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError, TwoPhaseCommitError
from transactional.failure import Remedy, failure_of
from transactional.journal import Journal
from transactional.ledger import Ledger, RunRecord
from transactional.ownership import must_be_at
from transactional.recovery import UndecidedCommitError
from transactional.rewind import NothingToRewindError, Rewinder, out_of_step

log = logging.getLogger(__name__)

CANNOT_COMMIT: Final = "%s: recovery can't commit all prepared rows, so it now tries to rewind the query: %s"


@dataclass(frozen=True)
class Upkeep:
    """The facts that a supervisor knows about the query that it keeps running."""

    given: Mapping[str, str]  # Sink options that the journal does not keep (secrets).
    # Drivers in which the supervisor has run the query. The query does not run there now, even if the process is alive.
    drivers: Collection[str] = ()
    # True if nothing else starts the query. Then a previous driver that can't be seen from here (in another container) counts
    # as dead.
    single_driver: bool = False
    shared: bool = False  # True if several queries share `given`, so that it may contain options of other sinks.

    def is_alive(self, process: Mapping[str, Any]) -> bool | None:
        """Return whether a driver's process is alive; None if that can't be determined.

        With `single_driver`, a process also counts as dead if its state can't be determined.
        """
        alive = is_alive(process)
        return False if alive is None and self.single_driver else alive

    def given_for(self, run: RunRecord) -> dict[str, str]:
        """Return the options in `given` that belong to a run's sink."""
        return fitting(run, self.given) if self.shared else dict(self.given)


@dataclass(frozen=True)
class Recovery:
    """The result of a recovery."""

    committed: bool = False  # True if all prepared rows were committed, and no transaction is open.
    batch: int | None = None  # The micro-batch after which the query continues, if it was rewound; otherwise None.
    # The deleted temporary files. A driver left them when it died in its first micro-batch; while they exist, Spark can't start
    # the query.
    deleted: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.committed or self.batch is not None or bool(self.deleted)

    def __str__(self) -> str:
        if self.deleted:
            return f"temporary files of a failed first start were deleted ({', '.join(self.deleted)})"
        if self.batch is not None:
            return f"the query was rewound, and continues after micro-batch {self.batch}"
        return (
            "all prepared rows are committed, and no transaction is open"
            if self.committed
            else "there was nothing to do"
        )


def recover(
    location: CheckpointLocation, upkeep: Upkeep | None = None, *, go_back: bool = False, query_stopped: bool = False
) -> Recovery:
    """Finish a dead query's transactions: commit its prepared rows, or rewind it.

    Afterwards no transaction is open, whether you restart the query or not. The next start loses and duplicates no rows. If the
    process is killed during the call, call `recover` again.

    Parameters
    ----------
    location : CheckpointLocation
    upkeep : Upkeep, optional
        The supervisor's knowledge about the query; none by default.
    go_back : bool
        True to rewind without first trying to commit the prepared micro-batches.
    query_stopped : bool
        True if the caller knows that the query is not running, even if its driver's process is alive or can't be seen.

    Raises
    ------
    QueryRunsError
        The query may be running.
    TwoPhaseCommitError
        The recovery failed. After the cause is fixed, call `recover` again.
    """
    upkeep = upkeep or Upkeep({})
    journal = location.journal()
    ledger = journal.load()
    run = ledger.newest_run
    if ledger.position:
        refuse_batch_writes(location, "each write is a checkpoint, and the next write recovers a write that failed")
        refuse_elsewhere(location, ledger)
    if run is None or run.prefix in ledger.originals:
        return Recovery(deleted=_clean(location, upkeep, query_stopped))  # no query has run at this location
    logs = LocationLogs(location)
    torn = torn_newest(location, ledger)
    if torn is None and _has_stopped(ledger, run) and not go_back and not out_of_step(ledger, logs):
        return Recovery()  # the query has left nothing to recover
    at_work = _at_work(location, run, upkeep, query_stopped)
    if isinstance(at_work, QueryRunsError):
        raise at_work
    given = upkeep.given_for(run)
    if torn is not None:
        with exclusive_access(location):
            now = journal.load()
            must_be_at(ledger.position)(now)  # another process may have recovered the query, and started it
            if torn_newest(location, now) == torn:
                delete_after(location, torn - 1)
        log.warning(
            "%s: deleted the damaged file offsets/%d, because its micro-batch was not decided", location.path, torn
        )
    must_go_back = go_back or ledger.rewinding is not None or out_of_step(ledger, logs)
    if not must_go_back and _commit(location, run, given):
        return Recovery(committed=True)
    if at_work is None and not query_stopped:
        at_work = earlier_at_work(ledger, run, upkeep.drivers)
    if at_work is not None:  # a commit touches neither the state nor Spark's logs; a rewind does
        raise at_work
    return Recovery(batch=_go_back(location, journal, run, given, upkeep, query_stopped))


def _at_work(location: CheckpointLocation, run: RunRecord, upkeep: Upkeep, query_stopped: bool) -> FencedError | None:
    unseen_is_gone = upkeep.single_driver or query_stopped
    stopped = query_stopped or run.driver in upkeep.drivers or (is_alive(run.process) is None and unseen_is_gone)
    return query_at_work(location, run, stopped)


def _clean(location: CheckpointLocation, upkeep: Upkeep, query_stopped: bool) -> Sequence[str]:
    """Delete temporary files of a first micro-batch. Raises LocationError if Spark has commits, but the journal is missing."""
    committed = offset_log.newest(location, "commits")
    if committed >= 0 and not location.journal().load().position:
        raise LocationError(
            "NO_JOURNAL",
            location=location.path,
            reason=f"Spark has committed micro-batch {committed} there, so a journal should exist",
        )
    return first_start.clean(location, upkeep.is_alive, query_stopped)


def _has_stopped(ledger: Ledger, run: RunRecord) -> bool:
    is_open = ledger.undecided() or ledger.unsettled() or ledger.rewinding
    return run.ended == EntryKind.STOPPED and not is_open


def _commit(location: CheckpointLocation, run: RunRecord, given: Mapping[str, str]) -> bool:
    """Claim a run, which fences the query's other processes; then commit all prepared rows, and journal `stopped`.

    All other transactions of the query are aborted. Return False if the rows can't be committed, so that the query has
    to be rewound.
    """
    try:
        _close(location, run, given)
    except UndecidedCommitError as problem:  # the rewind stops at it as well; then `barrier resolve` lists it
        log.warning(CANNOT_COMMIT, location.path, problem)
        return False
    except TwoPhaseCommitError as problem:
        if failure_of(problem).remedy is not Remedy.REWIND:
            raise
        log.warning(CANNOT_COMMIT, location.path, problem)
        return False
    return True


def _close(location: CheckpointLocation, run: RunRecord, given: Mapping[str, str]) -> None:
    with naming_secrets(run, given), exclusive_access(location):
        host = recorded_host(run, location, {**given, "transactionalIdPrefix": run.prefix})
        position = location.journal().load().position
        view = offset_log.stopped_view(location)  # what is written from here on, it does not show
        with host.coordinator(view, f"ending {uuid.uuid4().hex}", run.process) as coordinator:
            coordinator.close(run.token, position)


def _go_back(
    location: CheckpointLocation,
    journal: Journal,
    run: RunRecord,
    given: Mapping[str, str],
    upkeep: Upkeep,
    query_stopped: bool,
) -> int | None:
    """Rewind the query to a point from which it can continue without writing a row twice, or finish a rewind that was started.

    Return the micro-batch after which the query continues; None if there was nothing to rewind.
    """
    process = {"process": this_process()}
    with naming_secrets(run, given):
        sink = recorded_sink(run, location, given)
        try:
            rewinder = Rewinder(journal, sink, LocationLogs(location), location.query_id(), run.prefix)
            ledger = journal.load()
            begun, newest = ledger.rewinding, ledger.newest_run
            unseen_is_gone = upkeep.single_driver or query_stopped
            other = rewind_at_work(begun, unseen_is_gone) if begun is not None else None
            # A driver that was started since the first check. The run with which `_commit` has tried has the process of `run`.
            if other is None and newest is not None and newest.process != run.process:
                other = _at_work(location, newest, upkeep, query_stopped)
            if other is not None:
                raise other
            preview = rewinder.preview() if begun is None else None
            if preview is not None:
                check_target(location, journal.ledger, preview)
            with exclusive_access(location):
                if preview is None:
                    rewinder.again(process)
                else:
                    rewinder.begin(preview, {"restoreTables": False, "allowReemit": False, **process})
                batch = rewinder.finish()
        except NothingToRewindError:
            return None
        finally:
            sink.close()
    log.warning("%s was rewound: the query continues after micro-batch %d", location.path, batch)
    return batch
