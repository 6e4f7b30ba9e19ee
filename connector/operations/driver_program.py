"""Driver programs of ``barrier run``: each life of one is a process with all that it starts.

Unlike a query in its own program (`connector.operations.supervised_query`) it survives the death of the JVM and of the
program, and can take back queries with state, because nothing of the former driver is left then.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Sequence

from connector.location.location import CheckpointLocation
from connector.operations.driver_tree import DriverTree
from connector.operations.signals import obeying_signals
from connector.operations.stopping import FinalCheckpoint
from connector.operations.supervision import LOOK_SECONDS, Supervision
from connector.spark import life_report
from connector.spark.life_report import LifeReport
from transactional.clock import Deadline
from transactional.failure import Failure, Remedy, failure_of

__all__ = ["DriverProgram", "NeverStartedError"]

CRIPPLED_SECONDS = 30.0
"""Seconds that a program may live on without its JVM, or after a query failed in a thread of it: it may never notice."""

QUICK_SECONDS = 60.0
"""Seconds: a program that dies earlier, and before any query of it was planned, was not started well."""

QUICK_DEATHS = 3
"""Such deaths in a row after which it is not started again: a mistake in a script's first lines is there next time, too."""


class NeverStartedError(Exception):
    """The program died on its first lines, again and again.

    Attributes
    ----------
    status : int
        Its exit status; 128 and the signal's number, as in shells, if one ended it.
    """

    def __init__(self, failure: Failure, status: int, lines: Sequence[str]) -> None:
        summary = f"the program died {QUICK_DEATHS} times before it planned any query, and is not started again: {failure.text}"
        super().__init__("\n".join([summary, *lines]))
        self.status = status if status >= 0 else 128 - status


class DriverProgram:
    """A driver program, and the lives of it.

    Parameters
    ----------
    command : Sequence[str]
    supervision : Supervision
    stop_timeout : float
        Seconds that the program may take to the final checkpoints of its queries, and to its end.
    """

    def __init__(self, command: Sequence[str], supervision: Supervision, stop_timeout: float) -> None:
        self._command = command
        self._supervision = supervision
        self._stop_timeout = stop_timeout
        self._health, self._clock, self._wish = supervision.health, supervision.clock, supervision.wish
        self._quick_deaths = 0
        self._limit: Deadline | None = None  # until when a crippled program may live on
        self._tree: DriverTree | None = None

    def run(self) -> Failure | None:
        """Run one life after the other; see `Supervision.run`.

        Raises
        ------
        NeverStartedError
        TwoPhaseCommitError
        """
        try:
            with obeying_signals(self._wish, self._kill):
                failure = self._supervision.run(self._live)
        except BaseException as problem:
            self._health.failed(failure_of(problem))
            self._health.tell("failed", driver=None)
            raise
        self._health.tell("failed" if failure else "stopped", driver=None)
        return failure

    def _kill(self) -> None:
        """End the driver now, before a signal ends this process."""
        if self._tree is not None:
            self._tree.kill()

    def _live(self) -> Failure | None:
        try:
            folder = tempfile.mkdtemp(prefix="barrier-run-")
        except OSError as problem:  # a full disk, from which the former driver has died, too
            return Failure("", f"no driver is started: {problem}", Remedy.RESTART)
        quick = Deadline(QUICK_SECONDS, self._clock)
        report = LifeReport(folder)
        try:
            tree = self._tree = DriverTree(self._command, {**os.environ, life_report.VARIABLE: folder})
            try:
                self._health.tell("starting", driver=tree.pid)
                crippled = self._watch(tree, report)
                if self._wish.asked():
                    self._stop(tree, report)
            finally:
                status = tree.end()
            self._meet(report)
            if status == 0 and not crippled:
                return report.failure("thread")
            found = report.failure("script", "thread", "host")
            found = found or Failure(
                "", f"the driver program ended: {crippled or _status_text(status)}", Remedy.RESTART
            )
            may_work = self._supervision.locations or found.condition or quick.passed() or self._wish.asked()
            self._quick_deaths = 0 if may_work else self._quick_deaths + 1
            if self._quick_deaths == QUICK_DEATHS:
                raise NeverStartedError(found, status, report.last_lines())
            return found
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, tree: DriverTree, report: LifeReport) -> str:
        """Wait until the program ends, or has to be ended; return why it can't go on, if it has not noticed."""
        self._limit = None
        while tree.status() is None and not self._wish.asked():
            planned = self._meet(report)
            self._rest("running" if planned else "starting")
            if crippled := self._crippled(tree, report, planned):
                return crippled
        return ""

    def _crippled(self, tree: DriverTree, report: LifeReport, planned: bool) -> str:
        """Return why the program can't go on, if it has outlived that for too long."""
        why = "a query of it has failed" if report.failure("thread") else ""
        if planned and tree.lost_jvm():  # what is written in Java, and no driver, may come and go
            why = "its JVM was gone, and it lived on"
        self._limit = (self._limit or Deadline(CRIPPLED_SECONDS, self._clock)) if why else None
        return why if self._limit is not None and self._limit.passed() else ""

    def _stop(self, tree: DriverTree, report: LifeReport) -> None:
        """Let the queries come to their final checkpoints, then the program to its end, while there is time."""
        deadline, signalled = Deadline(self._stop_timeout, self._clock), False
        finals: dict[str, FinalCheckpoint] = {}
        while tree.status() is None and not self._wish.forced() and not deadline.passed():
            if self._crippled(tree, report, self._meet(report)):
                break
            for path, location in self._supervision.locations.items():
                finals[path] = finals.get(path) or self._supervision.final_checkpoint(location)
            come = [signalled or final.has_come() for final in finals.values()]  # asks each
            if all(come) and not signalled:
                tree.signal(signal.SIGTERM)
                signalled = True
            self._rest("stopping")
        if tree.status() is None:
            self._supervision.say("the driver is ended before the final checkpoint of its queries")

    def _rest(self, state: str) -> None:
        self._health.tell(state)
        self._health.beat()
        self._clock.sleep(LOOK_SECONDS)

    def _meet(self, report: LifeReport) -> bool:
        """Take over what the driver has reported; return whether a query of ours was planned in it."""
        queries = report.queries()
        for options, driver in queries:
            self._supervision.meet(CheckpointLocation.from_options(options), driver)
        self._health.facts["locations"] = list(self._supervision.locations)
        return bool(queries)


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
