"""Two drivers on one location, frozen and thawed at random: at most one decides, the other stops, the output is exact."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from integration.driver_process import Faults, FolderOutput, Place, wait_until
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.ragged_source import position_of_line
from integration.warm_driver import WarmDriver
from transactional.entry import EntryKind
from transactional.ledger import Ledger, apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 60
"""Of every schedule's input: about ten micro-batches."""

POINTS = (
    "recovery.claimed",
    "recovery.swept",
    "task.begun",
    "task.prepared",
    "commit.called",
    "commit.looked",
    "journal.created",
    "decision.written",
    "commit.one",
    "settled.written",
)
"""Where a driver's Python process may stand still, beside the moments at which the whole driver is frozen."""

EXPECTED = frozenset(
    {
        "RUN_SUPERSEDED",
        "RUN_ENDED",
        "CONCURRENT_COMMIT",
        "LOGS_INCONSISTENT",
        "BATCHES_NOT_ACCOUNTED",
        "OFFSETS_REPLACED",
        "LOGS_AHEAD",
        "HANDLE_NOT_ALIVE",
        "LOST_AFTER_DECISION",
    }
)
"""With one of these a driver may end that meets another."""

SINKS_OWN = "No such file or directory"
"""The file sink's, for a file that the other's sweep has taken away."""


def kind_of(error: str) -> str:
    """The condition of our error, or whose it is: Spark's own, of a driver that was frozen or found the other's files."""
    ours = re.findall(r"transactional\.errors\.\w+: \[([A-Z_]+)\]", error)
    if ours:
        return str(ours[-1])
    if "Traceback" not in error:
        return "Spark's own"
    return "the file sink's own" if SINKS_OWN in error else error


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WarmDriver, WarmDriver]]:
    folder = tmp_path_factory.mktemp("drivers")
    with WarmDriver(folder, "first") as first, WarmDriver(folder, "second") as second:
        yield first, second


def told(error: str) -> str:
    """An error's own sentence, in Spark's text."""
    ours = [line for line in error.splitlines() if line.startswith("transactional.errors.")]
    return (ours or error.splitlines())[-1 if ours else 0][:300]


def is_done(path: str) -> bool:
    """Whether Spark has committed a micro-batch that ends behind the last row."""
    location = CheckpointLocation(path)
    committed = offset_log.newest(location, "commits")
    return committed >= 0 and position_of_line(offset_log.source_lines(location, committed)[0].text) >= ROWS


def recovered(path: str) -> str:
    """``barrier recover``; returns what it says."""
    command = [sys.executable, "-m", "connector.cli", "recover", path, "--query-stopped", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{found.stdout}{found.stderr}"
    return found.stdout.strip()


@dataclass
class Schedule:
    """One place, two drivers, and what is done to them; drawn from a seed."""

    seed: int
    folder: Path
    drivers: tuple[WarmDriver, WarmDriver]
    errors: list[str] = field(default_factory=list)  # With which their queries have ended.
    said: list[str] = field(default_factory=list)  # What was done, for who reads a failure.

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.job = Job(str(self.folder / "checkpoint"), str(self.folder / "output"), "ragged", batches=1, rows=ROWS)
        self.place = Place(Path(self.job.location), FolderOutput(Path(self.job.output)))
        self.ledger = Ledger()
        for driver in self.drivers:
            driver.faults.reset()

    expected: ClassVar[frozenset[str]] = EXPECTED | {"Spark's own", "the file sink's own"}

    def job_of(self, driver: WarmDriver) -> Job:
        """What it runs."""
        return self.job

    def workers(self) -> Sequence[WarmDriver]:
        """Who can bring it to its end."""
        return self.drivers

    # -- what is done -----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Disturb both until both have been at work, then let them go on by themselves."""
        if not any(driver.running for driver in self.drivers):
            self.do(self.workers()[0], "start")
        for _ in range(self.chance.randint(8, 14)):
            driver = self.chance.choice(self.drivers)
            if driver.frozen:
                self.do(driver, "thaw")
            elif not driver.running:
                self.do(driver, "start")
            else:
                self.do(driver, self.chance.choice(["freeze", "freeze in a rename", "stand", "go on"]))
            self.let_them()
            self.look()
        for driver in self.drivers:
            if driver.frozen:
                self.do(driver, "thaw")
            self.do(driver, "go on")
        self.one_stops()

    def do(self, driver: WarmDriver, what: str) -> None:
        """One disturbance."""
        self.said.append(f"{driver.name}: {what}")
        if what == "start":
            driver.faults.reset()  # nothing of it stands: released when its query had ended
            driver.start(self.job_of(driver))
        elif what == "freeze":
            driver.freeze()
        elif what == "freeze in a rename":
            self.freeze_in_a_rename(driver)
        elif what == "thaw":
            driver.thaw()
        elif (
            what == "stand"
        ):  # until "go on"; at a point that was released once, nobody stands again before the next start
            point = self.chance.choice(POINTS)
            self.said[-1] += f" at {point}"
            driver.faults.arm(point, "pause")
        else:
            driver.faults.release()

    def freeze_in_a_rename(self, driver: WarmDriver) -> None:
        """As long as Spark has written a file of its log, and has not renamed it; or a bit later."""
        folder = Path(self.job.location) / "offsets"
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            with_temporary = folder.is_dir() and any(name.endswith(".tmp") for name in os.listdir(folder))
            if with_temporary:
                driver.freeze()
                left = [name for name in os.listdir(folder) if name.endswith(".tmp") and not name.endswith(".crc")]
                self.said[-1] += f" ({', '.join(left) or 'too late'})"
                return
        driver.freeze()

    def let_them(self) -> None:
        """Some time passes, or something happens in the journal."""
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0.05, 1.5))
            return
        entries = len(self.names())
        wanted = entries + self.chance.randint(1, 6)
        end = time.monotonic() + 3
        while len(self.names()) < wanted and time.monotonic() < end:
            time.sleep(0.02)

    def names(self) -> list[str]:
        """Of the journal's files."""
        folder = Path(self.job.location) / "barrier" / "log"
        return os.listdir(folder) if folder.is_dir() else []

    # -- what comes of it -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Whose query has ended, and with what; no row is there twice."""
        for driver in self.drivers:
            if not driver.running or driver.frozen:
                continue
            error = driver.error()
            if error:
                self.said.append(f"{driver.name} ended: {told(error)}")
                self.errors.append(error)
                driver.faults.release()
                assert kind_of(error) in self.expected, f"{error}\n{self}"
        self.place.check_partial(ROWS)
        self.follow()

    def one_stops(self) -> None:
        """Two that run can't both go on: each micro-batch asks the journal."""

        def at_most_one() -> bool:
            self.look()
            return sum(driver.running for driver in self.drivers) <= 1

        wait_until(at_most_one, f"the end of one of two drivers\n{self}")

    def finish(self) -> None:
        """Start whoever is not at work until all rows are there, taking the way out that an error names."""
        for _ in range(8):
            driver = next((each for each in self.workers() if each.running), self.chance.choice(self.workers()))
            if not driver.running:
                self.do(driver, "start")
            wait_until(lambda driver=driver: self.is_done() or self.ended(driver), f"the end\n{self}")  # type: ignore[misc]
            if self.is_done():
                break
            if "OFFSETS_REPLACED" in self.errors[-1] or "LOGS_AHEAD" in self.errors[-1]:
                self.recover()
        for driver in self.drivers:
            if driver.running:
                driver.stop()
        assert self.is_done(), str(self)
        # What the stopped query had prepared is swept by the next, or stays as it is decided.
        self.settle()
        self.place.check_whole(ROWS)
        self.follow()

    def ended(self, driver: WarmDriver) -> bool:
        """Whether its query has; a look at both."""
        self.look()
        return not driver.running

    def is_done(self) -> bool:
        """Whether Spark has committed a micro-batch that ends behind the last row."""
        return is_done(self.job.location)

    def settle(self) -> None:
        """One more micro-batch of a query that nobody disturbs."""
        driver = self.workers()[0]
        before = self.place.committed()
        for _ in range(3):  # who was superseded at a commit hears of it once more, when it starts
            self.do(driver, "start")
            wait_until(
                lambda: self.place.committed() > before or self.ended(driver), f"one micro-batch more\n{self}", 60
            )
            if driver.running:
                driver.stop()
                return
        raise AssertionError(f"it does not start\n{self}")

    def recover(self) -> None:
        """``barrier recover``, when nobody is at work any more."""
        for driver in self.drivers:
            if driver.running:
                driver.stop()
        self.said.append(f"barrier recover: {recovered(self.job.location)}")

    def follow(self) -> None:
        """Every decision, repair, verdict and void is of the run that was the newest then."""
        for entry in self.place.entries():
            if entry.number <= self.ledger.position:
                continue
            if entry.kind in (
                EntryKind.DECIDED,
                EntryKind.SETTLED,
                EntryKind.VOID,
                EntryKind.VERDICT,
                EntryKind.REPAIR,
            ):
                rewinding, newest = self.ledger.rewinding, self.ledger.newest_run
                owner = rewinding.token if rewinding is not None else newest.token if newest is not None else None
                assert entry.body["run"] == owner, f"{entry.number} {entry.kind}\n{self}"
            apply(self.ledger, entry)

    def quiet(self) -> None:
        """Nothing of it runs or stands."""
        for driver in self.drivers:
            driver.faults.release()
            if driver.frozen:
                driver.thaw()
            if driver.running:
                driver.stop()

    def __str__(self) -> str:
        return f"schedule {self.seed}:\n  " + "\n  ".join(self.said)


def play(schedule: Schedule) -> Schedule:
    """From its beginning to its end; nothing of it runs then."""
    try:
        schedule.play()
        schedule.finish()
    finally:
        schedule.quiet()
    return schedule


def play_ten(first: int, folder: Path, make: Callable[[int, Path], Schedule]) -> Counter[str]:
    """Ten schedules; how often which error has ended a driver: what a schedule is to provoke is provoked."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 10):
        schedule = play(make(seed, folder / str(seed)))
        for error in schedule.errors:
            seen[kind_of(error)] += 1
        seen["recoveries"] += sum("barrier recover" in said for said in schedule.said)
        shutil.rmtree(folder / str(seed))
    print(f"schedules {first} to {first + 9}: {dict(seen)}")
    return seen


@pytest.mark.matrix
@pytest.mark.parametrize("by", [4, -3])
@pytest.mark.parametrize("decided", [True, False])
def test_a_late_file_of_a_frozen_driver_stops_the_query_and_a_rewind_makes_its_output_exact(
    spark: SparkSession, tmp_path: Path, faults: Faults, by: int, decided: bool
) -> None:
    """The file comes while the next micro-batch's tasks are at work, or over that one's own; it ends earlier, or later."""
    with LiveQuery(spark, tmp_path, Job("", "", "ragged", batches=1, rows=ROWS)) as query:
        query.start()
        query.wait_committed(1)
        faults.arm("task.prepared", "pause")
        wait_until(lambda: faults.fired("task.prepared"), "a task")
        location = Path(query.job.location)
        work = offset_log.newest(CheckpointLocation(query.job.location), "offsets")
        late = location / "offsets" / str(work - 1 if decided else work)
        lines = late.read_text().splitlines()
        begins = position_of_line((late.parent / str(int(late.name) - 1)).read_text().splitlines()[2])
        lines[2] = json.dumps({"row": max(begins, position_of_line(lines[2]) + by)})
        (tmp_path / "late").write_text("\n".join(lines))
        (tmp_path / "late").rename(late)
        (late.parent / f".{late.name}.crc").unlink(missing_ok=True)
        faults.resume("task.prepared")
        assert ("OFFSETS_REPLACED" if decided else "CONCURRENT_COMMIT") in query.wait_failed()
        query.place.check_partial(ROWS)
        query.start()
        if decided:
            error = query.wait_failed()
            assert "OFFSETS_REPLACED" in error
            assert "barrier recover" in error
            recovered(query.job.location)
            query.start()
        wait_until(lambda: is_done(query.job.location) or not query.query.isActive, "the last row")
        assert query.query.exception() is None
        query.stop()
        assert {row for row, count in query.place.check_partial(ROWS).items() if count} == set(range(ROWS))


@pytest.mark.timeout(240)
@pytest.mark.matrix
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_drivers_that_are_frozen_and_thawed_at_random_write_every_row_once(
    drivers: tuple[WarmDriver, WarmDriver], tmp_path: Path, seed: int
) -> None:
    play(Schedule(seed, tmp_path, drivers))


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(100, 150, 10))
def test_fifty_schedules_of_two_drivers_write_every_row_once(
    drivers: tuple[WarmDriver, WarmDriver], tmp_path: Path, first: int
) -> None:
    """Ten at a time."""
    seen = play_ten(first, tmp_path, lambda seed, folder: Schedule(seed, folder, drivers))
    assert seen["RUN_SUPERSEDED"] >= 3, "the drivers hardly met"
