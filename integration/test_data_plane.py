"""Rows without a Python object each, and confluent-kafka's objects: the same rows on both ways, byte for byte."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, cimpl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.native.columns import native_columns
from connector.kafka.native.library import OBJECTS_ONLY, native_library
from connector.kafka.native.producer import ArrowProducer
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import fetch
from connector.kafka.source.reading.native_records import NativeConsumer
from connector.kafka.source.reading.records import MessageConsumer, Records
from connector.kafka.source.rows import COLUMNS, all_columns, arrow_schema
from integration.broker import Cluster
from integration.driver_process import wait_until
from tests.pyarrow_release import SLICES_VIEWS
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import RowRefusedError, StoreError, TwoPhaseCommitError
from transactional.sink import Options, TransactionContext

PARTITIONS = 3
ATTEMPTS = itertools.count()
TEXT = [pa.string(), pa.large_string(), *([pa.string_view()] if SLICES_VIEWS else [])]
BYTES = [pa.binary(), pa.large_binary(), *([pa.binary_view()] if SLICES_VIEWS else [])]

compiled = pytest.mark.skipif(native_columns() is None, reason="no C compiler was present during installation")


@contextmanager
def way(objects: bool) -> Iterator[None]:
    """Let rows take one of the two ways in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OBJECTS_ONLY, "1" if objects else "0")
        patch.setattr("connector.kafka.source.reading.consumers._idle", {})
        native_library.cache_clear()
        try:
            yield
        finally:
            native_library.cache_clear()


def write(kafka: Cluster, prefix: str, batches: list[pa.RecordBatch], objects: bool, **options: str) -> None:
    """Commit batches in one transaction."""
    everything = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "transactionalIdPrefix": prefix,
        "kafka.partitioner": "murmur2",  # null keys, too, have one partition
        **options,
    }
    with way(objects):
        sink = KafkaSink(Options(everything), batches[0].schema)
        sink.identify()
        transaction = sink.beginTransaction(TransactionContext("query", 0, 0, next(ATTEMPTS), prefix, "nonce"))
        try:
            assert isinstance(transaction.producer, Producer if objects else ArrowProducer)
            for batch in batches:
                sink.write(transaction, batch)
            handle = sink.preCommit(transaction)
        except TwoPhaseCommitError:
            sink.rollback(transaction)
            raise
        if handle is not None:
            checkpoint = DecidedCheckpoint(1, (0,), 0, "query", prefix)
            sink.commit([handle], checkpoint)
            sink.ensureVisible([handle], checkpoint)
        sink.close()


def config_of(kafka: Cluster, **options: str) -> ClientConfig:
    return config_at(kafka.bootstrap_servers, **options)


def config_at(servers: str, **options: str) -> ClientConfig:
    return parse_read_options({"kafka.bootstrap.servers": servers, "subscribe": "any", **options}).config


def numbered(kafka: Cluster, topic: str) -> list[bytes]:
    """Make a topic of one partition with 2,000 rows; return their values."""
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    values = [str(number).encode() for number in range(2000)]
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(60)
    return values


def read(
    config: ClientConfig,
    topic: str,
    objects: bool,
    columns: tuple[str, ...] = COLUMNS,
    start: int = 0,
    end: int | None = None,
) -> list[pa.Table]:
    """The rows of each partition, without their topic's name."""
    tables = []
    with way(objects), borrow_consumer(config) as consumer:
        assert isinstance(consumer, MessageConsumer if objects else NativeConsumer)
        for number in range(PARTITIONS):
            at = Partition(topic, number)
            marks = wait_until(partial(consumer.watermarks, at), "the leader of a topic that is just created")
            assert marks is not None
            wanted = OffsetRange(at, start, marks[1] if end is None else end)
            batches = [records.to_batch(columns) for records in fetch(consumer, [wanted])] if len(wanted) else []
            for batch in batches:
                batch.validate(full=True)
            table = pa.Table.from_batches(batches, arrow_schema(columns))
            if "topic" in columns:
                assert set(table.column("topic").to_pylist()) <= {topic}
                table = table.drop_columns(["topic"])
            tables.append(table)
    return tables


def ends_of(config: ClientConfig, topic: str) -> list[int]:
    """An end that every partition reaches, if there is one: of one offset, and of all."""
    with borrow_consumer(config) as consumer:
        ends = [(consumer.watermarks(Partition(topic, number)) or (0, 0))[1] for number in range(PARTITIONS)]
    return sorted({min(ends), min(ends) // 2})


maybe = st.one_of(st.none(), st.just(""), st.text("abcdef-ghijk", max_size=40))
row = st.fixed_dictionaries(
    {
        "value": maybe,
        "key": maybe,
        "partition": st.one_of(st.none(), st.integers(0, PARTITIONS - 1)),
        "topic": st.sampled_from("ab"),
    }
)
kind = st.sampled_from([*TEXT, *BYTES])


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(row, min_size=1, max_size=80),
    columns=st.sets(st.sampled_from(["key", "partition", "topic"])),
    value_kind=kind,
    key_kind=kind,
    number_kind=st.sampled_from([pa.int32(), pa.int64(), pa.int8()]),
    cut=st.integers(0, 20),
)
def test_a_sink_writes_the_same_rows_on_both_ways(
    kafka: Cluster,
    rows: list[dict[str, Any]],
    columns: set[str],
    value_kind: pa.DataType,
    key_kind: pa.DataType,
    number_kind: pa.DataType,
    cut: int,
) -> None:
    kinds = {"value": value_kind, "key": key_kind, "partition": number_kind, "topic": pa.string()}
    number = next(ATTEMPTS)
    found = []
    for objects in (True, False):
        topics = {name: f"plane-{number}-{objects}-{name}" for name in "ab"}
        for topic in topics.values():
            kafka.create_topic(topic, PARTITIONS)
        arrays = {}
        for name in ("value", *sorted(columns)):
            cells = [topics[cell[name]] if name == "topic" else cell[name] for cell in rows]
            arrays[name] = pa.array(cells, pa.string() if kinds[name] in BYTES else kinds[name]).cast(kinds[name])
        batch = pa.RecordBatch.from_pydict(arrays)
        options = {} if "topic" in columns else {"topic": topics["a"]}
        # A slice begins in the middle of its buffers, and of a byte of its bitmaps.
        batches = [batch, batch.slice(min(cut, len(rows) - 1))]
        write(kafka, f"plane-{number}-{objects}", batches, objects, **options)
        found.append([read(config_of(kafka), topic, True) for topic in topics.values()])
    written = ["key", "value", "partition", "offset"]
    by_objects, by_buffers = ([[table.select(written) for table in topic] for topic in one] for one in found)
    assert by_objects == by_buffers
    assert sum(len(table) for topic in by_buffers for table in topic) == 2 * len(rows) - min(cut, len(rows) - 1)


@pytest.mark.parametrize("objects", [True, False])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value": ["a", "x" * 2_000_000]}, r"ROW_TOO_LARGE.*2000000 bytes"),
        ({"value": ["a", "b"], "partition": [0, 77]}, r"ROW_REFUSED.*\[77\]"),
        ({"value": ["a", "b"], "partition": [0, -2]}, r"partition is -2"),
        ({"value": ["a", "b"], "partition": [0, 2**31]}, r"partition is 2147483648"),
    ],
)
def test_a_row_that_is_refused_is_named_on_both_ways(
    kafka: Cluster, topic_name: str, objects: bool, wrong: dict[str, list[Any]], message: str
) -> None:
    kafka.create_topic(topic_name, PARTITIONS)
    with pytest.raises(RowRefusedError, match=message):
        write(kafka, topic_name, [pa.RecordBatch.from_pydict(wrong)], objects, topic=topic_name)
    assert not any(map(len, read(config_of(kafka), topic_name, True)))


@pytest.mark.parametrize("objects", [True, False])
def test_a_full_queue_keeps_the_order_on_both_ways(kafka: Cluster, topic_name: str, objects: bool) -> None:
    kafka.create_topic(topic_name, PARTITIONS)
    batch = pa.RecordBatch.from_pydict({"value": [str(number) for number in range(30_000)], "key": ["k"] * 30_000})
    write(kafka, topic_name, [batch], objects, topic=topic_name, **{"kafka.queue.buffering.max.messages": "500"})
    [rows] = [table for table in read(config_of(kafka), topic_name, True) if len(table)]
    assert rows.column("value").to_pylist() == [str(number).encode() for number in range(30_000)]


def test_a_column_that_is_null_in_every_row_is_written(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, PARTITIONS)
    batch = pa.RecordBatch.from_pydict({"value": pa.nulls(3), "key": pa.array(["k"] * 3), "partition": pa.nulls(3)})
    for objects in (True, False):
        write(kafka, f"{topic_name}-{objects}", [batch], objects, topic=topic_name)
    [rows] = [table for table in read(config_of(kafka), topic_name, True) if len(table)]
    assert rows.column("value").to_pylist() == [None] * 6


header = st.tuples(st.text("ab-é", max_size=5), st.one_of(st.none(), st.binary(max_size=8)))
message = st.fixed_dictionaries(
    {
        "value": st.one_of(st.none(), st.binary(max_size=30)),
        "key": st.one_of(st.none(), st.binary(max_size=10)),
        "partition": st.integers(0, PARTITIONS - 1),
        "timestamp": st.integers(1, 1_700_000_000_000),
    },
    optional={"headers": st.lists(header, max_size=3)},
)


@compiled
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    transactions=st.lists(st.tuples(st.lists(message, max_size=30), st.booleans()), min_size=1, max_size=4),
    broker_times=st.booleans(),
    start=st.integers(0, 20),
)
def test_a_source_reads_the_same_rows_on_both_ways(
    kafka: Cluster, transactions: list[tuple[list[dict[str, Any]], bool]], broker_times: bool, start: int
) -> None:
    topic = f"plane-{next(ATTEMPTS)}"
    kafka.create_topic(topic, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"} if broker_times else {})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    for messages, committed in transactions:
        producer.begin_transaction()
        for each in messages:
            producer.produce(topic, **each)
        producer.flush(60)
        producer.commit_transaction(60) if committed else producer.abort_transaction(60)
    kafka.wait_for_markers(topic, range(PARTITIONS))
    for options in ({}, {"kafka.isolation.level": "read_uncommitted"}):
        config = config_of(kafka, **options)
        for columns in (all_columns(True), COLUMNS, ("value", "offset"), ("timestamp",)):
            assert read(config, topic, False, columns) == read(config, topic, True, columns)
    for end in ends_of(config, topic):
        if start < end:
            assert read(config, topic, False, start=start, end=end) == read(config, topic, True, start=start, end=end)


@compiled
def test_a_header_whose_key_is_not_text_is_named_on_both_ways(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, PARTITIONS)
    library = native_library()
    assert library is not None
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(5):
        producer.produce(topic_name, b"v", partition=1, headers=[("ok", b"1")] * number)
    producer.flush(60)
    unreadable(kafka, topic_name)
    for objects in (True, False):
        with pytest.raises(
            StoreError, match=rf"BAD_RECORD.*{topic_name}-1 at offset 5 has a header whose key is not UTF-8"
        ):
            read(config_of(kafka), topic_name, objects, all_columns(True))
        assert sum(map(len, read(config_of(kafka), topic_name, objects))) == 6


def unreadable(kafka: Cluster, topic: str) -> None:
    """Write a row with a header whose key is no text, by another client."""
    from kafka import KafkaProducer

    class Raw(str):
        __slots__ = ()

        def encode(self, *_: Any) -> bytes:
            return b"\xff\xfe"

    other = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    other.send(topic, b"v", partition=1, headers=[(Raw("x"), b"1")]).get(60)
    other.close()


@compiled
def test_rows_outlive_their_consumer(kafka: Cluster, topic_name: str) -> None:
    """As after an error: the task lets go of the consumer, and a traceback still holds rows."""
    values = numbered(kafka, topic_name)
    at = Partition(topic_name, 0)
    kept: list[Records] = []

    def fail_at_the_second_batch() -> None:
        with borrow_consumer(config_of(kafka)) as consumer:
            for records in fetch(consumer, [OffsetRange(at, 0, 2000)]):
                kept.append(records)
                if len(kept) == 2:
                    raise KeyError

    with pytest.raises(KeyError):
        fail_at_the_second_batch()
    gc.collect()
    assert [value for records in kept for value in records.to_batch(("value",)).column(0).to_pylist()] == values


def end_in_a_cycle(servers: str, topic: str) -> None:
    """A client and rows of it end together, in a cycle: the collector calls their finalizers in the order that it likes."""

    def fail() -> None:
        with borrow_consumer(config_at(servers)) as consumer:
            assert isinstance(consumer, NativeConsumer)
            cycle: list[Any] = [consumer, next(iter(fetch(consumer, [OffsetRange(Partition(topic, 0), 0, 2000)])))]
            cycle.append(cycle)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    gc.collect()


@compiled
def test_a_client_that_ends_in_a_cycle_with_its_rows_does_not_block(kafka: Cluster, topic_name: str) -> None:
    """As after an error whose traceback is in a cycle. librdkafka waits forever for messages that are not freed."""
    numbered(kafka, topic_name)
    code = f"from {__name__} import end_in_a_cycle; end_in_a_cycle({kafka.bootstrap_servers!r}, {topic_name!r})"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_a_forked_process_touches_no_client_of_its_parent(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, PARTITIONS)
    batch = pa.RecordBatch.from_pydict({"value": ["a"]})
    library = native_library()
    assert library is not None
    producer = ArrowProducer(library, {"bootstrap.servers": kafka.bootstrap_servers}, lambda *_: None)
    with borrow_consumer(config_of(kafka)) as consumer:
        consumer.begin(Partition(topic_name, 0), 0)
        child = os.fork()
        if child == 0:
            del producer, consumer
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    write(kafka, topic_name, [batch], False, topic=topic_name)
    assert sum(map(len, read(config_of(kafka), topic_name, True))) == 1


@compiled
def test_a_consumer_keeps_no_rows_of_the_ranges_that_it_has_read(kafka: Cluster, topic_name: str) -> None:
    """Rows after a range's end are in the partition's queue, which nobody reads any more."""
    numbered(kafka, topic_name)
    at = Partition(topic_name, 0)
    library = native_library()
    assert library is not None
    length = ctypes.CDLL(cimpl.__file__).rd_kafka_queue_length
    length.restype, length.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    with borrow_consumer(config_of(kafka)) as consumer:
        assert isinstance(consumer, NativeConsumer)
        [records] = fetch(consumer, [OffsetRange(at, 0, 1)])
        queue = library.queue_get_partition(consumer._client.client, topic_name.encode(), 0)
        wait_until(lambda: length(queue) > 0, "the client has fetched more than the range")
        consumer.rest()
        assert length(queue) == 0
        library.queue_destroy(queue)
        assert len(records) == 1
