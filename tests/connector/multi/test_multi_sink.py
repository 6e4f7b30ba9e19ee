"""Several sinks under one decision, in the order in which Spark calls them. No JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connector.cli import main
from connector.location.location import CheckpointLocation
from connector.multi.names import NAME
from connector.multi.sink import MultiSink
from connector.registration.data_sources import with_sinks
from connector.savepoints.take import take
from connector.spark import internals
from connector.spark.host import HostedStreamWriter
from connector.spark.hosted_sink import HostedSink, TaskMessage
from tests.connector.test_host import QUERY, Spark
from tests.transactional.bodies import fact_of
from transactional.capabilities import Expires, GuardsRuns, KeepsEvidence, Restorable
from transactional.checkpoint import DecidedCheckpoint, Mode
from transactional.entry import EntryKind
from transactional.errors import (
    FencedError,
    LocationError,
    OptionError,
    ProtocolError,
    PutBackError,
    RetriableError,
    RowRefusedError,
    StoreError,
    TransactionLostError,
    TwoPhaseCommitError,
)
from transactional.history import History, RunMark
from transactional.ledger import CheckpointState
from transactional.sink import HandleState, Options, Outcome, TransactionContext
from transactional.testing import FailingSink, MemoryTransactions

SCHEMA = StructType([StructField("value", LongType()), StructField("route", StringType())])

Row = tuple[int, str | None]


class Memory(Expires, GuardsRuns, KeepsEvidence, FailingSink):
    """A sink per store: the option ``store`` names it."""

    stores: ClassVar[dict[str, MemoryTransactions]] = {}
    planted: ClassVar[dict[str, dict[str, list[Exception]]]] = {}
    calls_of: ClassVar[list[tuple[str, str, int]]] = []
    histories: ClassVar[dict[str, History]] = {}
    marks: ClassVar[dict[str, int]] = {}

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.place = options["store"]
        super().__init__(options, schema, self.stores.setdefault(self.place, MemoryTransactions()))
        self.failures = self.planted.setdefault(self.place, {})

    def _called(self, method: str, numbers: list[int]) -> None:
        self.calls_of.append((self.place, method, len(numbers)))
        super()._called(method, numbers)

    def identify(self) -> dict[str, str]:
        return {"cluster": self.place}

    def lifetime(self) -> float | None:
        return None

    def checkHistory(self, history: History) -> dict[str, Any]:
        self.histories[self.place] = history
        return {"of": self.place}

    def guardRun(self, mark: RunMark | None) -> RunMark:
        self.marks[self.place] = self.marks.get(self.place, 0) + (mark is None)
        return {"mark": self.marks[self.place]} if mark is None else mark

    def stamp(self, handles: Sequence[Any]) -> int:
        return max(int(handle["transaction"]) for handle in handles)


class Together(Memory):
    """A store that shows a checkpoint at once."""

    commitsTogether = True

    @classmethod
    def name(cls) -> str:
        return "2pc-together"


class Vague(Memory):
    """Its handles come back in another form, or not at all."""

    said: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def name(cls) -> str:
        return "2pc-vague"

    def commit(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> None:
        try:
            super().commit(handles, checkpoint)
        except TransactionLostError:
            raise TransactionLostError("TRANSACTION_LOST", handles=self.said, reason="some") from None

    def abort(self, handles: Sequence[Any]) -> Sequence[Any]:
        return [{**handle, "at": 1} for handle in super().abort(handles)]


class Several(MultiSink):
    """That knows the two."""

    own: ClassVar[dict[str, type[Memory]]] = {each.name(): each for each in (Memory, Together, Vague)}


SINK = Several

BOTH = {
    "sinks": "left,right",
    "routeColumn": "route",
    "left.format": "2pc-recording",
    "left.store": "l",
    "right.format": "2pc-together",
    "right.store": "r",
}


class SeveralSinks(Spark):
    """Rows are routed to two stores."""

    def writer(self) -> HostedStreamWriter:
        return HostedStreamWriter(HostedSink(SINK, Options(self.options), SCHEMA))

    def part(self, writer: HostedStreamWriter, batch: int, partition: int, *rows: Row) -> TaskMessage:
        """A task, each of whose Arrow batches has two rows."""
        self.in_task(batch, partition)
        message = writer.write(arrow(*rows))
        assert isinstance(message, TaskMessage)
        return message

    def batch(self, number: int, *parts: Sequence[Row]) -> None:
        """A micro-batch as it goes well."""
        writer = self.planned(number)
        self.writer().commit([self.part(writer, number, at, *rows) for at, rows in enumerate(parts)], number)
        self.commits(number)

    def seen(self, store: str) -> list[int]:
        return [row["value"] for row in Memory.stores[store].rows()]


def arrow(*rows: Row) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(rows), 2):
        values, routes = zip(*rows[at : at + 2], strict=True)
        yield pa.record_batch({"value": pa.array(values, pa.int64()), "route": pa.array(routes, pa.string())})


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeveralSinks:
    for name, empty in (("stores", {}), ("planted", {}), ("calls_of", []), ("histories", {}), ("marks", {})):
        monkeypatch.setattr(Memory, name, empty)
    several = SeveralSinks(tmp_path / "place", monkeypatch)
    several.options.update(BOTH)
    return several


def test_rows_are_where_they_are_routed_and_a_decision_is_of_all(spark: SeveralSinks) -> None:
    writer = spark.planned(0)
    messages = [spark.part(writer, 0, 0, (1, "left"), (2, "right"), (3, None)), spark.part(writer, 0, 1, (4, "right"))]
    assert (spark.seen("l"), spark.seen("r")) == ([], []), "prepared is not visible"
    spark.writer().commit(messages, 0)
    assert (spark.seen("l"), spark.seen("r")) == ([1, 3], [2, 3, 4])
    (checkpoint,) = spark.ledger().checkpoints.values()
    assert checkpoint.routes == {"left": 2, "right": 3}
    assert (checkpoint.rows, checkpoint.handles, checkpoint.settled) == (5, 3, True)
    assert Memory.stores["l"].rows() == [{"value": 1}, {"value": 3}], "routeColumn is in no store"


def test_a_sink_without_rows_has_no_transaction(spark: SeveralSinks) -> None:
    spark.batch(0, [(1, "left")])
    assert Memory.stores["r"].numbers() == []
    assert spark.ledger().checkpoints[max(spark.ledger().checkpoints)].routes == {"left": 1, "right": 0}


def test_each_sink_has_a_name_of_its_own_at_its_store(spark: SeveralSinks) -> None:
    """Two sinks of one format on one store must not take one another's transactions for lingering ones."""
    spark.options.update({"right.format": "2pc-recording", "right.store": "l"})
    spark.batch(0, [(1, "left"), (2, "right")])
    contexts = [Memory.stores["l"].context(number) for number in (1, 2)]
    assert [each.prefix for each in contexts] == ["q-left", "q-right"]
    assert [each.queryId.partition(QUERY)[2] for each in contexts] == ["-left", "-right"]
    assert spark.seen("l") == [1, 2]


def decided(spark: SeveralSinks, *rows: Row) -> None:
    """A checkpoint that was decided by a driver that died before any commit."""
    writer = spark.planned(0)
    messages = [spark.part(writer, 0, 0, *rows)]
    for store in ("l", "r"):
        Memory.planted[store]["commit"] = [RetriableError("WRITE_FAILED", "planted")]
    with pytest.raises(RetriableError, match="planted"):
        spark.writer().commit(messages, 0)
    spark.drive("second driver")


ROWS: tuple[Row, ...] = ((1, "left"), (2, "right"), (3, None))


def test_what_one_store_lost_is_written_again_there_only(spark: SeveralSinks) -> None:
    decided(spark, *ROWS)
    Memory.stores["l"].expire(1)
    again = spark.planned(0)
    assert again._plan is not None
    assert again._plan.mode is Mode.REPAIR
    assert set(again._plan.repairs) == {(0, "left")}
    assert (spark.seen("l"), spark.seen("r")) == ([], [2, 3]), "the other store has committed already"
    Memory.calls_of.clear()
    message = spark.part(again, 0, 0, *ROWS)
    assert [call for call in Memory.calls_of if call[1] == "write"] == [("l", "write", 1)] * 2
    spark.writer().commit([message], 0)
    assert (spark.seen("l"), spark.seen("r")) == ([1, 3], [2, 3])
    assert all(each.state is CheckpointState.SETTLED for each in spark.ledger().checkpoints.values())


@pytest.mark.parametrize("said", [[], [{"transaction": 1, "why": "it expired"}]], ids=str)
def test_a_sink_that_does_not_say_which_it_lost_has_lost_some(
    spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(Vague, "said", said)
    spark.options["left.format"] = "2pc-vague"
    writer = spark.planned(0)
    messages = [spark.part(writer, 0, 0, *ROWS)]
    Memory.stores["l"].expire(1)
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "inspect", lambda self, handles: [HandleState(Outcome.PREPARED) for _ in handles])
        with pytest.raises(RetriableError, match="LOST_AFTER_DECISION"):
            spark.writer().commit(messages, 0)
    spark.drive("second driver")
    again = spark.planned(0)
    spark.writer().commit([spark.part(again, 0, 0, *ROWS)], 0)
    assert (spark.seen("l"), spark.seen("r")) == ([1, 3], [2, 3])


def test_a_sink_that_does_not_say_which_are_committed_is_asked_again(spark: SeveralSinks) -> None:
    """Its transaction looked lost, and the abort finds it committed: to write its rows again would double them."""
    spark.options["left.format"] = "2pc-vague"
    decided(spark, *ROWS)
    store = Memory.stores["l"]
    store.commit(1)
    looks = iter([Outcome.LOST])
    plain = store.outcome
    Memory.stores["l"].outcome = lambda number: next(looks, None) or plain(number)  # type: ignore[method-assign]
    again = spark.planned(0)
    assert again._plan is not None
    assert again._plan.mode is Mode.DRAIN
    assert (spark.seen("l"), spark.seen("r")) == ([1, 3], [2, 3])


def test_a_sink_that_answers_too_few_is_named(spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(spark, *ROWS)
    monkeypatch.setattr(Memory, "inspect", lambda self, handles: [])
    with pytest.raises(ProtocolError, match="the sink left was asked about 1 transactions, but returned 0 states"):
        spark.planned(0)


def test_another_prefix_leaves_what_was_never_its_own(spark: SeveralSinks, caplog: pytest.LogCaptureFixture) -> None:
    """A sink that the former run did not have may be another query's under the former prefix."""
    spark.batch(0, [(1, "left"), (2, "right")])
    spark.options["left.store"] = "new"
    del spark.options["right.store"], spark.options["right.format"]
    spark.options.update(
        {"sinks": "left,new", "new.format": "2pc-recording", "new.store": "n", "transactionalIdPrefix": "q2"}
    )
    stranger = MemoryTransactions()
    Memory.stores["n"] = stranger
    theirs = stranger.begin(TransactionContext("other", 0, 0, 0, "q-new", "x"))
    spark.drive("second driver")
    spark.planned(1)
    assert stranger.unfinished() == [theirs]
    assert Memory.marks["n"] == 1, "its own prefix only"
    assert "no longer writes to right" in caplog.text


def test_what_all_stores_lost_is_void_and_written_again(spark: SeveralSinks) -> None:
    decided(spark, *ROWS)
    for store in ("l", "r"):
        Memory.stores[store].expire(1)
    again = spark.planned(0)
    assert again._plan is not None
    assert again._plan.mode is Mode.WRITE
    spark.writer().commit([spark.part(again, 0, 0, (7, None))], 0)
    assert (spark.seen("l"), spark.seen("r")) == ([7], [7])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (((1, "left"), (2, "right"), (4, None)), "sink left"),
        (((1, "left"), (5, "right"), (3, None)), "the committed partition 0, sink right: recorded 2 rows "),
        (((1, "right"), (2, "right"), (3, None)), "sink left"),
    ],
    ids=["other rows", "other rows of the sink that has committed", "other routes"],
)
def test_a_repair_that_reads_other_rows_is_refused(spark: SeveralSinks, other: Sequence[Row], what: str) -> None:
    decided(spark, *ROWS)
    Memory.stores["l"].expire(1)
    again = spark.planned(0)
    with pytest.raises(TwoPhaseCommitError, match=f"REPLAY_DIFFERS.*{what}"):
        spark.writer().commit([spark.part(again, 0, 0, *other)], 0)
    assert (spark.seen("l"), spark.seen("r")) == ([], [2, 3])


def test_a_store_that_is_away_does_not_keep_the_others_from_committing(spark: SeveralSinks) -> None:
    writer = spark.planned(0)
    messages = [spark.part(writer, 0, 0, *ROWS)]
    Memory.planted["l"]["commit"] = [RetriableError("WRITE_FAILED", "it is away")]
    with pytest.raises(RetriableError, match=rf"it is away.*Sink left of {NAME}"):
        spark.writer().commit(messages, 0)
    assert (spark.seen("l"), spark.seen("r")) == ([], [2, 3])
    spark.planned(0)
    assert (spark.seen("l"), spark.seen("r")) == ([1, 3], [2, 3]), "the next start goes on there"


def built(spark: SeveralSinks, **changed: str) -> MultiSink:
    """The sink alone."""
    options = Options({**spark.options, **changed})
    found = SINK(options, pa.schema([("value", pa.int64()), ("route", pa.string())]))
    assert isinstance(found, MultiSink)
    return found


def test_micro_batches_follow_one_another_unless_a_store_shows_them_at_once(spark: SeveralSinks) -> None:
    sink, handles = built(spark), []
    for batch in (0, 1):
        for route in sink.routes:
            transaction = sink.beginTransaction(
                TransactionContext("q", batch, 0, 0, "p", f"{batch}{route}", route=route)
            )
            handles.append(sink.preCommit(transaction))
    Memory.calls_of.clear()
    sink.commit([handle for handle in handles if handle is not None], DecidedCheckpoint(9, [0, 1], 0, "q", "p"))
    commits = [("l", "commit", 1), ("l", "commit", 1), ("r", "commit", 2)]
    assert [call for call in Memory.calls_of if call[1] == "commit"] == commits


def test_each_store_is_compared_with_its_own_history(spark: SeveralSinks) -> None:
    spark.batch(0, [(1, "left"), (2, "right")])
    spark.batch(1, [(3, "left")])
    first, second = sorted(spark.ledger().checkpoints)
    spark.drive("second driver")
    spark.planned(2)
    left, right = Memory.histories["l"], Memory.histories["r"]
    assert (left.newest, right.newest) == (second, first), "the newest checkpoint that has rows there"
    assert (left.stamp, right.stamp) == (2, 1)
    assert (left.mark, right.mark) == ({"mark": 1}, {"mark": 1})
    assert (left.seen, left.binding, left.queryId[-5:]) == ({"of": "l"}, True, "-left")


@pytest.mark.parametrize("ahead", ["l", "r"])
def test_a_store_that_fails_does_not_hide_that_another_one_is_ahead(
    spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    spark.batch(0, [(1, "left"), (2, "right")])

    def compare(sink: Memory, history: History) -> dict[str, Any]:
        if sink.place == ahead:
            raise PutBackError("LOCATION_PUT_BACK", evidence="planted")
        raise StoreError("STORE_WENT_BACK", store="planted", held=1, known=2)

    monkeypatch.setattr(Memory, "checkHistory", compare)
    spark.drive("second driver")
    with pytest.raises(PutBackError):
        spark.planned(1)


def test_a_store_is_told_which_of_its_own_checkpoints_came_before(
    spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[DecidedCheckpoint]] = {"l": [], "r": []}
    plain = Memory.commit

    def commit(self: Memory, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> None:
        told[self.place].append(checkpoint)
        plain(self, handles, checkpoint)

    monkeypatch.setattr(Memory, "commit", commit)
    spark.batch(0, [(1, "left"), (2, "right")])
    spark.batch(1, [(3, "left")])
    spark.batch(2, [(4, None)])
    first, second, _ = sorted(spark.ledger().checkpoints)
    assert [each.after for each in told["l"]] == [0, first, second]
    assert [each.after for each in told["r"]] == [0, first]
    assert {(each.queryId[-6:], each.prefix, len(each.routes)) for each in told["r"]} == {("-right", "q-right", 0)}


def test_each_transaction_gets_the_answer_of_its_own_store(spark: SeveralSinks) -> None:
    sink, handles = built(spark), []
    for batch in (0, 1):
        for route in sink.routes:
            context = TransactionContext("q", batch, 0, 0, "p", f"{batch}{route}", route=route)
            handle = sink.preCommit(sink.beginTransaction(context))
            assert handle is not None
            handles.append(handle)
    Memory.stores["l"].expire(1)
    sink.commit(handles[1:2], DecidedCheckpoint(9, [0], 0, "q", "p"))
    found = [state.outcome for state in sink.inspect(handles)]
    assert found == [Outcome.LOST, Outcome.COMMITTED, Outcome.PREPARED, Outcome.PREPARED]


def test_the_store_that_keeps_least_decides_for_all(spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (built(spark).lifetime(), built(spark).maxPrepared) == (None, None)
    for kind, seconds, most in ((Memory, 60.0, 50), (Together, 900.0, 5)):
        monkeypatch.setattr(kind, "lifetime", lambda self, seconds=seconds: seconds)
        monkeypatch.setattr(kind, "maxPrepared", most)
    for names in ("left,right", "right,left"):
        assert (built(spark, sinks=names).lifetime(), built(spark, sinks=names).maxPrepared) == (60.0, 5)


def test_the_order_in_which_sinks_are_named_changes_nothing(spark: SeveralSinks) -> None:
    assert built(spark).identify() == built(spark, sinks="right,left").identify()


class RestorableMemory(Restorable, Memory):
    """A store that can be taken back."""

    restored: ClassVar[list[Any]] = []

    @classmethod
    def name(cls) -> str:
        return "2pc-restorable"

    def output(self, handles: Sequence[Any], checkpoint: Any) -> dict[str, Any]:
        return {}

    def restoreOutput(self, output: Any, rewind: int) -> None:
        self.restored.append((self.place, output, rewind))


def test_nothing_goes_back_unless_every_store_can(spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Several, "own", {**Several.own, "2pc-restorable": RestorableMemory})
    monkeypatch.setattr(RestorableMemory, "restored", [])
    one = built(spark, **{"left.format": "2pc-restorable"})
    with pytest.raises(TwoPhaseCommitError, match="Sink right"):
        one.checkRestore({"left": {"version": 3}})
    both = built(spark, **{"left.format": "2pc-restorable", "right.format": "2pc-restorable"})
    both.checkRestore({"left": {"version": 3}})
    both.restoreOutput({"left": {"version": 3}}, 7)
    assert RestorableMemory.restored == [("l", {"version": 3}, 7), ("r", {}, 7)], (
        "also one without rows at that checkpoint"
    )


def test_all_sinks_are_closed_also_if_one_raises(spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def close(self: Memory) -> None:
        closed.append(self.place)
        raise OSError(self.place)

    monkeypatch.setattr(Memory, "close", close)
    with pytest.raises(OSError, match=r"^[lr]$"):
        built(spark).close()
    assert sorted(closed) == ["l", "r"]


def test_transactions_that_are_not_named_are_swept_in_both_stores(spark: SeveralSinks) -> None:
    spark.part(spark.planned(0), 0, 0, *ROWS)  # its driver dies
    spark.drive("second driver")
    spark.planned(0)
    assert [Memory.stores[store].unfinished() for store in ("l", "r")] == [[], []]


@pytest.mark.parametrize(
    "changed",
    [
        {"sinks": "left"},
        {"right.store": "other"},
        {"right.format": "2pc-recording"},
        {"sinks": "left,new", "new.format": "2pc-together", "new.store": "r"},
    ],
    ids=str,
)
def test_other_sinks_are_refused_while_something_is_open(spark: SeveralSinks, changed: dict[str, str]) -> None:
    decided(spark, *ROWS)
    spark.options.update(changed)
    named = (*spark.options["sinks"].split(","), "")
    spark.options = {key: value for key, value in spark.options.items() if key.rpartition(".")[0] in named}
    with pytest.raises(LocationError, match=r"UNSETTLED_ELSEWHERE.*left=2pc-recording:l, right=2pc-together:r"):
        spark.planned(0)


def test_a_sink_without_a_cluster_does_not_move_while_something_is_open(
    spark: SeveralSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one micro-batch's rows would be in both stores: the settlement writes into the new one too."""
    monkeypatch.setattr(Memory, "identify", lambda self: {})
    decided(spark, *ROWS)
    spark.options.update({"left.store": "other", "queryname": "another"})
    with pytest.raises(LocationError, match=r"UNSETTLED_ELSEWHERE.*left\.store=l to left\.store=other"):
        spark.planned(0)
    spark.options["left.store"] = "l"
    spark.planned(0)
    assert not Memory.stores["other"].rows()


def test_a_query_with_one_sink_goes_on_with_several_once_it_is_settled(spark: SeveralSinks) -> None:
    several = dict(spark.options)
    spark.options = {**spark.options, "store": "l"}
    for key in [key for key in BOTH if key in spark.options]:
        del spark.options[key]
    writer = HostedStreamWriter(HostedSink(Memory, Options(spark.options), SCHEMA))
    spark.offsets(0)
    writer.prepare(overwrite=False)
    message = spark.part(writer, 0, 0, (1, "left"))
    Memory.planted["l"]["commit"] = [RetriableError("WRITE_FAILED", "planted")]
    with pytest.raises(RetriableError):
        writer.commit([message], 0)
    one, spark.options = spark.options, several
    spark.drive("second driver")
    with pytest.raises(LocationError, match=r"UNSETTLED_ELSEWHERE.*2pc-recording.*2pc-multi"):
        spark.planned(0)
    HostedStreamWriter(HostedSink(Memory, Options(one), SCHEMA)).prepare(overwrite=False)
    assert [row["value"] for row in Memory.stores["l"].rows()] == [1]
    spark.commits(0)
    spark.drive("third driver")
    spark.batch(1, [(2, None)])
    assert [row["value"] for row in Memory.stores["l"].rows()] == [1, 2]
    assert spark.seen("r") == [2]


WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no sinks": ({"sinks": None}, "MISSING_OPTION.*sinks"),
    "a name twice": ({"sinks": "left,LEFT"}, "INVALID_OPTION.*sinks"),
    "a name of other options": ({"sinks": "kafka,left"}, "INVALID_OPTION.*sinks.*not kafka or storage"),
    "a name with a dot": ({"sinks": "left.one,right"}, "INVALID_OPTION.*sinks"),
    "a name with capitals": ({"sinks": "Left,right"}, "INVALID_OPTION.*sinks.*a to z"),
    "a name like a secret's": ({"sinks": "tokens,right"}, "INVALID_OPTION.*sinks.*a name other than tokens"),
    "a name like an address": ({"sinks": "accounts,right"}, "INVALID_OPTION.*sinks.*a name other than accounts"),
    "a name for two columns": (
        {"left.columns": '{"v": "value", "V": "route"}'},
        "INVALID_OPTION.*columns.*each name once",
    ),
    "no format": ({"right.format": None}, r"MISSING_OPTION.*right\.format"),
    "an unknown format": ({"right.format": "2pc-nothing"}, "UNKNOWN_SINK.*2pc-nothing.*Sink right"),
    "itself": ({"right.format": "2pc-multi"}, "INVALID_OPTION.*right.format.*can't be nested"),
    "an option of no sink": ({"rihgt.store": "x"}, "UNKNOWN_OPTION.*rihgt.store"),
    "an option of the query": (
        {"right.txnVersion": "3"},
        r"FORBIDDEN_OPTION.*right.txnversion.*leave out the prefix right\.",
    ),
    "a path of its own": ({"path": "/tmp/x"}, "INVALID_OPTION.*option path.*set the path of one sink"),
    "at least once": ({"deliveryGuarantee": "at-least-once"}, "INVALID_OPTION.*deliveryGuarantee"),
    "no such route column": ({"routeColumn": "rout"}, "INVALID_OPTION.*routeColumn.*value, route"),
    "a route column of numbers": ({"routeColumn": "value"}, "INVALID_OPTION.*routeColumn.*int64"),
    "names for nothing": ({"left.columns": "{}"}, "INVALID_OPTION.*columns"),
    "no such column": ({"left.columns": "value,other"}, r"INVALID_OPTION.*left\.columns.*value, route"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options_are_named_before_anything_is_asked(spark: SeveralSinks, case: str) -> None:
    changed, problem = WRONG[case]
    spark.options = {key: value for key, value in {**spark.options, **changed}.items() if value is not None}
    with pytest.raises(OptionError, match=problem):
        built(spark)
    assert Memory.calls_of == []


def test_sinks_of_the_users_own_travel_to_the_workers(tmp_path: Path) -> None:
    """Whatever module they are of: a program's own is not there."""
    from pyspark import cloudpickle

    source = with_sinks({"2pc-recording": Memory})
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    again = pickle.loads(dumps(source))
    found = pickle.loads(dumps(again.sink_type()))
    assert (found.name(), dict(found.own)) == (NAME, {"2pc-recording": Memory})


def test_a_sinks_own_refusal_names_it(spark: SeveralSinks) -> None:
    Memory.planted.setdefault("r", {})["write"] = [RowRefusedError("ROW_REFUSED", owner="2pc-x", reason="too long")]
    with pytest.raises(RowRefusedError, match=r"too long.*Sink right"):
        spark.part(spark.planned(0), 0, 0, *ROWS)
    assert Memory.stores["l"].unfinished() == [], "the other's transaction is rolled back"


def test_columns_are_those_that_were_asked_for(spark: SeveralSinks) -> None:
    spark.options["left.columns"] = "route,VALUE"
    spark.batch(0, [(1, "left"), (2, None)])
    assert Memory.stores["l"].rows() == [{"route": "left", "value": 1}, {"route": None, "value": 2}]


def test_columns_may_have_another_name_for_a_sink(spark: SeveralSinks) -> None:
    spark.options["left.columns"] = '{"number": "value"}'
    spark.batch(0, [(1, "left"), (2, None)])
    assert Memory.stores["l"].rows() == [{"number": 1}, {"number": 2}]
    assert spark.seen("r") == [2]


def test_without_a_route_column_every_sink_gets_every_row(spark: SeveralSinks) -> None:
    del spark.options["routeColumn"]
    spark.batch(0, [(1, "left"), (2, "nowhere")])
    assert spark.seen("l") == spark.seen("r") == [1, 2]


def test_a_row_for_an_unknown_sink_fails_its_task(spark: SeveralSinks) -> None:
    with pytest.raises(RowRefusedError, match=r'ROUTE_UNKNOWN.*"rigth"'):
        spark.part(spark.planned(0), 0, 0, (1, "left"), (2, "rigth"))
    assert Memory.stores["l"].unfinished() == []


def test_another_driver_ends_the_run_in_all_stores(spark: SeveralSinks) -> None:
    spark.batch(0, [(1, None)])
    writer = spark.planned(1)
    message = spark.part(writer, 1, 0, (2, None))
    spark.drive("second driver")
    spark.planned(1)
    assert Memory.marks == {"l": 2, "r": 2}
    with pytest.raises(FencedError):
        spark.writer().commit([message], 1)
    assert spark.seen("l") == spark.seen("r") == [1]


def test_a_sinks_secrets_are_in_no_journal_and_no_error(spark: SeveralSinks) -> None:
    spark.options.update({"left.password": "hunter2", "right.kafka.sasl.jaas.config": "scram hunter3"})
    spark.batch(0, [(1, None)])
    run = spark.ledger().newest_run
    assert run is not None
    assert run.setup["hidden"] == ["left.password", "right.kafka.sasl.jaas.config"]
    assert run.setup["options"]["left.store"] == "l"
    Memory.planted["r"]["write"] = [ValueError("the store was told hunter2 and scram hunter3")]
    with pytest.raises(RuntimeError, match="ValueError") as failed:
        spark.part(spark.planned(1), 1, 0, *ROWS)
    kept = b"".join(file.read_bytes() for file in spark.path.rglob("*") if file.is_file())
    for text in (str(failed.value), kept.decode(), repr(built(spark).options)):
        assert "hunter" not in text


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_savepoint_of_such_a_query_goes_on_elsewhere(
    spark: SeveralSinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    spark.batch(0, [(1, "left"), (2, "right")])
    spark.batch(1, [(3, None)])
    journal = CheckpointLocation(str(spark.path)).journal()
    journal.append(fact_of(EntryKind.STOPPED, {"run": max(journal.load().runs)}), lambda ledger: None)
    saved, new = take(str(spark.path), str(tmp_path / "saved")), tmp_path / "new"
    assert main(["restore", saved.path, str(new), how, "--yes"]) == 0
    again = SeveralSinks.__new__(SeveralSinks)
    again.path, again.patch = new, monkeypatch
    again.options = {**spark.options, "checkpointlocation": str(new)}
    if how == "--no-claim":
        again.options["transactionalIdPrefix"] = "copy"
    again.drive("driver of the new location")
    writer = again.planned(2)
    again.patch.setattr(internals, "task_batch", lambda: (writer._plan.queryId if writer._plan else "", 2, 0, 0))
    message = writer.write(arrow((4, None)))
    again.writer().commit([message], 2)
    assert (again.seen("l"), again.seen("r")) == ([1, 3, 4], [2, 3, 4])
    assert again.ledger().checkpoints[max(again.ledger().checkpoints)].routes == {"left": 1, "right": 1}
    contexts = Memory.stores["l"].context(max(Memory.stores["l"].numbers()))
    assert contexts.prefix == ("q-left" if how == "--claim" else "copy-left")
