"""The doubles that sinks' authors get."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from transactional import testing
from transactional.capabilities import GuardsRuns
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import FencedError, TransactionLostError
from transactional.sink import Options, Outcome, TransactionContext
from transactional.testing import FailingSink, FakeClock, MemoryTransactions, RecordingSink

SCHEMA = pa.schema([("value", pa.string())])
CHECKPOINT = DecidedCheckpoint(1, (0,), 0)


def sink_of(store: MemoryTransactions, kind: type[RecordingSink] = RecordingSink) -> RecordingSink:
    return kind(Options({"transactionalIdPrefix": "p"}), SCHEMA, store)


def prepare(sink: RecordingSink, value: str) -> Any:
    transaction = sink.beginTransaction(TransactionContext("q", 0, 0, 0, "p", "n"))
    sink.write(transaction, pa.RecordBatch.from_pydict({"value": [value]}, schema=SCHEMA))
    return sink.preCommit(transaction)


def test_sinks_share_a_store_and_record_their_calls() -> None:
    store = MemoryTransactions()
    one, two = sink_of(store), sink_of(store)
    handle = prepare(one, "a")
    assert store.rows() == []
    two.commit([handle], CHECKPOINT)
    assert store.rows() == [{"value": "a"}]
    assert [name for name, _ in one.calls] == ["beginTransaction", "write", "preCommit"]
    assert two.calls == [("commit", [1])]


def test_a_transaction_expires_by_order_or_by_its_timeout() -> None:
    clock = FakeClock()
    store = MemoryTransactions(clock, timeout=60.0)
    sink = sink_of(store)
    handle, other = prepare(sink, "a"), prepare(sink, "b")
    assert store.expire(other["transaction"])
    clock.advance(50)
    assert [(s.outcome, s.seconds_left) for s in sink.inspect([handle])] == [(Outcome.PREPARED, 10.0)]
    clock.sleep(10)
    with pytest.raises(TransactionLostError) as lost:
        sink.commit([handle, other], CHECKPOINT)
    assert lost.value.handles == [handle, other]
    assert clock.now() - FakeClock().now() == clock.monotonic() == 60.0


def test_a_failing_sink_fails_on_order_and_then_works() -> None:
    store = MemoryTransactions()
    sink = sink_of(store, FailingSink)
    assert isinstance(sink, FailingSink)
    handle = prepare(sink, "a")
    sink.failures["commit"] = [OSError("no route")]
    with pytest.raises(OSError, match="no route"):
        sink.commit([handle], CHECKPOINT)
    assert store.rows() == []
    sink.commit([handle], CHECKPOINT)
    assert len(store.rows()) == 1


class Leaky(RecordingSink):
    """Breaks the contract: its rows are visible when they are prepared."""

    shared = MemoryTransactions()

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.shared)

    def preCommit(self, transaction: int) -> Any:
        handle = super().preCommit(transaction)
        self.store.commit(transaction)
        return handle


class Forgetful(RecordingSink):
    """Breaks the contract: commit does not say what is lost."""

    shared = MemoryTransactions()

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.shared)

    def commit(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> None:
        for handle in handles:
            self.store.commit(handle["transaction"])


@pytest.mark.parametrize(
    ("sink", "test"),
    [
        (Leaky, "test_prepared_rows_are_invisible_until_they_are_committed"),
        (Leaky, "test_an_abort_can_be_repeated_and_holds"),
        (Forgetful, "test_a_commit_names_what_is_lost_and_commits_the_rest"),
        (Forgetful, "test_lingering_transactions_are_swept_and_known_ones_kept"),
    ],
)
def test_the_conformance_suite_finds_a_sink_that_breaks_the_contract(sink: type[RecordingSink], test: str) -> None:
    class Suite(testing.SinkConformance):
        sink_type = sink
        seconds = 0.0

        def visible(self, options: Mapping[str, str]) -> Sequence[int]:
            return [int(row["value"]) for row in sink.shared.rows()]  # type: ignore[attr-defined]

    with pytest.raises(AssertionError):
        getattr(Suite(), test)({})


class Stubborn(RecordingSink):
    """Asks a server, and breaks the contract if it gets no answer: it writes again, or takes a commit as done."""

    shared = MemoryTransactions()
    fault = ""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.shared)

    def write(self, transaction: int, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            request = f"{transaction} {row['value']}\n".encode()
            if not self._ask(request) and not (self.fault == "writes again" and self._ask(request)):
                raise ConnectionError("no answer")

    def commit(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> None:
        if self._ask(b"are you there?\n"):
            super().commit(handles, checkpoint)
        elif self.fault != "takes as done":
            raise ConnectionError("no answer")

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", int(self.options["port"]))) as connection:
            connection.sendall(request)
            return connection.recv(10)


class Insert(socketserver.StreamRequestHandler):
    """The server of `Stubborn`."""

    def handle(self) -> None:
        request = self.rfile.readline().split()
        if len(request) == 2:
            Stubborn.shared.write(int(request[0]), [{"value": request[1].decode()}])
        self.wfile.write(b"done\n")


@pytest.mark.parametrize(
    ("fault", "found"), [("writes again", r"2, 2|3, 3"), ("takes as done", "outcomes: .*PREPARED"), ("", "")]
)
def test_a_sink_that_breaks_the_contract_when_an_answer_is_lost_is_found(
    fault: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suite(testing.SinkConformance):
        sink_type = Stubborn
        seconds = 0.0

        def throughProxy(self, options: Mapping[str, str], forward: Callable[[str, int], int]) -> Mapping[str, str]:
            return {**options, "port": str(forward("127.0.0.1", int(options["port"])))}

        def visible(self, options: Mapping[str, str]) -> Sequence[int]:
            return [int(row["value"]) for row in Stubborn.shared.rows()]

    monkeypatch.setattr(Stubborn, "shared", MemoryTransactions())
    monkeypatch.setattr(Stubborn, "fault", fault)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Insert) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        expected = pytest.raises(AssertionError, match=found) if fault else nullcontext()
        try:
            with expected:
                Suite().test_a_lost_answer_neither_loses_nor_doubles_rows({"port": str(server.server_address[1])})
        finally:
            server.shutdown()
            thread.join()


class Careless(GuardsRuns, RecordingSink):
    """Breaks the contract: a mark is good forever, or only once."""

    once = False

    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if mark and self.once:
            raise FencedError("PREFIX_TAKEN", prefix="p", reason="so I say")
        return mark or {"number": 1}


@pytest.mark.parametrize(("once", "found"), [(False, pytest.fail.Exception), (True, FencedError)])
def test_a_sink_that_does_not_fence_an_older_run_or_fences_its_own_is_found(
    once: bool, found: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suite(testing.SinkConformance):
        sink_type = Careless

    monkeypatch.setattr(Careless, "once", once)
    with pytest.raises(found):
        Suite().test_a_new_run_fences_the_run_before_it({})


class Late(RecordingSink):
    """Breaks the contract after it has answered: what was aborted becomes visible later."""

    shared = MemoryTransactions()

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.shared)


@pytest.mark.parametrize("can_tell", [False, True])
@pytest.mark.parametrize(
    "test", ["test_an_abort_can_be_repeated_and_holds", "test_a_commit_names_what_is_lost_and_commits_the_rest"]
)
def test_a_row_that_becomes_visible_after_the_first_look_is_found(
    test: str, can_tell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so while the suite waits for quiet, or in the pause that it makes instead."""
    aborted: list[int] = []

    def appear() -> None:
        for number in aborted:
            Late.shared._transactions[number].state = "committed"

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            appear()

    class Suite(testing.SinkConformance):
        sink_type = Late
        asked = 0

        def visible(self, options: Mapping[str, str]) -> Sequence[int]:
            found = [int(row["value"]) for row in Late.shared.rows()]
            states = Late.shared._transactions.items()
            aborted.extend(number for number, each in states if each.state == "aborted")
            return found

        def quiet(self, options: Mapping[str, str]) -> bool | None:
            self.asked += 1
            if not can_tell:
                return None
            if aborted and self.asked > 3:
                appear()
            return self.asked > 3

    Late.shared = MemoryTransactions()
    monkeypatch.setattr("transactional.testing.bench.SystemClock", Clock)
    with pytest.raises(AssertionError, match=r"first .*, as expected, then .*1"):
        getattr(Suite(), test)({})
