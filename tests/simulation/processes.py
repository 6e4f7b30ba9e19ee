"""Processes in one thread: each is a greenlet that stops at every step, and the choices of the run say who goes on.

A step is whatever crosses a process's border: a request to a store, a file, a clock, a named point of the protocol.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from tests.simulation.choices import Choices
from transactional.journal import Journal

__all__ = ["FIRST_MOMENT", "Dies", "Interrupted", "Process", "Scheduler", "Stuck"]

FIRST_MOMENT = 1_790_000_000.0
"""Seconds since the epoch at which every run begins."""

SECONDS_PER_STEP = 0.002
HOT_SIDES = 512
MOST_STEPS = 200_000
"""Of a run; some thousands are usual."""


class Dies(BaseException):
    """Ends a process as SIGKILL does: whatever its code does on the way out has no effect, as no step of it is taken."""


class Interrupted(Exception):
    """A query is stopped while it waits: what it waits for goes on."""


class Stuck(AssertionError):
    """Nobody can go on, or it does not come to an end."""


class Process:
    """One process: a driver's JVM, a Python worker, a task, a command."""

    def __init__(self, name: str, target: Callable[[], Any], driver: str, skew: float) -> None:
        self.name = name
        self.driver = driver  # The driver that it belongs to; a command's is its own.
        self.skew = skew  # Seconds by which its machine's clock is ahead.
        self.dead = self.over = self.interrupted = False
        self.until = 0.0  # It stands still (asleep, stopped) until then.
        self.awaits: Callable[[], bool] | None = None  # It waits until that holds.
        self.result: Any = None
        self.error: Exception | None = None
        self.task: tuple[Any, ...] = ()  # What Spark tells a task: query, micro-batch, partition, attempt.
        self.head: Process | None = None  # The start of the query that has made it.
        self.journal: Journal | None = None  # What a worker has loaded; a head keeps it for the worker's next call.
        self.place = ""  # The query's location.
        self._target = target  # What it does.
        self.greenlet = greenlet(self._run)

    @property
    def living(self) -> bool:
        """Whether it is neither over nor killed."""
        return not self.over and not self.dead

    def _run(self) -> None:
        try:
            if not self.dead:
                self.result = self._target()
        except Dies:
            self.dead = True
        except Exception as error:  # noqa: BLE001 - judged by whoever awaits it
            self.error = error
        finally:
            self.over = True


class Scheduler:
    """Lets processes take turns, and time pass; the `Clock` of whatever no machine's clock moves.

    Parameters
    ----------
    choices : Choices
    disturb : Callable[[int], None]
        Called at a step at which something happens, with a number below `disturbing`.

    Attributes
    ----------
    steps : int
        Taken so far.
    digest : int
        Of all steps: two runs that did the same have the same.
    trace : list[str] or None
        The steps, if they are wanted.
    """

    SIDES = 4096
    """Of the die that is thrown at every step."""

    def __init__(self, choices: Choices, disturb: Callable[[int], None]) -> None:
        self.choices = choices
        self.time = FIRST_MOMENT
        self.steps = self.digest = 0
        self.trace: list[str] | None = None
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.switching = self.disturbing = 0
        """Of `SIDES`: how often another process goes on, and how often something happens."""
        self.hot = ""
        """What steps begin with at which more happens."""
        self._disturb = disturb
        self._hub = getcurrent()

    # -- what a process's code does -----------------------------------------------------------------------------------

    def step(self, label: str) -> None:
        """Take a step: before it others may go on, the process may die, and time passes."""
        process = self.current
        if process is None:
            return  # whoever looks at the world from outside
        if process.dead:
            raise Dies
        self.note(label)
        self.time += SECONDS_PER_STEP
        if self.steps > MOST_STEPS:
            self._yield()
        elif self.switching or self.disturbing:
            sides = HOT_SIDES if self.hot and label.startswith(self.hot) else self.SIDES
            side = self.SIDES - sides + self.choices.below(sides)
            if side >= self.SIDES - self.disturbing:
                self._disturb(self.SIDES - 1 - side)
                if process.dead:
                    raise Dies
                if process.until > self.time:
                    self._yield()
            elif side >= self.SIDES - self.disturbing - self.switching:
                self._yield()

    def note(self, label: str) -> None:
        """Count a step, or whatever happens."""
        self.steps += 1
        who = self.current.name if self.current else "--"
        self.digest = zlib.crc32(f"{who} {label}".encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.time - FIRST_MOMENT:9.3f} {who}: {label}")

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return self.time

    def monotonic(self) -> float:
        """Return the same."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let a process stand still."""
        process = self.current
        if process is None:
            self.time += seconds
            return
        self.step(f"sleep {seconds:.3f}")
        process.until = self.time + seconds
        self._yield()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Let a process wait for others."""
        process = self.current
        assert process is not None
        if not holds():
            process.awaits = lambda: process.interrupted or holds()
            self._yield()
            process.awaits = None
        if process.interrupted:
            process.interrupted = False
            raise Interrupted

    def _yield(self) -> None:
        process = self.current
        assert process is not None
        self._hub.switch()
        if process.dead:
            raise Dies

    # -- who goes on --------------------------------------------------------------------------------------------------

    def spawn(self, name: str, target: Callable[[], Any], driver: str = "", skew: float = 0.0) -> Process:
        """Make a process; it begins when it is chosen."""
        process = Process(name, target, driver, skew)
        process.greenlet.parent = self._hub
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Let a process die where it stands."""
        if process.living:
            self.note(f"{process.name} is killed")
            process.dead = True
            process.until = 0.0

    def run(self, until: Callable[[], bool]) -> None:
        """Let processes go on, one after the other, until that holds or nobody is left."""
        while not until():
            if self.steps > MOST_STEPS:
                raise Stuck("the run never finishes")
            ready = self._ready()
            if not ready:
                return
            self._go(ready[self.choices.below(len(ready)) if len(ready) > 1 else 0])

    def _ready(self) -> list[Process]:
        """Return who can go on, the newest first; moves time on if all sleep."""
        living = [process for process in self.processes if not process.over]
        self.processes = living
        able = [p for p in living if p.dead or p.awaits is None or p.awaits()]
        ready = [p for p in able if p.dead or p.until <= self.time]
        if not ready and able:
            self.time = min(p.until for p in able)
            ready = [p for p in able if p.until <= self.time]
        return ready[::-1]

    def _go(self, process: Process) -> None:
        self.current = process
        try:
            process.greenlet.switch()
        finally:
            self.current = None

    def end(self) -> None:
        """Kill all: their greenlets end."""
        for process in self.processes:
            process.dead = True
            while not process.over:
                self._go(process)
        self.processes = []
