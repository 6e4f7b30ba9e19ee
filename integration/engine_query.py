"""A query without Spark that dies and is started again: its work, its output, and an armed folder of faults."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from integration.driver_process import DriverProcess, Faults, Output, Place
from integration.engine import Engine, Work, command
from integration.sql_output import DatabaseServer
from transactional import faults
from transactional.faults import InjectedFault

__all__ = ["POINTS", "EngineQuery", "kill_twelve_times"]

POINTS = [point for point in faults.POINTS if point not in ("journal.created", "source.latest")]
"""Those that the engine passes."""


class EngineQuery:
    """One query.

    Parameters
    ----------
    work : Work
    output : Output
    folder : Path
        Its faults are armed below this: the environment names that folder to the processes.
    """

    def __init__(self, work: Work, output: Output, folder: Path) -> None:
        self.work, self.output = work, output
        self.faults = Faults(folder / "faults")
        self.place = Place(Path(work.location), output)

    def run(self, error: bool = False, **options: str) -> None:
        """One driver's life, perhaps with other options."""
        Engine(replace(self.work, options={**self.work.options, **options})).run(error=error)

    def die(self, *points: str, error: bool = False, **options: str) -> None:
        """Live until the points have fired."""
        for point in points:
            self.faults.arm(point, "raise")
        with pytest.raises(InjectedFault):
            self.run(error, **options)
        assert self.faults.armed() == []
        self.place.check_partial(self.work.expected)

    def be_killed(self, point: str) -> None:
        """Live in a process of its own until the point kills it."""
        self.faults.arm(point, "kill")
        life = subprocess.run(command(self.work), check=False, capture_output=True, text=True)
        assert self.faults.armed() == [], life.stderr
        assert life.returncode < 0, life.stderr
        self.place.check_partial(self.work.expected)

    def die_at(self, point: str, error: bool, *, kill: bool = False) -> None:
        """Die at the point, by the shortest way to it."""
        if point == "abort.journalled":
            self.die("task.written", point, error=True)
            return
        if point == "recovery.settling":
            self.die("decision.written")
        if point.startswith("repair."):
            self.die("commit.one")
            self.lose_some()
        if kill:
            self.be_killed(point)
        else:
            self.die(point, error=error)

    def lose_some(self) -> None:
        """Someone deletes decided rows that are not committed."""
        self.output.lose(self.output.open_transactions())

    def finish(self) -> None:
        """Run a driver to the end of the work and check everything."""
        self.run()
        self.check()

    def check(self) -> None:
        """Every row is where it should be, once; nothing is left anywhere."""
        self.place.check_whole(self.work.expected)


def kill_twelve_times(driver: DriverProcess, database: DatabaseServer) -> None:
    """Kill driver, workers and the database itself, in turn, around a decision and its commit; then run to the end."""
    for point in ("task.prepared", "decision.written", "commit.one", "settled.written"):
        driver.faults.arm(point, "kill-jvm")
        driver.start()
        driver.wait_death(point)
        driver.faults.arm("task.written", "kill")
        driver.faults.arm(point, "pause")
        driver.start()
        driver.wait_fired(point, 2)
        database.kill()
        database.start()
        driver.faults.resume(point)
        driver.kill()
    driver.finish()
