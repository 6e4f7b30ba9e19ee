"""The steps of `SinkConformance`'s tests: prepare, commit and check the rows, in this process and in child processes."""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from transactional.capabilities import WarmsUp
from transactional.clock import Deadline, SystemClock
from transactional.errors import PutBackError, TransactionLostError
from transactional.history import History
from transactional.sink import Cutoff, Options, Outcome, TransactionContext, TwoPhaseCommitSink, guard_run, history_seen
from transactional.testing.process import ALL_RUNS, SinkProcess, checkpoint_of

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.testing.conformance import SinkConformance

POLL_SECONDS = 0.05  # between two checks of a store that answers late


_open: list[TwoPhaseCommitSink[Any, Any]] = []
"""The sinks of the running test that are not closed yet."""


def opened(sink: TwoPhaseCommitSink[Any, Any]) -> TwoPhaseCommitSink[Any, Any]:
    """Register a sink, so that it is closed at the end of the test, and return it."""
    _open.append(sink)
    return sink


def close(sink: TwoPhaseCommitSink[Any, Any]) -> None:
    """Close a sink before the end of its test."""
    _open[:] = [each for each in _open if each is not sink]
    sink.close()


class ClosesSinks:
    """A test class that closes its `opened` sinks after each test."""

    @pytest.fixture(autouse=True)
    def _close_sinks(self, sink_options: Mapping[str, str]) -> Iterator[None]:
        """Close the sinks before the fixture `sink_options` removes the store."""
        yield
        with ExitStack() as stack:
            for sink in _open:
                stack.callback(sink.close)
            _open.clear()


class Bench:
    """Builds the sinks of one test, all with the same store and prefix, and runs the test's steps with these sinks."""

    def __init__(
        self, suite: SinkConformance, options: Mapping[str, str], prefix: str | None = None, query: str | None = None
    ) -> None:
        given = Options(options).get("transactionalIdPrefix", "conformance-" + uuid.uuid4().hex[:12])
        self.prefix = prefix or given
        self.query = query or str(uuid.uuid4())
        self.options = dict(Options(options).replaced(transactionalidprefix=self.prefix))
        self.checkpoint = checkpoint_of(self.query, self.prefix)
        self._suite = suite
        self._begin_run()

    def _begin_run(self) -> None:
        """Do what a driver does before any task begins: check the store, and claim the run."""
        with self._closing() as sink:
            sink.identify()
            guard_run(sink, None)

    def sink(self) -> TwoPhaseCommitSink[Any, Any]:
        """Build a new sink, as another process would."""
        return opened(self._suite.sink_type(Options(self.options), self._suite.schema()))

    @contextmanager
    def _closing(self, sink: TwoPhaseCommitSink[Any, Any] | None = None) -> Iterator[TwoPhaseCommitSink[Any, Any]]:
        """Close a sink (by default, a new sink) at the end of the block."""
        sink = sink or self.sink()
        try:
            yield sink
        finally:
            close(sink)

    def sweep(
        self, known: Sequence[Any] = (), sink: TwoPhaseCommitSink[Any, Any] | None = None, run: int = ALL_RUNS
    ) -> int:
        """Sweep as a driver does at the start of a run. By default, abort all transactions that are not in `known`."""
        if sink is not None:
            return sink.sweep(known, Cutoff(self.query, run, 0))
        with self._closing() as made:
            return self.sweep(known, made, run)

    def context(self, partition: int = 0, attempt: int = 0, number: int = 0) -> TransactionContext:
        """Return the context of one task; `number` is the micro-batch."""
        return TransactionContext(self.query, number, partition, attempt, self.prefix, uuid.uuid4().hex[:16])

    def history(self, binding: bool = True, position: int = 0, **known: Any) -> History:
        """Return a `History` of this query, as if read from a journal. The keyword arguments set further fields."""
        return History(self.query, position, binding, **{"known": position, **known})

    def refuses(self, history: History) -> bool:
        """Return whether the sink raises `PutBackError`, because the store holds more than the history contains."""
        with self._closing() as sink:
            try:
                history_seen(sink, history)
            except PutBackError:
                return True
        return False

    def claimed(self, history: History) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a new run. Return the store's state and the run's mark, each converted to JSON and back, as a journal does."""
        with self._closing() as sink:
            seen: dict[str, Any] = json.loads(json.dumps(dict(history_seen(sink, history))))
        return seen, self.claim()

    def claim(self, mark: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Claim the prefix for a new run, or continue the run of `mark`. Return the mark, converted to JSON and back."""
        with self._closing() as sink:
            made: dict[str, Any] = json.loads(json.dumps(dict(guard_run(sink, mark))))
        return made

    def warm(self, partition: int = 0) -> TwoPhaseCommitSink[Any, Any]:
        """Build a new sink, and warm it up in a thread, as the framework does while a task waits for its first row."""
        sink = self.sink()
        if isinstance(sink, WarmsUp):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(sink.warmUp, self.context(partition)).result()
        return sink

    def next_checkpoint(self) -> None:
        """Continue with the next checkpoint, whose id is higher by one."""
        self.checkpoint = checkpoint_of(self.query, self.prefix, self.checkpoint.id + 1)

    def prepare(
        self,
        numbers: Sequence[int],
        partition: int = 0,
        attempt: int = 0,
        number: int = 0,
        sink: TwoPhaseCommitSink[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a task that prepares these rows, by default in a new sink. Return the handle, converted to JSON and back."""
        batches = [self._suite.batch([each]) for each in numbers]
        return self.prepare_batches(batches, self.context(partition, attempt, number), sink)

    def prepare_batches(
        self,
        batches: Sequence[pa.RecordBatch],
        context: TransactionContext,
        sink: TwoPhaseCommitSink[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a task that prepares these batches; return the handle, as `prepare` does. If the task fails, roll back."""
        with self._closing(sink) as sink:
            transaction = sink.beginTransaction(context)
            try:
                for each in batches:
                    sink.write(transaction, each)
                handle = sink.preCommit(transaction)
            except Exception:
                with suppress(Exception):  # a sweep aborts what could not be rolled back
                    sink.rollback(transaction)
                raise
        assert handle is not None, "with the options of this test, preCommit must return a handle"
        through: dict[str, Any] = json.loads(json.dumps(handle))
        assert through == handle, "a handle must be unchanged after it was written and read as JSON"
        return through

    def commit(self, *handles: Mapping[str, Any]) -> None:
        """Commit the handles in a new sink, and check that `inspect` and `newestCheckpoint` report the commit."""
        with self._closing() as sink:
            sink.commit(handles, self.checkpoint)
            held = sink.newestCheckpoint(self.query)
            assert held is None or held >= self.checkpoint.id, "commit must store checkpoint.completed with the rows"
            self._must_report(sink, handles, Outcome.COMMITTED)

    def lost_of(self, *handles: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Commit the handles in a new sink; return those that the sink reports as lost."""
        with self._closing() as sink:
            try:
                sink.commit(handles, self.checkpoint)
            except TransactionLostError as lost:
                return lost.handles
        return []

    def must_be_lost(self, handle: Mapping[str, Any]) -> None:
        """Check that `commit` and `inspect` both report that this handle is lost."""
        assert self.lost_of(handle) == [handle], "commit must raise TransactionLostError with exactly this handle"
        with self._closing() as sink:
            self._must_report(sink, [handle], Outcome.LOST)

    def _must_report(
        self, sink: TwoPhaseCommitSink[Any, Any], handles: Sequence[Mapping[str, Any]], wanted: Outcome
    ) -> None:
        if type(sink).inspect is not TwoPhaseCommitSink.inspect:
            self.eventually(
                lambda: [state.outcome for state in sink.inspect(handles)], [wanted] * len(handles), "outcomes"
            )

    def seen(self) -> list[int]:
        """Return the numbers of the rows that are visible now, sorted."""
        return sorted(self._suite.visible(self.options))

    def must_see(self, numbers: Sequence[int]) -> None:
        """Wait until exactly these rows are visible, and check that they do not change until the store is quiet.

        The first check alone would miss a row that becomes visible later.
        """
        wanted = sorted(numbers)
        self.eventually(self.seen, wanted, "visible rows")
        if self._suite.quiet(self.options) is None:
            SystemClock().sleep(self._suite.quiet_seconds)
        else:
            self.eventually(lambda: self._suite.quiet(self.options), True, "quiet")
        found = self.seen()
        assert found == wanted, f"visible rows: first {wanted}, as expected, then {found}"

    def must_be_finished(self) -> None:
        """Check that no transaction is open or prepared, if the suite can count them."""
        if self._suite.unfinished(self.options) is not None:
            self.eventually(lambda: self._suite.unfinished(self.options), 0, "unfinished transactions")

    def eventually(self, look: Callable[[], Any], wanted: Any, what: str) -> None:
        """Wait until `look` returns the wanted value; fail after the suite's `seconds`."""
        clock = SystemClock()
        deadline = Deadline(self._suite.seconds, clock)
        found = look()
        while found != wanted and not deadline.passed():
            clock.sleep(POLL_SECONDS)
            found = look()
        assert found == wanted, f"{what}: expected {wanted}, found {found} after {self._suite.seconds} s"

    @contextmanager
    def process(self) -> Iterator[SinkProcess]:
        """Start another process with this sink, and kill the process at the end of the block."""
        process = SinkProcess(self._suite.sink_type, self.options, self._suite.schema())
        try:
            yield process
        finally:
            process.kill()

    def order(self, process: SinkProcess, what: str, *handles: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command to another process, and return its answer."""
        return process.ask(**self.words(what, *handles))

    def words(self, what: str, *handles: Mapping[str, Any]) -> dict[str, Any]:
        """Return the command `what` (commit, abort, sweep, ...) with these handles, for `SinkProcess.ask`."""
        about = {"queryId": self.query, "prefix": self.prefix, "checkpoint": self.checkpoint.id}
        return {"do": what, "handles": [dict(h) for h in handles], **about}

    def die_in_commit(self, process: SinkProcess, line: int | None, *handles: Mapping[str, Any]) -> int | None:
        """Run a commit in a fork of `process`, and kill the fork before it runs the `line`-th line of the sink's code.

        Return how many lines the fork ran, or None if it was killed. See `lines_until_death`.
        """
        lines: int | None = process.ask(**self.words("die", *handles), line=line)["lines"]
        return lines

    def torn(self, handles: Mapping[tuple[int, int], Mapping[str, Any]], before: Sequence[int]) -> str:
        """Check the effects of a commit that may have been killed. Return an error text, or "" if all is correct.

        Readers must see all rows of a handle or none of them; if `commitsTogether` is true, all rows of the checkpoint or none.
        The store must not have the checkpoint's id before its rows. `inspect` must report the same state that readers see.
        """
        with self._closing() as sink:
            noted = (sink.newestCheckpoint(self.query) or 0) >= self.checkpoint.id
            states = [state.outcome for state in sink.inspect(list(handles.values()))]
        new = Counter(self.seen())
        new.subtract(before)
        whole = [all(new[number] == 1 for number in numbers) for numbers in handles]
        nothing = [not any(new[number] for number in numbers) for numbers in handles]
        if not all(either or neither for either, neither in zip(whole, nothing, strict=True)):
            return f"some rows of a handle are visible, others are not visible or visible twice: {dict(+new)}"
        if self._suite.sink_type.commitsTogether and any(whole) and not all(whole):
            return f"some handles of a checkpoint are visible, others are not: {dict(+new)}"
        if noted and not all(whole):
            return f"the store has the checkpoint's id, but some of its rows are not visible: {dict(+new)}"
        if type(sink).inspect is not TwoPhaseCommitSink.inspect:
            wanted = [Outcome.COMMITTED if visible else Outcome.PREPARED for visible in whole]
            return "" if states == wanted else f"inspect reports {states}, but readers see {dict(+new)}"
        return ""

    def words_to_prepare(self, numbers: Sequence[int], until: str, partition: int = 0) -> dict[str, Any]:
        """Return a command to prepare rows, and to stop after the step `until`."""
        rows = base64.b64encode(self._suite.batch(numbers).serialize().to_pybytes()).decode()
        return {"do": "prepare", "until": until, "rows": rows, "context": vars(self.context(partition))}
