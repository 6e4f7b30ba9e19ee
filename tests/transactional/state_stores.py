"""Spark's logs, the journal's store, and a store of transactions, as a `World` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tests.transactional.bodies import lines
from transactional import faults
from transactional.capabilities import Expires, Restorable
from transactional.entry import Entry
from transactional.errors import LocationError, TransactionLostError
from transactional.hooks import CheckpointHook, HookContext
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.sink import Cutoff, HandleState, Options, Outcome
from transactional.testing import FakeClock, MemoryHandle, MemoryTransactions, RecordingSink

if TYPE_CHECKING:
    from tests.transactional.state_machine import World

__all__ = [
    "LIFETIME",
    "MARGIN",
    "QUERY",
    "FaultyStore",
    "FoldingJournal",
    "Offset",
    "SparkFiles",
    "StepFails",
    "Store",
    "WatchedClock",
    "WatchedHook",
    "WatchedSink",
]

LIFETIME = 100.0  # seconds, of a transaction
MARGIN = 10.0  # seconds that must be left for a decision
SPARK_KEEPS = 10  # micro-batches; more than MAX_BATCHES
FOLD_EVERY = 8  # entries: a run meets several snapshots, and deleted numbers
QUERY = "q"
OPTIONS = Options({"transactionalIdPrefix": QUERY})


class StepFails(RuntimeError):
    """What the environment does to a call."""


@dataclass(frozen=True)
class Offset:
    """A micro-batch's rows, the last barrier at or before its end, and the ends that a rewind has planned behind it."""

    begin: int
    end: int
    barrier: tuple[int, str, int]
    planned: tuple[Offset, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the source writes it."""
        number, kind, timestamp = self.barrier
        return {
            "barrier": {"kind": kind, "number": number, "timestamp": timestamp},
            "interval": 1000,
            "source": "barrier-kafka",
            "topics": {"t": {"0": self.end}},
            **({"planned": [end.to_json() for end in self.planned]} if self.planned else {}),
        }

    @cached_property
    def line(self) -> str:
        """The source line of Spark's offset log."""
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def rows(self) -> range:
        """The numbers of its rows."""
        return range(self.begin, self.end)


class SparkFiles:
    """``offsets/`` and ``commits/``: what Spark and a rewind do to them. Every name is a step of its own."""

    def __init__(self) -> None:
        self.offsets: dict[int, Offset] = {}
        self.commits: set[int] = set()

    @property
    def newest(self) -> int:
        """The highest micro-batch in ``offsets/``; -1 where there is none."""
        return max(self.offsets, default=-1)

    def view(self, batch: int, place: str = "here") -> QueryView:
        """As the processes of the driver read it."""
        if batch not in self.offsets:
            raise StepFails("Spark: its log is gone")
        previous = lines(self.offsets[batch - 1].line) if batch - 1 in self.offsets else None
        now, committed = lines(self.offsets[batch].line), max(self.commits, default=-1)
        return QueryView(QUERY, place, batch, committed, now, previous, oldest=min(self.offsets))

    def purge(self, batch: int) -> None:
        """``minBatchesToRetain``."""
        for old in [n for n in self.offsets if n <= batch - SPARK_KEEPS]:
            del self.offsets[old]
            self.commits.discard(old)

    def highest(self) -> tuple[int, int]:
        """See `transactional.rewind.QueryLogs`."""
        return self.newest, max(self.commits, default=-1)

    def repartitions(self, before: int) -> Sequence[int]:
        """See `transactional.rewind.QueryLogs`."""
        return ()

    def check_can_go_back(self, batch: int) -> None:
        """See `transactional.rewind.QueryLogs`."""
        if batch > self.newest:
            raise LocationError("SPARK_LOGS_GONE", f"there is no micro-batch {batch}: Spark is at {self.newest}")
        if max(batch, 0) not in self.offsets:
            raise LocationError("SPARK_LOGS_GONE", f"Spark has no offsets/{batch} any more: minBatchesToRetain")

    def delete_after(self, batch: int) -> None:
        """See `transactional.rewind.QueryLogs`."""
        self.check_can_go_back(batch)
        self._delete(batch + 1, batch + 1)

    def replay(self, first: int, last: int) -> None:
        """See `transactional.rewind.QueryLogs`."""
        plan = self.offsets[first].planned
        if len(plan) < last - first:  # else it stays: a query that was started meanwhile may have written other ends
            known = self.offsets | dict(enumerate(self.offsets[self.newest].planned, self.newest + 1))
            plan = tuple(replace(known[number], planned=()) for number in range(first + 1, last + 1))
        self.offsets[first] = replace(self.offsets[first], planned=plan)
        faults.reach("rewind.planned")
        self._delete(first, first + 1)

    def is_replaced(self, batch: int, text: str) -> bool:
        """See `transactional.rewind.QueryLogs`. The journal keeps no text of these files."""
        return False

    def put_back(self, batch: int, text: str) -> None:
        """See `transactional.rewind.QueryLogs`."""
        raise AssertionError("nothing was replaced")

    def _delete(self, commits: int, offsets: int) -> None:
        for number in sorted({*self.offsets, *self.commits}, reverse=True):
            if number >= commits and number in self.commits:
                self.commits.discard(number)
                faults.reach("rewind.commit-deleted")
            if number >= offsets and number in self.offsets:
                del self.offsets[number]
                faults.reach("rewind.offset-deleted")


class FaultyStore(MemoryJournalStore):
    """Creates as it is told: refused, done with its answer lost or with an answer that says *taken*, or done much later."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        # Of the next `times` creates of an entry of that `kind` (of any for ""), or of all of them before the time `until`.
        self.how = self.kind = ""
        self.times = 0
        self.until = 0.0
        self.late: list[tuple[str, bytes]] = []
        self.reads: list[str] = []

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`."""
        self._world.reach("create")
        how = self._fault(json.loads(data)["kind"])
        if how == "late":
            self.late.append((name, data))
        if how in ("refuse", "late"):
            raise OSError("not created")
        created = self.wake(name, data)
        if how == "lost":
            raise OSError("the answer was lost")
        return created and how != "hidden"  # the store's client has sent it again

    def wake(self, name: str, data: bytes) -> bool:
        """An exclusive create takes place."""
        created = super().create(name, data)
        if created:
            self._world.created(name, data)
        return created

    def names(self) -> list[str]:
        """See `JournalStore`."""
        self._world.reach("list")
        return super().names()

    def read(self, name: str) -> bytes:
        """See `JournalStore`."""
        self.reads.append(name)
        return super().read(name)

    def well(self) -> None:
        """Nothing fails from here on."""
        self.how, self.times, self.until = "", 0, 0.0

    def _fault(self, kind: str) -> str:
        if not self.how or self.kind not in ("", kind) or not (self.times > 0 or self._world.clock.now() < self.until):
            return ""
        self.times -= 1
        self._world.seen[f"store: {self.how}"] += 1
        return self.how


class Store(MemoryTransactions):
    """Transactions whose committed rows can be taken back."""

    def take_back(self, number: int) -> None:
        """As a table goes back to an earlier version."""
        self._transactions[number].state = "aborted"


class FoldingJournal(Journal):
    """Folds early, and decodes no file twice that its world has decoded before."""

    known: dict[bytes, Entry]
    folded: dict[bytes, Ledger]
    every = FOLD_EVERY

    def fold(self, every: int | None = None) -> None:
        super().fold(self.every if every is None else every)

    def _entry(self, data: bytes, name: str) -> Entry:
        if data not in self.known:
            self.known[data] = super()._entry(data, name)
        return self.known[data]

    def _snapshot(self, data: bytes, name: str) -> Ledger:
        if data not in self.folded:
            self.folded[data] = super()._snapshot(data, name)
        return self.folded[data].copy()


class WatchedClock(FakeClock):
    """A point lies behind each pause."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._world.reach("sleep")


class WatchedSink(Expires, Restorable, RecordingSink):
    """Its effects on the store are watched; a point lies behind each, and around each question."""

    def __init__(self, world: World, journal: Journal) -> None:
        super().__init__(OPTIONS, None, world.transactions)
        self._world = world
        self._journal = journal
        self.margin = MARGIN

    def lifetime(self) -> float | None:
        return LIFETIME

    def commit(self, handles: Sequence[MemoryHandle], checkpoint: Any) -> None:
        self._world.reach("sink.commit")
        self._world.commits_called.append([handle["transaction"] for handle in handles])
        lost = []
        for handle in handles:
            if not self._world.commit_one(handle["transaction"], checkpoint.id if checkpoint else 0):
                lost.append(dict(handle))
            self._world.reach("commit.one")
        if lost:
            raise TransactionLostError("TRANSACTION_LOST", "lost", lost)

    def abort(self, handles: Sequence[MemoryHandle]) -> Sequence[MemoryHandle]:
        return self._abort(handles, "recover")

    def sweep(self, known: Sequence[MemoryHandle], before: Cutoff) -> int:
        keep = {handle["transaction"] for handle in known}
        lingering = [number for number in self.store.unfinished() if number not in keep]
        self._abort([MemoryHandle(transaction=number) for number in lingering], "sweep")
        return len(lingering)

    def inspect(self, handles: Sequence[MemoryHandle]) -> Sequence[HandleState]:
        self._world.reach("sink.inspect")
        states = [self._state(handle["transaction"]) for handle in handles]
        self._world.reach("sink.inspected")
        return states

    def output(self, handles: Sequence[MemoryHandle], checkpoint: Any) -> Mapping[str, Any]:
        return {"version": checkpoint.id}

    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        self._world.take_back(output["version"])

    def _abort(self, handles: Sequence[MemoryHandle], verb: str) -> Sequence[MemoryHandle]:
        fresh = self._journal.ledger.position == self._world.book.position
        for handle in handles:
            self._world.abort_one(handle["transaction"], verb, fresh)
            self._world.reach("abort.one")
        return [h for h in handles if self.store.outcome(h["transaction"]) is Outcome.COMMITTED]


class WatchedHook(CheckpointHook):
    """Fails until a time; must get back what belongs to the newest decision, unless its driver has stood still."""

    def __init__(self, world: World, journal: Journal) -> None:
        super().__init__(OPTIONS)
        self._world = world
        self._journal = journal

    def identifier(self) -> str:
        return "hook"

    def trigger(self, context: HookContext) -> bytes | None:
        world = self._world
        if world.clock.now() < world.hook_fails_until:
            world.seen["hook: raised"] += 1
            raise StepFails("hook")
        return b"%d" % next(world.numbers)

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        self._world.restored.append((checkpoint, state))
        if self._journal.ledger.position == self._world.book.position:
            self._world.book.check_restored(checkpoint, state)
