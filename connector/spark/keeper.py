"""Keeps a driver process up: restarts by a strategy, rewinds between two drivers, and a stop that leaves nothing open.

Unlike `connector.spark.supervisor` it survives the death of the JVM and of the driver program, and can take back queries with
state, because nothing of the former driver is left then.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from connector.location.location import CheckpointLocation
from connector.spark import life_report
from connector.spark.closing import (
    JOURNAL_SECONDS,
    Quiet,
    Standing,
    leave_nothing_open,
    record_restart,
    request_stop,
    standing,
)
from connector.spark.driver_tree import DriverTree
from connector.spark.health import Health
from connector.spark.life_report import LifeReport
from connector.spark.signals import StopWish, heeding
from connector.spark.taking_back import take_back
from connector.spark.upkeep import Upkeep
from transactional.clock import Clock, Deadline, Pace, SystemClock
from transactional.errors import FencedError, RetriableError, TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.restart import Restarts, RestartStrategy
from transactional.secrets import without_named_secrets

__all__ = ["DriverKeeper"]

BY = "barrier run"
"""Who started it again, in the journal."""

LOOK_SECONDS = 0.2
"""Between two looks at the driver."""

JVM_SECONDS = 30.0
"""So long a driver program may live on without its JVM; one that only sleeps would never notice."""

PROGRAM_SECONDS = 10.0
"""So long a driver program may take to end after SIGTERM, once its queries have nothing open."""


class DriverKeeper:
    """Runs one driver program after the other.

    Parameters
    ----------
    command : Sequence[str]
    strategy : RestartStrategy
    given : Mapping[str, str]
        The sinks' options that the journal does not keep.
    stop_timeout : float
        Seconds that the micro-batch at work may take to its final checkpoint.
    say : Callable[[str], None]
        Takes sentences for people.
    health : Health
    clock, chance : optional
        Time and numbers at random.
    single_driver : bool
        Nothing else starts these queries: a former driver that can't be seen from here (of another container) is gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        strategy: RestartStrategy,
        given: Mapping[str, str],
        stop_timeout: float,
        say: Callable[[str], None],
        health: Health,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        single_driver: bool = False,
    ) -> None:
        self._command = command
        self._given = given
        self._stop_timeout = stop_timeout
        self._say = say
        self._health = health
        self._single_driver = single_driver
        self._clock = clock or SystemClock()
        self._restarts = Restarts(strategy, self._clock, chance)
        self._wish = StopWish()
        self._locations: dict[str, CheckpointLocation] = {}
        self._drivers: set[str] = set()
        self._runs: dict[str, int] = {}  # the newest run of each location when a life began, if known
        self._silent: dict[str, str] = {}  # why a location's journal does not answer
        self._tree: DriverTree | None = None

    def run(self) -> Failure | None:
        """One life after the other; None when it was stopped well or has ended by itself, else the last failure.

        Raises
        ------
        TwoPhaseCommitError
            What a rewind, or the end of a query, raised.
        """
        try:
            with heeding(self._wish, self._kill):
                failure = self._keep()
        except BaseException as problem:
            self._health.failed(failure_of(problem))
            self._health.tell("failed", driver=None)
            raise
        self._health.tell("failed" if failure else "stopped", driver=None)
        return failure

    def _keep(self) -> Failure | None:
        failure: Failure | None = None
        while not self._wish.asked():
            failure = self._live()
            if failure is None or failure.remedy is Remedy.STOPPED:
                break
            if self._wish.asked():
                self._say(f"the driver failed while it was being stopped: {failure.text}")
            elif not self._mend(failure):
                return failure
        with self._health.during("stopping"):
            self._end(all_of_it=failure is not None or self._wish.asked())
        return None

    def _kill(self) -> None:
        """We are about to be ended by a signal: leave no driver to nobody."""
        if self._tree is not None:
            self._tree.kill()

    # -- one life ---------------------------------------------------------------------------------------------------

    def _live(self) -> Failure | None:
        self._restarts.began()
        for location in self._locations.values():
            self._note_run(location)
        try:
            folder = tempfile.mkdtemp(prefix="barrier-run-")
        except OSError as problem:  # a full disk, from which the former driver has died, too
            return Failure("", f"no driver is started: {problem}", Remedy.RESTART)
        try:
            report = LifeReport(folder)
            tree = self._tree = DriverTree(self._command, {**os.environ, life_report.VARIABLE: folder})
            try:
                self._health.tell("starting", driver=tree.pid)
                hanged = self._watch(tree, report)
            finally:
                status = tree.end()
            self._find(report)
            if status == 0 and not hanged:
                return report.failure("thread")
            found = report.failure("script", "thread", "host")
            if found is not None:
                return found
            told = "its JVM was gone, and it lived on" if hanged else _status_text(status)
            return Failure("", f"the driver program ended: {told}", Remedy.RESTART)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, tree: DriverTree, report: LifeReport) -> bool:
        """Until the program has ended, or may be ended; True where it has lost its JVM and does not notice."""
        lost: Deadline | None = None
        stop: _Stop | None = None
        while tree.status() is None:
            planned = self._find(report)
            if not tree.lost_jvm() or not planned:  # what is written in Java, and no driver, may come and go
                lost = None
            elif lost is None:
                lost = Deadline(JVM_SECONDS, self._clock)
            elif lost.passed():
                return True
            if self._wish.asked():
                stop = stop or _Stop(self._stop_timeout, self._clock)
                if self._wish.forced() or self._stops(stop, tree, report):
                    return False
            self._health.tell("stopping" if stop else "running" if planned else "starting")
            self._health.beat()
            self._clock.sleep(LOOK_SECONDS)
        return False

    def _find(self, report: LifeReport) -> bool:
        """Take up what the driver has told; whether a query of ours was planned in it."""
        queries = report.queries()
        for options, driver in queries:
            if driver is not None:
                self._drivers.add(driver)
            location = CheckpointLocation.from_options(options)
            if location.path not in self._locations:
                self._locations[location.path] = location
                self._note_run(location)
        self._health.facts["locations"] = list(self._locations)
        return bool(queries)

    def _note_run(self, location: CheckpointLocation) -> None:
        found = self._look(location)
        if found is None:
            self._runs.pop(location.path, None)
        else:
            self._runs[location.path] = found.run

    def _look(self, location: CheckpointLocation) -> Standing | None:
        """How far the query is; None where its journal does not answer just now, which is said once."""
        try:
            found = standing(location)
        except (TwoPhaseCommitError, OSError) as problem:
            why = str(problem)
            if self._silent.get(location.path) != why:
                self._say(f"{location.path} can't be looked at now: {why}")
            self._silent[location.path] = why
            return None
        if self._silent.pop(location.path, None) is not None:
            self._say(f"{location.path} can be looked at again")
        return found

    # -- after a failure --------------------------------------------------------------------------------------------

    def _mend(self, failure: Failure) -> bool:
        """Do what the next life needs, and wait for it; False where there is to be none."""
        self._health.failed(failure)
        delay = self._restarts.failed() if failure.remedy is not Remedy.NONE else None
        if delay is None:
            why = "no restart mends this" if failure.remedy is Remedy.NONE else "the restart strategy gives up"
            self._say(f"{why}, after {self._restarts.number} restarts: {failure.text}")
            return False
        for location in self._locations.values():
            rewound = self._needs_rewind(location, failure) and self._take_back(location)
            record_restart(location, BY, self._restarts.number, delay, failure, rewound)
        self._say(f"restart {self._restarts.number} in {delay:.1f} s: {failure.text}")
        self._health.tell("waiting", driver=None, restarts=self._restarts.number)
        deadline, pace = Deadline(delay, self._clock), Pace(JOURNAL_SECONDS, self._clock)
        while not self._wish.asked():
            waited = deadline.passed()
            if (pace.due() or waited) and self._all_were_stopped():
                self._wish.ask()  # by `barrier stop`
            if waited:
                break
            self._health.beat()
            self._clock.sleep(min(LOOK_SECONDS, deadline.left()))
        return True

    def _all_were_stopped(self) -> bool:
        stopped = [self._was_stopped(location) for location in self._locations.values()]  # looks at each
        return bool(stopped) and all(stopped)

    def _was_stopped(self, location: CheckpointLocation) -> bool:
        """Whether somebody has asked the life that failed to stop, or has ended what it left: that is to stay so."""
        found = self._look(location)
        if found is None:
            return False
        before = self._runs.setdefault(location.path, self._run_before(found))
        return found.asked or (found.stopped and found.run > before)

    def _run_before(self, found: Standing) -> int:
        """The run before our drivers' newest; the newest of all where they have none.

        In that case a stop that was done can't be told from one of before their time, and counts for nothing.
        """
        ours = [run for driver, run in found.drivers.items() if driver in self._drivers]
        return max(ours) - 1 if ours else found.run

    def _needs_rewind(self, location: CheckpointLocation, failure: Failure) -> bool:
        if failure.remedy is Remedy.REWIND:
            return True
        found = self._look(location)
        return found is not None and found.rewinding

    def _take_back(self, location: CheckpointLocation) -> bool:
        with self._health.during("rewinding"):
            try:
                return self._go_back(location)
            except (TwoPhaseCommitError, OSError) as problem:
                if failure_of(problem).remedy is Remedy.NONE:
                    raise
                self._say(f"the rewind is not done, and tried again with the next restart: {problem}")
                return False

    def _go_back(self, location: CheckpointLocation) -> bool:
        batch = take_back(location, self._upkeep())
        if batch is not None:
            self._say(f"{location.path} went back: it goes on after micro-batch {batch}")
        return batch is not None

    # -- the end ----------------------------------------------------------------------------------------------------

    def _stops(self, stop: _Stop, tree: DriverTree, report: LifeReport) -> bool:
        """Let the driver's queries come to their final checkpoints; True where the rest is done when it is gone."""
        if stop.deadline.passed():
            self._say("the driver is ended before the final checkpoint of its queries")
            return True
        supervised = report.supervised()
        for pid in supervised:
            if pid not in stop.told:
                stop.told.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        if supervised:
            return False
        if stop.program is None:
            if not all(self._is_quiet(location, stop) for location in self._locations.values()):
                return False
            tree.signal(signal.SIGTERM)
            stop.program = Deadline(PROGRAM_SECONDS, self._clock)
        return stop.program.passed()

    def _is_quiet(self, location: CheckpointLocation, stop: _Stop) -> bool:
        """Whether the location's query has come to its end, or has nothing at work; whether it is ours at all."""
        found = self._look(location)
        if found is None:
            return False
        if found.ended is not None or found.driver not in self._drivers:
            return True
        try:
            request_stop(location, found.driver)
        except FencedError:  # it is rewound, or was moved away
            return True
        except (TwoPhaseCommitError, OSError):
            return False
        quiet = stop.quiet.setdefault(location.path, Quiet(self._clock))
        return quiet.look(found) and (found.clean or quiet.passed())

    def _end(self, all_of_it: bool) -> None:
        """No driver is left: leave nothing open.

        Parameters
        ----------
        all_of_it : bool
            Also what a task may have left of a query that has committed everything; a program that has ended by itself did
            not leave such.
        """
        if all_of_it and not self._locations:
            self._say("no query was planned: what an earlier program may have left open is open until the next start")
        problems: list[TwoPhaseCommitError] = []
        for location in self._locations.values():
            try:
                if all_of_it or not standing(location).clean:
                    leave_nothing_open(
                        location, self._upkeep(), partial(self._go_back, location), self._say, self._clock
                    )
            except Exception as problem:  # noqa: BLE001, PERF203 - the others are to be ended, too
                if not isinstance(problem, TwoPhaseCommitError):
                    problem = RetriableError("NOT_ENDED", without_named_secrets(f"{type(problem).__name__}: {problem}"))
                self._say(f"{location.path} is not ended: {problem}")
                problems.append(problem)
        if problems:
            raise problems[0]

    def _upkeep(self) -> Upkeep:
        return Upkeep(self._given, self._drivers, self._single_driver)


class _Stop:
    """A stop under way.

    Attributes
    ----------
    quiet : dict[str, Quiet]
        By location.
    told : set[int]
        Supervising processes that got their signal.
    program : Deadline or None
        Until when a plain program may take to end.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.deadline = Deadline(seconds, clock)
        self.quiet: dict[str, Quiet] = {}
        self.told: set[int] = set()
        self.program: Deadline | None = None


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
