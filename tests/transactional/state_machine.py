"""A model of Spark, of its logs and of a store, around the real coordinator, rewinder and journal. No threads.

A `World` is told what happens. While the code under test runs, one interference can wait for it at a named point: the
process dies there, an answer is lost, or others are at work before it goes on. The `Book` folds the journal anew, by rules
of its own, and holds every effect against it; a broken invariant raises `Violation`.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.auditor import condition_of
from tests.transactional.bodies import fact_of
from tests.transactional.state_book import Book
from tests.transactional.state_stores import (
    LIFETIME,
    QUERY,
    FaultyStore,
    FoldingJournal,
    Offset,
    SparkFiles,
    StepFails,
    Store,
    WatchedClock,
    WatchedHook,
    WatchedSink,
)
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import Entry, EntryKind
from transactional.errors import RewindRequiredError, TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger, apply
from transactional.recovery import QueryView
from transactional.rewind import Preview, Rewinder
from transactional.sink import ONE, Outcome, TransactionContext
from transactional.testing import MemoryHandle

__all__ = ["COMMIT_SECONDS", "PARTITIONS", "Execution", "Interference", "Parts", "Violation", "World"]

PARTITIONS = 3
COMMIT_SECONDS = 0.5  # commitTimeoutMs
TOLERABLE = 2
MAX_BATCHES = 5
RETAINED = 4

NEVER = frozenset(
    {
        "OFFSETS_REPLACED",
        "COMMITTED_UNDECIDED",
        "JOURNAL_DAMAGED",
        "JOURNAL_UNREADABLE",
        "LOCATION_MOVED",
        "NO_JOURNAL",
        "OUTCOME_UNKNOWN",
        "REPLAY_DIFFERS",
    }
)
"""Conditions that no failure of processes, stores and clocks may lead to."""

NEVER_SAID = (
    "is not the file from which",  # CONCURRENT_COMMIT
    "is not the file that",  # BATCHES_NOT_ACCOUNTED
    "must be decided within half of that",  # INTERVAL_NOT_POSSIBLE
    "only some tasks",  # PROTOCOL_VIOLATED
    "the journal has no run",
)
"""Nor to these details of others."""


def never(error: BaseException) -> bool:
    """Return whether no failure may lead to this error."""
    return condition_of(error) in NEVER or any(detail in str(error) for detail in NEVER_SAID)


class Violation(AssertionError):
    """An invariant is broken; the message holds the trace."""


class Dies(BaseException):
    """Ends a process as SIGKILL does: nothing in the code under test catches it."""


@dataclass
class Execution:
    """One start of the query in one driver. What Spark does next is its `stage`."""

    driver: str
    batch: int
    stage: str
    alive: bool = True
    plan: TaskPlan | None = None
    messages: list[Acknowledgement | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    @property
    def condition(self) -> str:
        """Of the first error."""
        return condition_of(self.errors[0]) if self.errors else ""


@dataclass
class Interference:
    """What happens at the next pass of a point, after `skip` others."""

    point: str
    action: str
    skip: int = 0
    arg: int = 0


@dataclass(frozen=True)
class Parts:
    """The code under test; planted bugs replace one of them."""

    coordinator: type[CheckpointCoordinator] = CheckpointCoordinator
    rewinder: type[Rewinder] = Rewinder
    sink: type[WatchedSink] = WatchedSink
    compare: bool = True


class World:
    """All that outlives a process, who is at work on it, and what must always be true."""

    def __init__(self, parts: Parts | None = None, seen: Counter[str] | None = None, **settings: Any) -> None:
        self.parts = parts or Parts()
        self.seen: Counter[str] = Counter() if seen is None else seen
        self.settings = settings
        self.clock = WatchedClock(self)
        self.transactions = Store(self.clock, LIFETIME)
        self.store = FaultyStore(self)
        self._known: dict[bytes, Entry] = {}
        self._folded: dict[bytes, Ledger] = {}
        self.truth = Ledger()
        self.files = SparkFiles()
        self.book = Book(self)
        self.numbers = itertools.count(1)
        self.executions: list[Execution] = []
        self.armed: Interference | None = None
        self.hook_fails_until = 0.0
        self.hook_states: dict[int, bytes | None] = {}
        self.restored: list[tuple[int | None, bytes | None]] = []
        self.commits_called: list[list[int]] = []
        self.rows_of: dict[int, range | list[int]] = {}
        self.judged: set[int] = set()
        self.visible: Counter[int] = Counter()
        self.shown: dict[int, int] = {}
        self.ordered = True
        self.allowed: dict[int, int] = {}
        self.named: set[int] = set()
        self.trace: list[str] = []
        self.read = 0
        self.needs_rewind = False
        self._violation = ""
        self._drivers = itertools.count()
        self._effects = [0]
        self._compared = 0

    # -- the environment --------------------------------------------------------------------------------------------

    def reach(self, point: str) -> None:
        """A point is passed."""
        armed = self.armed
        if armed is None or armed.point != point:
            return
        if armed.skip:
            armed.skip -= 1
            return
        self.armed = None
        self.seen[f"{armed.action} at {point}"] += 1
        self.trace.append(f"-- {armed.action} at {point}")
        if armed.action == "die":
            raise Dies
        if armed.action == "raise":
            raise StepFails(point)
        self._effects.append(0)
        try:
            self.meanwhile(armed.action, armed.arg)
        finally:
            self._effects.pop()
        self.trace.append(f"-- {point} goes on")

    def meanwhile(self, action: str, arg: int) -> None:
        """What others do while one stands still."""
        if action == "rival":
            self.run(self.start(), arg % 3 + 1)
        elif action == "again" and self.executions:
            self.executions[-1].alive = False
            self.run(self.start(self.executions[-1].driver), arg % 3 + 1)
        elif action == "rewind":
            self.rewind()
        elif action == "expire":
            self.expire(arg)
        elif action == "lose":
            for number in [n for i, n in enumerate(self.transactions.unfinished()) if arg >> i & 1]:
                self.trace.append(f"{number} is lost")
                self.transactions.expire(number)
        elif action == "later":
            self.clock.advance(arg)
        elif action == "wake":
            self.wake()

    def expire(self, choice: int) -> None:
        """The store gives a transaction up."""
        alive = self.transactions.unfinished()
        if alive:
            self.trace.append(f"{alive[choice % len(alive)]} expires")
            self.transactions.expire(alive[choice % len(alive)])

    def wake(self) -> None:
        """Creates that sleep take effect."""
        while self.store.late:
            self.store.wake(*self.store.late.pop(0))

    def ask(self) -> None:
        """Somebody wishes that a checkpoint closes."""
        journal = self._journal()
        journal.load()
        journal.append(fact_of(EntryKind.REQUEST, {"reason": "stop"}), lambda _: None)

    def ask_to_stop(self) -> None:
        """Somebody wishes that the newest run ends."""
        journal = self._journal()
        run = journal.load().newest_run
        if run is not None:
            journal.append(fact_of(EntryKind.REQUEST, {"what": "stop", "run": run.token}), lambda _: None)

    def close(self) -> str:
        """Somebody ends a query that does not run, or so it is thought; returns the condition of what stood against it."""
        if not self.files.offsets or self.truth.newest_run is None:
            return "nothing there"
        newest = self.files.newest
        view = self.files.view(newest)
        if newest in self.files.commits:
            view = replace(view, batch=newest + 1, lines=(), previous=view.lines)
        execution = Execution(f"closer {next(self._drivers)}", newest, "")
        coordinator = self._coordinator(execution, self._journal(), view)
        follows, calm = self.truth.newest_run.token, self.armed is None or not self.armed.point
        condition = self._command("close", lambda: coordinator.close(follows))
        self.needs_rewind |= condition == "PREPARED_LOST"
        if not condition and calm and self.transactions.unfinished():
            self.fail(f"the query was closed, and {self.transactions.unfinished()} are open")
        self.check()
        return condition

    def kill(self) -> None:
        """All drivers die."""
        for execution in self.executions:
            execution.alive = False

    # -- Spark ------------------------------------------------------------------------------------------------------

    def start(self, driver: str | None = None) -> Execution:
        """Start the query, in a new driver or again in one."""
        newest = self.files.newest
        replay = newest >= 0 and newest not in self.files.commits
        execution = Execution(
            driver or f"d{next(self._drivers)}", newest if replay else newest + 1, "plan" if replay else "offset"
        )
        if driver is not None:
            for other in self.executions:
                other.alive = other.alive and other.driver != driver
        self.executions.append(execution)
        self.trace.append(f"{execution.driver}: starts at {execution.batch}, {execution.stage}")
        return execution

    def run(self, execution: Execution, batches: int = 1, rows: int = 2, kind: str = "barrier") -> bool:
        """Run on for so many micro-batches; False where the query ended before."""
        for _ in range(batches):
            self.offset(execution, rows, kind)
            self.plan(execution)
            self.tasks(execution)
            self.commit(execution)
            self.done(execution)
        return execution.alive

    def offset(self, execution: Execution, rows: int = 2, kind: str = "barrier") -> None:
        """Spark asks the source, and writes ``offsets/N``."""
        if not execution.alive or execution.stage != "offset":
            return
        batch, files = execution.batch, self.files
        self.clock.advance(1.0)
        if batch in files.offsets or files.newest != batch - 1:
            self._ends(execution, StepFails("Spark: concurrent update to the log"))
            return
        before = files.offsets.get(batch - 1)
        if before is None:
            offset = Offset(0, rows, (1, "checkpoint", self._now()))
        elif before.planned:
            offset = replace(before.planned[0], planned=before.planned[1:])
            self.seen["planned end"] += 1
        elif kind == "nodata":
            offset = replace(before, begin=before.end)
        elif kind == "none":
            offset = Offset(before.end, before.end + max(rows, 1), before.barrier)
        else:
            name = "final" if kind == "final" else "checkpoint"
            offset = Offset(before.end, before.end + rows, (before.barrier[0] + 1, name, self._now()))
        files.offsets[batch] = offset
        self.read = max(self.read, offset.end)
        self.trace.append(f"{execution.driver}: offsets/{batch} {offset.begin} to {offset.end} {kind}")
        execution.stage = "plan"

    def plan(self, execution: Execution) -> None:
        """Spark plans the micro-batch."""
        if not execution.alive or execution.stage != "plan":
            return
        if execution.batch not in self.files.offsets:
            self._ends(execution, StepFails("Spark: its log is gone"))
            return
        journal = self._journal()
        coordinator = self._coordinator(execution, journal)
        rewinding = self.book.rewinding
        before, plans = self._effects[-1], []
        self._call(execution, "plan", lambda: plans.append(coordinator.plan()))
        if rewinding and self._effects[-1] != before:
            self.fail("a planning had effects while a rewind was under way")
        if plans:
            self._check_plan(plans[0], journal)
            execution.plan = plans[0]
            self.seen[f"mode: {execution.plan.mode.value}"] += 1
            execution.stage = "tasks"
        self.check()

    def tasks(self, execution: Execution, twice: int = 0, missing: int = 0) -> None:
        """Its tasks run. Bits of `twice`: an attempt before the one that counts; of `missing`: it never answers."""
        if not execution.alive or execution.stage != "tasks" or execution.plan is None:
            return
        plan = execution.plan
        execution.messages = []
        for partition in range(PARTITIONS):
            if twice >> partition & 1:
                self.task(plan, partition)
            message = self.task(plan, partition)
            execution.messages.append(None if missing >> partition & 1 else message)
        execution.stage = "abort" if None in execution.messages else "commit"
        self.check()

    def task(self, plan: TaskPlan, partition: int) -> Acknowledgement:
        """One task: the rows of a partition follow from their numbers."""
        offset = self.files.offsets.get(plan.batch)
        rows = [row for row in offset.rows if row % PARTITIONS == partition] if offset else []
        parts = [self._part(plan, partition, route, rows) for route in self.routes]
        return Acknowledgement(
            plan.token, plan.batch, partition, partition, plan.drains(partition), parts, plan.sources
        )

    def _part(self, plan: TaskPlan, partition: int, route: str, rows: Sequence[int]) -> Part:
        own = [row for row in rows if self.route(row) == route]
        reads = plan.mode is Mode.DRAIN or (plan.mode is Mode.REPAIR and (partition, route) not in plan.repairs)
        handle = None
        if own and not reads:
            number = self.transactions.begin(TransactionContext(QUERY, plan.batch, partition, 0, QUERY, "", plan.token))
            self.rows_of[number] = own
            self.transactions.prepare(number)
            handle = MemoryHandle(transaction=number)
        return Part(partition, handle, len(own), len(own), str(own) if own else "", route)

    def route(self, row: int) -> str:
        """The one of the sink's routes that a row takes."""
        return self.routes[row // PARTITIONS % len(self.routes)]

    @property
    def routes(self) -> Sequence[str]:
        """The names of the sinks that it is."""
        found: Sequence[str] = getattr(self.parts.sink, "routes", ONE)
        return found

    def commit(self, execution: Execution, messages: Sequence[Acknowledgement | None] | None = None) -> None:
        """All tasks have answered. Where the commit raises, Spark aborts with all messages."""
        if execution.stage == "abort":
            self.abort(execution)
        if not execution.alive or execution.stage != "commit" or execution.plan is None:
            return
        good = messages is None
        told = execution.messages if messages is None else messages
        token, batch = execution.plan.token, execution.batch
        over, before, errors = self.book.over(token), self._effects[-1], len(execution.errors)
        self._call(execution, "commit", lambda: self._coordinator(execution, self._journal()).commit(told, batch))
        ended = len(execution.errors) > errors
        if (over or not good) and (self._effects[-1] != before or not ended):
            self.fail(f"commit of run {token} had effects, or succeeded, and was over, or was told wrong")
        if ended and not good:
            self.seen[f"told wrong: {condition_of(execution.errors[-1])}"] += 1
        if not ended:
            if execution.alive:
                self._check_committed(batch)
            execution.stage = "done"
        elif execution.stage == "failed":
            self._abort(execution, told)
        self.check()

    def abort(self, execution: Execution, keep: int = -1) -> None:
        """A task failed, or the query was stopped; messages without their bit in `keep` are None."""
        if execution.alive and execution.stage in ("tasks", "commit", "abort"):
            told = [m if keep >> place & 1 else None for place, m in enumerate(execution.messages)]
            self._abort(execution, told or [None] * PARTITIONS)
            self._ends(execution, StepFails("a task failed"))
        self.check()

    def _abort(self, execution: Execution, messages: Sequence[Acknowledgement | None]) -> None:
        if execution.plan is None or (not execution.alive and execution.stage != "failed"):
            return
        token, batch = execution.plan.token, execution.batch
        known = any(messages) or self.book.driver != execution.driver
        over, before = known and self.book.over(token), self._effects[-1]
        taken = batch in self.book.prepared or self.book.decision_of(batch) is not None
        voids = self.book.kinds.count(EntryKind.VOID)
        self._call(execution, "abort", lambda: self._coordinator(execution, self._journal()).abort(messages, batch))
        taken &= voids == self.book.kinds.count(EntryKind.VOID)  # else another start may have made it free
        if (over or taken) and self._effects[-1] != before:
            self.fail(f"abort of run {token}, which was over, or of a micro-batch that is recorded, had effects")

    def done(self, execution: Execution) -> None:
        """Spark writes ``commits/N``."""
        if not execution.alive or execution.stage != "done":
            return
        self.files.commits.add(execution.batch)
        self.files.purge(execution.batch)
        self.trace.append(f"{execution.driver}: commits/{execution.batch}")
        execution.batch += 1
        execution.stage = "offset"

    def _journal(self) -> FoldingJournal:
        journal = FoldingJournal(self.store, self.clock, lambda: f"n{next(self.numbers)}")
        journal.known, journal.folded = self._known, self._folded
        return journal

    def _coordinator(
        self, execution: Execution, journal: Journal, view: QueryView | None = None
    ) -> CheckpointCoordinator:
        settings = RunSettings(
            execution.driver,
            "2pc-recording",
            "digest",
            QUERY,
            retained=RETAINED,
            max_batches=MAX_BATCHES,
            commit_seconds=COMMIT_SECONDS,
            tolerable=TOLERABLE,
            hooks=(WatchedHook(self, journal),),
        )
        sink = self.parts.sink(self, journal)
        settings = replace(settings, **self.settings)
        view = view or self.files.view(execution.batch)
        return self.parts.coordinator(journal, sink, settings, view, clock=self.clock)

    def _call(self, execution: Execution, what: str, act: Callable[[], object]) -> None:
        self.trace.append(f"{execution.driver}: {what} {execution.batch}")
        try:
            act()
        except Dies as death:
            self._ends(execution, death)
        except (TwoPhaseCommitError, StepFails, OSError) as error:
            if execution.alive:  # else Spark is gone, and nobody calls abort
                execution.stage = "failed"
            self._ends(execution, error)
        except Violation:
            raise
        except Exception as error:
            raise self._broken(f"{what}: {error!r}") from error

    def _ends(self, execution: Execution, error: BaseException) -> None:
        condition = condition_of(error)
        self.trace.append(f"{execution.driver}: ended by {error!r}")
        decided = condition == "PREPARED_LOST" and "checkpoint" in getattr(error, "parameters", {})
        self.seen[f"ended by {condition}{' of a decision' * decided}"] += 1
        execution.errors.append(error)
        execution.alive = False
        self.needs_rewind |= isinstance(error, RewindRequiredError)
        if never(error):
            self.fail(f"{execution.driver}: {error!r}")

    # -- going back -------------------------------------------------------------------------------------------------

    def rewinder(self) -> tuple[Rewinder, Journal]:
        """As a command makes it."""
        journal = self._journal()
        journal.load()
        return self.parts.rewinder(journal, self.parts.sink(self, journal), self.files, QUERY, QUERY), journal

    def rewind(self, checkpoint: int | None = None, restore: bool = False, reemit: bool = True) -> str:
        """Stop the query and take it back; returns the condition of the error that ended it."""
        self.kill()
        return self._command("rewind", lambda: self._begin(checkpoint, restore, reemit))

    def resume(self) -> str:
        """Finish a rewind that stands half done."""
        self.kill()
        return self._command("resume", self._finish)

    def _begin(self, checkpoint: int | None, restore: bool, reemit: bool) -> None:
        rewinder, _ = self.rewinder()
        preview = rewinder.preview(checkpoint)
        if preview.emitted and not (reemit or restore):
            self.seen["re-emission refused"] += 1
            return
        if restore and (preview.restored is None or not preview.restored.output):
            self.seen["restoring refused"] += 1
            return
        self.named = self._rows_named(preview)
        rewinder.begin(preview, {"restoreTables": restore})
        rewinder.finish()

    def _finish(self) -> None:
        rewinder, _ = self.rewinder()
        rewinder.again({})
        rewinder.finish()

    def _rows_named(self, preview: Preview) -> set[int]:
        decisions = [self.book.decisions[c.id] for c in preview.emitted]
        return {row for d in decisions for chain in d.chains.values() for row in self.rows_of[chain[0]]}

    def _command(self, what: str, act: Callable[[], object]) -> str:
        self.trace.append(f"command: {what}")
        condition = ""
        try:
            act()
            if what != "close":
                self.needs_rewind = bool(self.book.rewinding)
        except Dies:
            condition = "died"
        except (TwoPhaseCommitError, StepFails, OSError) as error:
            condition = condition_of(error)
            everything_committed = isinstance(error, TwoPhaseCommitError) and "accounted" in error.parameters
            self.needs_rewind &= not (condition == "NOTHING_TO_REWIND" and everything_committed)
            if never(error):
                self.fail(f"{what}: {error!r}")
        except Violation:
            raise
        except Exception as error:
            raise self._broken(f"{what}: {error!r}") from error
        self.seen[f"{what}: {condition or 'done'}"] += 1
        self.trace.append(f"command: {condition or 'done'}")
        self.check()
        return condition

    def went_back(self, last: int, keep: int | None, named: bool) -> None:
        """A rewind is done: what it lets the query write again."""
        self.needs_rewind = False
        position = self.files.offsets[last].end if last >= 0 else 0
        again = {row for row, copies in self.visible.items() if row >= position and copies >= self.allowed.get(row, 1)}
        if named:
            self.allowed.update({row: self.visible[row] + 1 for row in range(position, self.read)})
            self.shown = {row: number for row, number in self.shown.items() if row < position}
            if not again <= self.named:
                self.fail(f"the rewind to {last} writes {again - self.named} again, and did not name them")
            return
        kept = self.book.decisions[keep].chains if keep else {}
        again -= {row for chain in kept.values() for row in self.rows_of[chain[0]]}
        if again:
            self.fail(f"the rewind to {last} writes {again} again")

    # -- what is watched --------------------------------------------------------------------------------------------

    def created(self, name: str, data: bytes) -> None:
        """An exclusive create took place."""
        entry = json.loads(data)
        number, kind = entry["number"], entry["kind"]
        self.seen[f"entry: {kind}"] += 1
        book = self.book
        if kind == EntryKind.SNAPSHOT:
            book.folded = max(book.folded, number)
            return
        if number <= book.folded:
            self.seen["a create that counts for nothing"] += 1
            return
        self._effects[-1] += 1
        self.trace.append(f"   {name} {kind} {_brief(entry['body'])}")
        if number != book.position + 1:
            self.fail(f"{name} follows entry {book.position}")
            return
        apply(self.truth, Entry(number, kind, entry["nonce"], entry["time"], entry["body"]))
        book.fold(number, kind, entry["body"])

    def keep_hook_state(self, checkpoint: int, states: Mapping[str, str]) -> None:
        """What the hook has to get back."""
        self.hook_states[checkpoint] = base64.b64decode(states["hook"]) if "hook" in states else None

    def commit_one(self, number: int, checkpoint: int) -> bool:
        """A transaction is committed, if it can be."""
        before = self.transactions.outcome(number)
        after = self.transactions.commit(number)
        if before is Outcome.PREPARED and after is Outcome.COMMITTED:
            self._effects[-1] += 1
            self.trace.append(f"   {number} is committed")
            decided = self.book.decided_by.get(number)
            if decided is None or decided not in self.book.decisions or decided != checkpoint:
                self.fail(f"{number} was committed for checkpoint {checkpoint}; it is decided by {decided}")
            for row in self.rows_of[number]:
                self.visible[row] += 1
                if self.visible[row] > self.allowed.get(row, 1):
                    self.fail(f"row {row} is visible {self.visible[row]} times")
                if self.ordered:
                    self._check_order(row, number)
        return after is Outcome.COMMITTED

    def _check_order(self, row: int, number: int) -> None:
        """Rows of a key are visible in the order of the input: by when they were committed, and by where they lie in a log."""
        for other, written in self.shown.items():
            if other % PARTITIONS != row % PARTITIONS or self.route(other) != self.route(row):
                continue
            if other > row:
                self.fail(f"row {row} is committed after row {other}")
            elif other < row and written > number:
                self.fail(f"row {row} of transaction {number} lies before row {other}, which {written} has written")
        self.shown[row] = number

    def abort_one(self, number: int, verb: str, fresh: bool) -> None:
        """A transaction is aborted, if it can be. A sweep that stood still may know too little."""
        if self.transactions.outcome(number) is not Outcome.PREPARED:
            self.transactions.abort(number)
            return
        self._effects[-1] += 1
        self.trace.append(f"   {number} is aborted ({verb})")
        decision = self.book.decisions.get(self.book.decided_by.get(number, 0))
        if decision is not None:
            allowed = verb == "recover" and any(self.is_lost(chain[-1]) for chain in decision.chains.values())
        else:
            prepared = any(number in parts.values() for parts in self.book.prepared.values())
            allowed = not prepared or (verb == "recover" and self.book.rewinding > 0)
        if not allowed and (verb != "sweep" or fresh):
            self.fail(f"{number} is in the journal, and was aborted by {verb}")
        self.transactions.abort(number)

    def is_lost(self, number: int) -> bool:
        """It can never be committed."""
        return self.transactions.outcome(number) is Outcome.LOST

    def take_back(self, version: int) -> None:
        """The table goes back to a checkpoint's version."""
        for number, checkpoint in self.book.decided_by.items():
            if checkpoint > version and self.transactions.outcome(number) is Outcome.COMMITTED:
                self.transactions.take_back(number)
                self.visible.subtract(self.rows_of[number])
                self.shown = {row: last for row, last in self.shown.items() if last != number}

    def _check_plan(self, plan: TaskPlan, journal: Journal) -> None:
        """A recovery has ended well."""
        book = self.book
        if journal.ledger.position != book.position:
            return  # another was at work since
        if book.over(plan.token) or book.restored is not bool(self.settings.get("hooks", True)):
            self.fail(f"run {plan.token} was planned for; the newest is {book.run}, restored: {book.restored}")
        wanted = book.mode(plan.batch)
        if plan.mode is not wanted:
            self.fail(f"the tasks of micro-batch {plan.batch} have to {wanted.value}, and do {plan.mode.value}")
        for decision in book.unsettled():
            for key, chain in decision.chains.items():
                committed = self.transactions.outcome(chain[-1]) is Outcome.COMMITTED
                if not committed and not (key in decision.lost and key[0] >= plan.batch):
                    self.fail(f"part {key} of checkpoint {decision.id} stays uncommitted after a recovery")

    def _check_committed(self, batch: int) -> None:
        """A commit has succeeded."""
        decision = self.book.decision_of(batch)
        if decision is None:
            if batch not in self.book.prepared:
                self.fail(f"micro-batch {batch} was committed, and the journal does not know it")
            return
        for key, chain in decision.chains.items():
            if key[0] == batch and self.transactions.outcome(chain[-1]) is not Outcome.COMMITTED:
                self.fail(f"micro-batch {batch} was committed, and its part {key} is not")

    def check(self) -> None:
        """What must be true after every step."""
        if self.parts.compare and self._compared != self.book.position and not self._violation:
            self._compared = self.book.position
            self.book.check_ledger()
        if self._violation:
            raise self._broken(self._violation)

    def fail(self, what: str) -> None:
        """An invariant is broken; told by `check`, not from inside the code under test."""
        self._violation = self._violation or what
        self.trace.append(f"!! {what}")

    def _broken(self, what: str) -> Violation:
        return Violation("\n".join([what, *self.trace]))

    def _now(self) -> int:
        return int(self.clock.now() * 1000)

    # -- the end ----------------------------------------------------------------------------------------------------

    def run_out(self) -> None:
        """Undisturbed, the query ends well, and every row that was read is visible as often as it has to be."""
        self.trace.append("-- calm")
        self.kill()
        self.armed = None
        self.store.well()
        self.hook_fails_until = 0.0
        self._end_well()
        self._check_rows()
        if self.store.late:
            self.wake()
            self._end_well()
            self._check_rows()

    def _end_well(self) -> None:
        error = "nothing ended"
        for _ in range(6):
            if self.book.rewinding:
                error = self.resume()
            elif self.needs_rewind:
                error = self.rewind()
            else:
                execution = self.start()
                while execution.alive:
                    before = self.files.offsets.get(execution.batch - 1)
                    last = execution.stage == "offset" and not (before and before.planned)
                    rows = self.read - (before.end if before else 0)  # a rewind may have left rows behind
                    if self.run(execution, 1, max(rows, 1), "final") and last:
                        return
                error = str(execution.errors[0])
        raise self._broken(f"no exit: {error}")

    def _check_rows(self) -> None:
        wanted = {row: self.allowed.get(row, 1) for row in range(self.read)}
        found = {row: copies for row, copies in self.visible.items() if copies}
        if found != wanted:
            differ = {row: (found.get(row, 0), wanted.get(row, 0)) for row in {*found, *wanted}}
            self.fail(f"rows (visible, wanted) { ({row: c for row, c in differ.items() if c[0] != c[1]}) }")
        if self.book.unsettled() or self.book.prepared:
            self.fail(f"unsettled: {self.book.unsettled()}, prepared: {self.book.prepared}")
        self.check()


def _brief(body: Mapping[str, Any]) -> str:
    kept = ("run", "driver", "batch", "covers", "checkpoint", "prepared", "reason", "keep")
    shown = [f"{key}={body[key]}" for key in kept if key in body]
    parts: Iterable[Mapping[str, Any]] = body.get("parts", ())
    shown += [
        f"{p.get('batch', '')}/{p['partition']}:{p.get('verdict') or (p.get('handle') or {}).get('transaction')}"
        for p in parts
    ]
    return " ".join(shown)
