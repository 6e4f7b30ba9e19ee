"""A world around one query: who is at work, what breaks, and how all comes to its end. One seed is one run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from connector.formats.discovery import SinkType
from connector.location.location import CheckpointLocation
from connector.operations.recovery import Upkeep, recover
from connector.operations.stopping import request_stop
from tests.simulation.auditor import Auditor, condition_of
from tests.simulation.choices import Choices
from tests.simulation.moves import Moves
from tests.simulation.processes import FIRST_MOMENT, Process, Scheduler, Stuck
from tests.simulation.spark import LOCATION, QUERY, Query
from tests.simulation.stores import Faults, SimulatedFiles
from transactional.errors import FencedError, RewindRequiredError

__all__ = ["HOT", "Setup", "Store", "World"]

LENGTHS = (300, 1000, 3000)  # steps until nothing is disturbed any more
WEIGHTS = (0, 0, 2, 8, 32)  # of a step's die, how often something of a kind happens; each run has its own mixture
SWITCHING = (64, 0, 8, 512)
LOSING = (0, 2, 12)  # of a request's die
PAUSES = (0.5, 5.0, 30.0, 55.0, 95.0, 130.0)
SKEWS = (0.0, 0.0, 40.0, -40.0)
EVER = FIRST_MOMENT + 1e9
MORE_ROWS = 3
MOST_OF_A_REWIND = 80  # steps after which it dies
LIVES = 8  # within which an undisturbed query has to come to its end
HOT: Sequence[str] = (
    *("", "create", "create", "create", "commit", "commit", "abort", "begin", "prepare", "list", "delete"),
    *("journal.created", "commit.called", "commit.looked", "hooks.triggered", "decision.written", "commit.done"),
    *("prepared.written", "settled.written", "abort.journalled", "recovery.claimed", "recovery.settling"),
    *("recovery.swept", "repair.verdict", "repair.handles", "rewind.begun", "rewind.planned", "rewind.deleted"),
    "task.prepared",
)
"""First words of steps: at those of one, a run is disturbed the most."""


class Store(Protocol):
    """What a sink writes into, as a world hurts it."""

    def open(self) -> Sequence[Any]:
        """Return the transactions that are open or prepared."""

    def expire(self, name: Any) -> None:
        """Let a transaction's time be over."""

    def acts(self) -> Mapping[str, Callable[[], object]]:
        """Return what else may happen to it, by a name."""

    def well(self) -> None:
        """Nothing hurts it any more."""


class Setup(NamedTuple):
    """A sink, its options, and what it writes into.

    `only` is the one trouble of its runs, if they have one, and `hot` are the steps at one of which it happens most.
    """

    sink: SinkType
    options: Mapping[str, str]
    make_store: Callable[[World], Store]
    only: str = ""
    hot: Sequence[str] = HOT


class World:
    """Everything that outlives a process, and who is at work.

    Parameters
    ----------
    source : int or Sequence[int]
        A seed, or choices.
    setups : Sequence[Setup]
        One of them is the query's.

    Attributes
    ----------
    did : Counter[str]
        What has happened, for the judge of reasons.
    seen : Counter[str]
        What was met, for the reader of the run.
    remedies : dict[str, Callable[[BaseException], None]]
        By condition: what a person does whom an error calls.
    """

    def __init__(self, source: int | Sequence[int], setups: Sequence[Setup]) -> None:
        self.choices = Choices(source)
        self.scheduler = Scheduler(self.choices, self._disturb)
        self.step, self.note = self.scheduler.step, self.scheduler.note
        self.wait_until, self.sleep = self.scheduler.wait_until, self.scheduler.sleep
        self.did: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.remedies: dict[str, Callable[[BaseException], None]] = {
            "LOCATION_MOVED_ON": self._follow,
            "OFFSETS_DISAGREE": self._take_back,
        }
        self.disk: dict[str, dict[str, bytes]] = {}
        self.faults = Faults(self)
        self.place = LOCATION
        self.disk[LOCATION] = {"metadata": json.dumps({"id": QUERY}).encode()}
        self.moves = Moves(self)
        self.auditor = Auditor(self)
        setup = self.choices.one_of(setups)
        self.sink, self.options = setup.sink, setup.options
        self.store = setup.make_store(self)
        self.query = Query(self)
        self.drivers: dict[str, Process] = {}
        self.random = random.Random(0)  # of names, on which nothing depends
        acts: dict[str, Callable[[], object]] = {
            "kill a process": lambda: self.scheduler.kill(self._anyone()),
            "kill a driver": lambda: self._end_driver(self._anyone().driver, self.choices.below(2) == 1),
            "freeze a process": self._freeze_process,
            "freeze a driver": self._freeze_driver,
            "time passes": self._pass,
            "clock jumps": self._jump,
            "transaction expires": self._expire,
            "rival": self.start,
            "start again": self._start_again,
            "interrupt": self._interrupt,
            "recover": self.command,
            "move": lambda: self.command(moving=True),
            "savepoint": lambda: self.spawn("savepoint", lambda: self._judged("a savepoint", self.moves.take)),
            "back up": self.moves.back_up,
            "ask to stop": lambda: self.spawn("asks", lambda: request_stop(CheckpointLocation(self.place))),
            **self.store.acts(),
        }
        self.weights = {kind: self.choices.one_of(WEIGHTS) for kind in (*acts, "speculation", "hook fails")}
        if setup.only:
            self.weights = {**dict.fromkeys(self.weights, 0), setup.only: 4 * WEIGHTS[-1]}
        self._hot = setup.hot
        self._table = [(kind, act) for kind, act in acts.items() for _ in range(self.weights[kind])]
        self._elsewhere = self.choices.below(2) == 1  # commands run on another machine: no driver is seen from there
        self._needs_rewind = self._told_to_recover = self._has_a_late_file = False
        self._locked_by: Process | None = None
        self._commands: dict[str, Process] = {}

    # -- what its parts ask -------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """Seconds since the epoch, by the store's clock."""
        return self.scheduler.time

    def see(self, what: str) -> None:
        """Count what was met."""
        self.seen[what] += 1
        if what.startswith("request"):
            self.did["fault"] += 1

    def spawn(self, name: str, target: Any, driver: str = "") -> Process:
        """Make a process of a driver's machine."""
        head = self.drivers.get(driver)
        process = self.scheduler.spawn(name, target, driver, head.skew if head else 0.0)
        process.head = head
        process.place = head.place if head else self.place
        return process

    @property
    def here(self) -> str:
        """The location at which the process at work is."""
        return self.scheduler.current.place if self.scheduler.current is not None else self.place

    @property
    def files(self) -> SimulatedFiles:
        """Its files."""
        return SimulatedFiles(self, self.here)

    def query_id(self) -> str:
        """Return Spark's id of the query there."""
        found: str = json.loads(self.disk[self.here]["metadata"])["id"]
        return found

    def head(self) -> Process | None:
        """Return the start of the query for which the process at work was made; None of another."""
        return self.scheduler.current.head if self.scheduler.current is not None else None

    # -- what happens -------------------------------------------------------------------------------------------------

    def _disturb(self, index: int) -> None:
        kind, act = self._table[index]
        self.did[kind] += 1
        self.see(kind)
        self.note(kind)
        act()

    def _anyone(self) -> Process:
        """Return a process that lives; the one that takes a step is the first."""
        current = self.scheduler.current
        assert current is not None
        return self.choices.one_of(
            [current, *(process for process in self.scheduler.processes if process is not current and process.living)]
        )

    def _freeze_process(self) -> None:
        self._anyone().until = self.time + self.choices.one_of(PAUSES)

    def _freeze_driver(self) -> None:
        driver, until = self._anyone().driver, self.time + self.choices.one_of(PAUSES)
        for process in self.scheduler.processes:
            if process.driver == driver:
                process.until = until
        if self.choices.below(2) == 1:  # somebody takes it for dead
            self._end_driver(driver, True)

    def _pass(self) -> None:
        self.scheduler.time += self.choices.one_of(PAUSES)

    def _jump(self) -> None:
        self._anyone().skew = self.choices.one_of(SKEWS)

    def _expire(self) -> None:
        living = self.store.open()
        if living:
            name = self.choices.one_of(living)
            self.note(f"{name} expires")
            self.store.expire(name)

    def _interrupt(self) -> None:
        head = self.drivers.get(self._anyone().driver)
        if head is not None and not head.over:
            head.interrupted = True

    def _end_driver(self, driver: str, alone: bool) -> None:
        """SIGKILL a JVM; and its Python workers, unless these live on a little."""
        for process in self.scheduler.processes:
            if process.driver == driver and (not alone or process is self.drivers.get(driver)):
                self.scheduler.kill(process)

    # -- who is started -----------------------------------------------------------------------------------------------

    def start(self) -> Process:
        """Start the query in a new driver."""
        process = self._begin(f"d{len(self.drivers)}")
        process.skew = self.choices.one_of(SKEWS)
        return process

    def _begin(self, driver: str) -> Process:
        self._count_rivals()
        process = self.spawn(driver, lambda: self.query.drive(driver), driver)
        process.place = self.place
        self.drivers[driver] = process
        return process

    def _count_rivals(self) -> None:
        """Note whether two are at work at a time."""
        self.did["rival"] += any(process.living for process in self.scheduler.processes)

    def _start_again(self) -> None:
        """Stop the query in its driver, and start it there again; its workers may not have noticed."""
        driver = self._anyone().driver
        head = self.drivers.get(driver)
        if head is not None and head.living:
            self.scheduler.kill(head)
            self._begin(driver)

    def command(self, moving: bool = False) -> Process:
        """Run `barrier recover`, whose operator has ended the drivers that the product can't see; or finish what was begun.

        A driver that lives on, and writes into Spark's logs after a rewind, leaves a query that only a person can repair.

        Parameters
        ----------
        moving : bool
            The query is moved then.
        """
        self.did["command"] += 1
        self.did["move"] += moving
        for head in self.drivers.values() if self._elsewhere else ():
            self.scheduler.kill(head)
        self._count_rivals()
        go_back, self._needs_rewind = self._needs_rewind, False
        late_file, self._has_a_late_file = self._has_a_late_file, False
        name = f"c{self.did['command']}"
        place, unfinished = self.place, self.moves.unfinished
        location, upkeep = CheckpointLocation(place), Upkeep({"checkpointHooks": self.options["checkpointHooks"]})

        def act() -> None:
            if unfinished:
                self.moves.finish(unfinished)
                return
            if late_file:
                self.moves.rewind(name, newest=True)
            recover(location, upkeep, go_back=go_back, query_stopped=self._elsewhere)
            if moving:
                self.moves.move(place)

        self._commands[name] = self.spawn("command", lambda: self._judged("command", act), name)
        return self._commands[name]

    def _judged(self, who: str, act: Callable[[], None]) -> None:
        """Do something; let the auditor judge how it fails, whoever waits for it."""
        try:
            act()
        except Exception as error:
            self.auditor.stopped(who, error)
            raise

    def _follow(self, error: BaseException) -> None:
        self.moves.follow(error)
        self._told_to_recover = True

    def _take_back(self, _: BaseException) -> None:
        self._has_a_late_file = self._told_to_recover = True

    def is_alive(self, process: Mapping[str, Any]) -> bool | None:
        """Return what the operating system tells of a process that the journal names; None from another machine."""
        if self._elsewhere:
            return None
        found = self.drivers.get(process["driver"]) or self._commands[process["driver"]]
        return found.living

    @contextmanager
    def exclusive_access(self, _: Any) -> Iterator[None]:
        """Keep other commands out, by a lock, or because its operator does."""
        holder = self._locked_by
        if holder is not None and holder.living:
            raise FencedError("LOCATION_BUSY", reason="another command is changing it")
        self._locked_by = self.scheduler.current
        try:
            yield
        finally:
            self._locked_by = None

    def _over(self, process: Process) -> bool:
        """Judge how a process has ended; returns whether it ended well."""
        if process.error is not None:
            self._needs_rewind |= isinstance(process.error, RewindRequiredError)
            self._told_to_recover = "`barrier recover LOCATION`" in str(process.error)
            remedy = self.remedies.get(condition_of(process.error))
            if remedy is not None:
                remedy(process.error)
            if process in self.drivers.values():
                self.auditor.stopped(process.name, process.error)
        return process.error is None and not process.dead

    # -- a run --------------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> str:
        """How the promise broke; empty if it did not."""
        return self.auditor.broken

    def play(self) -> None:
        """Disturb the query, then let it come to its end, then wake all that slept."""
        try:
            self._play()
        except Stuck as stuck:
            self.auditor.fail(str(stuck))
        finally:
            self.scheduler.end()

    def _play(self) -> None:
        length = self.choices.one_of(LENGTHS)
        self.scheduler.switching = self.choices.one_of(SWITCHING)
        self.scheduler.disturbing = len(self._table)
        self.scheduler.hot = self.choices.one_of(self._hot)
        self.faults.weight = self.choices.one_of(LOSING)
        self._disturbed(length)
        self._be_calm()
        self._end_well()
        self._wake_all()
        self._end_well()
        if self.broken:
            return
        kind = self.choices.below(5)
        if kind == 4 and self.moves.can_be_put_back():
            self._put_back()
        elif kind == 1:
            self._write_again(self.moves.rewind, self.choices.below(MOST_OF_A_REWIND))
        elif kind > 1 and self.moves.taken:
            self._write_again(self.moves.copy)

    def _write_again(self, act: Callable[[], None], steps: int = 0) -> None:
        """See that a query that is taken back, or a copy, comes to its end, too; it writes what came after once more.

        Parameters
        ----------
        act : Callable[[], None]
        steps : int
            After so many the process of it dies; 0 for none.
        """
        head = self.spawn("command", lambda: self._judged("command", act), "c0")
        self._commands["c0"] = head
        last = self.scheduler.steps + steps
        self.scheduler.run(lambda: head.over or (bool(steps) and self.scheduler.steps > last))
        self.scheduler.kill(head)
        if self.moves.is_again():
            self.auditor.again(self.query.end_of(self.moves.back_to, self.place) if self.moves.back_to >= 0 else 0)
        self._end_well()

    def _put_back(self) -> None:
        """See that no row is written again by a query whose location is older than its store: it stops."""
        self.moves.put_back()
        self.did["put back"] += 1
        for begin in (self.command, self.start, self.start):
            self._ends_well(begin())
        if not self.broken and self.moves.can_be_adopted():
            self._write_again(self.moves.adopt)

    def _disturbed(self, length: int) -> None:
        """Start the query again whenever it has ended, by itself or after a command."""
        current = self.start()

        def is_over() -> bool:
            return current.over or self.scheduler.steps >= length or bool(self.broken)

        while self.scheduler.steps < length and not self.broken:
            self.scheduler.run(is_over)
            following = self.drivers.get(current.driver, current)
            if current.over and following is not current:
                current = following
            elif current.over:
                self._over(current)
                self.did["time passes"] += any(process.living for process in self.scheduler.processes)
                self._pass()
                current = self._next() if current.name != "command" else self.start()

    def _next(self) -> Process:
        kind = self.choices.below(8)
        return self.start() if kind > 3 else self.command(moving=bool(self.weights["move"]) and kind == 3)

    def _be_calm(self) -> None:
        self.note("calm")
        self.scheduler.switching = self.scheduler.disturbing = 0
        self.faults.well()
        self.store.well()
        self.query.last = True
        for process in self.scheduler.processes:
            # What its operator can see, or has to see to, he ends first.
            seen = process.name == "command" or (process in self.drivers.values() and not self._elsewhere)
            if not seen and self.choices.below(4) == 3:
                process.until = EVER
            else:
                self.scheduler.kill(process)

    def _wake_all(self) -> None:
        """Let all that stood still go on, too late."""
        for process in self.scheduler.processes:
            process.until = 0.0
        self.note("all wake up")
        left = list(self.scheduler.processes)
        self.scheduler.run(lambda: all(process.over for process in left) or bool(self.broken))
        for process in left:
            if process in self.drivers.values() or process.name == "command":
                self._over(process)

    def _end_well(self) -> None:
        """Undisturbed, the query comes to its end after a few starts, if its errors' remedies are followed."""
        self.query.read += MORE_ROWS
        for _ in range(LIVES):
            if self.broken:
                return
            first = (self.command,) if self._told_to_recover or self.choices.below(2) else ()
            if all(self._ends_well(begin()) for begin in (*first, self.start, self.command)):
                break
        else:
            self.auditor.fail("the query never finishes")
        self.store.well()
        self.auditor.judge()

    def _ends_well(self, process: Process) -> bool:
        """Wait for a process, and for all that it leaves behind."""
        self.scheduler.run(lambda: process.over)
        self.scheduler.run(lambda: all(each.over for each in self.scheduler.processes if each.until < EVER))
        return self._over(process)
