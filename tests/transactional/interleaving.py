"""Several drivers on one checkpoint location, interleaved step by step: the real coordinator, journal and recovery.

Each driver is a thread that stops before every operation on the journal's store, on the sink's store and on Spark's logs.
A schedule, one byte a step, says who goes on, and what the environment does: a process dies, an answer is lost, a create
takes effect later, a prepared transaction expires, a query is started again. A violated invariant raises `Violation`.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.transactional.bodies import lines
from transactional.barrier import SourceLine
from transactional.checkpoint import Acknowledgement, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import Entry, EntryKind, decode
from transactional.errors import (
    JournalError,
    RewindRequiredError,
    TransactionLostError,
    TwoPhaseCommitError,
)
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.sink import Cutoff, Options, Outcome, TransactionContext
from transactional.testing import FakeClock, MemoryHandle, MemoryTransactions, RecordingSink

__all__ = ["Parts", "Violation", "World", "run"]

LAST = 2  # the last micro-batch; that of a checkpoint over several closes there
PARTITIONS = 2
QUERY = "q"
FOLD_EVERY = 3  # entries: a run meets several snapshots, and deleted numbers
MOST_STEPS = 10_000  # a thousand are usual
FINAL_DRIVERS = 4  # started one after the other at the end, undisturbed: one of them has to end well


class Violation(AssertionError):
    """An invariant is broken; the message holds the trace."""


class Dies(BaseException):
    """Ends a thread as SIGKILL ends a process: nothing in the code under test catches it."""


class StepFails(RuntimeError):
    """What the environment does to an operation."""


class Actor:
    """One start of the query in one driver: a thread that runs only when it is told to."""

    def __init__(self, name: str, driver: str, target: Callable[[Actor], None]) -> None:
        self.name = name
        self.driver = driver
        self.at = "start"
        self.variant = ""
        self.stopped = False
        self.over = False
        self.error: BaseException | None = None
        self._target = target
        self._mine = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if self.variant != "die":
                self._target(self)
        except Dies:
            self.at = "dead"
        except Exception as error:  # noqa: BLE001 - judged by the scheduler
            self.error = error
        finally:
            self.over = True
            self._back.release()

    def step(self, variant: str = "go") -> None:
        """Run up to the next stop."""
        if self.over:
            raise RuntimeError(f"{self.name} is over")
        self.variant = variant
        self._mine.release()
        self._back.acquire()

    def stop_at(self, label: str) -> str:
        """Wait here for the scheduler; the variant of the step that it wants."""
        self.at = label
        self._back.release()
        self._mine.acquire()
        if self.variant == "die":
            raise Dies
        return self.variant


class TurnstileStore:
    """An actor's view of the journal's files."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    def create(self, name: str, data: bytes) -> bool:
        """May fail, fail after it succeeded, or succeed after it failed."""
        variant = self._actor.stop_at(f"create {name}")
        if variant == "fail":
            raise OSError("not created")
        if variant == "late":
            self._world.late.append((name, data))
            raise OSError("not created yet")
        created = self._world.create(self._actor.name, name, data)
        if variant == "lost":
            raise OSError("the answer was lost")
        return created and variant != "hidden"

    def names(self) -> list[str]:
        """A listing is atomic here."""
        self._actor.stop_at("list")
        return self._world.store.names()

    def read(self, name: str) -> bytes:
        """Stop before it."""
        self._actor.stop_at(f"read {name}")
        return self._world.store.read(name)

    def delete(self, name: str) -> None:
        """Stop before it."""
        self._actor.stop_at(f"delete {name}")
        self._world.store.delete(name)


class FoldingJournal(Journal):
    """Folds early."""

    def fold(self, every: int = FOLD_EVERY) -> None:
        super().fold(every)


class TurnstileSink(RecordingSink):
    """Stops before every effect on the store, and holds each against the journal's decisions."""

    def __init__(self, world: World, actor: Actor) -> None:
        super().__init__(Options({"transactionalIdPrefix": QUERY}), None, world.transactions)
        self._world = world
        self._actor = actor

    def _each(self, verb: str, numbers: Sequence[int], act: Callable[[int], None]) -> None:
        for number in numbers:
            variant = self._actor.stop_at(f"{verb} {number}")
            if variant == "fail":
                raise StepFails(f"{verb} {number}")
            act(number)
            if variant == "lost":
                raise StepFails(f"answer to {verb} {number}")

    def commit(self, handles: Sequence[MemoryHandle], checkpoint: Any) -> None:
        numbers = [handle["transaction"] for handle in handles]
        self._each("commit", numbers, lambda number: self._world.commit(self._actor, number))
        lost = [dict(h) for h in handles if self.store.outcome(h["transaction"]) is not Outcome.COMMITTED]
        if lost:
            raise TransactionLostError("TRANSACTION_LOST", "lost", lost)

    def abort(self, handles: Sequence[MemoryHandle]) -> Sequence[MemoryHandle]:
        return self._abort(handles, "recover-abort")

    def _abort(self, handles: Sequence[MemoryHandle], verb: str) -> Sequence[MemoryHandle]:
        self._each(verb, [h["transaction"] for h in handles], lambda n: self._world.abort(self._actor, verb, n))
        return [h for h in handles if self.store.outcome(h["transaction"]) is Outcome.COMMITTED]

    def inspect(self, handles: Sequence[MemoryHandle]) -> Any:
        self._actor.stop_at("inspect")
        return super().inspect(handles)

    def sweep(self, known: Sequence[MemoryHandle], before: Cutoff) -> int:
        self._actor.stop_at("list lingering")
        keep = {handle["transaction"] for handle in known}
        lingering = [number for number in self.store.unfinished() if number not in keep]
        self._each("sweep", lingering, lambda number: self._world.abort(self._actor, "sweep", number))
        return len(lingering)


@dataclass(frozen=True)
class Parts:
    """What a world is made of; planted bugs replace one of them."""

    coordinator: type[CheckpointCoordinator] = CheckpointCoordinator
    journal: type[Journal] = FoldingJournal
    store: type[MemoryJournalStore] = MemoryJournalStore


@dataclass
class Budget:
    """How often the environment may interfere."""

    die: int = 2
    fault: int = 2
    expire: int = 2
    start: int = 2
    restart: int = 1
    fail: int = 1


@dataclass
class World:
    """All that outlives a process, and who is at work on it."""

    spans: bool = False  # Micro-batches 1 and 2 form one checkpoint; else each closes its own.
    parts: Parts = field(default_factory=Parts)

    def __post_init__(self) -> None:
        self.store = self.parts.store()
        self.transactions = MemoryTransactions(FakeClock())
        self.offsets: set[int] = set()
        self.commits: set[int] = set()
        self.late: list[tuple[str, bytes]] = []
        self.actors: list[Actor] = []
        self.trace: list[str] = []
        self.budget = Budget()
        self.calm = False
        self._bound: set[int] = set()
        self._decided: set[int] = set()
        self._prepared: dict[int, list[int]] = {}
        self._effects_by: list[str] = []
        self._violation: str | None = None
        self._counted: dict[int, str] = {}
        self._nonces = itertools.count()
        self._drivers = itertools.count()

    # -- Spark ------------------------------------------------------------------------------------------------------

    def start(self, driver: str | None = None) -> Actor:
        """Start the query, in a new driver or again in one."""
        driver = driver or f"d{next(self._drivers)}"
        actor = Actor(f"{len(self.actors)}:{driver}", driver, self._query)
        self.actors.append(actor)
        return actor

    def lines(self, batch: int) -> list[SourceLine]:
        """The source lines of a micro-batch's end offset."""
        if not self.spans:
            return lines(f"offset {batch}")
        barrier = {"kind": "checkpoint", "number": 1 if batch < LAST else 2, "timestamp": 0}
        return lines(json.dumps({"source": "barrier-kafka", "topics": {"t": {"0": batch}}, "barrier": barrier}))

    def _view(self, batch: int) -> QueryView:
        previous = self.lines(batch - 1) if batch - 1 in self.offsets else None
        return QueryView(QUERY, "here", batch, max(self.commits, default=-1), self.lines(batch), previous)

    def _coordinator(self, actor: Actor, batch: int | None = None) -> CheckpointCoordinator:
        actor.stop_at("read Spark's logs")
        view = self._view(max(self.offsets) if batch is None else batch)
        settings = RunSettings(actor.driver, "2pc-recording", "digest", QUERY)
        journal = self.parts.journal(TurnstileStore(self, actor), FakeClock(), lambda: f"n{next(self._nonces)}")
        append = journal.append

        def watched(*args: Any) -> Entry:
            entry = append(*args)
            if self._counted.get(entry.number) != entry.nonce:
                self.fail(f"{actor.name} believes that its entry {entry.number} ({entry.kind}) counts")
            return entry

        journal.append = watched  # type: ignore[method-assign, assignment]
        return self.parts.coordinator(journal, TurnstileSink(self, actor), settings, view)

    def _query(self, actor: Actor) -> None:
        """A stream execution: from the batch that Spark's logs say to the last."""
        newest = max(self.offsets, default=-1)
        batch = newest + 1 if newest in self.commits or newest < 0 else newest
        while batch <= LAST and not actor.stopped:
            actor.stop_at(f"write offsets/{batch}")
            if batch in self.offsets and batch != newest:
                raise StepFails("Spark: concurrent update to the log")
            self.offsets.add(batch)
            plan = self._coordinator(actor).plan()
            if plan.batch != batch:
                raise StepFails("the plan is another micro-batch's")
            self._run_batch(actor, plan)
            batch, newest = batch + 1, -2

    def _run_batch(self, actor: Actor, plan: TaskPlan) -> None:
        messages: list[Acknowledgement | None] = []
        for partition in range(PARTITIONS + 1):  # the last has no rows
            if actor.stopped or (partition < PARTITIONS and actor.stop_at(f"task {partition}") == "fail"):
                messages.append(None)
                break
            messages.append(self._task(actor, plan, partition))
        messages += [None] * (PARTITIONS + 1 - len(messages))
        if None in messages:
            self._call(actor, plan, "abort", messages)
            raise StepFails("a task failed")
        try:
            self._call(actor, plan, "commit", messages)
        except (TwoPhaseCommitError, StepFails, OSError, KeyError):
            if not actor.stopped:
                self._call(actor, plan, "abort", messages)
            raise
        if not actor.stopped:
            actor.stop_at(f"write commits/{plan.batch}")
            self.commits.add(plan.batch)

    def _task(self, actor: Actor, plan: TaskPlan, partition: int) -> Acknowledgement:
        drains = plan.drains(partition)
        handle = None
        if partition < PARTITIONS and not drains:
            context = TransactionContext(QUERY, plan.batch, partition, 0, QUERY, "")
            number = self.transactions.begin(context)
            actor.stop_at(f"prepare {number} for {plan.batch}/{partition}")
            try:
                self.transactions.prepare(number)
            except TransactionLostError as lost:
                raise StepFails("the task's transaction is gone") from lost
            handle = MemoryHandle(transaction=number)
        rows = 0 if partition == PARTITIONS else 1
        part = Part(partition, handle, rows, rows, str(plan.batch * 10 + partition) if handle else "")
        return Acknowledgement(plan.token, plan.batch, partition, 0, drains, [part], plan.sources)

    def _call(self, actor: Actor, plan: TaskPlan, what: str, messages: Sequence[Acknowledgement | None]) -> None:
        """Call commit or abort; one that begins when its run is over changes nothing."""
        coordinator = self._coordinator(actor, plan.batch)
        newest = self.truth().newest_run
        fenced = newest is None or newest.token != plan.token or newest.ended is not None
        if what == "abort" and not any(messages) and newest is not None and newest.driver == actor.driver:
            fenced = False  # nothing tells it from its driver's newer run, which it may end
        names, actor_effects = set(self.store.names()), len(self._effects_of(actor))
        try:
            getattr(coordinator, what)(messages, plan.batch)
            if fenced and what == "commit":
                self.fail(f"{actor.name}: commit of a run that was over succeeded")
        finally:
            if fenced and len(self._effects_of(actor)) != actor_effects:
                self.fail(f"{actor.name}: {what} of a run that was over had effects, journal was {sorted(names)}")

    # -- what is watched --------------------------------------------------------------------------------------------

    def truth(self) -> Ledger:
        """The journal as it is."""
        return Journal(self.store).load()

    def create(self, who: str, name: str, data: bytes) -> bool:
        """An exclusive create takes place."""
        created = self.store.create(name, data)
        entry = decode(data, name)
        self.trace.append(f"{who}: {'created' if created else 'found taken'} {name} {entry.kind} {_brief(entry.body)}")
        folded = any(int(other.split(".")[0]) >= entry.number for other in self.store.names() if "snapshot" in other)
        if created and entry.kind != EntryKind.SNAPSHOT and not folded:
            self._effect(who)
            self._counted.setdefault(entry.number, entry.nonce)
            handles = (
                [p["handle"]["transaction"] for p in entry.body.get("parts", ()) if p.get("handle")]
                if (entry.kind in (EntryKind.PREPARED, EntryKind.DECIDED, EntryKind.REPAIR))
                else []
            )
            self._bound.update(handles)
            if entry.kind == EntryKind.PREPARED:
                self._prepared[entry.body["batch"]] = handles
            else:
                self._decided.update(handles)
            for batch in entry.body.get("covers", ()):
                self._decided.update(self._prepared[batch])
        return created

    def commit(self, actor: Actor, number: int) -> None:
        """A transaction is committed, if it can be."""
        before = self.transactions.outcome(number)
        after = self.transactions.commit(number)
        self.trace.append(f"{actor.name}: commit {number}: {after.value}")
        if before is Outcome.PREPARED:
            self._effect(actor.name)
            if number not in self._decided:
                self.fail(f"{actor.name}: {number} was committed without a decision")
        doubled = [part for part, copies in self._committed().items() if copies > 1]
        if doubled:
            self.fail(f"two committed copies of {doubled}")

    def abort(self, actor: Actor, verb: str, number: int) -> None:
        """A transaction is aborted, if it can be."""
        before = self.transactions.outcome(number)
        self.transactions.abort(number)
        self.trace.append(f"{actor.name}: {verb} {number}: was {before.value}")
        if before is not Outcome.PREPARED:
            return
        self._effect(actor.name)
        if verb == "abort" and number in self._decided:
            self.fail(f"{actor.name}: {number} is decided, and was aborted by abort()")

    def _committed(self) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for number in self.transactions.numbers():
            if self.transactions.outcome(number) is Outcome.COMMITTED:
                context = self.transactions.context(number)
                found[context.batchId, context.partitionId] += 1
        return found

    def _effect(self, who: str) -> None:
        self._effects_by.append(who)

    def _effects_of(self, actor: Actor) -> list[str]:
        return [who for who in self._effects_by if who == actor.name]

    def fail(self, what: str) -> None:
        """An invariant is broken; the scheduler raises it, not the thread in which it was seen."""
        self._violation = self._violation or what

    # -- the schedule -----------------------------------------------------------------------------------------------

    def play(self, schedule: bytes) -> None:
        """Follow the schedule, then start undisturbed drivers until one ends well, then wake all that sleep."""
        try:
            self._play(schedule)
        finally:
            for actor in self.actors:
                while not actor.over:
                    actor.step("die")

    def _play(self, schedule: bytes) -> None:
        current = self.start()
        for byte in schedule:
            current = self._step(current, byte)
        self.trace.append("-- calm")
        for actor in self.actors:
            actor.stopped = True
        self._end_well()
        self._must_be_once("the newest run ended well")
        for actor in [*self.actors]:
            while not actor.over:
                self._go(actor)
        while self.late:
            self.create("late", *self.late.pop())
        self.trace.append("-- awake")
        if all(number in self.commits for number in range(LAST + 1)):
            self._must_be_once("all that slept woke up")

    def _end_well(self) -> None:
        for _ in range(FINAL_DRIVERS):
            final = self.start()
            while not final.over:
                self._go(final)
            if final.error is None:
                return
            self.trace.append(f"{final.name}: {final.error!r}")
            if isinstance(final.error, RewindRequiredError) and self._may_need_a_rewind():
                raise _Rewind
        raise self._broken(f"no exit: {final.error!r}")

    def _may_need_a_rewind(self) -> bool:
        """Whether a handle was lost, and micro-batches of its checkpoint may lie behind Spark."""
        return self.spans and any(self.transactions.outcome(n) is Outcome.LOST for n in self._bound)

    def _must_be_once(self, when: str) -> None:
        found = self._committed()
        wanted = Counter({(b, p): 1 for b in range(LAST + 1) for p in range(PARTITIONS)})
        if found != wanted:
            raise self._broken(f"{when}, doubled {found - wanted}, missing {wanted - found}")

    def _step(self, current: Actor, byte: int) -> Actor:
        runnable = [actor for actor in self.actors if not actor.over]
        if byte >= 200 and self._interfere(byte - 200, current):
            return current
        if current.over or (byte >= 140 and runnable):
            current = runnable[byte % len(runnable)] if runnable else self.start()
        self._go(current)
        return current

    def _interfere(self, choice: int, current: Actor) -> bool:
        """What the environment does; False where it can't."""
        budget = self.budget
        if current.over and choice < 22:
            return False
        if choice < 8 and budget.die:
            budget.die -= 1
            self.trace.append(f"{current.name}: dies before {current.at}")
            current.step("die")
        elif (
            8 <= choice < 22
            and budget.fault
            and current.at.startswith(("create", "commit", "abort", "recover", "sweep"))
        ):
            variant = ("lost", "fail", "late", "hidden")[choice % (4 if current.at.startswith("create") else 2)]
            budget.fault -= 1
            self.trace.append(f"{current.name}: {variant}: {current.at}")
            self._go(current, variant)
        elif 22 <= choice < 32 and budget.expire and (alive := self.transactions.unfinished()):
            budget.expire -= 1
            number = alive[choice % len(alive)]
            self.transactions.expire(number)
            self.trace.append(f"store: {number} expires")
        elif 32 <= choice < 40 and budget.start:
            budget.start -= 1
            self.start()
        elif 40 <= choice < 44 and budget.restart:
            budget.restart -= 1
            current.stopped = True  # its commit process may go on all the same
            self.trace.append(f"{current.name}: is stopped, and started again in its driver")
            self.start(current.driver)
        elif 44 <= choice < 50 and budget.fail and not current.over and current.at.startswith("task"):
            budget.fail -= 1
            self._go(current, "fail")
        elif self.late:
            self.create("late", *self.late.pop())
        else:
            return False
        return True

    def _go(self, actor: Actor, variant: str = "go") -> None:
        self.trace.append(f"{actor.name}: {actor.at}")
        if len(self.trace) > MOST_STEPS:
            raise self._broken("it does not come to an end")
        actor.step(variant)
        if actor.over and actor.error is not None:
            self.trace.append(f"{actor.name}: ended by {actor.error!r}")
            if not isinstance(actor.error, (TwoPhaseCommitError, StepFails, OSError)):
                raise self._broken(f"{actor.name}: {actor.error!r}") from actor.error
            if isinstance(actor.error, JournalError) and actor.error.condition != "JOURNAL_STORE_FAILED":
                raise self._broken(f"{actor.name}: {actor.error!r}") from actor.error
        if self._violation:
            raise self._broken(self._violation)

    def _broken(self, what: str) -> Violation:
        return Violation("\n".join([what, *self.trace]))


class _Rewind(Exception):
    """A prepared transaction was lost behind Spark: the named exit of this version is an error."""


def _brief(body: Any) -> str:
    parts = [
        (p.get("batch", body.get("batch")), p["partition"], p.get("handle"), p.get("verdict"))
        for p in body.get("parts", ())
    ]
    shown = {key: body[key] for key in ("run", "driver", "batch", "covers", "checkpoint", "prepared") if key in body}
    return f"{shown} {parts}"


def run(schedule: bytes, spans: bool = False, parts: Parts | None = None) -> World:
    """Play one schedule in a new world."""
    world = World(spans, parts or Parts())
    try:
        world.play(schedule)
    except _Rewind:
        world.trace.append("-- rewind required")
    return world
