from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest

from connector.kafka.sink.deliveries import Deliveries, deliver, serve, write_error
from connector.kafka.sink.row_writer import CHUNK_ROWS, RowWriter, check_columns
from tests.connector.kafka.sink.fake_producer import FakeProducer
from tests.pyarrow_release import SLICES_VIEWS
from transactional.clock import Deadline
from transactional.errors import OptionError, RetriableError, RowRefusedError, StoreError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class FakeError:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def code(self) -> str:
        return self._name

    def str(self) -> str:
        return "told"


class FakeMessage:
    def __init__(self, value: bytes | None, key: bytes | None = None) -> None:
        self._value, self._key = value, key

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def topic(self) -> str:
        return "out"

    def partition(self) -> int:
        return 3


def writing(producer: FakeProducer, schema: pa.Schema, rows: dict[str, list[Any]], topic: str | None = "out") -> None:
    """Write rows through a producer that does as it was told."""
    deliveries = Deliveries()
    producer.on_delivery = deliveries.report_message
    batch = pa.RecordBatch.from_pydict(rows, schema=schema)
    RowWriter(schema, topic).write(producer, batch, deliveries)  # type: ignore[arg-type]


def written(schema: pa.Schema, topic: str | None, rows: dict[str, list[Any]], **fake: int) -> FakeProducer:
    producer = FakeProducer(fake.get("limit", 100_000))
    writer = RowWriter(schema, topic, fake.get("limit", 100_000))
    writer.write(producer, pa.RecordBatch.from_pydict(rows, schema=schema), Deliveries())  # type: ignore[arg-type]
    return producer


VIEWS = pytest.param(
    pa.string_view(),
    marks=pytest.mark.skipif(not SLICES_VIEWS, reason="this pyarrow can't slice views; Spark makes none"),
)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), VIEWS])
def test_strings_and_binaries_go_out_as_bytes_in_one_call(kind: pa.DataType) -> None:
    schema = pa.schema([("key", kind), ("value", kind)])
    values = [b"v1", None] if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else ["v1", None]
    producer = written(schema, "out", {"key": values, "value": values})
    assert producer.rows == [("out", {"value": b"v1", "key": b"v1"}), ("out", {"value": None, "key": None})]
    assert producer.calls == ["produce_batch"]


def test_rows_with_headers_or_a_partition_go_one_by_one_because_the_batch_call_drops_headers() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", HEADERS), ("partition", pa.int32())])
    rows: dict[str, list[Any]] = {
        "value": ["a", "b"],
        "headers": [[{"key": "h", "value": b"1"}], None],
        "partition": [None, 2],
    }
    producer = written(schema, "out", rows)
    assert producer.rows == [
        ("out", {"value": b"a", "key": None, "headers": [("h", b"1")]}),
        ("out", {"value": b"b", "key": None, "partition": 2}),
    ]


def test_headers_and_partitions_that_are_all_null_do_not_cost_the_batch_call() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", HEADERS), ("partition", pa.int32())])
    producer = written(schema, "out", {"value": ["a"], "headers": [None], "partition": [None]})
    assert producer.calls == ["produce_batch"]


def test_each_topic_gets_its_rows_in_order_and_the_option_wins_over_the_column() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("topic", pa.string())])
    rows: dict[str, list[Any]] = {"key": ["a", "b", "c"], "value": ["1", "2", "3"], "topic": ["x", "y", "x"]}
    assert [(topic, row["key"], row["value"]) for topic, row in written(schema, None, rows).rows] == [
        ("x", b"a", b"1"),
        ("x", b"c", b"3"),
        ("y", b"b", b"2"),
    ]
    assert {topic for topic, _ in written(schema, "out", rows).rows} == {"out"}


def test_a_row_without_a_topic_is_refused() -> None:
    schema = pa.schema([("value", pa.string()), ("topic", pa.string())])
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*column topic is null"):
        written(schema, None, {"value": ["1"], "topic": [None]})


@pytest.mark.parametrize("headers", [False, True], ids=["a batch call", "row by row"])
@pytest.mark.parametrize("name", ["bad name!", "x" * 250, ".."])
def test_a_name_that_no_topic_can_have_is_refused(name: str, headers: bool) -> None:
    schema = pa.schema([("value", pa.string()), ("topic", pa.string()), ("headers", HEADERS)])
    header = [{"key": "h", "value": b"1"}] if headers else None
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*its column topic is .*249 letters"):
        written(schema, None, {"value": ["1"], "topic": [name], "headers": [header]})


@pytest.mark.parametrize("headers", [False, True], ids=["a batch call", "row by row"])
def test_each_topic_of_a_column_is_checked_once_before_its_first_row_is_queued(headers: bool) -> None:
    schema = pa.schema([("value", pa.string()), ("topic", pa.string()), ("headers", HEADERS)])
    producer, seen = FakeProducer(), list[tuple[str, int]]()
    writer = RowWriter(schema, None, check_topic=lambda name: seen.append((name, len(producer.rows))))
    header = [{"key": "h", "value": b"1"}] if headers else None
    rows = {"value": ["1", "2", "3"], "topic": ["x", "y", "x"], "headers": [header, None, None]}
    for _ in range(2):
        writer.write(producer, pa.RecordBatch.from_pydict(rows, schema=schema), Deliveries())  # type: ignore[arg-type]
    assert [name for name, _ in seen] == ["x", "y"]
    assert seen[0] == ("x", 0)


def test_a_header_key_with_a_zero_byte_is_refused_because_the_client_would_cut_it() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", HEADERS)])
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*zero byte \(number 1 "):
        written(
            schema, "out", {"value": ["a"], "headers": [[{"key": "h", "value": b""}, {"key": "a\0b", "value": b""}]]}
        )


def test_a_negative_partition_is_refused() -> None:
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    with pytest.raises(RowRefusedError, match="-1"):
        written(schema, "out", {"value": ["1"], "partition": [-1]})


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_the_queue_is_never_overfilled_and_the_order_kept(limit: int) -> None:
    values = [str(number) for number in range(3000)]
    producer = written(pa.schema([("value", pa.string())]), "out", {"value": values}, limit=limit)
    assert producer.most <= limit
    assert [row["value"].decode() for _, row in producer.rows] == values


def test_large_rows_go_in_small_chunks() -> None:
    producer = written(pa.schema([("value", pa.binary())]), "out", {"value": [b"x" * 1_000_000] * 100})
    assert producer.calls.count("produce_batch") == 4
    assert len(written(pa.schema([("value", pa.binary())]), "out", {"value": [b"x"] * 3 * CHUNK_ROWS}).calls) == 3


@pytest.mark.parametrize(
    ("fields", "topic", "condition", "told"),
    [
        ([("key", pa.string())], "out", "COLUMNS_MISMATCH", "to_json"),
        ([], "out", "COLUMNS_MISMATCH", "no column"),
        ([("value", pa.int64())], "out", "COLUMNS_MISMATCH", "int64"),
        ([("value", pa.string()), ("key", pa.list_(pa.string()))], "out", "COLUMNS_MISMATCH", "key"),
        ([("value", pa.string()), ("partition", pa.string())], "out", "COLUMNS_MISMATCH", "partition"),
        ([("value", pa.string()), ("headers", pa.list_(pa.string()))], "out", "COLUMNS_MISMATCH", "headers"),
        ([("value", pa.string()), ("topic", pa.null())], None, "COLUMNS_MISMATCH", "topic"),
        ([("value", pa.string()), ("vlaue", pa.string())], "out", "COLUMNS_MISMATCH", "vlaue"),
        ([("value", pa.string()), ("timestamp", pa.timestamp("us"))], "out", "COLUMNS_MISMATCH", "timestamp"),
        ([("value", pa.string()), ("value", pa.string())], "out", "COLUMNS_MISMATCH", "each once"),
        ([("value", pa.string())], None, "MISSING_OPTION", "option topic"),
    ],
)
def test_wrong_columns_are_refused_before_anything_runs(
    fields: list[tuple[str, pa.DataType]], topic: str | None, condition: str, told: str
) -> None:
    with pytest.raises(OptionError, match=told) as refused:
        check_columns(pa.schema(fields), topic)
    assert refused.value.condition == condition


def test_a_column_that_is_null_everywhere_is_taken() -> None:
    check_columns(pa.schema([("value", pa.null()), ("key", pa.null())]), "out")


@pytest.mark.parametrize(
    ("name", "kind", "condition"),
    [
        ("MSG_SIZE_TOO_LARGE", RowRefusedError, "ROW_TOO_LARGE"),
        ("_UNKNOWN_PARTITION", RowRefusedError, "ROW_REFUSED"),
        ("UNKNOWN_TOPIC_OR_PART", StoreError, "UNKNOWN_TOPIC"),
        ("TOPIC_AUTHORIZATION_FAILED", StoreError, "MISSING_RIGHT"),
        ("_FENCED", RetriableError, "PRODUCER_FENCED"),
        ("_MSG_TIMED_OUT", RetriableError, "WRITE_FAILED"),
    ],
)
def test_what_the_client_refuses_has_a_name_of_ours(name: str, kind: type[Exception], condition: str) -> None:
    error = write_error(FakeError(name), "out", 3, 17)  # type: ignore[arg-type]
    assert isinstance(error, kind)
    assert error.condition == condition


def test_the_first_cause_counts_and_of_a_refused_batch_the_largest_row() -> None:
    deliveries = Deliveries()
    deliveries.check()
    for name, size in [
        ("_PURGE_QUEUE", 9),
        ("MSG_SIZE_TOO_LARGE", 5),
        ("MSG_SIZE_TOO_LARGE", 50),
        ("_MSG_TIMED_OUT", 99),
    ]:
        deliveries.report_message(FakeError(name), FakeMessage(b"x" * size))  # type: ignore[arg-type]
    with pytest.raises(RowRefusedError, match=r"50 bytes for out \[3\]"):
        deliveries.check()


@pytest.mark.parametrize(("reported", "told"), [("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"), (None, "WRITE_FAILED")])
def test_a_fatal_error_whose_reason_the_client_loses_is_an_error_of_ours(reported: str | None, told: str) -> None:
    deliveries = Deliveries()
    calls = 0

    def poll() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise SystemError("<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception")
        if reported is not None:
            deliveries.report_message(FakeError(reported), FakeMessage(b"x"))  # type: ignore[arg-type]
        return 0

    with pytest.raises(RetriableError, match=told):
        serve(poll, deliveries)


def test_a_refused_row_ends_the_wait_for_the_rows_behind_it() -> None:
    deliveries = Deliveries()

    class Stuck(FakeProducer):
        def flush(self, timeout: float) -> int:
            deliveries.report_message(FakeError("MSG_SIZE_TOO_LARGE"), FakeMessage(b"x"))  # type: ignore[arg-type]
            return 7

    with pytest.raises(RowRefusedError, match="ROW_TOO_LARGE"):
        deliver(Stuck(), deliveries)  # type: ignore[arg-type]


# -- a client that takes only a part, refuses, or fails -----------------------------------------------------------------

VALUES = pa.schema([("value", pa.string())])


def test_a_batch_of_which_the_client_takes_only_a_part_is_an_error_and_names_the_row() -> None:
    producer = FakeProducer()
    producer.takes, producer.refuses = 2, "MSG_SIZE_TOO_LARGE"
    with pytest.raises(RowRefusedError, match=r"ROW_TOO_LARGE.*A row of 4 bytes for out"):
        writing(producer, VALUES, {"value": ["a", "bb", "cccc", "dd"]})
    assert [row["value"] for _, row in producer.rows] == [b"a", b"bb"]


@pytest.mark.parametrize("taken", [0, 1])
def test_rows_that_are_not_queued_without_a_reason_are_an_error(taken: int) -> None:
    producer = FakeProducer()
    producer.takes, producer.refuses = taken, ""
    with pytest.raises(RetriableError, match=rf"WRITE_FAILED.*{3 - taken} rows for out were not queued"):
        writing(producer, VALUES, {"value": ["a", "b", "c"]})


def test_rows_that_are_not_queued_have_the_reason_of_the_row_that_failed_before() -> None:
    producer = FakeProducer()
    producer.takes, producer.refuses = 0, "_STATE"
    producer.rejected = [("MSG_SIZE_TOO_LARGE", b"x" * 9, 3)]
    with pytest.raises(RowRefusedError, match=r"ROW_TOO_LARGE.*9 bytes for out \[3\]"):
        writing(producer, VALUES, {"value": ["a"]})


def test_a_row_that_the_broker_refuses_is_an_error_of_the_same_write() -> None:
    producer = FakeProducer()
    producer.rejected = [("INVALID_RECORD", b"xyz", 1)]
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*3 bytes for out \[1\]"):
        writing(producer, VALUES, {"value": ["a"]})


def test_a_queue_that_is_full_for_a_row_is_emptied_and_the_row_comes_once() -> None:
    producer = FakeProducer()
    producer.full = 3
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    writing(producer, schema, {"value": ["a", "b"], "partition": [0, 1]})
    assert [row["value"] for _, row in producer.rows] == [b"a", b"b"]
    assert producer.calls == ["produce"] * 5


def test_a_row_that_the_client_refuses_at_once_is_named_by_topic_partition_and_size() -> None:
    producer = FakeProducer()
    producer.fails = ["", "_UNKNOWN_PARTITION"]
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*2 bytes for out \[9\]"):
        writing(producer, schema, {"value": ["a", "bb"], "partition": [0, 9]})


@pytest.mark.parametrize("name", ["_STATE", "_FATAL"])
def test_a_producer_that_has_failed_for_good_names_the_first_cause(name: str) -> None:
    producer = FakeProducer()
    producer.fails, producer.rejected = [name], [("INVALID_PRODUCER_EPOCH", b"x", 0)]
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
        writing(producer, schema, {"value": ["a"], "partition": [0]})


@pytest.mark.parametrize(("rows", "size", "most"), [(4, 100_000, 8), (1, 400_000, 2), (1, 3_000_000, 1)])
def test_no_more_bytes_wait_than_allowed_and_one_larger_row_waits_alone(rows: int, size: int, most: int) -> None:
    producer = FakeProducer(delivers=1)
    schema = pa.schema([("value", pa.binary())])
    writer = RowWriter(schema, "out", queue_bytes=4_000_000)
    for _ in range(5):
        writer.write(producer, pa.RecordBatch.from_pydict({"value": [b"x" * size] * rows}, schema=schema), Deliveries())  # type: ignore[arg-type]
    assert producer.most == most
    assert len(producer.rows) == 5 * rows


def test_large_rows_of_a_leader_that_does_not_answer_are_limited_too() -> None:
    """The producer counts rows: the estimate takes the rows that wait for the newest ones."""
    producer = FakeProducer()
    producer.stays = 3
    schema = pa.schema([("value", pa.binary())])
    writer = RowWriter(schema, "out", queue_bytes=4_000_000)

    class Stuck(Exception):
        pass

    def check() -> None:
        if producer.clock.passed > 100:
            raise Stuck

    deliveries, written = Deliveries(), 0
    deliveries.check = check  # type: ignore[method-assign]
    with contextlib.suppress(Stuck):
        for number in range(1000):
            size = 10_000 if number % 2 else 100_000
            batch = pa.RecordBatch.from_pydict({"value": [b"x" * size]}, schema=schema)
            writer.write(producer, batch, deliveries)  # type: ignore[arg-type]
            written += batch.nbytes
    assert 3_000_000 < written <= 4_000_000


def test_delivery_ends_at_its_deadline_and_says_how_many_rows_wait() -> None:
    producer = FakeProducer()
    producer.stays = 4
    assert deliver(producer, Deliveries(), Deadline(2.0, producer.clock)) == 4  # type: ignore[arg-type]
    assert producer.clock.passed >= 2.0


def test_the_sink_asks_for_the_next_rows_after_each_delivery_and_seldom_in_between() -> None:
    """During a flush, librdkafka's threads do not sleep."""
    producer = FakeProducer(delivers=1)
    producer.produce_batch("out", [{}] * 20)
    assert deliver(producer, Deliveries()) == 0  # type: ignore[arg-type]
    assert producer.calls.count("flush") == 20
    producer = FakeProducer()
    producer.stays = 1
    assert deliver(producer, Deliveries(), Deadline(1.0, producer.clock)) == 1  # type: ignore[arg-type]
    assert 10 < producer.calls.count("flush") <= 20


# -- headers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [{"key": None, "value": b"1"}, None])
def test_a_header_with_a_null_key_is_refused_and_no_header_of_an_empty_key(header: Any) -> None:
    schema = pa.schema([("value", pa.string()), ("key", pa.string()), ("headers", HEADERS)])
    rows: dict[str, list[Any]] = {
        "value": ["a", "bb"],
        "key": ["k", "kk"],
        "headers": [[{"key": "h", "value": b"1"}], [{"key": "h", "value": b"1"}, header]],
    }
    producer = FakeProducer()
    with pytest.raises(
        RowRefusedError, match=r"ROW_REFUSED.*4 bytes for out.*null \(number 1 in the column headers"
    ) as caught:
        writing(producer, schema, rows)
    assert caught.value.parameters["topic"] == "out"
    assert len(producer.rows) == 1


def test_headers_keep_empty_keys_null_values_and_their_order() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", HEADERS)])
    headers = [{"key": "", "value": b"1"}, {"key": "b", "value": None}, {"key": "b", "value": b""}]
    producer = written(schema, "out", {"value": ["a", "b"], "headers": [headers, []]})
    assert producer.rows[0][1]["headers"] == [("", b"1"), ("b", None), ("b", b"")]
    assert "headers" not in producer.rows[1][1]
