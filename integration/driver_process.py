"""A Spark driver as a child process that a test starts, watches, kills at a chosen point, and starts again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from integration.file_sink import committed_rows, pending_files
from integration.jobs import QUICK_JVM, Job, newest
from integration.session import JVM, session_members
from transactional import faults
from transactional.entry import Entry, decode
from transactional.journal import Journal, LocalJournalStore
from transactional.ledger import Ledger

__all__ = ["DriverProcess", "Faults", "FolderOutput", "Output", "Place", "final_rows", "wait_quiet", "wait_until"]

DEADLINE = 180.0
"""Seconds for a condition; a cold session takes 20 for its first micro-batch, and more than 90 where six share two cores."""

LOOK_EVERY = 0.03

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str, deadline: float = DEADLINE, alive: Callable[[], str | None] = lambda: None
) -> T:
    """Wait until the condition holds and return its value.

    Parameters
    ----------
    condition : Callable[[], T]
    what : str
        Says in the error what was waited for.
    deadline : float
        Seconds.
    alive : Callable[[], str or None]
        Why the condition can't come true any more, or None.
    """
    end = time.monotonic() + deadline
    while True:
        dead = alive()
        value = condition()  # after the look: what was done just before the death still counts
        if value:
            return value
        if dead is not None:
            raise AssertionError(f"{what}: will not come: {dead}")
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline} s")
        time.sleep(LOOK_EVERY)


class Faults:
    """The folder through which fault points are armed; see `transactional.faults`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def arm(self, point: str, action: str, times: int = 1) -> None:
        """Let the point do `action` the next `times` times that any process passes it."""
        assert point in faults.ALL_POINTS, point
        for _ in range(times):
            name = f"{point}.{len(os.listdir(self.folder)):04d}"
            whole = self.folder / f"new-{name}"
            whole.write_text(action, encoding="utf-8")
            whole.rename(self.folder / name)

    def fired(self, point: str | None = None) -> list[str]:
        """What fired so far, of one point or of all."""
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".fired"))
        return [name for name in names if point is None or name.startswith(f"{point}.")]

    def actions(self, point: str) -> list[str]:
        """What the point did so far."""
        return [(self.folder / name).read_text(encoding="utf-8").strip() for name in self.fired(point)]

    def armed(self) -> list[str]:
        """What has not fired yet."""
        return sorted(name for name in os.listdir(self.folder) if not name.endswith((".fired", ".resume")))

    def resume(self, point: str) -> None:
        """Let go on who pauses at the point."""
        (self.folder / f"{point}.resume").touch()

    def clear(self) -> None:
        """Disarm everything that has not fired."""
        for name in os.listdir(self.folder):
            if name.endswith((".fired", ".resume")):
                continue
            with contextlib.suppress(FileNotFoundError):  # it fires just now
                os.unlink(self.folder / name)

    def release(self) -> None:
        """Disarm everything, and let go on whoever pauses."""
        self.clear()
        for point in faults.ALL_POINTS:
            self.resume(point)

    def reset(self) -> None:
        """As new; nobody may be pausing."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()


class Output(Protocol):
    """What a crash matrix asks of a sink's store."""

    def rows(self) -> Counter[int]:
        """Every visible row's value, with how often it is there."""

    def open_transactions(self) -> list[str]:
        """Names of open and prepared transactions."""

    def lose(self, names: list[str]) -> None:
        """Let these transactions end without their rows, as they do whose timeout ran out."""

    def is_quiet(self) -> bool:
        """No transaction of ours is open, and no reader is held back: once nothing writes any more, `rows` are final."""


class SinkOutput(Output, Protocol):
    """What the matrix asks of a sink beside Kafka's, to start a query."""

    def options(self, **more: str) -> dict[str, str]:
        """The sink's options, and ``format``, its name."""

    def check(self) -> None:
        """Nothing is left beside the rows."""


def wait_quiet(output: Output) -> None:
    """Wait until nothing can be added to what readers see; the query must have ended, with nothing prepared.

    A broker answers a commit before it has written the markers: a read straight after it may miss rows, or the doubled ones.
    """
    wait_until(output.is_quiet, "no open transaction, no reader held back")


def final_rows(output: Output) -> Counter[int]:
    """Every visible row's value, when nothing can be added: see `wait_quiet`."""
    wait_quiet(output)
    return output.rows()


class FolderOutput:
    """The file sink's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> Counter[int]:
        """See `Output`."""
        return Counter(row["value"] for row in committed_rows(self.folder))

    def open_transactions(self) -> list[str]:
        """See `Output`."""
        return pending_files(self.folder)

    def lose(self, names: list[str]) -> None:
        """See `Output`."""
        for name in names:
            (self.folder / "pending" / name).unlink()

    def is_quiet(self) -> bool:
        """See `Output`."""
        return not self.open_transactions()


@dataclass(frozen=True)
class Place:
    """A checkpoint location and what its query has written."""

    location: Path
    output: Output

    def entries(self) -> list[Entry]:
        """The journal's entries that are not folded, by number."""
        folder = self.location / "barrier" / "log"
        names = os.listdir(folder) if folder.is_dir() else []
        numbers = sorted(
            int(name.split(".")[0]) for name in names if name.split(".")[0].isdigit() and name.count(".") == 1
        )
        return [decode((folder / f"{number}.json").read_bytes(), f"{number}.json") for number in numbers]

    def kinds(self) -> list[str]:
        """The kinds of the journal's entries, by number."""
        return [entry.kind for entry in self.entries()]

    def ledger(self) -> Ledger:
        """The journal's fold."""
        return Journal(LocalJournalStore(str(self.location / "barrier" / "log"))).load()

    def committed(self) -> int:
        """The highest micro-batch in Spark's own log; -1 where there is none."""
        return newest(self.location, "commits")

    def check_partial(self, expected: int) -> Counter[int]:
        """No row is there twice, none that should not be; returns what is there."""
        found = self.output.rows()
        doubled = {value: count for value, count in found.items() if count > 1}
        assert not doubled, f"rows are there twice: {doubled}"
        foreign = sorted(set(found) - set(range(expected)))
        assert not foreign, f"rows that no input has: {foreign}"
        return found

    def check_whole(self, expected: int) -> None:
        """Every row is there once, nothing is open, every decision is settled."""
        wait_quiet(self.output)
        found = self.check_partial(expected)
        missing = sorted(set(range(expected)) - set(found))
        assert not missing, f"rows are missing: {missing}"
        assert self.ledger().unsettled() == []
        assert self.ledger().undecided() == []


class DriverProcess:
    """One place on which drivers run as child processes, one after the other or at once.

    Parameters
    ----------
    folder : Path
        For the location, the output of the file sink, the armed faults and the logs.
    job : Job, optional
        What to run; its location and output are set here where they are empty.
    output : Output, optional
        The file sink's folder by default.
    program : Sequence[str]
        What Python runs, with the job's arguments.
    """

    def __init__(
        self,
        folder: Path,
        job: Job | None = None,
        output: Output | None = None,
        program: Sequence[str] = ("-m", "integration.jobs"),
    ) -> None:
        self.folder = folder
        self.program = program
        job = job or Job("", "")
        location = job.location or str(folder / "checkpoint")
        target = job.output or str(folder / "output")
        self.job = replace(job, location=location, output=target)
        self.place = Place(Path(location), output or FolderOutput(Path(target)))
        self.faults = Faults(folder / "faults")
        self._process: subprocess.Popen[str] | None = None
        self._logs: list[Path] = []
        self._open: list[IO[str]] = []

    @property
    def expected(self) -> int:
        """Rows in the end: their values are 0 to this, exclusive."""
        return self.job.batches * self.job.rows

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self, **changed: Any) -> None:
        """Start a driver; the former one must be gone."""
        assert self._process is None, "the former driver was not waited for"
        job = replace(self.job, **changed)
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"driver.{len(self._logs)}.out"
        self._logs.append(log)
        root = str(Path(__file__).parent.parent)
        environment = {
            **os.environ,
            faults.VARIABLE: str(self.faults.folder),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": root,
            "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        }
        with log.open("w") as out, log.with_suffix(".err").open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, *job.arguments()],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=root,
                env=environment,
                text=True,
                start_new_session=True,  # daemons of Python workers make process groups of their own, never sessions
            )

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send the program a signal, and nothing below it."""
        os.kill(self._running().pid, number)

    def stop(self) -> None:
        """Ask for `query.stop()` and wait until the driver has gone."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write("stop\n")
        process.stdin.flush()
        assert self.wait_exit() == 0, self.tail()

    def wait_exit(self, deadline: float = DEADLINE) -> int:
        """Wait until the driver has ended by itself, or by a fault; then nothing of it is left. Returns its status."""
        process = self._running()
        try:
            status = process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {deadline} s\n{self.tail()}") from None
        finally:
            self.kill()
        return status

    def wait_death(self, point: str, times: int = 1, deadline: float = DEADLINE) -> None:
        """Wait until the point has killed the JVM, and make sure that nothing of the driver is left.

        Raises
        ------
        AssertionError
            The driver came to its end in another way, or the point did anything but kill the JVM.
        """
        self.wait_fired(point, times, deadline)
        wait_until(lambda: not self._java(), f"death of the JVM at {point}", deadline)
        self.kill()
        assert self.faults.actions(point)[-1] == "kill-jvm", (
            f"{point} did not kill the JVM: {self.faults.actions(point)}"
        )
        ended = [event for event in self.events() if event["event"] in ("failed", "finished")]
        by_itself = [event for event in ended if event["event"] == "finished" or "InjectedFault" in event["error"]]
        assert not by_itself, f"the driver was not killed, but ended by itself: {by_itself}"

    def kill(self, spare: int | None = None) -> None:
        """SIGKILL to every process of the driver's session, the JVM first; `spare` one of them."""
        process = self._process
        if process is None:
            return
        while members := {pid: name for pid, name in session_members(process.pid).items() if pid != spare}:
            for pid in sorted(members, key=lambda pid: members[pid] != JVM):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
            time.sleep(LOOK_EVERY)
        process.wait()
        self._process = None

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "no driver was started"
        return self._process

    def _java(self) -> list[int]:
        return [pid for pid, name in session_members(self._running().pid).items() if name == JVM]

    # -- what it says -----------------------------------------------------------------------------------------------

    def events(self) -> Iterator[dict[str, Any]]:
        """What the newest driver has said."""
        for line in self._logs[-1].read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def error(self) -> str:
        """The error with which the newest driver's query failed."""
        return "\n".join(event["error"] for event in self.events() if event["event"] == "failed")

    def tail(self) -> str:
        """The end of the newest driver's logs."""
        log = self._logs[-1]
        return f"{log.read_text()[-2000:]}\n{log.with_suffix('.err').read_text()[-4000:]}"

    def _why_dead(self) -> str | None:
        process = self._running()
        return None if process.poll() is None else f"the driver ended with {process.returncode}\n{self.tail()}"

    # -- conditions -------------------------------------------------------------------------------------------------

    def wait_committed(self, batch: int, deadline: float = DEADLINE) -> None:
        """Wait until Spark has committed the micro-batch."""
        wait_until(lambda: self.place.committed() >= batch, f"commits/{batch}", deadline, self._why_dead)

    def wait_fired(self, point: str, times: int = 1, deadline: float = DEADLINE) -> None:
        """Wait until the fault point has fired."""
        wait_until(lambda: len(self.faults.fired(point)) >= times, f"fault {point}", deadline, self._why_dead)

    def wait_entry(self, kind: str, deadline: float = DEADLINE) -> None:
        """Wait until the journal holds an entry of the kind."""
        wait_until(lambda: kind in self.place.kinds(), f"journal entry {kind}", deadline, self._why_dead)

    def finish(self, **changed: Any) -> None:
        """Run a driver to the end of its job and check everything."""
        self.start(**changed)
        assert self.wait_exit() == 0, self.tail()
        self.place.check_whole(self.expected)

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *problem: object) -> None:
        self.kill()
