"""Several starts of one query, most of them in one driver. Each is a greenlet that stands still at every point.

A driver that starts its query again goes on with its run, so the run's token does not fence off the start before. In a
`World`, an interference runs to its end while one process waits. Here, all of them make progress by turns. Who is next, and
what else happens to the query, follows from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from tests.transactional.state_machine import PARTITIONS, Dies, Execution, Parts, Violation, World
from tests.transactional.state_stores import FOLD_EVERY, FoldingJournal, WatchedSink
from transactional import faults
from transactional.capabilities import MarksCheckpoints, Routes
from transactional.checkpoint import Acknowledgement, CheckpointMark, TaskPlan
from transactional.journal import Journal
from transactional.sink import Cutoff, Outcome
from transactional.testing import MemoryHandle

__all__ = ["Starts", "play"]

KINDS = ("none", "none", "none", "barrier", "barrier", "nodata", "final")

POINTS = (
    *("create", "sleep", "hooks.triggered", "declined.prepared", "decision.written", "recovery.settling"),
    *("sink.commit", "sink.inspected", "commit.one", "abort.one", "repair.verdict", "repair.handles", "recovery.swept"),
    *("mark.read", "mark.confirmed"),
)
"""Something happens most often at three of them, which a seed chooses."""

LOSSES = (*("start",) * 3, *("expire",) * 4, *("wake",) * 3)
TROUBLES = (*LOSSES[:-4], *("wake", "fault", "fault", "hook", "later", "later", "another driver", "ask", "stop", "die"))
"""What may happen: a seed chooses one of the two, and some of it."""


class Sink(MarksCheckpoints, WatchedSink):
    """It may publish marks, and its sweep may spare what can still be decided."""

    publishesMarks = False
    _world: Starts

    def __init__(self, world: Starts, journal: Journal) -> None:
        super().__init__(world, journal)
        self.publishesMarks = world.marked

    def sweep(self, known: Sequence[MemoryHandle], before: Cutoff) -> int:
        self._world.reach("sink.sweep")
        keep = {handle["transaction"] for handle in known}
        lingering = [n for n in self.store.unfinished() if n not in keep]
        if self._world.spares:
            contexts = {n: self.store.context(n) for n in lingering}
            lingering = [n for n, of in contexts.items() if before.ends(of.queryId, of.run, of.batchId)]
        for number in lingering:  # one by one: others may write to the journal between two of them
            self._abort([MemoryHandle(transaction=number)], "sweep")
        return len(lingering)

    def publishMark(self, mark: CheckpointMark, handles: Sequence[MemoryHandle], confirm: Callable[[], None]) -> None:
        self._world.reach("mark.begun")
        readable = {n for n in self.store.numbers() if self.store.outcome(n) is Outcome.COMMITTED}
        self._world.reach("mark.read")
        confirm()
        self._world.reach("mark.confirmed")
        self._world.publish(mark.checkpoint, readable)


class RoutedSink(Routes, Sink):
    """It is two sinks."""

    routes = ("a", "b")

    def route(self, batch: Any) -> Iterable[tuple[str, Any]]:
        raise AssertionError("a task of a World asks the World")


class Process:
    """One start of the query: its tasks, and the processes that plan and commit for it."""

    def __init__(self, name: str, execution: Execution, live: Callable[[Execution], None]) -> None:
        self.name = name
        self.execution = execution
        self.at = "start"
        self.effects = [0]
        self.wrote = 0  # The journal's last entry that is its own.
        self.greenlet = greenlet(lambda: live(execution))


class Starts(World):
    """A `World` whose processes take turns, and the troubles that they meet."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.marked = chance.random() < 0.5
        self.spares = chance.random() < 0.5
        self.folds = chance.random() < 0.2  # A fold ends a process that finds its own entry late.
        self.marks: dict[int, set[int]] = {}
        self.processes: list[Process] = []
        self.current: Process | None = None
        self._hub = getcurrent()
        super().__init__(Parts(sink=chance.choice([Sink, RoutedSink])), max_batches=chance.choice([2, 5, 50]))
        troubles = chance.choice([TROUBLES, LOSSES])
        self.left = chance.sample(troubles, chance.randrange(4, len(troubles)))

    # -- one process --------------------------------------------------------------------------------------------------

    def reach(self, point: str) -> None:
        """The current process stands still."""
        if self.current is not None:  # else it is somebody outside
            self.current.at = point
            self._hub.switch()

    def task(self, plan: TaskPlan, partition: int) -> Acknowledgement:
        """A task, which begins when it is its turn."""
        self.reach("task")
        return super().task(plan, partition)

    def _live(self, execution: Execution) -> None:
        chance = self.chance
        try:
            for _ in range(4):
                self.offset(execution, chance.randrange(4), chance.choice(KINDS))
                self.reach("offsets written")
                self.plan(execution)
                self.reach("planned")
                self.tasks(execution, chance.choice([0, 0, 0, 1, 2]), chance.choice([0] * 12 + [1, 2]))
                self.reach("tasks ended")
                if not execution.alive:
                    self._stopped(execution)
                    return
                self.commit(execution)
                self.reach("committed")
                self.done(execution)
        except Dies:
            execution.alive = False

    def _stopped(self, execution: Execution) -> None:
        """Spark aborts the micro-batch of a start that was stopped, and may know only some of the tasks' messages."""
        if execution.stage in ("commit", "abort") and self.chance.random() < 0.5:
            execution.stage = "failed"
            known = [message if self.chance.random() < 0.5 else None for message in execution.messages]
            self._abort(execution, known or [None] * PARTITIONS)

    def _journal(self) -> FoldingJournal:
        journal = super()._journal()
        journal.every = FOLD_EVERY if self.folds else 1000
        return journal

    def _check_plan(self, plan: TaskPlan, journal: Journal) -> None:
        if self.current is None or self.current.execution.alive:  # else no task follows this plan
            super()._check_plan(plan, journal)

    def _check_committed(self, batch: int) -> None:
        if self.current is None or self.current.wrote == self.book.position:  # else another start may have resolved it
            super()._check_committed(batch)

    def created(self, name: str, data: bytes) -> None:
        """An exclusive create took place."""
        super().created(name, data)
        if self.current is not None:
            self.current.wrote = self.book.position

    def publish(self, checkpoint: int, readable: set[int]) -> None:
        """A mark is published. Of two marks of a checkpoint, readers take the first."""
        if checkpoint in self.marks:
            return
        self.marks[checkpoint] = readable
        self.trace.append(f"   the mark of checkpoint {checkpoint} is published")
        decision = self.book.decisions.get(checkpoint)
        for key, chain in decision.chains.items() if decision else ():
            if not readable.intersection(chain):
                self.fail(f"the mark of checkpoint {checkpoint} lacks part {key}")
        early = [number for number in readable if self.book.decided_by.get(number, 0) > checkpoint]
        if early:
            self.fail(f"the mark of checkpoint {checkpoint} includes {early}, which are of later ones")

    # -- all of them --------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let processes take turns, then the query end well, and those that are left wake up."""
        chance = self.chance
        first = self.start()
        self.run(first, chance.randrange(4), 2, chance.choice(KINDS))
        first.alive = False
        process = self._launch(chance.choice([first.driver, None]))
        if chance.random() < 0.4:
            self.store.how, self.store.kind, self.store.times = "late", "decided", chance.choice([1, 1, 2, 3])
        seldom, often, chosen, turn = chance.choice([0.0, 0.01, 0.03]), 0.3, chance.sample(POINTS, 3), 0
        for _ in range(chance.choice([200, 3000])):
            if not (living := self.living()):
                break
            if turn == 0 or process not in living:
                process, turn = chance.choice(living), int(2 ** chance.uniform(0, 7))
            if chance.random() < (often if process.at in chosen or self.store.late else seldom):
                for _ in range(chance.choice([1, 2, 3])):
                    process = self._disturb(process)
            self._step(process)
            turn -= 1
        self.run_out()
        for process in self.living():
            while not process.greenlet.dead:
                self._step(process)
        self._check_rows()

    def living(self) -> list[Process]:
        """Return the processes that still stand somewhere."""
        return [process for process in self.processes if not process.greenlet.dead]

    def _launch(self, driver: str | None) -> Process:
        execution = self.start(driver)
        self.processes.append(Process(f"process {len(self.processes)}", execution, self._live))
        return self.processes[-1]

    def _step(self, process: Process, dies: bool = False) -> None:
        before, known, outside = process.at, len(self.trace), self._effects
        self.current, self._effects = process, process.effects
        try:
            if dies:
                process.greenlet.throw(Dies)
            else:
                process.greenlet.switch()
        finally:
            self.current, self._effects = None, outside
        if len(self.trace) > known:
            after = "its end" if process.greenlet.dead else process.at
            self.trace.append(f"      [{process.name}, from {before} to {after}]")

    def _disturb(self, process: Process) -> Process:
        """Let something happen. Return whose turn it is."""
        chance, unable = self.chance, set[str]()
        if self.store.times > 0 or not self.book.run:
            unable |= {"ask", "stop", "fault"}
        if not self.store.late:
            unable.add("wake")
        possible = [what for what in self.left if what not in unable]
        if not possible:
            return process
        what = chance.choice(possible)
        self.left.remove(what)
        if what in ("start", "another driver"):
            return self._launch(process.execution.driver if what == "start" else None)
        if what == "die" and process.at != "start" and not process.greenlet.dead:
            self.trace.append(f"-- {process.name} dies at {process.at}")
            self._step(process, dies=True)
        elif what == "fault":
            self.store.how = chance.choice(["refuse", "lost", "hidden", "late", "late"])
            self.store.kind = chance.choice(["", "", "decided", "settled", "repair", "verdict", "void"])
            self.store.times = chance.choice([1, 1, 2, 6])
        elif what == "hook":
            self.hook_fails_until = self.clock.now() + chance.choice([0.3, 1, 5])
        elif what in ("ask", "stop"):
            (self.ask if what == "ask" else self.ask_to_stop)()
        else:
            self.meanwhile(what, chance.randrange(1, 96))
        return process


def play(seed: int) -> Starts:
    """Play what follows from a seed. Raise `Violation`, with the seed and the trace, if an invariant is broken."""
    world = Starts(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "reach", world.reach)
        try:
            world.play()
        except Exception as error:
            trace = [str(error)] if isinstance(error, Violation) else [repr(error), *world.trace]
            raise Violation("\n".join([f"seed {seed}", *trace])) from error
        finally:
            for process in world.living():
                process.greenlet.throw()
    return world
