"""Recovery of a query that does not run: commit whatever a dead driver has left, or read it again.

`recover` is the one function for it: before a start that could not go on by itself, at the end of a query that was stopped,
and from outside (``barrier recover``, ``barrier stop``). In this order:

1. Nothing is done beside a driver that runs, or that can't be seen from here.
2. A rewind that was begun is finished.
3. What is decided is settled, what is prepared is committed, what was never recorded is aborted, and `stopped` is journalled
   (`transactional.coordinator`, E1 to E4).
4. If what was prepared is lost, or Spark's logs are not the journal's any more, the query goes back to a point from which
   nothing is written twice (`transactional.rewind`): what is left of it is aborted, and its rows are read again.

Prepared micro-batches are committed rather than read again because that needs neither Spark's logs nor its state: it is
right for a query with state whose driver lives on, and shows the last rows of a topic that gets no more.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import LocationLogs, check_target, delete_after, torn_newest
from connector.spark import first_start
from connector.spark.exclusion import QueryRunsError, earlier_at_work, exclusive_access, query_at_work, rewind_at_work
from connector.spark.location_owner import refuse_batch_writes, refuse_elsewhere
from connector.spark.process import is_alive, this_process
from connector.spark.recorded_sink import fitting, naming_secrets, recorded_host, recorded_sink
from transactional.entry import EntryKind
from transactional.errors import LocationError, TwoPhaseCommitError
from transactional.failure import Remedy, failure_of
from transactional.journal import Journal
from transactional.ledger import Ledger, RunRecord
from transactional.recovery import UndecidedCommitError
from transactional.rewind import NothingToRewindError, Rewinder, out_of_step

__all__ = ["Recovery", "Upkeep", "recover"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upkeep:
    """The knowledge of a supervisor about the queries that it keeps running.

    Parameters
    ----------
    given : Mapping[str, str]
        Options of its sink that the journal does not keep (secrets).
    drivers : Collection[str]
        Drivers in which no query of ours runs now, though the process may live: it was kept up there.
    single_driver : bool
        Nothing else starts the query: a former driver that can't be seen from here (of another container) is gone.
    shared : bool
        Several queries share `given`, so that options of other sinks may be among them.
    """

    given: Mapping[str, str]
    drivers: Collection[str] = ()
    single_driver: bool = False
    shared: bool = False

    def is_alive(self, process: Mapping[str, Any]) -> bool | None:
        """Return whether a driver's process runs; None if that can't be known."""
        alive = is_alive(process)
        return False if alive is None and self.single_driver else alive

    def given_for(self, run: RunRecord) -> dict[str, str]:
        """Return the options for a run's sink."""
        return fitting(run, self.given) if self.shared else dict(self.given)


@dataclass(frozen=True)
class Recovery:
    """The result of a recovery.

    Parameters
    ----------
    committed : bool
        All prepared rows are committed, and no transaction is open.
    batch : int or None
        The query was rewound, and continues after this micro-batch.
    deleted : Sequence[str]
        The temporary files of a first micro-batch, with which Spark would have started no query.
    """

    committed: bool = False
    batch: int | None = None
    deleted: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.committed or self.batch is not None or bool(self.deleted)

    def __str__(self) -> str:
        if self.deleted:
            return f"temporary files of a first start are deleted ({', '.join(self.deleted)})"
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
    """Close everything that a stopped query has left open, so that it can be started, or stay stopped.

    It can be killed at any moment, and is called again then. After it, the next start goes on without a row lost or doubled.
    """
    upkeep = upkeep or Upkeep({})
    journal = location.journal()
    ledger = journal.load()
    run = ledger.newest_run
    if ledger.position:
        refuse_batch_writes(location, "each of its writes is a checkpoint, and the next one recovers it")
        refuse_elsewhere(location, ledger)
    if run is None or run.prefix in ledger.originals:
        return Recovery(deleted=_clean(location, upkeep, query_stopped))  # no query has run at this location
    logs = LocationLogs(location)
    torn = torn_newest(location, ledger)
    if torn is None and _has_stopped(ledger, run) and not go_back and not out_of_step(ledger, logs):
        return Recovery()  # it has left nothing
    unseen_is_gone = upkeep.single_driver or query_stopped
    stopped = query_stopped or run.driver in upkeep.drivers or (is_alive(run.process) is None and unseen_is_gone)
    at_work = query_at_work(location, run, stopped)
    if isinstance(at_work, QueryRunsError):
        raise at_work
    given = upkeep.given_for(run)
    if torn is not None:
        with exclusive_access(location):
            delete_after(location, torn - 1)
        log.warning(
            "%s: offsets/%d was damaged. It is deleted, because its micro-batch was not decided", location.path, torn
        )
    must_go_back = go_back or ledger.rewinding is not None or out_of_step(ledger, logs)
    if not must_go_back and _commit(location, run, given):
        return Recovery(committed=True)
    if at_work is None and not query_stopped:
        at_work = earlier_at_work(ledger, run, upkeep.drivers)
    if at_work is not None:  # a commit touches neither the state nor Spark's logs; a rewind does
        raise at_work
    return Recovery(batch=_go_back(location, journal, run, given, unseen_is_gone))


def _clean(location: CheckpointLocation, upkeep: Upkeep, query_stopped: bool) -> Sequence[str]:
    """Delete what is left of a first micro-batch, and check that the journal's absence fits Spark's logs."""
    committed = offset_log.newest(location, "commits")
    if committed >= 0 and not location.journal().load().position:
        raise LocationError(
            "NO_JOURNAL",
            location=location.path,
            reason=f"Spark has committed micro-batch {committed} there, so the journal should have it",
        )
    return first_start.clean(location, upkeep.is_alive, query_stopped)


def _has_stopped(ledger: Ledger, run: RunRecord) -> bool:
    is_open = ledger.undecided() or ledger.unsettled() or ledger.rewinding
    return run.ended == EntryKind.STOPPED and not is_open


def _commit(location: CheckpointLocation, run: RunRecord, given: Mapping[str, str]) -> bool:
    """Commit what the query has prepared, sweep, journal `stopped`: a run of its own fences what may still be running.

    Return False if that is impossible, and the query has to go back.
    """
    try:
        _close(location, run, given)
    except UndecidedCommitError as problem:  # the rewind stops at it too, and `barrier resolve` lists it from then on
        log.warning("%s has to be rewound: %s", location.path, problem)
        return False
    except TwoPhaseCommitError as problem:
        if failure_of(problem).remedy is not Remedy.REWIND:
            raise
        log.warning("%s has to be rewound: %s", location.path, problem)
        return False
    return True


def _close(location: CheckpointLocation, run: RunRecord, given: Mapping[str, str]) -> None:
    with naming_secrets(run, given), exclusive_access(location):
        host = recorded_host(run, location, {**given, "transactionalIdPrefix": run.prefix})
        view = offset_log.stopped_view(location)
        with host.coordinator(view, f"ending {uuid.uuid4().hex}", run.process) as coordinator:
            coordinator.close(run.token)


def _go_back(
    location: CheckpointLocation, journal: Journal, run: RunRecord, given: Mapping[str, str], unseen_is_gone: bool
) -> int | None:
    """Go back to a point from which nothing is written twice, or finish a rewind; None if there is nothing to go back from."""
    process = {"process": this_process()}
    with naming_secrets(run, given):
        sink = recorded_sink(run, location, given)
        try:
            rewinder = Rewinder(journal, sink, LocationLogs(location), location.query_id(), run.prefix)
            begun = journal.load().rewinding
            other = rewind_at_work(begun, unseen_is_gone) if begun is not None else None
            if other is not None:
                raise other
            preview = rewinder.preview() if begun is None else None
            if preview is not None:
                check_target(location, journal.ledger, preview)
            with exclusive_access(location):
                if preview is None:
                    journal.load()
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
