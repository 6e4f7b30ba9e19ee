"""Keeps a query up in its own program: restarts, rewinds that recovery asks for, and a stop that leaves nothing open."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from connector.location.location import CheckpointLocation
from connector.spark import formats, internals, life_report
from connector.spark.closing import (
    JOURNAL_SECONDS,
    Quiet,
    Standing,
    leave_nothing_open,
    record_restart,
    request_stop,
    standing,
)
from connector.spark.recorded import can_be_built, fitting
from connector.spark.signals import StopWish, heeding
from connector.spark.taking_back import take_back
from connector.spark.upkeep import Upkeep
from transactional.clock import Clock, Deadline, Pace, SystemClock
from transactional.errors import FencedError, OptionError, RetriableError, TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.restart import NoRestart, Restarts, RestartStrategy, from_config

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StopWish", "supervise"]

log = logging.getLogger(__name__)

BY = "supervise"
"""Who started it again, in the journal."""

LOOK_SECONDS = 0.2
"""Between two looks at a query."""

TASKS_SECONDS = 30.0
"""So long tasks that were told to end may take: Spark kills a Python worker after 2 s."""

STOPS_SECONDS = 60.0
"""So long `query.stop()` may take when a stop is forced: it waits for a commit, whose hook may hang."""


def supervise(
    start: Callable[[], StreamingQuery],
    strategy: RestartStrategy | None = None,
    *,
    location: str | None = None,
    options: Mapping[str, str] | None = None,
    stop_timeout: float = 300.0,
    single_driver: bool = False,
    wish: StopWish | None = None,
    clock: Clock | None = None,
    chance: Callable[[], float] = random.random,
) -> None:
    """Run a query for good, and return when it was stopped well. *Called in the user's driver program.*

    A failure is started again as `strategy` says, unless no restart mends it (options, rights, a replay with other rows).
    Where recovery asks for a rewind it is done first. SIGTERM and SIGINT, `wish` and ``barrier stop`` end the query at a
    final checkpoint: afterwards no transaction is open. A second signal, or the end of `stop_timeout`, stops it at once, and
    what is prepared is committed then.

    Parameters
    ----------
    start : Callable[[], StreamingQuery]
        Builds the query and starts it; called for every life of it.
    strategy : RestartStrategy, optional
        From the configuration by default (`transactional.restart.from_config`, of the environment); under ``barrier run``,
        which has one, `NoRestart`.
    location : str, optional
        The query's checkpoint location; asked of Spark by default.
    options : Mapping[str, str], optional
        The sink's options that the journal does not keep: secrets. They are needed where something is done while the query
        does not run: a rewind, a stop that was forced or came between two runs. And those that say how the checkpoint
        location is found: ``checkpointEndpoint``, ``checkpointRegion``, ``singleDriver``.
    stop_timeout : float
        Seconds that the micro-batch at work may take to its final checkpoint.
    single_driver : bool
        Nothing else starts this query: a former driver that can't be seen from here (of another container) is gone, and what
        it has left may be ended, or taken back.
    wish : StopWish, optional
        Asks for a stop from another thread. Signals are heeded in the main thread only.
    clock, chance : optional
        Time and numbers at random.

    Raises
    ------
    OptionError
        `stop_timeout` is no number of seconds.
    StreamingQueryException
        The query's last error, where no restart mends it or the strategy gives up.
    FencedError
        ``DRIVER_HOLDS_STATE``: a query with state can't be taken back in a driver that lives on; ``barrier run`` can.
    RetriableError
        ``JVM_GONE``: only ``barrier run`` survives that.
    TwoPhaseCommitError
        What a rewind, or the end of the query, raised.

    Examples
    --------
    >>> def start():
    ...     rows = spark.readStream.format("barrier-kafka")...load()
    ...     return rows.writeStream.format("2pc-kafka").option("checkpointLocation", "/var/lib/orders")...start()
    >>> supervise(start, ExponentialDelay())
    """
    if strategy is None:
        strategy = NoRestart() if life_report.is_kept_up() else from_config()
    if not stop_timeout >= 0:
        raise OptionError("INVALID_OPTION", f"stop_timeout={stop_timeout}: seconds, 0 or more", option="stop_timeout")
    clock = clock or SystemClock()
    formats.check_starts()
    upkeep = Upkeep(options or {}, set(), single_driver)
    supervisor = _Supervisor(start, Restarts(strategy, clock, chance), upkeep, stop_timeout, wish or StopWish(), clock)
    if location is not None:
        supervisor.find(location)
    in_main = threading.current_thread() is threading.main_thread()
    with heeding(supervisor.wish) as again, life_report.supervising() if in_main else nullcontext():
        try:
            supervisor.run(again)
        except BaseException as problem:
            if not in_main:  # the program may end well all the same
                life_report.tell_failure("thread", problem)
            raise


class _Supervisor:
    """One query's lives."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        restarts: Restarts,
        upkeep: Upkeep,
        stop_timeout: float,
        wish: StopWish,
        clock: Clock,
    ) -> None:
        self.wish = wish
        self._start = start
        self._restarts = restarts
        self._location: CheckpointLocation | None = None
        self._upkeep = upkeep
        self._stop_timeout = stop_timeout
        self._clock = clock
        self._journal_pace = Pace(JOURNAL_SECONDS, self._clock)
        self._driver: str | None = None

    def run(self, heed: Callable[[], None]) -> None:
        """One life after the other."""
        while not self.wish.asked():
            problem = self._live(heed)
            if problem is None:
                return
            failure = failure_of(problem)
            if failure.remedy is Remedy.STOPPED:
                log.info("the query was stopped: %s", failure.text)
                return
            if self.wish.asked():
                log.warning("the query failed while it was being stopped: %s", failure.text)
                break
            self._mend(problem, failure)
        self._end()

    def _live(self, heed: Callable[[], None]) -> BaseException | None:
        """One life; its error, None where it ended well."""
        self._restarts.began()
        query: StreamingQuery | None = None
        try:
            formats.register_lost(internals.active_session())
            query = self._start()
            heed()
            self._meet(query)
            while not self.wish.asked():
                if _has_ended(query):
                    return None
                self._hear()
        except KeyboardInterrupt as interrupt:  # PySpark's own handler, while a session was made
            if not self.wish.asked():
                self.wish.ask()
            if query is None:
                return interrupt
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is judged
            if query is not None and _is_active(query):  # it is not the query's: none is to run that nobody keeps up
                self._halt(query, safe=False)
            return problem
        self._stop(query)
        return None

    def find(self, location: str) -> CheckpointLocation:
        """Where the query is."""
        self._location = CheckpointLocation.from_options({**self._upkeep.given, "checkpointLocation": location})
        return self._location

    def _meet(self, query: StreamingQuery) -> None:
        location = self._location or self.find(internals.checkpoint_location(query))
        self._driver = internals.driver_of(query)
        if self._driver is not None:
            self._upkeep = replace(self._upkeep, drivers={*self._upkeep.drivers, self._driver})
        life_report.tell_location(location, self._driver)

    def _hear(self, at_once: bool = False) -> None:
        """Take the wish of ``barrier stop`` from the journal: an idle query would not see it."""
        if self.wish.asked() or self._location is None or not (self._journal_pace.due() or at_once):
            return
        try:
            ledger = self._location.journal().load()
        except (TwoPhaseCommitError, OSError) as problem:
            log.warning("the journal can't be looked at now for a stop that was asked for: %s", problem)
            return
        if ledger.stop_asked and ledger.newest_run is not None and ledger.newest_run.driver == self._driver:
            self.wish.ask()

    # -- after a failure --------------------------------------------------------------------------------------------

    def _mend(self, problem: BaseException, failure: Failure) -> None:
        """Do what the next life needs, and wait for it; raises where there is to be none."""
        if failure.remedy is Remedy.NONE:
            raise problem
        if internals.jvm_is_gone(problem):
            raise RetriableError(
                "JVM_GONE",
                f"the driver's JVM does not answer any more ({failure.text}): `barrier run` starts a new driver",
            ) from problem
        delay = self._restarts.failed()
        if delay is None:
            raise problem
        rewound = failure.remedy is Remedy.REWIND and self._take_back(problem)
        log.warning("restart %d in %.1f s: %s", self._restarts.number, delay, failure.text)
        if self._location is not None:
            record_restart(self._location, BY, self._restarts.number, delay, failure, rewound)
        deadline = Deadline(delay, self._clock)
        while not (waited := deadline.passed()) and not self.wish.asked():
            self._hear()
            self._clock.sleep(min(LOOK_SECONDS, deadline.left()))
        self._hear(at_once=waited)

    def _take_back(self, problem: BaseException) -> bool:
        if self._location is None:
            raise problem
        try:
            return take_back(self._location, self._upkeep) is not None
        except FencedError as refused:
            if refused.condition == "REWIND_RUNS":  # somebody does it
                return False
            if refused.condition != "DRIVER_HOLDS_STATE":
                raise
            if life_report.is_kept_up():  # which does it when this driver has ended
                raise problem from refused
            raise FencedError(
                "DRIVER_HOLDS_STATE",
                "the query has to go back, and has state, which its driver holds as long as it lives: "
                f"{failure_of(problem).text} Run the program with `barrier run`, which goes back between two drivers; or end "
                f"it, `barrier rewind {self._location.path}`, and start it again",
            ) from problem
        except TwoPhaseCommitError as refused:
            if failure_of(refused).remedy is Remedy.NONE:
                raise
            log.warning("the rewind is not done, and tried again with the next restart: %s", refused)
            return False

    # -- the end ----------------------------------------------------------------------------------------------------

    def _stop(self, query: StreamingQuery) -> None:
        """End a running query at its final checkpoint; where none comes, stop it and end it from outside."""
        deadline = Deadline(self._stop_timeout, self._clock)
        quiet = Quiet(self._clock)
        safe = False  # no task is at work
        try:
            while query.isActive and not self.wish.forced() and not deadline.passed():
                asked, found = self._request()
                safe = found is not None and found.idle and found.run == asked and found.ended is None
                if found is not None:
                    quiet.look(found)
                    if found.moved or not self._is_ours(found):
                        break
                    if found.idle and (found.clean or (quiet.passed() and self._can_close())):
                        break
                _has_ended(query)
        except Exception as problem:  # noqa: BLE001 - it ended: as it was asked to, or otherwise
            failure = failure_of(problem)
            if failure.remedy is not Remedy.STOPPED:
                log.warning("the query failed while it was being stopped: %s", failure.text)
        if _is_active(query):
            self._halt(query, safe)
        self._end()

    def _request(self) -> tuple[int | None, Standing | None]:
        """Journal the wish; the run that is told, so that its next planning minds it, and how far it is.

        None for both where the journal does not answer just now.
        """
        if self._location is None:
            return None, None
        asked = None
        try:
            with suppress(FencedError):  # while it is rewound, or moved away: its next planning stops anyway
                asked = None if self._driver is None else request_stop(self._location, self._driver)
            return asked, standing(self._location)
        except (TwoPhaseCommitError, OSError) as problem:
            log.warning("the journal can't be looked at now: %s", problem)
            return None, None

    def _halt(self, query: StreamingQuery, safe: bool) -> None:
        """Stop it, and wait until its tasks have ended."""
        if not safe:
            log.warning("the query is stopped before its final checkpoint")
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(STOPS_SECONDS)
        deadline = Deadline(TASKS_SECONDS, self._clock)
        while not safe and internals.running_tasks() and not deadline.passed():
            self._clock.sleep(LOOK_SECONDS)

    def _is_ours(self, found: Standing) -> bool:
        """Whether the newest run is this driver's, or a dead one's; before the first there is none."""
        mine = self._driver is not None and found.driver == self._driver
        return found.run == 0 or mine or self._upkeep.is_alive(found.process) is False

    def _can_close(self) -> bool:
        """Whether what the sink needs is known here."""
        if self._location is None:
            return False
        run = self._location.journal().load().newest_run
        return run is not None and can_be_built(run, self._location, fitting(run, self._upkeep.given))

    def _end(self) -> None:
        """No query runs: leave nothing open."""
        location = self._location
        if location is None:
            return
        leave_nothing_open(location, self._upkeep, lambda: take_back(location, self._upkeep), log.warning, self._clock)


def _is_active(query: StreamingQuery) -> bool:
    """Whether it runs; not where its JVM is gone."""
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001 - of Py4J, whatever it is
        return False


def _has_ended(query: StreamingQuery) -> bool:
    """Wait a little; raises its error where it has failed."""
    return bool(query.awaitTermination(LOOK_SECONDS))  # type: ignore[arg-type]  # it takes fractions
