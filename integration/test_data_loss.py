"""Rows that are gone before they were read, and offsets that are not rows.

Retention is an administrator's DeleteRecords here: for a reader it is the same, and it is done at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from connector.kafka.client.topics import Partition
from connector.kafka.sink.transactional_ids import TransactionalId
from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.reading.fetch import KafkaInputPartition
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from connector.kafka.source.topic_reader import TopicReader
from integration.broker import Cluster
from integration.driver_process import Faults
from integration.live_query import LiveQuery
from integration.test_kafka_source import (
    Row,
    add_partitions,
    batches_of,
    collect,
    load,
    options_of,
    reader_of,
    rows_between,
    values,
    wait_until,
)
from integration.topic_jobs import produce, topic_to_topic
from transactional.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "connector.kafka.data_loss"

PATIENCE = 90.0
"""Seconds for Spark's micro-batches on a busy machine."""

Offset = dict[str, Any]


def delete_before(kafka: Cluster, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        answer.result(30)


def ask(reader: BarrierKafkaStreamReader, start: Offset) -> Offset | None:
    """The next end, through text as Spark keeps it; None where nothing is new."""
    end: Offset = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return None if json.dumps(end) == json.dumps(start) else end


def read_on(reader: BarrierKafkaStreamReader, start: Offset) -> tuple[Offset, list[int]]:
    """One micro-batch that must be there, and the values of its rows."""
    end = ask(reader, start)
    assert end is not None
    return end, values(rows_between(reader, start, end))


def begun(kafka: Cluster, topic: str, rows: int = 10, **more: str) -> tuple[BarrierKafkaStreamReader, Offset]:
    """A query that has read so many rows of a topic of one partition."""
    kafka.create_topic(topic)
    produce(kafka, topic, range(rows), partitions=1)
    reader = reader_of(kafka, topic, startingOffsets="earliest", **more)
    [(end, read)] = batches_of(reader)
    assert values(read) == list(range(rows))
    return reader, end


def careless(kafka: Cluster, topic: str, **more: str) -> BarrierKafkaStreamReader:
    """The query's next run, with failOnDataLoss=false."""
    return reader_of(kafka, topic, failOnDataLoss="false", **more)


# -- rows that are there, and offsets that are not rows -------------------------------------------------------------


@dataclass(frozen=True)
class Transactions:
    """A topic of 200 transactions, every third aborted, some open; made once."""

    kafka: Cluster
    topic: str
    readable: list[Row]
    offsets: int


@pytest.fixture(scope="module")
def transactions(kafka: Cluster) -> Iterator[Transactions]:
    topic, partitions = "data-loss-200-transactions", 3
    kafka.create_topic(topic, partitions=partitions)
    # Two stay open for as long as this file's tests run.
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transaction.timeout.ms": 900_000}
    producers = [Producer({**settings, "transactional.id": f"{topic}-{number}"}) for number in range(4)]
    for producer in producers:
        producer.init_transactions(30)
    committed: list[Row] = []
    held: dict[int, int] = {}
    for number in range(200):
        # Two of the four are left open, late, each in a partition of its own; the third partition has none.
        opened = number in (170, 185)
        producer = producers[{170: 2, 185: 3}.get(number, number % 2)]
        rows: list[Row] = []

        def delivered(error: Any, message: Any, rows: list[Row] = rows) -> None:
            assert error is None, error
            rows.append((message.partition(), message.offset(), message.value()))

        producer.begin_transaction()
        for row in range(1 + number % 5):
            partition = number % 2 if opened else (number + row) % partitions
            producer.produce(topic, f"{number}-{row}".encode(), partition=partition, on_delivery=delivered)
        assert producer.flush(30) == 0
        if opened:
            held[number % 2] = min(offset for _, offset, _ in rows)
        elif number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += rows
    assert set(held) == {0, 1}
    kafka.wait_for_markers(topic, [2])
    readable = [(at, offset, value) for at, offset, value in committed if offset < held.get(at, 1 << 62)]
    assert len(readable) < len(committed)
    [end] = [end for end, _ in batches_of(reader_of(kafka, topic, startingOffsets="earliest"), ReadAllAvailable())]
    assert all(end["topics"][topic][str(at)] == offset for at, offset in held.items()), "the last stable offset"
    yield Transactions(kafka, topic, sorted(readable), sum(end["topics"][topic].values()))
    for producer in producers[2:]:
        producer.abort_transaction(30)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limits=st.lists(st.integers(1, 300), max_size=8),
    rest=st.integers(100, 1000),
    split=st.sampled_from(
        [
            {},
            {"minPartitions": "5", "allowReordering": "true"},
            {"maxRecordsPerPartition": "37", "allowReordering": "true"},
        ]
    ),
    restarts=st.booleans(),
)
def test_exactly_the_committed_rows_are_read_in_order_under_any_limits(
    transactions: Transactions, limits: list[int], rest: int, split: dict[str, str], restarts: bool
) -> None:
    def reader() -> BarrierKafkaStreamReader:
        return reader_of(transactions.kafka, transactions.topic, startingOffsets="earliest", **split)

    running = reader()
    start, read = running.initialOffset(), []
    for turn in range(1000):
        limit = limits[turn] if turn < len(limits) else rest
        end = json.loads(json.dumps(running.latestOffset(start, ReadMaxRows(limit))))
        if end == start:
            break
        assert sum(end["topics"][transactions.topic].values()) - sum(end["start"][transactions.topic].values()) <= limit
        # A task that is run again, or a replay by another run, reads the same.
        read += rows_between(reader() if restarts and turn == 1 else running, start, end)
        running, start = (reader() if restarts and turn == 2 else running), end
    assert sum(start["topics"][transactions.topic].values()) == transactions.offsets
    for partition in range(3):
        assert [row for row in read if row[0] == partition] == [
            row for row in transactions.readable if row[0] == partition
        ]


def test_ranges_end_in_what_compaction_has_taken_away(kafka: Cluster, topic_name: str) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    kafka.create_topic(topic_name, config=config)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    # The cleaner rests for 15 s by default.
    entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    for answer in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
    ).values():
        answer.result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic_name})
    producer.init_transactions(30)
    for number in range(12):
        producer.begin_transaction()
        for key in range(4):
            producer.produce(topic_name, str(number * 4 + key).encode(), key=str(key).encode(), partition=0)
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)

    def read(limit: int) -> list[int]:
        reader = reader_of(kafka, topic_name, startingOffsets="earliest")
        found = [rows for _, rows in batches_of(reader, ReadMaxRows(limit))]
        return [int(value or b"") for rows in found for _, _, value in rows]

    def compacted() -> bool:
        # A segment ends with the next row, and the newest one is never cleaned.
        produce(kafka, topic_name, [1000], partitions=1, key=b"end")
        return len(set(read(10_000)) - {1000}) <= 8

    wait_until(compacted)
    left = read(10_000)
    assert {44, 45, 46, 47} <= set(left), "each key's last committed row"
    assert 1000 in left
    for limit in (1, 3, 7):
        # The cleaner goes on; it never takes a key's last row.
        again = read(limit)
        assert {44, 45, 46, 47, 1000} <= set(again) <= set(left)
        assert again == sorted(again)


# -- rows that expired ----------------------------------------------------------------------------------------------


def test_retention_that_overtakes_a_stopped_query_is_an_error_with_offsets_and_the_way_out(
    kafka: Cluster, topic_name: str
) -> None:
    _, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 30), partitions=1)
    delete_before(kafka, topic_name, 25)
    told = rf"DATA_LOST.*{topic_name}-0: offsets \[10, 25\).*failOnDataLoss=false.*new checkpoint location"
    with pytest.raises(StoreError, match=told) as caught:
        ask(reader_of(kafka, topic_name), start)
    assert caught.value.parameters["offsets"] == {f"{topic_name}-0": {"from": 10, "to": 25, "why": "expired"}}


def test_where_loss_is_allowed_the_query_goes_on_at_the_first_row_left_and_says_what_is_lost(
    kafka: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 30), partitions=1)
    delete_before(kafka, topic_name, 25)
    reader = careless(kafka, topic_name, maxOffsetsPerTrigger="3")
    end, read = read_on(reader, start)
    assert read == [25, 26, 27], "the limit is spent on rows that are there"
    assert end["start"][topic_name] == {"0": 25}
    assert end["lost"] == {topic_name: {"0": {"from": 10, "to": 25, "why": "expired"}}}
    [warning] = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert f"{topic_name}-0" in warning
    assert "up to 15 rows" in warning
    # Its replay, also by a run that allows no loss: the loss is decided.
    assert values(rows_between(reader_of(kafka, topic_name), start, end)) == read
    last, read = read_on(reader, end)
    assert read == [28, 29]
    assert "lost" not in last


@pytest.mark.parametrize("interval", ["0", "1h"])
@pytest.mark.parametrize("now", [False, True], ids=["stream", "availableNow"])
def test_a_loss_of_everything_is_recorded_once(kafka: Cluster, topic_name: str, interval: str, now: bool) -> None:
    _, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 30), partitions=1)
    delete_before(kafka, topic_name, 30)
    reader = careless(kafka, topic_name, barrierInterval=interval)
    if now:
        reader.prepareForTriggerAvailableNow()
    end, read = read_on(reader, start)
    assert read == []
    assert end["lost"][topic_name]["0"]["to"] == 30
    following = ask(reader, end)
    assert following is None
    produce(kafka, topic_name, [30], partitions=1)
    assert read_on(careless(kafka, topic_name), end)[1] == [30]


def test_a_replay_has_what_is_left_in_the_same_tasks(
    kafka: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 30), partitions=1)
    first = reader_of(kafka, topic_name, minPartitions="4", allowReordering="true")
    end = ask(first, start)
    assert end is not None
    planned = ranges_of(first.partitions(start, first.latestOffset(start, ReadAllAvailable())))
    assert planned == [(10, 15), (15, 20), (20, 25), (25, 30)]
    delete_before(kafka, topic_name, 22)
    with pytest.raises(StoreError, match=rf"DATA_LOST.*{topic_name}-0: offsets \[10, 22\).*failOnDataLoss"):
        reader_of(kafka, topic_name, minPartitions="4", allowReordering="true").partitions(start, end)
    second = careless(kafka, topic_name, minPartitions="4", allowReordering="true")
    assert ranges_of(second.partitions(start, end)) == [(15, 15), (20, 20), (22, 25), (25, 30)]
    assert "up to 5 rows of" in caplog.text
    assert "up to 2 rows of" in caplog.text
    assert values(rows_between(second, start, end)) == list(range(22, 30))
    delete_before(kafka, topic_name, 30)
    third = careless(kafka, topic_name, minPartitions="4", allowReordering="true")
    assert ranges_of(third.partitions(start, end)) == [(15, 15), (20, 20), (25, 25), (30, 30)]
    assert values(rows_between(third, start, end)) == []


def ranges_of(partitions: Sequence[Any]) -> list[tuple[int, int]]:
    tasks = [partition for partition in partitions if isinstance(partition, KafkaInputPartition)]
    return [(each.start, each.end) for task in tasks for each in task.ranges]


def test_rows_that_expire_after_the_planning_are_counted_once_per_task(
    kafka: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 30), partitions=1)
    reader = careless(kafka, topic_name, minPartitions="4", allowReordering="true")
    end = ask(reader, start)
    assert end is not None
    reader.latestOffset(start, ReadAllAvailable())
    partitions = reader.partitions(start, reader._end or {})
    delete_before(kafka, topic_name, 22)
    read = [row for each in partitions for batch in reader.read(each) for row in batch.column("offset").to_pylist()]
    assert read == list(range(22, 30))
    lost = [record.args for record in caplog.records if record.name == LOG]
    counted = [args[1] for args in lost if isinstance(args, tuple)]
    assert counted == [5, 5, 2]


def test_a_task_whose_next_rows_expire_goes_on_at_the_first_one_left(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    # One row a batch, and a short queue: most of the range is at the broker still when its first rows are handed over.
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "batch.num.messages": 1})
    for value in range(3000):
        producer.produce(topic_name, str(value).zfill(500).encode(), partition=0)
    assert producer.flush(30) == 0
    small = {"kafka.queued.min.messages": "1", "kafka.fetch.message.max.bytes": "20000"}
    reader = careless(kafka, topic_name, startingOffsets="earliest", **small)
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = reader.read(partition)
    read = next(batches).column("offset").to_pylist()
    delete_before(kafka, topic_name, 2500)
    for batch in batches:
        read += batch.column("offset").to_pylist()
    assert read == sorted(set(read))
    assert read[:500] == list(range(500))
    assert read[-500:] == list(range(2500, 3000))
    assert len(read) < 2000


# -- topics that are not what they were -----------------------------------------------------------------------------


def test_a_topic_made_anew_between_planning_and_task_is_not_taken_for_the_old_one(
    kafka: Cluster, topic_name: str
) -> None:
    reader, start = begun(kafka, topic_name, failOnDataLoss="false")
    produce(kafka, topic_name, range(10, 15), partitions=1)
    end = ask(reader, start)
    assert end is not None
    [planned] = reader.partitions(start, end)
    kafka.delete_topic(topic_name)
    with pytest.raises(StoreError, match=rf"TOPIC_CHANGED.*{topic_name}"):
        list(reader.read(planned))
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(100, 115), partitions=1)
    with pytest.raises(StoreError, match=rf"TOPIC_CHANGED.*{topic_name}"):
        list(reader.read(planned))
    again = careless(kafka, topic_name)
    assert rows_between(again, start, end) == [], "the replay of the micro-batch: what it was to read is gone"
    _, read = read_on(again, end)
    assert read == list(range(100, 115)), "each row of the new topic once"


def test_a_topic_made_anew_while_its_task_reads_fails_the_task(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2000), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = reader.read(partition)
    assert len(next(batches)) > 0
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2000), partitions=1)
    with pytest.raises(StoreError, match=rf"TOPIC_CHANGED.*{topic_name}"):
        list(batches)


@pytest.mark.parametrize("rows", [4, 15], ids=["shorter", "longer"])
def test_a_topic_made_anew_is_read_from_its_first_row_where_loss_is_allowed(
    kafka: Cluster, topic_name: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, start = begun(kafka, topic_name, failOnDataLoss="false")
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(100, 100 + rows), partitions=2)
    with pytest.raises(StoreError, match=rf"DATA_LOST.*created again.*{topic_name}-0: read up to 10.*failOnDataLoss"):
        ask(reader_of(kafka, topic_name), start)
    end, read = read_on(reader, start)
    assert read == list(range(100, 100 + rows))
    assert end["ids"] != start["ids"]
    assert end["lost"][topic_name] == {"0": {"from": 10, "to": 0, "why": "recreated"}}
    assert "recreated" in caplog.text
    assert values(rows_between(reader_of(kafka, topic_name), start, end)) == read, "its replay"
    assert ask(reader, end) is None


def test_a_replay_of_a_topic_that_was_made_anew_reads_nothing_of_the_new_one(kafka: Cluster, topic_name: str) -> None:
    reader, start = begun(kafka, topic_name)
    produce(kafka, topic_name, range(10, 20), partitions=1)
    end, _ = read_on(reader, start)
    kafka.delete_topic(topic_name)
    again = careless(kafka, topic_name)
    assert ranges_of(again.partitions(start, end)) == [(10, 10)], "deleted"
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(100, 115), partitions=1)
    assert ranges_of(again.partitions(start, end)) == [(10, 10)], "made anew"
    assert rows_between(again, start, end) == []
    assert read_on(again, end)[1] == list(range(100, 115))


def test_a_topic_that_is_gone_is_an_error_or_left_out_and_read_on_if_it_comes_back(
    kafka: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = f"{topic_name}-1", f"{topic_name}-2"
    for topic in (one, other):
        kafka.create_topic(topic)
        produce(kafka, topic, range(3), partitions=1)
    both = f"{one},{other}"
    [(start, _)] = batches_of(reader_of(kafka, both, startingOffsets="earliest"))
    told = rf"DATA_LOST.*{other}-0: read up to 3.*failOnDataLoss"
    with pytest.raises(StoreError, match=told):
        ask(reader_of(kafka, one), start)
    end, _ = read_on(careless(kafka, one), start)
    assert end["lost"] == {other: {"0": {"from": 3, "to": None, "why": "gone"}}}
    assert end["topics"] == {one: {"0": 3}}
    assert f"{other}-0" in caplog.text
    assert rows_between(reader_of(kafka, one), start, end) == [], "its replay"
    produce(kafka, one, [3], partitions=1)
    end, read = read_on(careless(kafka, one), end)
    assert read == [3]
    # It is the same topic: what was read of it is not read again, whatever failOnDataLoss says now.
    produce(kafka, other, [4], partitions=1)
    end, read = read_on(reader_of(kafka, both), end)
    assert read == [4]
    assert "gone" not in end
    assert "lost" not in end


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_query_whose_topic_is_deleted_goes_on_without_it_and_reads_a_new_one_from_its_first_row(
    kafka: Cluster, topic_name: str, by: str
) -> None:
    one, other = f"{topic_name}-1", f"{topic_name}-2"
    for topic in (one, other):
        kafka.create_topic(topic)
        produce(kafka, topic, range(3), partitions=1)
    options = options_of(kafka, topic_name, startingOffsets="earliest", failOnDataLoss="false")
    del options["subscribe"]
    options[by] = f"{one},{other}" if by == "subscribe" else f"{topic_name}.*"
    source = BarrierKafkaDataSource(options)
    reader = source.streamReader(source.schema())
    [(end, _)] = batches_of(reader)
    kafka.delete_topic(other)
    produce(kafka, one, [3], partitions=1)
    end, read = read_on(reader, end)
    assert read == [3]
    assert ask(reader, end) is None
    kafka.create_topic(other)
    produce(kafka, other, range(10, 15), partitions=1)
    end, read = read_on(reader, end)
    assert read == list(range(10, 15))
    assert "gone" not in end


def test_a_partition_that_ends_before_the_position_is_an_error_or_read_on_at_its_end(
    kafka: Cluster, topic_name: str
) -> None:
    _, start = begun(kafka, topic_name, 2)
    start["topics"][topic_name]["0"] = 5
    quick = {"fetchOffset.retryIntervalMs": "10"}
    with pytest.raises(StoreError, match=r"DATA_LOST.*read up to 5, ends at 2.*failOnDataLoss"):
        ask(reader_of(kafka, topic_name, **quick), start)
    reader = careless(kafka, topic_name, **quick)
    end, read = read_on(reader, start)
    assert read == []
    assert end["lost"] == {topic_name: {"0": {"from": 5, "to": 2, "why": "truncated"}}}
    produce(kafka, topic_name, [2, 3], partitions=1)
    assert read_on(reader, end)[1] == [2, 3]


def test_a_task_whose_partition_was_truncated_stalls_and_its_replay_ends_where_it_ends(
    kafka: Cluster, topic_name: str
) -> None:
    _, start = begun(kafka, topic_name, 2)
    end: Offset = {**start, "start": {topic_name: {"0": 0}}, "topics": {topic_name: {"0": 5}}}
    begin = {**start, "topics": {topic_name: {"0": 0}}}
    short = careless(kafka, topic_name, **{"kafkaConsumer.pollTimeoutMs": "300", "fetchOffset.retryIntervalMs": "10"})
    short._end = end  # as if it had been there when it was planned
    [partition] = short.partitions(begin, end)
    with pytest.raises(StoreError, match=r"KAFKA_TIMEOUT.*at offset 2"):
        list(short.read(partition))
    assert len(rows_between(careless(kafka, topic_name), begin, end)) == 2
    short.stop()


# -- in Spark, and on three brokers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(BarrierKafkaDataSource)
    return spark


@pytest.mark.slow
def test_a_running_query_meets_new_partitions_and_a_topic_made_anew(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(20), partitions=2)
    options = options_of(kafka, topic_name, startingOffsets="earliest", failOnDataLoss="false")
    query, seen = collect(load(registered, options), tmp_path, now=False)
    stop = threading.Event()
    written = 20

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            # Into the partitions that are there; the producer learns of new ones by itself.
            produce(kafka, topic_name, range(written, written + 10), partitions=2)
            written += 10
            stop.wait(0.1)

    def read() -> list[int]:
        return sorted(int(row.value) for rows in dict(seen).values() for row in rows)

    try:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: len(seen) > 1, PATIENCE)
            add_partitions(kafka, topic_name, 8)
            many = len(seen) + 2
            wait_until(lambda: len(seen) > many, PATIENCE)
        finally:
            stop.set()
            writer.join()
        produce(kafka, topic_name, range(written, written + 80), partitions=8)
        written += 80
        query.processAllAvailable()
        assert read() == list(range(written))
        assert {row.partition for rows in seen.values() for row in rows} == set(range(8))

        kafka.delete_topic(topic_name)
        kafka.create_topic(topic_name)
        produce(kafka, topic_name, range(written, written + 15), partitions=1)
        wait_until(lambda: len(read()) >= written + 15, PATIENCE)
        assert read() == list(range(written + 15))
        # The progress of a micro-batch comes when it is committed.
        wait_until(lambda: any('"lost"' in str(p.sources[0].endOffset) for p in query.recentProgress), PATIENCE)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.parametrize("whose", ["the other's", "its own"])
def test_a_repair_whose_rows_expired_is_refused_and_one_whose_rows_are_left_is_made(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, whose: str
) -> None:
    job, output = topic_to_topic(kafka, topic_name, failOnDataLoss="false")
    produce(kafka, f"{topic_name}-in", range(job.batches * job.rows), partitions=2)
    faults.arm("commit.one", "raise")
    with LiveQuery(spark, tmp_path, job, output) as query:
        assert "InjectedFault" in query.start().wait_failed()
        # Of the two tasks, one for each partition, one is committed; the other's transaction is lost.
        [name] = output.open_transactions()
        output.lose([name])
        parsed = TransactionalId.parse(name)
        assert parsed is not None
        part = parsed.partition
        delete_before(kafka, f"{topic_name}-in", 5, part if whose == "its own" else 1 - part)
        if whose == "its own":
            error = query.start().wait_failed()
            assert "REPLAY_DIFFERS" in error
            assert f"partition {part} of 2: recorded 5 rows of " in error
            query.place.check_partial(query.expected)
        else:
            # The rows that expired are committed; the lost task's number and rows are those of the first time.
            assert query.finish() == []


def test_a_row_that_was_damaged_on_the_brokers_disk_is_an_error_and_no_row(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, [123456789], partitions=1)
    [log] = kafka.data.glob(f"**/{topic_name}-0/00000000000000000000.log")
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"123456789"))
        file.write(b"123456780")
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    with pytest.raises(StoreError, match=rf"READ_FAILED.*{topic_name}-0.*offset 0.*CRC"):
        rows_between(reader, start, reader.latestOffset(start, ReadAllAvailable()))


def test_a_batch_that_is_too_large_unpacked_names_the_setting_that_reads_it(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    whole = {"batch.size": 100_000_000, "message.max.bytes": 100_000_000, "linger.ms": 5000}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": "zstd", **whole})
    for _ in range(60):
        producer.produce(topic_name, bytes(1_000_000), partition=0)
    assert producer.flush(60) == 0
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"READ_FAILED.*kafka\.receive\.message\.max\.bytes .* over three times"):
        rows_between(reader, start, end)
    more = {"kafka.receive.message.max.bytes": "190000000"}
    larger = reader_of(kafka, topic_name, startingOffsets="earliest", **more)
    assert len(rows_between(larger, start, end)) == 60


@pytest.mark.parametrize("stale", ["id", "partitions", "topic"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_one_broker_that_is_behind_the_others_doubles_and_fails_nothing(
    kafka: Cluster, topic_name: str, stale: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(6))
    more = {"failOnDataLoss": fails, "fetchOffset.retryIntervalMs": "100"}
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", **more)
    [(end, _)] = batches_of(reader)
    produce(kafka, topic_name, range(6, 8))
    ask_brokers = TopicReader.partitions
    answers: list[int] = []

    def partitions(self: TopicReader, *arguments: Any) -> list[Partition]:
        found = ask_brokers(self, *arguments)
        answers.append(len(found))
        if len(answers) == 1:  # the next question goes to another broker
            if stale == "id":
                self.ids = {topic_name: "that-of-the-topic-before"}
            elif stale == "topic":
                self.ids = {}
            found = {"id": found, "partitions": found[:1], "topic": []}[stale]
        return found

    monkeypatch.setattr(TopicReader, "partitions", partitions)
    end, read = read_on(reader, end)
    assert read == [6, 7]
    assert "lost" not in end


@pytest.mark.matrix
def test_a_topic_made_anew_is_read_at_once_by_a_worker_that_read_the_old_one_at_later_epochs(topic_name: str) -> None:
    with Cluster(jvm_options=("-Xms64m", "-Xmx256m")) as cluster:
        reader, end = begun(cluster, topic_name, 10, failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "8000"})
        cluster.restart()  # each of a partition's leaders has a higher epoch than the one before
        produce(cluster, topic_name, [10], partitions=1)
        end, read = read_on(reader, end)
        assert read == [10]
        cluster.delete_topic(topic_name)
        cluster.create_topic(topic_name)
        produce(cluster, topic_name, range(100, 103), partitions=1)
        # This process's consumer knows the old leader's epoch.
        end, read = read_on(reader, end)
        assert read == [100, 101, 102]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_death_of_a_broker_of_three_during_a_read_loses_and_doubles_nothing(topic_name: str) -> None:
    small_heap = ("-Xms64m", "-Xmx256m")
    with Cluster(3, jvm_options=small_heap) as cluster:
        cluster.create_topic(topic_name, partitions=3, replication=3, config={"min.insync.replicas": "2"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for value in range(9000):
            producer.produce(topic_name, str(value).zfill(300).encode(), partition=value % 3)
        assert producer.flush(60) == 0
        # Short queues: most of each range is at its broker still when the broker dies.
        small = {"kafka.queued.min.messages": "1", "kafka.fetch.message.max.bytes": "20000"}
        reader = reader_of(cluster, topic_name, startingOffsets="earliest", **small)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        reads = [reader.read(partition) for partition in reader.partitions(start, end)]
        batches = [next(read) for read in reads]
        # Each broker leads one of the three partitions.
        cluster.kill(0)
        for read in reads:
            batches += read
        found = [row for batch in batches for row in batch.column("value").to_pylist()]
        assert sorted(map(int, found)) == list(range(9000))
        # Planning goes on, too.
        producer.produce(topic_name, b"9000", partition=0)
        assert producer.flush(60) == 0
        following = reader.latestOffset(end, ReadAllAvailable())
        assert values(rows_between(reader, end, following)) == [9000]
