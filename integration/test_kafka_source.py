"""The source on a real broker: its reader in this process, and the whole format in a real Spark."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import KafkaInputPartition
from connector.kafka.source.rows import all_columns, spark_schema
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from integration.broker import Cluster
from integration.jobs import RAW_LOCAL_FILES
from integration.topic_jobs import produce
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKED_LOCAL_FILES = "org.apache.hadoop.fs.local.LocalFs"
"""Spark's default for logs on a local disk."""

Row = tuple[int, int, bytes | None]
"""Partition, offset, value."""


def options_of(kafka: Cluster, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, **more}


def reader_of(kafka: Cluster, topic: str, **more: str) -> BarrierKafkaStreamReader:
    source = BarrierKafkaDataSource(options_of(kafka, topic, **more))
    return source.streamReader(spark_schema(all_columns(more.get("includeHeaders") == "true")))


def rows_between(reader: BarrierKafkaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    copy = pickle.loads(pickle.dumps(reader))
    found: list[Row] = []
    for partition in reader.partitions(start, end):
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
            found += list(zip(*columns, strict=True))
    return found


def batches_of(
    reader: BarrierKafkaStreamReader, limit: ReadLimit | Callable[[], ReadLimit] | None = None
) -> Iterator[tuple[dict[str, Any], list[Row]]]:
    """Drive the reader as Spark does, until nothing is new."""
    start = reader.initialOffset()
    while True:
        chosen = limit() if callable(limit) else limit or reader.getDefaultReadLimit()
        # Through text, as Spark keeps it.
        end = json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), chosen)))
        if json.dumps(end) == json.dumps(start):
            return
        yield end, rows_between(reader, start, end)
        start = end


def values(rows: Sequence[Row]) -> list[int]:
    return sorted(int(value or b"-1") for _, _, value in rows)


# -- the reader, without Spark --------------------------------------------------------------------------------------


def test_every_batch_with_rows_gets_the_next_barrier_and_an_idle_one_gets_none(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(10))
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    batches = list(batches_of(reader))
    assert [end["barrier"]["number"] for end, _ in batches] == [1, 2, 3]
    assert [len(rows) for _, rows in batches] == [4, 4, 2]
    assert values([row for _, rows in batches for row in rows]) == list(range(10))
    assert batches[1][0]["start"] == batches[0][0]["topics"]


def test_json_starts_every_partition_where_it_says(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=3)
    produce(kafka, topic_name, range(9), partitions=3)
    starting = json.dumps({topic_name: {"0": 1, "1": -2, "2": -1}})
    [(end, rows)] = batches_of(reader_of(kafka, topic_name, startingOffsets=starting))
    assert values(rows) == [1, 3, 4, 6, 7]
    assert end["start"] == {topic_name: {"0": 1, "1": 0, "2": 3}}
    for wrong, named in (({"0": 1}, "-1"), ({"0": 1, "1": 1, "2": 1, "3": 1}, "-3")):
        reader = reader_of(kafka, topic_name, startingOffsets=json.dumps({topic_name: wrong}))
        with pytest.raises(OptionError, match=f"startingOffsets.*{topic_name}{named}"):
            reader.initialOffset()


def test_rows_that_are_gone_are_an_error_with_the_offsets(kafka: Cluster, topic_name: str) -> None:
    from confluent_kafka import TopicPartition

    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(10), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(topic_name, 0, 6)]).values():
        answer.result(30)
    with pytest.raises(StoreError, match=r"DATA_LOST.*offset 0 .*\[6, 10\)") as caught:
        rows_between(reader, start, end)
    assert caught.value.parameters["earliest"] == 6


@pytest.mark.parametrize("rows", [0, 15], ids=["shorter", "longer"])
def test_a_topic_that_was_made_anew_is_an_error(kafka: Cluster, topic_name: str, rows: int) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(10), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(100, 100 + rows), partitions=1)
    with pytest.raises(StoreError, match=r"DATA_LOST.*created again"):
        reader_of(kafka, topic_name).latestOffset(end, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"DATA_LOST.*created again"):  # the micro-batch is replayed
        reader_of(kafka, topic_name).partitions(start, end)


def test_available_now_stops_at_its_target_and_leaves_new_partitions_to_the_next_run(
    kafka: Cluster, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(5), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    produce(kafka, topic_name, range(5, 9), partitions=1)
    add_partitions(kafka, topic_name, 2)
    produce(kafka, topic_name, range(9, 12), partitions=2)
    batches = list(batches_of(reader))
    assert values([row for _, rows in batches for row in rows]) == [0, 1, 2, 3, 4]
    assert [end["barrier"]["kind"] for end, _ in batches] == ["checkpoint", "checkpoint", "final"]
    [(end, rows)] = list(batches_of_from(reader_of(kafka, topic_name), batches[-1][0]))
    assert values(rows) == list(range(5, 12))
    assert end["start"][topic_name] == {"0": 5, "1": 0}
    assert start["topics"][topic_name] == {"0": 0}


def batches_of_from(
    reader: BarrierKafkaStreamReader, start: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], list[Row]]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    yield end, rows_between(reader, start, end)


def add_partitions(kafka: Cluster, topic: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
    from confluent_kafka import TopicPartition

    def has_leaders() -> bool:
        admin.list_topics(timeout=10)  # else a client that has once seen fewer partitions believes it for minutes
        question = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(total)}
        return all(answer.exception(10) is None for answer in admin.list_offsets(question).values())

    wait_until(has_leaders)


def wait_until(done: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_offsets_of_another_application_in_a_named_group_are_left_as_they_are(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(20), partitions=1)
    theirs = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic_name})
    theirs.commit(offsets=[TopicPartition(topic_name, 0, 5)], asynchronous=False)
    theirs.close()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def committed() -> int:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic_name)])[topic_name]
        found = asked.result(30).topic_partitions
        return int(found[0].offset) if found else -1  # nothing was committed yet

    reader = reader_of(kafka, topic_name, startingOffsets="earliest", **{"kafka.group.id": topic_name})
    [(end, _)] = batches_of(reader)
    reader.commit(end)
    assert reader._own_group is False
    assert committed() == 5
    admin.delete_consumer_groups([topic_name])[topic_name].result(30)
    for _ in range(2):  # the second run finds offsets of the first
        reader = reader_of(kafka, topic_name, **{"kafka.group.id": topic_name})
        reader.commit(end)
        assert reader._own_group is True
        wait_until(lambda: committed() == 20)


def test_a_consumer_is_used_again_by_the_next_task(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    config = reader_of(kafka, topic_name)._options.config
    with borrow_consumer(config) as first, borrow_consumer(config) as other:
        assert other is not first
    with borrow_consumer(config) as second:
        assert second is first
    with pytest.raises(RuntimeError), borrow_consumer(config) as failed:
        raise RuntimeError
    with borrow_consumer(config) as third:
        assert third is not failed


def test_a_task_keeps_no_more_large_rows_in_memory_than_a_batch_may_hold(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    for number in range(120):  # large ones behind small ones, whose size told how many to ask for
        producer.produce(topic_name, bytes(10 if number < 20 else 900_000))
        producer.poll(0)
    assert producer.flush(60) == 0
    small = {"kafka.queued.max.messages.kbytes": "2048", "kafka.max.partition.fetch.bytes": "1000000"}
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", **small)
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    sizes = [(batch.num_rows, batch.nbytes) for batch in reader.read(partition)]
    assert sum(rows for rows, _ in sizes) == 120
    assert max(size for _, size in sizes) < 24 << 20


def test_a_timestamp_or_header_that_no_column_holds_is_an_error_with_the_offset(
    kafka: Cluster, topic_name: str
) -> None:
    anytime = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    kafka.create_topic(topic_name, config=anytime)
    produce(kafka, topic_name, [0], partitions=1)
    produce(kafka, topic_name, [1], partitions=1, timestamp=1_700_000_000_000_000_000)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    with pytest.raises(StoreError, match=rf"BAD_RECORD.*{topic_name}-0 at offset 1 .*1700000000000000000"):
        rows_between(reader, start, reader.latestOffset(start, ReadAllAvailable()))

    class Latin(str):
        __slots__ = ()

        def encode(self, *_: str) -> bytes:
            return b"\xe9"

    from kafka import KafkaProducer

    other = f"{topic_name}-headers"
    kafka.create_topic(other)
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for _ in range(200):  # Python has specialised the loop by then, and checks less
        writer.send(other, b"0", headers=[("e", b"1")])
    writer.send(other, b"1", headers=[(Latin("e"), b"1")]).get(30)
    writer.close()
    reader = reader_of(kafka, other, startingOffsets="earliest", includeHeaders="true")
    start = reader.initialOffset()
    with pytest.raises(StoreError, match=rf"BAD_RECORD.*{other}-0 at offset 200 .*includeHeaders"):
        rows_between(reader, start, reader.latestOffset(start, ReadAllAvailable()))


# -- in Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(BarrierKafkaDataSource)
    return spark


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("barrier-kafka").options(**options).load()


def collect(rows: DataFrame, location: Path, *, now: bool) -> tuple[StreamingQuery, dict[int, list[Any]]]:
    """Start a query that keeps each micro-batch's rows here."""
    seen: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        seen[number] = batch.collect()

    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(location))
    return (
        writer.trigger(availableNow=True) if now else writer.trigger(processingTime="100 milliseconds")
    ).start(), seen


def test_spark_sees_the_rows_of_its_own_kafka_source(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    stamp = 1_700_000_000_123
    produce(kafka, topic_name, range(5), key=b"k", timestamp=stamp, headers=[("a", b"1"), ("b", None), ("a", b"2")])
    produce(kafka, topic_name, [5])
    options = options_of(kafka, topic_name, startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="4")
    query, seen = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert [len(rows) for _, rows in sorted(seen.items())] == [4, 2]
    rows = [row for batch in seen.values() for row in batch]
    assert sorted(int(row.value) for row in rows) == list(range(6))
    one = next(row for row in rows if row.value == b"3")
    assert (one.key, one.topic, one.partition, one.offset, one.timestampType) == (b"k", topic_name, 1, 1, 0)
    assert round(one.timestamp.timestamp() * 1000) == stamp
    assert [(header.key, header.value) for header in one.headers] == [("a", b"1"), ("b", None), ("a", b"2")]
    assert next(row for row in rows if row.value == b"5").headers is None

    # Nothing is new: no batch. Then the last one again, as after a crash: the same rows, and no others.
    query, again = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert again == {}
    produce(kafka, topic_name, [6])
    for name in ("1", ".1.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=name.endswith("crc"))
    query, again = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert sorted(again[1], key=str) == sorted(seen[1], key=str)
    assert [row.value for row in again[2]] == [b"6"]
    shutil.rmtree(tmp_path)


def test_partitions_added_while_a_query_runs_are_read_from_their_first_row(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=1)
    produce(kafka, topic_name, range(3), partitions=1)
    query, seen = collect(load(registered, options_of(kafka, topic_name)), tmp_path, now=False)
    try:
        query.processAllAvailable()
        produce(kafka, topic_name, range(3, 6), partitions=1)
        query.processAllAvailable()
        add_partitions(kafka, topic_name, 3)
        produce(kafka, topic_name, range(6, 12), partitions=3)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(int(row.value) for rows in seen.values() for row in rows) == list(range(3, 12))


def test_partitions_whose_leaders_are_still_being_chosen_are_waited_for(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=400)  # the broker answers before it leads them all
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    assert len(reader.initialOffset()["topics"][topic_name]) == 400
    reader.stop()
    kafka.delete_topic(topic_name)


@pytest.mark.slow
def test_unreachable_brokers_are_refused_at_load(registered: SparkSession) -> None:
    """Within 30 s: see `connector.kafka.client.connection.CONNECT_SECONDS`."""
    # Port 1 of the loopback address: nobody listens there.
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    with pytest.raises(Exception, match=r"(?s)BROKERS_UNREACHABLE.*127\.0\.0\.1:1.*refused"):
        load(registered, options)


def test_the_partition_of_a_task_says_what_it_reads(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert isinstance(partition, KafkaInputPartition)
    assert list(map(str, partition.ranges)) == [f"{topic_name}-0 [0, 2)"]


def test_a_location_goes_on_with_and_without_the_checksums_of_spark_s_logs(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name)
    settings: Any = registered.sparkContext._jsc.hadoopConfiguration()
    [(name, raw)] = RAW_LOCAL_FILES.items()
    key = name.removeprefix("spark.hadoop.")
    assert settings.get(key) == raw
    found: list[bytes] = []
    output = f"{topic_name}-output"
    kafka.create_topic(output)
    try:
        for number, files in enumerate((CHECKED_LOCAL_FILES, raw, CHECKED_LOCAL_FILES)):
            settings.set(key, files)
            produce(kafka, topic_name, range(3 * number, 3 * number + 3), partitions=1)
            rows = load(registered, options_of(kafka, topic_name, startingOffsets="earliest"))
            writer = rows.select("key", "value").writeStream.format("2pc-kafka").option("topic", output)
            writer = writer.options(
                **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "checkpointLocation": str(tmp_path)}
            )
            assert writer.trigger(availableNow=True).start().awaitTermination(180)
    finally:
        settings.set(key, raw)
    checked = [(tmp_path / log / f".{batch}.crc").exists() for log in ("offsets", "commits") for batch in range(3)]
    assert checked == [True, False, True] * 2
    reader = reader_of(kafka, output, startingOffsets="earliest")
    for _, batch in batches_of(reader):
        found += [value or b"" for _, _, value in batch]
    assert found == [b"%d" % value for value in range(9)]
