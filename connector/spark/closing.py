"""The end of a query that was asked for: the request in the journal, how far it is, and what is done when no query runs.

A running query ends itself: its next micro-batch closes the final checkpoint, and the planning after it journals `stopped`.
What has stopped otherwise is ended from outside (`close`), with the sink as the journal has recorded it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from connector.spark.alone import alone
from connector.spark.process import driver_text
from connector.spark.recorded import fitting, naming_secrets, recorded_host, recorded_run
from connector.spark.upkeep import Upkeep
from transactional.clock import Clock, Deadline
from transactional.errors import FencedError, TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.ledger import Ledger
from transactional.metadata import EntryKind
from transactional.ownership import Judge, may_stop, newest_run, rewinding, superseded

__all__ = [
    "JOURNAL_SECONDS",
    "Quiet",
    "Standing",
    "close",
    "end_run",
    "leave_nothing_open",
    "record_restart",
    "request_stop",
    "standing",
]

log = logging.getLogger(__name__)

END_SECONDS = 10.0
"""So long an end is tried again that a store which does not answer stands against."""

AGAIN_SECONDS = 1.0
"""Between two such tries."""

JOURNAL_SECONDS = 1.0
"""Between two looks into a journal for a stop that was asked for from outside: one listing of a folder."""

QUIET_SECONDS = 2.0
"""So long Spark begins no micro-batch, then none is waited for: what is prepared is committed without one."""


@dataclass(frozen=True)
class Standing:
    """How far a query is from its end.

    Parameters
    ----------
    run : int
        The newest; 0 where there is none.
    driver : str
        Whose it is.
    drivers : Mapping[str, int]
        Whose runs the journal holds, and the newest of each.
    process : Mapping[str, Any]
        That driver's process.
    ended : str or None
        What ended it.
    prepared : Sequence[int]
        Micro-batches that are prepared, and in no checkpoint yet.
    unsettled : Sequence[int]
        Checkpoints that are decided, and not settled.
    batch : int
        The newest that Spark began.
    idle : bool
        Spark has committed every micro-batch that it began. Where the stop was requested before this was looked at, no task
        of an earlier planning is at work, and every later planning minds the request.
    asked : bool
        That run was asked to stop.
    rewinding : bool
    moved : bool
        The query goes on elsewhere.
    """

    run: int
    driver: str
    drivers: Mapping[str, int]
    process: Mapping[str, Any]
    ended: str | None
    prepared: Sequence[int]
    unsettled: Sequence[int]
    batch: int
    idle: bool
    asked: bool
    rewinding: bool
    moved: bool

    @property
    def clean(self) -> bool:
        """Everything is committed."""
        return not (self.prepared or self.unsettled or self.rewinding)

    @property
    def stopped(self) -> bool:
        """It came to its end, and everything is committed."""
        return self.clean and self.ended == EntryKind.STOPPED


class Quiet:
    """Whether Spark begins no micro-batch any more, at a location that is looked at again and again.

    Parameters
    ----------
    clock : Clock
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: tuple[int, Deadline] | None = None

    def look(self, found: Standing) -> bool:
        """Whether it is idle, and after the same micro-batch as at the look before."""
        same = found.idle and self._since is not None and self._since[0] == found.batch
        if not same:
            self._since = (found.batch, Deadline(QUIET_SECONDS, self._clock)) if found.idle else None
        return same

    def passed(self) -> bool:
        """Whether it has been so for long enough."""
        return self._since is not None and self._since[1].passed()


def standing(location: CheckpointLocation) -> Standing:
    """How far the location's query is.

    Raises
    ------
    JournalError
    """
    committed, batch = offset_log.newest(location, "commits"), offset_log.newest(location, "offsets")
    ledger = location.journal().load()
    run = ledger.newest_run
    return Standing(
        run=0 if run is None else run.token,
        driver="" if run is None else run.driver,
        drivers={ledger.runs[token].driver: token for token in sorted(ledger.runs)},
        process={} if run is None else dict(run.process),
        ended=None if run is None else run.ended,
        prepared=[record.batch for record in ledger.undecided()],
        unsettled=[checkpoint.id for checkpoint in ledger.unsettled()],
        batch=batch,
        idle=committed == batch,
        asked=ledger.stop_asked,
        rewinding=ledger.rewinding is not None,
        moved=ledger.moved is not None,
    )


def request_stop(location: CheckpointLocation, driver: str | None = None) -> int | None:
    """Ask the newest run to stop; its token, or None where there is none to ask. To ask again changes nothing.

    A run that has failed is asked, too: who keeps the query up, and waits to start it again, heeds that.

    Parameters
    ----------
    location : CheckpointLocation
    driver : str, optional
        Only where the run is this driver's.

    Raises
    ------
    FencedError
        ``REWIND_NOT_DONE``, ``LOCATION_MOVED_ON``
    JournalError
    """
    journal = location.journal()
    while True:
        ledger = journal.load()
        run = ledger.newest_run
        if run is None or run.ended == EntryKind.STOPPED or driver not in (None, run.driver):
            return None
        if ledger.stop_asked:
            return run.token
        try:
            journal.append(EntryKind.REQUEST, {"what": "stop", "run": run.token}, _of_newest(run.token))
        except FencedError as fenced:
            if fenced.condition != "RUN_SUPERSEDED":
                raise
            continue  # another run since it was looked at
        return run.token


def _of_newest(token: int) -> Judge:
    def judge(ledger: Ledger) -> None:
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        if newest_run(ledger).token != token:
            raise superseded(token, ledger)

    return judge


def end_run(location: CheckpointLocation) -> bool:
    """Journal that the newest run has ended, where it has left nothing open that the journal knows; without its sink.

    Returns
    -------
    bool
        False where it can't be said, or was said already.
    """
    journal = location.journal()
    run = journal.load().newest_run
    if run is None or run.ended:
        return False
    try:
        journal.append(EntryKind.STOPPED, {"run": run.token}, may_stop(run.token))
    except FencedError:
        return False
    return True


def close(location: CheckpointLocation, given: Mapping[str, str], follows: int) -> int:
    """End a query that does not run: commit what it has prepared, sweep, journal `stopped`.

    *Called when the query has stopped and its tasks have ended.* A run of its own fences whatever may still be at work.

    Parameters
    ----------
    location : CheckpointLocation
    given : Mapping[str, str]
        Options of the sink that the journal does not keep.
    follows : int
        The run that is ended; a newer one is left alone.

    Returns
    -------
    int
        The run that it claimed and ended.

    Raises
    ------
    RewindRequiredError
        Prepared transactions are lost: take the query back, then nothing of it is open either.
    OptionError, StoreError, LocationError, FencedError, RetriableError, HookError, AmbiguousOutcomeError
        What is prepared is left as it was; it can be called again.
    """
    run = recorded_run(location.journal().load())
    with naming_secrets(run, given), alone(location):
        host = recorded_host(run, location, {**given, "transactionalIdPrefix": run.prefix})
        view = offset_log.stopped_view(location)
        with host.coordinator(view, f"ending {uuid.uuid4().hex}", run.process) as coordinator:
            return coordinator.close(follows)


def leave_nothing_open(
    location: CheckpointLocation,
    upkeep: Upkeep,
    go_back: Callable[[], object],
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """End a query that does not run, by who has kept it up; nothing where it has ended well, or where none ever ran.

    Parameters
    ----------
    location : CheckpointLocation
    upkeep : Upkeep
        What its drivers have left is ended, and what a driver has left that is gone.
    go_back : Callable[[], object]
        Takes the query back, where what it had prepared is lost.
    say : Callable[[str], None]
        Takes sentences for people.
    clock : Clock

    Raises
    ------
    FencedError
        ``DRIVER_UNKNOWN``: something is open, of a driver that can't be seen from here.
    TwoPhaseCommitError
        As `close`, where something is not committed. What a later try can mend was tried for `END_SECONDS`.
    """
    deadline = Deadline(END_SECONDS, clock)
    while not deadline.passed():
        try:
            _leave_nothing_open(location, upkeep, go_back, say)
            return
        except TwoPhaseCommitError as problem:  # noqa: PERF203 - seconds are between two rounds
            if failure_of(problem).remedy is not Remedy.RESTART:
                raise
            clock.sleep(AGAIN_SECONDS)
    _leave_nothing_open(location, upkeep, go_back, say)


def _leave_nothing_open(
    location: CheckpointLocation, upkeep: Upkeep, go_back: Callable[[], object], say: Callable[[str], None]
) -> None:
    found = standing(location)
    if found.run == 0 or found.stopped:
        return
    if found.moved or not _may_end(location, found, upkeep):
        owner = "the query goes on elsewhere" if found.moved else f"run {found.run} of another driver has taken it over"
        say(f"{location.path}: {owner}; nothing is ended there")
        return
    try:
        close(location, fitting(recorded_run(location.journal().load()), upkeep.given), found.run)
    except TwoPhaseCommitError as problem:
        if failure_of(problem).remedy is Remedy.REWIND:
            go_back()
        elif not found.clean or not end_run(location):
            raise
        else:
            say(f"everything is committed; what a task may have left open was not looked for: {problem}")


def _may_end(location: CheckpointLocation, found: Standing, upkeep: Upkeep) -> bool:
    """Whether the newest run is of a driver of ours, or of one that is gone; False where another is at work."""
    alive = upkeep.is_alive(found.process)
    if found.driver in upkeep.drivers or alive is False:
        return True
    if alive or found.clean or set(upkeep.drivers) & set(found.drivers):
        return False
    raise FencedError(
        "DRIVER_UNKNOWN",
        f"{location.path} is not ended: run {found.run} is of a driver that was not kept up from here "
        f"({driver_text(found.process, alive)}), and something of it is open (micro-batches {list(found.prepared)} prepared, "
        f"checkpoints {list(found.unsettled)} not settled). Where it is gone: `barrier stop LOCATION --query-stopped`, or "
        "start the query. `barrier run --single-driver` and supervise(..., single_driver=True) take such a driver for gone",
        run=found.run,
        prepared=list(found.prepared),
    )


def record_restart(
    location: CheckpointLocation, by: str, number: int, delay: float, failure: Failure, rewound: bool
) -> None:
    """Leave in the journal why the query is started again; nothing where no run is in it yet.

    A journal that does not answer just now, perhaps because of the same outage, does not keep the query down.
    """
    body = {
        "by": by,
        "number": number,
        "delay": round(delay, 3),
        "condition": failure.condition,
        "reason": failure.text,
        "rewound": rewound,
    }
    try:
        journal = location.journal()
        if journal.load().newest_run is not None:
            journal.append(EntryKind.RESTARTED, body, _anybody)
    except (TwoPhaseCommitError, OSError) as problem:
        log.warning("why the query is started again is not in its journal: %s", problem)


def _anybody(ledger: Ledger) -> None:
    """It binds nothing."""
