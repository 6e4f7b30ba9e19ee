"""For people who write sinks, public: `SinkConformance`, a settable clock, and sinks in memory.

`SinkConformance` is a class of tests that a sink's author subclasses in a pytest module. The rest are doubles:
`FakeClock`, `MemoryTransactions` (a store), `RecordingSink` and `FailingSink` over it.
"""

from __future__ import annotations

import base64
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from transactional.checkpoint import CompletedCheckpoint
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import TransactionLostError
from transactional.sink import HandleState, Options, Outcome, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FailingSink",
    "FakeClock",
    "MemoryHandle",
    "MemoryTransactions",
    "RecordingSink",
    "SinkConformance",
    "SinkProcess",
]

POLL_SECONDS = 0.05  # between two looks at a store whose answers come late
ANSWER_SECONDS = 120.0  # a sink's process imports its clients first; on a loaded machine that takes tens of seconds


class FakeClock:
    """A clock that moves only when it is told to, or slept on.

    Parameters
    ----------
    start : float
        Seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self.passed = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._start + self.passed

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return self.passed

    def sleep(self, seconds: float) -> None:
        """Return at once, that much later."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.passed += seconds


# -- a store in memory, and sinks over it -------------------------------------------------------------------------------


class MemoryHandle(TypedDict):
    """Names a transaction of `MemoryTransactions`."""

    transaction: int


@dataclass
class _Transaction:
    prefix: str
    context: TransactionContext
    began: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: str = "open"


class MemoryTransactions:
    """A store of transactions. States: open, prepared, committed, aborted.

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
        """Open a transaction; returns its number."""
        number = next(self._numbers)
        self._transactions[number] = _Transaction(context.prefix, context, self._clock.now())
        return number

    def write(self, number: int, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows to an open transaction."""
        self._must_be(number, "open").rows.extend(rows)

    def prepare(self, number: int) -> None:
        """From here on it can be committed."""
        self._must_be(number, "open").state = "prepared"

    def commit(self, number: int) -> Outcome:
        """Commit it if it is prepared; COMMITTED (now or earlier) or LOST."""
        found = self._find(number)
        if found.state == "prepared":
            found.state = "committed"
        return self.outcome(number)

    def abort(self, number: int) -> Outcome:
        """Abort it unless it is committed; COMMITTED or LOST."""
        found = self._find(number)
        if found.state != "committed":
            found.state = "aborted"
        return self.outcome(number)

    def expire(self, number: int) -> bool:
        """The store gives it up, as its timeout would; False where it is over already."""
        found = self._find(number)
        if found.state not in ("open", "prepared"):
            return False
        found.state = "aborted"
        return True

    def outcome(self, number: int) -> Outcome:
        """What it says of a handle."""
        states = {"prepared": Outcome.PREPARED, "committed": Outcome.COMMITTED}
        return states.get(self._find(number).state, Outcome.LOST)

    def seconds_left(self, number: int) -> float | None:
        """Until it is given up."""
        if self._timeout is None:
            return None
        return self._find(number).began + self._timeout - self._clock.now()

    def unfinished(self, prefix: str | None = None) -> list[int]:
        """Open and prepared transactions, of one prefix or all."""
        numbers = [n for n in self._transactions if self._find(n).state in ("open", "prepared")]
        return [n for n in numbers if prefix in (None, self._transactions[n].prefix)]

    def numbers(self) -> list[int]:
        """All transactions that were ever begun."""
        return list(self._transactions)

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees."""
        return [row for t in self._transactions.values() if t.state == "committed" for row in t.rows]

    def context(self, number: int) -> TransactionContext:
        """Whose transaction it is."""
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
            raise TransactionLostError(
                "TRANSACTION_OVER", f"transaction {number} is {found.state}", [{"transaction": number}]
            )
        return found


class RecordingSink(TwoPhaseCommitSink[int, MemoryHandle]):
    """A sink over `MemoryTransactions` that keeps a list of its calls.

    Parameters
    ----------
    options : Options
    schema : pyarrow.Schema
    store : MemoryTransactions, optional
        What several sinks share.

    Attributes
    ----------
    calls : list[tuple[str, list[int]]]
        Method and transactions' numbers.
    """

    def __init__(self, options: Options, schema: pa.Schema, store: MemoryTransactions | None = None) -> None:
        super().__init__(options, schema)
        self.store = store or MemoryTransactions()
        self.calls: list[tuple[str, list[int]]] = []
        self.margin = 0.0

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "2pc-recording"

    def beginTransaction(self, context: TransactionContext) -> int:
        """Open."""
        self._called("beginTransaction", [])
        return self.store.begin(context)

    def write(self, transaction: int, batch: pa.RecordBatch) -> None:
        """Add the rows."""
        self._called("write", [transaction])
        self.store.write(transaction, batch.to_pylist())

    def preCommit(self, transaction: int) -> MemoryHandle:
        """Prepare."""
        self._called("preCommit", [transaction])
        self.store.prepare(transaction)
        return MemoryHandle(transaction=transaction)

    def rollback(self, transaction: int) -> None:
        """Abort."""
        self._called("rollback", [transaction])
        self.store.abort(transaction)

    def commit(self, handles: Sequence[MemoryHandle], checkpoint: CompletedCheckpoint) -> None:
        """Commit each."""
        self._called("commit", [handle["transaction"] for handle in handles])
        lost = [dict(h) for h in handles if self.store.commit(h["transaction"]) is not Outcome.COMMITTED]
        if lost:
            raise TransactionLostError("TRANSACTION_LOST", f"{len(lost)} transactions are lost", lost)

    def abort(self, handles: Sequence[MemoryHandle]) -> Sequence[MemoryHandle]:
        """Abort each."""
        self._called("abort", [handle["transaction"] for handle in handles])
        return [h for h in handles if self.store.abort(h["transaction"]) is Outcome.COMMITTED]

    def inspect(self, handles: Sequence[MemoryHandle]) -> Sequence[HandleState]:
        """Look at each."""
        self._called("inspect", [handle["transaction"] for handle in handles])
        return [self._state(handle["transaction"]) for handle in handles]

    def abortLingering(self, known: Sequence[MemoryHandle]) -> int:
        """Abort what is unfinished under the prefix and not known."""
        self._called("abortLingering", [handle["transaction"] for handle in known])
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
    """A `RecordingSink` whose methods raise on order.

    Attributes
    ----------
    failures : dict[str, list[Exception]]
        By method: raised by its next calls, one each, before they do anything.
    """

    def __init__(self, options: Options, schema: pa.Schema, store: MemoryTransactions | None = None) -> None:
        super().__init__(options, schema, store)
        self.failures: dict[str, list[Exception]] = {}

    def _called(self, method: str, numbers: list[int]) -> None:
        super()._called(method, numbers)
        if self.failures.get(method):
            raise self.failures[method].pop(0)


# -- another process with the same sink ---------------------------------------------------------------------------------


class SinkProcess:
    """A child process that builds the sink anew, from its import path and options, and obeys.

    Parameters
    ----------
    sink : type[TwoPhaseCommitSink]
        Importable by its module's name.
    options : Mapping[str, str]
    schema : pyarrow.Schema
    """

    def __init__(self, sink: type[TwoPhaseCommitSink[Any, Any]], options: Mapping[str, str], schema: pa.Schema) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from transactional.testing import _obey; _obey()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.tell(
            module=sink.__module__,
            qualname=sink.__qualname__,
            options=dict(options),
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )

    def tell(self, **order: Any) -> None:
        """Send an order; its answer is read by `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to an order."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the sink's process ended with exit code {self._process.wait(ANSWER_SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and wait for its answer."""
        self.tell(**order)
        return self.answer()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait(ANSWER_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _obey() -> None:
    """Be the child of a `SinkProcess`."""
    import pyarrow as pa

    answers = os.fdopen(os.dup(1), "w")  # what a client prints must not get among the answers
    os.dup2(2, 1)
    about = json.loads(sys.stdin.readline())
    kind: Any = importlib.import_module(about["module"])
    for name in about["qualname"].split("."):
        kind = getattr(kind, name)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
    sink = kind(Options(about["options"]), schema)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = _carry_out(sink, order)
        except TransactionLostError as lost:
            answer = {"lost": lost.handles}
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _carry_out(sink: TwoPhaseCommitSink[Any, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    """One order: prepare (as far as `until`), commit, abort or sweep."""
    import pyarrow as pa

    if order["do"] == "prepare":
        batch = pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(order["rows"])), sink.schema)
        transaction = sink.beginTransaction(TransactionContext(**order["context"]))
        if order["until"] == "begin":
            return {}
        sink.write(transaction, batch)
        return {"handle": sink.preCommit(transaction)} if order["until"] == "preCommit" else {}
    if order["do"] == "commit":
        sink.commit(order["handles"], _checkpoint(order["queryId"], order["prefix"]))
        return {}
    if order["do"] == "abort":
        return {"committed": list(sink.abort(order["handles"]))}
    if order["do"] == "sweep":
        return {"swept": sink.abortLingering(order["handles"])}
    return {"ready": dict(sink.identify())}  # connects, so that a race is not won by the quicker start


def _checkpoint(query: str, prefix: str) -> CompletedCheckpoint:
    return CompletedCheckpoint(id=1, batches=(0,), timestamp=0, queryId=query, prefix=prefix)


# -- conformance --------------------------------------------------------------------------------------------------------


class SinkConformance:
    """Does a sink keep the contract of `TwoPhaseCommitSink`? Subclass it in a pytest module; each method is a test.

    Set `sink_type`, give a fixture ``sink_options``, and override `visible`. Where rows have another shape than one text
    column ``value``, override `schema` and `batch` too. The sink must be importable by a child process.

    Attributes
    ----------
    sink_type : type[TwoPhaseCommitSink]
    seconds : float
        Within which what was committed has to be visible, and what is known of a handle has to be told.
    rounds : int
        Of the race between commit and abort.

    Examples
    --------
    >>> class TestMySink(SinkConformance):
    ...     sink_type = MySink
    ...
    ...     @pytest.fixture
    ...     def sink_options(self, tmp_path):
    ...         return {"path": str(tmp_path)}
    ...
    ...     def visible(self, options):
    ...         return [int(row["value"]) for row in read(options["path"])]
    """

    sink_type: ClassVar[type[TwoPhaseCommitSink[Any, Any]]]
    seconds: ClassVar[float] = 30.0
    rounds: ClassVar[int] = 6

    # -- what a sink's author gives ---------------------------------------------------------------------------------

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        """Numbers of all rows that a reader of committed data sees now, in any order, doubled ones twice."""
        raise NotImplementedError

    def unfinished(self, options: Mapping[str, str]) -> int | None:
        """How many transactions are open or prepared at the store; None where it can't be told."""
        return None

    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        import pyarrow as pa

        return pa.schema([pa.field("value", pa.string())])

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Make rows from which `visible` tells the numbers again."""
        import pyarrow as pa

        return pa.RecordBatch.from_pydict({"value": [str(number) for number in numbers]}, schema=self.schema())

    # -- tests ------------------------------------------------------------------------------------------------------

    def test_prepared_rows_are_invisible_until_they_are_committed(self, sink_options: Mapping[str, str]) -> None:
        """What the first phase is."""
        bench = _Bench(self, sink_options)
        handle = bench.prepare([1, 2])
        assert bench.seen() == []
        assert bench.sink().inspect([handle])[0].ready
        bench.commit(handle)
        bench.must_see([1, 2])

    def test_several_handles_are_committed_by_one_call(self, sink_options: Mapping[str, str]) -> None:
        """A checkpoint of several tasks."""
        bench = _Bench(self, sink_options)
        handles = [bench.prepare([number], partition=number) for number in range(3)]
        assert bench.seen() == []
        bench.commit(*handles)
        bench.must_see([0, 1, 2])

    def test_a_commit_can_be_repeated(self, sink_options: Mapping[str, str]) -> None:
        """By the same process and by a new one."""
        bench = _Bench(self, sink_options)
        handle = bench.prepare([1])
        sink = bench.sink()
        for _ in range(2):
            sink.commit([handle], bench.checkpoint)
        bench.commit(handle)
        bench.must_see([1])

    def test_another_process_commits(self, sink_options: Mapping[str, str]) -> None:
        """From options and the handle's JSON alone."""
        bench = _Bench(self, sink_options)
        handle = bench.prepare([1, 2, 3])
        with bench.process() as other:
            assert bench.order(other, "commit", handle) == {}
            assert bench.order(other, "commit", handle) == {}
        bench.must_see([1, 2, 3])

    def test_an_abort_can_be_repeated_and_holds(self, sink_options: Mapping[str, str]) -> None:
        """What was aborted is never committed."""
        bench = _Bench(self, sink_options)
        handle = bench.prepare([1])
        assert list(bench.sink().abort([handle])) == []
        assert list(bench.sink().abort([handle])) == []
        bench.must_be_lost(handle)
        bench.must_see([])

    def test_an_abort_after_the_commit_says_so_and_changes_nothing(self, sink_options: Mapping[str, str]) -> None:
        """Recovery concludes from its answer."""
        bench = _Bench(self, sink_options)
        handle, other = bench.prepare([1]), bench.prepare([2], partition=1)
        bench.commit(handle)
        assert [dict(found) for found in bench.sink().abort([handle, other])] == [handle]
        bench.commit(handle)
        bench.must_see([1])

    def test_nothing_to_commit_or_abort_is_no_error(self, sink_options: Mapping[str, str]) -> None:
        """Empty checkpoints, and a first sweep of an untouched store."""
        bench = _Bench(self, sink_options)
        sink = bench.sink()
        sink.commit([], bench.checkpoint)
        assert list(sink.abort([])) == []
        assert list(sink.inspect([])) == []
        assert sink.abortLingering([]) == 0
        bench.must_see([])

    def test_a_commit_names_what_is_lost_and_commits_the_rest(self, sink_options: Mapping[str, str]) -> None:
        """Repair needs both."""
        bench = _Bench(self, sink_options)
        handles = [bench.prepare([number], partition=number) for number in range(3)]
        bench.sink().abort([handles[1]])
        assert bench.lost_of(*handles) == [handles[1]]
        bench.must_see([0, 2])

    def test_a_late_commit_of_an_aborted_handle_changes_nothing(self, sink_options: Mapping[str, str]) -> None:
        """Also not the transaction that took its place."""
        bench = _Bench(self, sink_options)
        old = bench.prepare([1])
        bench.sink().abort([old])
        new = bench.prepare([2], attempt=1)
        bench.must_be_lost(old)
        assert bench.seen() == []
        bench.sink().abort([old])
        bench.commit(new)
        bench.must_be_lost(old)
        bench.must_see([2])

    def test_a_late_commit_or_abort_of_a_committed_handle_changes_nothing(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """The same partition is prepared anew meanwhile, as the next micro-batch does."""
        bench = _Bench(self, sink_options)
        old = bench.prepare([1])
        bench.commit(old)
        new = bench.prepare([2], attempt=1, number=1)
        bench.commit(old)
        bench.sink().abort([old])
        bench.must_see([1])
        bench.commit(new)
        bench.must_see([1, 2])

    def test_commit_and_abort_raced_by_two_processes_end_in_one(self, sink_options: Mapping[str, str]) -> None:
        """Two drivers at one handle."""
        bench = _Bench(self, sink_options)
        expected: list[int] = []
        chance = random.Random(1)
        with bench.process() as one, bench.process() as two:
            bench.order(one, "identify")
            bench.order(two, "identify")
            for number in range(self.rounds):
                handle = bench.prepare([number], attempt=number, number=number)
                orders = [(one, "commit"), (two, "abort")]
                chance.shuffle(orders)
                for process, what in orders:
                    process.tell(**bench.words(what, handle))
                committed, aborted = one.answer(), two.answer()
                lost = bench.lost_of(handle) == [handle]
                if not lost:
                    expected.append(number)
                assert bool(list(bench.sink().abort([handle]))) is not lost, (committed, aborted)
                assert not (lost and committed == {}), "commit returned, and the transaction is lost"
                assert not (not lost and "lost" in committed), "commit said lost, and the transaction is committed"
                assert not (lost and aborted.get("committed")), "abort found it committed, and it is lost"
                assert not (not lost and aborted == {"committed": []}), "abort said aborted, and it is committed"
                bench.must_see(expected)

    def test_a_process_killed_after_begin_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """And nothing that stands in the way."""
        self._kill("begin", sink_options)

    def test_a_process_killed_after_write_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """And nothing that stands in the way."""
        self._kill("write", sink_options)

    def _kill(self, step: str, sink_options: Mapping[str, str]) -> None:
        bench = _Bench(self, sink_options)
        with bench.process() as victim:
            assert victim.ask(**bench.words_to_prepare([1], until=step)) == {}
            victim.kill()
        assert bench.seen() == []
        bench.sink().abortLingering([])
        bench.must_be_finished()
        bench.commit(bench.prepare([2], attempt=1))
        bench.must_see([2])

    def test_a_prepared_transaction_survives_the_death_of_its_process(self, sink_options: Mapping[str, str]) -> None:
        """The process that prepares is never the one that commits."""
        bench = _Bench(self, sink_options)
        with bench.process() as victim:
            first = victim.ask(**bench.words_to_prepare([1], until="preCommit"))["handle"]
            second = victim.ask(**bench.words_to_prepare([2], until="preCommit", partition=1))["handle"]
            victim.kill()
        assert bench.seen() == []
        bench.commit(first)
        assert list(bench.sink().abort([second])) == []
        bench.must_see([1])
        bench.must_be_finished()

    def test_lingering_transactions_are_swept_and_known_ones_kept(self, sink_options: Mapping[str, str]) -> None:
        """Known are all that an unsettled journal entry names."""
        bench = _Bench(self, sink_options)
        known, lingering = bench.prepare([1]), bench.prepare([2], partition=1)
        assert bench.sink().abortLingering([known]) >= 1
        bench.must_be_lost(lingering)
        bench.commit(known)
        bench.must_see([1])
        assert bench.sink().abortLingering([]) == 0
        bench.must_see([1])
        bench.must_be_finished()

    def test_the_transactions_of_another_prefix_are_not_swept(self, sink_options: Mapping[str, str]) -> None:
        """Two queries may write to one store."""
        bench, other = _Bench(self, sink_options), _Bench(self, sink_options, distinct=True)
        handle = other.prepare([1])
        bench.sink().abortLingering([])
        other.commit(handle)
        bench.must_see([1])

    def test_a_transaction_that_is_rolled_back_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """What the host does when a task fails."""
        bench = _Bench(self, sink_options)
        sink = bench.sink()
        transaction = sink.beginTransaction(bench.context())
        sink.write(transaction, self.batch([1]))
        sink.rollback(transaction)
        sink.abortLingering([])
        bench.must_be_finished()
        bench.commit(bench.prepare([2], attempt=1))
        bench.must_see([2])


class _Bench:
    """One test's sinks, all on one store and prefix."""

    def __init__(self, suite: SinkConformance, options: Mapping[str, str], distinct: bool = False) -> None:
        given = Options(options).get("transactionalIdPrefix", "conformance-" + uuid.uuid4().hex[:12])
        self.prefix = given + "-other" if distinct else given
        self.query = str(uuid.uuid4())
        self.options = dict(Options(options).replaced(transactionalidprefix=self.prefix))
        self.checkpoint = _checkpoint(self.query, self.prefix)
        self._suite = suite

    def sink(self) -> TwoPhaseCommitSink[Any, Any]:
        """A new one, as another process would build it."""
        return self._suite.sink_type(Options(self.options), self._suite.schema())

    def context(self, partition: int = 0, attempt: int = 0, number: int = 0) -> TransactionContext:
        """Of one task; `number` is the micro-batch."""
        return TransactionContext(self.query, number, partition, attempt, self.prefix, uuid.uuid4().hex[:16])

    def prepare(self, numbers: Sequence[int], partition: int = 0, attempt: int = 0, number: int = 0) -> dict[str, Any]:
        """A task that prepares these rows, in a sink of its own; its handle, through JSON."""
        sink = self.sink()
        transaction = sink.beginTransaction(self.context(partition, attempt, number))
        for each in numbers:
            sink.write(transaction, self._suite.batch([each]))
        handle = sink.preCommit(transaction)
        sink.close()
        assert handle is not None, "with the options of this test, preCommit must return a handle"
        through: dict[str, Any] = json.loads(json.dumps(handle))
        assert through == handle, "a handle must be the same after its way through JSON"
        return through

    def commit(self, *handles: Mapping[str, Any]) -> None:
        """Commit in a new sink, and see that this is told."""
        sink = self.sink()
        sink.commit(handles, self.checkpoint)
        self._must_tell(sink, handles, Outcome.COMMITTED)

    def lost_of(self, *handles: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Commit in a new sink; the handles that it says are lost."""
        try:
            self.sink().commit(handles, self.checkpoint)
        except TransactionLostError as lost:
            return lost.handles
        return []

    def must_be_lost(self, handle: Mapping[str, Any]) -> None:
        """Commit refuses it, and inspect says so."""
        assert self.lost_of(handle) == [handle], "commit must raise TransactionLostError with exactly this handle"
        self._must_tell(self.sink(), [handle], Outcome.LOST)

    def _must_tell(
        self, sink: TwoPhaseCommitSink[Any, Any], handles: Sequence[Mapping[str, Any]], wanted: Outcome
    ) -> None:
        if type(sink).inspect is not TwoPhaseCommitSink.inspect:
            self.eventually(
                lambda: [state.outcome for state in sink.inspect(handles)], [wanted] * len(handles), "outcomes"
            )

    def seen(self) -> list[int]:
        """Rows that are visible now."""
        return sorted(self._suite.visible(self.options))

    def must_see(self, numbers: Sequence[int]) -> None:
        """These rows, no others, within the suite's seconds."""
        self.eventually(self.seen, sorted(numbers), "visible rows")

    def must_be_finished(self) -> None:
        """No transaction is open or prepared, where the suite can tell."""
        if self._suite.unfinished(self.options) is not None:
            self.eventually(lambda: self._suite.unfinished(self.options), 0, "unfinished transactions")

    def eventually(self, look: Callable[[], Any], wanted: Any, what: str) -> None:
        """Wait for a condition, with a deadline."""
        clock = SystemClock()
        deadline = Deadline(self._suite.seconds, clock)
        found = look()
        while found != wanted and not deadline.passed():
            clock.sleep(POLL_SECONDS)
            found = look()
        assert found == wanted, f"{what}: expected {wanted}, found {found} after {self._suite.seconds} s"

    @contextmanager
    def process(self) -> Iterator[SinkProcess]:
        """Another process with this sink, killed at the end."""
        process = SinkProcess(self._suite.sink_type, self.options, self._suite.schema())
        try:
            yield process
        finally:
            process.kill()

    def order(self, process: SinkProcess, what: str, *handles: Mapping[str, Any]) -> dict[str, Any]:
        """Have another process do it."""
        return process.ask(**self.words(what, *handles))

    def words(self, what: str, *handles: Mapping[str, Any]) -> dict[str, Any]:
        """An order to commit, abort, sweep or connect."""
        return {"do": what, "handles": [dict(h) for h in handles], "queryId": self.query, "prefix": self.prefix}

    def words_to_prepare(self, numbers: Sequence[int], until: str, partition: int = 0) -> dict[str, Any]:
        """An order to prepare, as far as a step."""
        rows = base64.b64encode(self._suite.batch(numbers).serialize().to_pybytes()).decode()
        return {"do": "prepare", "until": until, "rows": rows, "context": vars(self.context(partition))}
