"""An in-memory store of transactions, and sinks that write to it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from transactional.capabilities import ShowsLater
from transactional.checkpoint import DecidedCheckpoint
from transactional.clock import Clock, SystemClock
from transactional.errors import TransactionLostError
from transactional.sink import Cutoff, HandleState, Options, Outcome, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa


class MemoryHandle(TypedDict):
    """The handle of a transaction in `MemoryTransactions`."""

    transaction: int


@dataclass
class _Transaction:
    prefix: str
    context: TransactionContext
    began: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: str = "open"
    hurt: bool = False


class MemoryTransactions:
    """An in-memory store for tests. Each transaction in it is open, prepared, committed or aborted.

    Parameters
    ----------
    clock : Clock, optional
    timeout : float or None
        Seconds after which a transaction that is not committed is aborted; None for never.
    """

    def __init__(self, clock: Clock | None = None, timeout: float | None = None) -> None:
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._transactions: dict[int, _Transaction] = {}
        self._numbers = itertools.count(1)

    def begin(self, context: TransactionContext) -> int:
        """Open a transaction; return its number."""
        number = next(self._numbers)
        self._transactions[number] = _Transaction(context.prefix, context, self._clock.now())
        return number

    def write(self, number: int, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows to an open transaction."""
        self._must_be(number, "open").rows.extend(rows)

    def prepare(self, number: int) -> None:
        """Prepare a transaction: from now on it can be committed."""
        self._must_be(number, "open").state = "prepared"

    def commit(self, number: int) -> Outcome:
        """If a transaction is prepared, commit it. Return COMMITTED if it is committed after this call, otherwise LOST."""
        found = self._find(number)
        if found.state == "prepared":
            found.state = "committed"
        return self.outcome(number)

    def abort(self, number: int) -> Outcome:
        """Abort a transaction unless it is committed; return COMMITTED or LOST."""
        found = self._find(number)
        if found.state != "committed":
            found.state = "aborted"
        return self.outcome(number)

    def expire(self, number: int) -> bool:
        """Abort a transaction, as the store's timeout would. Return False if it was already committed or aborted."""
        found = self._find(number)
        if found.state not in ("open", "prepared"):
            return False
        found.state = "aborted"
        return True

    def hurt(self, number: int) -> None:
        """Damage a prepared transaction, as if a part of it were gone. `outcome` is then LOST.

        Until the transaction is aborted, it can still be committed.
        """
        self._find(number).hurt = True

    def outcome(self, number: int) -> Outcome:
        """Return the outcome of a transaction. An open transaction counts as LOST."""
        found = self._find(number)
        if found.state == "prepared" and found.hurt:
            return Outcome.LOST
        states = {"prepared": Outcome.PREPARED, "committed": Outcome.COMMITTED}
        return states.get(found.state, Outcome.LOST)

    def seconds_left(self, number: int) -> float | None:
        """Return the seconds until the store aborts a transaction; None if it never does."""
        if self._timeout is None:
            return None
        return self._find(number).began + self._timeout - self._clock.now()

    def unfinished(self, prefix: str | None = None) -> list[int]:
        """Return the numbers of the open and prepared transactions: all of them, or only those with this prefix."""
        numbers = [n for n in self._transactions if self._find(n).state in ("open", "prepared")]
        return [n for n in numbers if prefix in (None, self._transactions[n].prefix)]

    def numbers(self) -> list[int]:
        """Return the numbers of all transactions that were ever opened."""
        return list(self._transactions)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that a reader sees: those of committed transactions."""
        return [row for t in self._transactions.values() if t.state == "committed" for row in t.rows]

    def context(self, number: int) -> TransactionContext:
        """Return the context with which a transaction was opened."""
        return self._transactions[number].context

    def _find(self, number: int) -> _Transaction:
        found = self._transactions[number]
        left = None if self._timeout is None else found.began + self._timeout - self._clock.now()
        if left is not None and left <= 0 and found.state in ("open", "prepared"):
            found.state = "aborted"
        return found

    def _must_be(self, number: int, state: str) -> _Transaction:
        found = self._find(number)
        if found.state != state:
            reason = f"transaction {number} is {found.state}"
            raise TransactionLostError("TRANSACTION_LOST", handles=[{"transaction": number}], reason=reason)
        return found


class RecordingSink(ShowsLater, TwoPhaseCommitSink[int, MemoryHandle]):
    """A test sink that keeps its rows in memory and records its calls.

    Parameters
    ----------
    options : Options
    schema : pyarrow.Schema
    store : MemoryTransactions, optional
        The in-memory store; pass one to share it among several sinks.

    Attributes
    ----------
    calls : list[tuple[str, list[int]]]
        One entry per call: the name of the method, and the numbers of its transactions.
    """

    def __init__(self, options: Options, schema: pa.Schema, store: MemoryTransactions | None = None) -> None:
        super().__init__(options, schema)
        self.store = store or MemoryTransactions()
        self.calls: list[tuple[str, list[int]]] = []
        self.margin = 0.0

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "2pc-recording"

    def beginTransaction(self, context: TransactionContext) -> int:
        """Open a transaction; return its number."""
        self._called("beginTransaction", [])
        return self.store.begin(context)

    def write(self, transaction: int, batch: pa.RecordBatch) -> None:
        """Add the rows to the open transaction."""
        self._called("write", [transaction])
        self.store.write(transaction, batch.to_pylist())

    def preCommit(self, transaction: int) -> MemoryHandle:
        """Prepare the transaction; return its handle."""
        self._called("preCommit", [transaction])
        self.store.prepare(transaction)
        return MemoryHandle(transaction=transaction)

    def rollback(self, transaction: int) -> None:
        """Abort the transaction."""
        self._called("rollback", [transaction])
        self.store.abort(transaction)

    def commit(self, handles: Sequence[MemoryHandle], checkpoint: DecidedCheckpoint) -> None:
        """Commit each transaction; raise `TransactionLostError` for those that are lost."""
        self._called("commit", [handle["transaction"] for handle in handles])
        lost = [dict(h) for h in handles if self.store.commit(h["transaction"]) is not Outcome.COMMITTED]
        if lost:
            raise TransactionLostError("TRANSACTION_LOST", handles=lost, reason=f"{len(lost)} of {len(handles)}")

    def abort(self, handles: Sequence[MemoryHandle]) -> Sequence[MemoryHandle]:
        """Abort each transaction; return the handles that were already committed."""
        self._called("abort", [handle["transaction"] for handle in handles])
        return [h for h in handles if self.store.abort(h["transaction"]) is Outcome.COMMITTED]

    def ensureVisible(
        self, handles: Sequence[MemoryHandle], checkpoint: DecidedCheckpoint
    ) -> Sequence[Mapping[str, Any]]:
        """Return immediately: committed rows are visible in memory."""
        self._called("ensureVisible", [handle["transaction"] for handle in handles])
        return ()

    def inspect(self, handles: Sequence[MemoryHandle]) -> Sequence[HandleState]:
        """Return the state of each handle."""
        self._called("inspect", [handle["transaction"] for handle in handles])
        return [self._state(handle["transaction"]) for handle in handles]

    def sweep(self, known: Sequence[MemoryHandle], before: Cutoff) -> int:
        """Abort unfinished transactions under the prefix that are not in `known`; return how many."""
        self._called("sweep", [handle["transaction"] for handle in known])
        keep = {handle["transaction"] for handle in known}
        lingering = [n for n in self.store.unfinished(self.options["transactionalIdPrefix"]) if n not in keep]
        for number in lingering:
            self.store.abort(number)
        return len(lingering)

    def _state(self, number: int) -> HandleState:
        outcome = self.store.outcome(number)
        return HandleState(outcome, self.store.seconds_left(number), self.margin, f"transaction is {outcome.value}")

    def _called(self, method: str, numbers: list[int]) -> None:
        self.calls.append((method, numbers))


class FailingSink(RecordingSink):
    """A `RecordingSink` whose methods raise the errors that a test sets.

    Attributes
    ----------
    failures : dict[str, list[Exception]]
        Errors by method name. Each call of the method raises the next error of its list, before it does anything.
    """

    def __init__(self, options: Options, schema: pa.Schema, store: MemoryTransactions | None = None) -> None:
        super().__init__(options, schema, store)
        self.failures: dict[str, list[Exception]] = {}

    def _called(self, method: str, numbers: list[int]) -> None:
        super()._called(method, numbers)
        if self.failures.get(method):
            raise self.failures[method].pop(0)


class BlockingSink(RecordingSink):
    """A `RecordingSink` whose methods wait until a test releases them.

    Attributes
    ----------
    gates : dict[str, threading.Event]
        Events by method name. A call waits until the event is set, before it does anything.
    reached : dict[str, threading.Event]
        Events by method name. The event is set when a call begins to wait.
    """

    def __init__(self, options: Options, schema: pa.Schema, store: MemoryTransactions | None = None) -> None:
        super().__init__(options, schema, store)
        self.gates: dict[str, threading.Event] = {}
        self.reached: dict[str, threading.Event] = {}

    def block(self, method: str) -> threading.Event:
        """Make the next calls of a method wait; return the event that releases them."""
        self.reached[method] = threading.Event()
        return self.gates.setdefault(method, threading.Event())

    def _called(self, method: str, numbers: list[int]) -> None:
        super()._called(method, numbers)
        if method in self.gates:
            self.reached[method].set()
            self.gates[method].wait()
