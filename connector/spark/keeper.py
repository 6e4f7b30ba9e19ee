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

from connector.spark import life_report
from connector.spark.closing import Quiet, Standing, leave_nothing_open, record_restart, request_stop, standing
from connector.spark.driver_tree import DriverTree
from connector.spark.health import Health
from connector.spark.life_report import LifeReport
from connector.spark.location import CheckpointLocation
from connector.spark.process import is_alive
from connector.spark.signals import StopWish, heeding
from connector.spark.taking_back import take_back
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import FencedError, TwoPhaseCommitError
from transactional.failure import Failure, Remedy, failure_of
from transactional.restart import Restarts, RestartStrategy

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
    ) -> None:
        self._command = command
        self._given = given
        self._stop_timeout = stop_timeout
        self._say = say
        self._health = health
        self._clock = clock or SystemClock()
        self._restarts = Restarts(strategy, self._clock, chance)
        self._wish = StopWish()
        self._locations: list[CheckpointLocation] = []
        self._tree: DriverTree | None = None

    def run(self) -> Failure | None:
        """One life after the other; None when it was stopped well or has ended by itself, else the last failure.

        Raises
        ------
        TwoPhaseCommitError
            What a rewind, or the end of a query, raised.
        """
        try:
            with heeding(self._wish):
                failure = self._keep()
        except BaseException as problem:
            self._health.failed(failure_of(problem))
            self._health.tell("failed", driver=None)
            raise
        self._health.tell("failed" if failure else "stopped", driver=None)
        return failure

    def _keep(self) -> Failure | None:
        while not self._wish.asked():
            failure = self._live()
            if failure is None or failure.remedy is Remedy.STOPPED:
                break
            if self._wish.asked():
                self._say(f"the driver failed while it was being stopped: {failure.text}")
            elif not self._mend(failure):
                return failure
        if self._wish.asked():
            with self._health.during("stopping"):
                self._end()
        return None

    # -- one life ---------------------------------------------------------------------------------------------------

    def _live(self) -> Failure | None:
        folder = tempfile.mkdtemp(prefix="barrier-run-")
        try:
            self._restarts.began()
            report = LifeReport(folder)
            tree = self._tree = DriverTree(self._command, {**os.environ, life_report.VARIABLE: folder})
            self._health.tell("starting", driver=tree.pid)
            try:
                hanged = self._watch(tree, report)
            finally:
                status = tree.end()
            self._find(report)
            if status == 0 and not hanged:
                return None
            found = report.failure()
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
            self._find(report)
            if not tree.lost_jvm():
                lost = None
            elif lost is None:
                lost = Deadline(JVM_SECONDS, self._clock)
            elif lost.passed():
                return True
            if self._wish.asked():
                stop = stop or _Stop(self._stop_timeout, self._clock)
                if self._wish.forced() or self._stops(stop, tree, report):
                    return False
            self._health.tell("stopping" if stop else "running" if report.locations() else "starting")
            self._health.beat()
            self._clock.sleep(LOOK_SECONDS)
        return False

    def _find(self, report: LifeReport) -> None:
        known = {location.path for location in self._locations}
        self._locations += [CheckpointLocation(path) for path in report.locations() if path not in known]
        self._health.facts["locations"] = [location.path for location in self._locations]

    # -- after a failure --------------------------------------------------------------------------------------------

    def _mend(self, failure: Failure) -> bool:
        """Do what the next life needs, and wait for it; False where there is to be none."""
        self._health.failed(failure)
        delay = self._restarts.failed() if failure.remedy is not Remedy.NONE else None
        if delay is None:
            why = "no restart mends this" if failure.remedy is Remedy.NONE else "the restart strategy gives up"
            self._say(f"{why}, after {self._restarts.number} restarts: {failure.text}")
            return False
        for location in self._locations:
            rewound = self._needs_rewind(location, failure) and self._take_back(location)
            record_restart(location, BY, self._restarts.number, delay, failure, rewound)
        self._say(f"restart {self._restarts.number} in {delay:.1f} s: {failure.text}")
        self._health.tell("waiting", driver=None, restarts=self._restarts.number)
        deadline = Deadline(delay, self._clock)
        while not self._wish.asked() and not deadline.passed():
            if self._locations and all(standing(location).asked for location in self._locations):
                self._wish.ask()  # by `barrier stop`
            self._health.beat()
            self._clock.sleep(min(LOOK_SECONDS, deadline.left()))
        return True

    @staticmethod
    def _needs_rewind(location: CheckpointLocation, failure: Failure) -> bool:
        return failure.remedy is Remedy.REWIND or standing(location).rewinding

    def _take_back(self, location: CheckpointLocation) -> bool:
        with self._health.during("rewinding"):
            try:
                batch = take_back(location, self._given)
            except TwoPhaseCommitError as problem:
                if failure_of(problem).remedy is Remedy.NONE:
                    raise
                self._say(f"the rewind is not done, and tried again with the next restart: {problem}")
                return False
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
        if supervised is not None:
            if not stop.told:
                stop.told = True
                os.kill(supervised, signal.SIGTERM)
            return False
        if stop.program is None:
            if not all(self._is_quiet(location, stop) for location in self._locations):
                return False
            tree.signal(signal.SIGTERM)
            stop.program = Deadline(PROGRAM_SECONDS, self._clock)
        return stop.program.passed()

    def _is_quiet(self, location: CheckpointLocation, stop: _Stop) -> bool:
        """Whether the location's query has come to its end, or has nothing at work."""
        try:
            request_stop(location)
        except FencedError:  # it is rewound
            return True
        found = standing(location)
        if found.ended is not None:
            return True
        quiet = stop.quiet.setdefault(location.path, Quiet(self._clock))
        return quiet.look(found) and (found.clean or quiet.passed())

    def _end(self) -> None:
        """No driver is left: leave nothing open."""
        problems = [problem for location in self._locations if (problem := self._end_query(location)) is not None]
        if problems:
            raise problems[0]

    def _end_query(self, location: CheckpointLocation) -> TwoPhaseCommitError | None:
        """End one; what stands against it, where something does."""
        try:
            leave_nothing_open(location, self._given, self._is_ours, lambda: self._take_back(location), self._say)
        except TwoPhaseCommitError as problem:
            self._say(f"{location.path} is not ended: {problem}")
            return problem
        return None

    def _is_ours(self, found: Standing) -> bool:
        """Whether the newest run is a driver's that is gone; on a machine that can't tell, the one that was run here."""
        pid, alive = found.process.get("pid"), is_alive(found.process)
        had = self._tree is not None and self._tree.had(pid)
        return had or alive is False or (alive is None and pid is None)


class _Stop:
    """A stop under way.

    Attributes
    ----------
    quiet : dict[str, Quiet]
        By location.
    told : bool
        The supervising program got its signal.
    program : Deadline or None
        Until when a plain program may take to end.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.deadline = Deadline(seconds, clock)
        self.quiet: dict[str, Quiet] = {}
        self.told = False
        self.program: Deadline | None = None


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
