"""What Spark's guide to its Kafka source says, option by option, run against ours.

`STREAMS` and `BATCHES` are tables: what is set, and which offsets each micro-batch or read must have. Everything is read from
two topics whose rows say their own place (``a-0-3`` stands at offset 3 of a's partition 0), so rows follow from offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.kafka.client.config import ClientConfig
from connector.kafka.sink.injector import Injector
from connector.kafka.source.batch_reader import BarrierKafkaBatchReader
from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.read_options import GROUP_ID, READ_OPTIONS, parse_read_options
from connector.kafka.source.rows import all_columns, spark_schema
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from integration.broker import Cluster
from integration.test_kafka_source import add_partitions, collect, load, reader_of, rows_between, wait_until
from integration.topic_jobs import produce
from transactional.errors import OptionError, StoreError
from transactional.testing.clock import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A, B = "source-parity-a", "source-parity-b"

Content = Mapping[str, tuple[int, ...]]

TOPICS: Content = {
    f"{A}-0": (1000, 2000, 3000, 4000, 5000, 6000),
    f"{A}-1": (2000, 4000, 6000),
    f"{A}-2": (),
    f"{B}-0": (1000, 9000),
}
"""Timestamps of each partition's rows, in milliseconds since 1970."""

Part = Mapping[str, tuple[int, int]]
"""Partition to the offsets that are read of it: the first, and the next after the last. ``a0`` is a's partition 0."""


@dataclass(frozen=True)
class Stream:
    """A new query, run until nothing is new."""

    told: str  # What the guide says.
    # ``$a`` and ``$b`` stand for the topics. Without one of the three that say what is read: a.
    options: Mapping[str, str]
    batches: Sequence[Part]  # Each micro-batch's offsets.
    tasks: int | None = None  # Of its first micro-batch; one per partition with rows by default.
    in_spark: bool = False  # Whether Spark runs it, too; the calls that Spark makes are made in each case.


ALL_OF_A: Part = {"a0": (0, 6), "a1": (0, 3)}
EARLIEST = {"startingOffsets": "earliest"}

STREAMS: Sequence[Stream] = [
    Stream("subscribe: the topic list", {"subscribe": "$a, $b", **EARLIEST}, [{**ALL_OF_A, "b0": (0, 2)}]),
    Stream(
        "assign: specific partitions", {"assign": '{"$a": [1], "$b": [0]}', **EARLIEST}, [{"a1": (0, 3), "b0": (0, 2)}]
    ),
    Stream("subscribePattern: of topics", {"subscribePattern": "source-parity-[a]", **EARLIEST}, [ALL_OF_A]),
    Stream("startingOffsets: latest by default for streaming", {}, [], in_spark=True),
    Stream("startingOffsets: earliest", {"StartingOffsets": "EARLIEST"}, [ALL_OF_A], in_spark=True),
    Stream(
        "startingOffsets: json, -2 earliest and -1 latest",
        {"subscribe": "$a,$b", "startingOffsets": '{"$a": {"0": 4, "1": -2, "2": -1}, "$b": {"0": -1}}'},
        [{"a0": (4, 6), "a1": (0, 3)}],
        in_spark=True,
    ),
    Stream(
        "startingTimestamp: the earliest offset whose timestamp is not less",
        {"startingTimestamp": "4000", "subscribe": "$b,$a", "startingOffsetsByTimestampStrategy": "latest"},
        [{"a0": (3, 6), "a1": (1, 3), "b0": (1, 2)}],
    ),
    Stream(
        "startingOffsetsByTimestamp: for each partition",
        {
            "assign": '{"$a": [0, 1]}',
            "startingOffsetsByTimestamp": '{"$a": {"0": 5500, "1": 0}}',
        },
        [{"a0": (5, 6), "a1": (0, 3)}],
    ),
    Stream(
        "startingOffsetsByTimestampStrategy latest: the latest where nothing matches",
        {
            "assign": '{"$a": [0, 1, 2]}',
            "startingOffsetsByTimestamp": '{"$a": {"0": 6001, "1": 6000, "2": 0}}',
            "startingOffsetsByTimestampStrategy": "LATEST",
        },
        [{"a1": (2, 3)}],
    ),
    Stream(
        "startingTimestamp takes precedence over the other two",
        {
            "subscribe": "$b",
            "startingTimestamp": "9000",
            "startingOffsetsByTimestamp": '{"$b": {"0": 1000}}',
            "startingOffsets": "latest",
        },
        [{"b0": (1, 2)}],
    ),
    Stream(
        "startingOffsetsByTimestamp takes precedence over startingOffsets",
        {"subscribe": "$b", "startingOffsetsByTimestamp": '{"$b": {"0": 1000}}', "startingOffsets": "latest"},
        [{"b0": (0, 2)}],
    ),
    Stream(
        "maxOffsetsPerTrigger: proportionally split, small partitions not starved",
        {**EARLIEST, "maxOffsetsPerTrigger": "4"},
        [{"a0": (0, 2), "a1": (0, 2)}, {"a0": (2, 5), "a1": (2, 3)}, {"a0": (5, 6)}],
        in_spark=True,
    ),
    Stream("maxOffsetsPerTrigger: more than there is", {**EARLIEST, "maxOffsetsPerTrigger": "10000000000"}, [ALL_OF_A]),
    Stream(
        "minOffsetsPerTrigger and maxTriggerDelay: the first micro-batch does not wait, availableNow reads all",
        {**EARLIEST, "minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4", "maxTriggerDelay": "1h"},
        [{"a0": (0, 2), "a1": (0, 2)}, {"a0": (2, 5), "a1": (2, 3)}, {"a0": (5, 6)}],
    ),
    Stream("minOffsetsPerTrigger alone", {**EARLIEST, "minOffsetsPerTrigger": "100"}, [ALL_OF_A], in_spark=True),
    Stream(
        "minPartitions: large partitions are divided",
        {**EARLIEST, "minPartitions": "3", "allowReordering": "true"},
        [ALL_OF_A],
        tasks=3,
    ),
    Stream(
        "minPartitions: fewer than partitions changes nothing",
        {**EARLIEST, "minPartitions": "1", "allowReordering": "true"},
        [ALL_OF_A],
        tasks=2,
    ),
    Stream(
        "maxRecordsPerPartition: at most",
        {**EARLIEST, "maxRecordsPerPartition": "2", "allowReordering": "true"},
        [ALL_OF_A],
        tasks=5,
        in_spark=True,
    ),
    Stream(
        "both: divided by maxRecordsPerPartition, then by minPartitions",
        {**EARLIEST, "maxRecordsPerPartition": "3", "minPartitions": "6", "allowReordering": "true"},
        [ALL_OF_A],
        tasks=6,
    ),
    Stream("maxPartitions: a task reads several partitions", {**EARLIEST, "maxPartitions": "1"}, [ALL_OF_A], tasks=1),
    Stream(
        "maxPartitions: maxRecordsPerPartition may need more",
        {**EARLIEST, "maxPartitions": "1", "maxRecordsPerPartition": "2", "allowReordering": "true"},
        [ALL_OF_A],
        tasks=5,
    ),
    Stream(
        "columns: only those that are named",
        {**EARLIEST, "columns": "value,offset,partition,topic"},
        [ALL_OF_A],
        in_spark=True,
    ),
    Stream("includeHeaders: a further column", {**EARLIEST, "includeHeaders": "true"}, [ALL_OF_A], in_spark=True),
    Stream("failOnDataLoss: true where nothing is lost", {**EARLIEST, "failOnDataLoss": "true"}, [ALL_OF_A]),
    Stream("failOnDataLoss: false where nothing is lost", {**EARLIEST, "failOnDataLoss": "FALSE"}, [ALL_OF_A]),
    Stream("groupIdPrefix", {**EARLIEST, "groupIdPrefix": "mine"}, [ALL_OF_A]),
    Stream("kafka.group.id", {**EARLIEST, "kafka.group.id": "source-parity", "groupIdPrefix": "mine"}, [ALL_OF_A]),
    Stream(
        "kafkaConsumer.pollTimeoutMs, fetchOffset.*",
        {
            **EARLIEST,
            "kafkaConsumer.pollTimeoutMs": "60000",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "0",
        },
        [ALL_OF_A],
    ),
    Stream("barrierInterval, minPauseBetweenCheckpoints: ours", {**EARLIEST, "barrierInterval": "1h"}, [ALL_OF_A]),
    Stream("minPauseBetweenCheckpoints: ours", {**EARLIEST, "minPauseBetweenCheckpoints": "1h"}, [ALL_OF_A]),
    Stream("alignOn: ours", {**EARLIEST, "alignOn": "marks-of-$a"}, [ALL_OF_A]),
    Stream(
        "alignment, alignedTimeout: ours",
        {**EARLIEST, "alignOn": "marks-of-$a", "alignment": "unaligned", "alignedTimeout": "1s"},
        [ALL_OF_A],
    ),
    Stream("kafka.*: to the client", {**EARLIEST, "kafka.fetch.min.bytes": "1", "kafka.client.id": "x"}, [ALL_OF_A]),
]


@dataclass(frozen=True)
class Batch:
    """A batch read."""

    told: str  # What the guide says.
    options: Mapping[str, str]  # As in `Stream`.
    rows: Part
    tasks: int | None = None  # One per partition with rows by default.


BATCHES: Sequence[Batch] = [
    Batch("defaults to the earliest and latest offsets", {}, ALL_OF_A),
    Batch("nothing to read", {"assign": '{"$a": [2]}'}, {}),
    Batch(
        "startingOffsets and endingOffsets: json, the end excluded",
        {
            "subscribe": "$a,$b",
            "startingOffsets": '{"$a": {"0": 2, "1": -2, "2": -2}, "$b": {"0": -2}}',
            "endingOffsets": '{"$a": {"0": 5, "1": -1, "2": 0}, "$b": {"0": 1}}',
        },
        {"a0": (2, 5), "a1": (0, 3), "b0": (0, 1)},
    ),
    Batch(
        "a pattern, at the earliest and latest offsets",
        {"subscribePattern": "source-parity-.*", "startingOffsets": "earliest", "endingOffsets": "latest"},
        {**ALL_OF_A, "b0": (0, 2)},
    ),
    Batch(
        "startingTimestamp and endingTimestamp: from the first not less to before the first not less",
        {"assign": '{"$a": [0, 1]}', "startingTimestamp": "2000", "endingTimestamp": "4500"},
        {"a0": (1, 4), "a1": (0, 2)},
    ),
    Batch("endingTimestamp: latest where nothing matches", {"endingTimestamp": "6001"}, ALL_OF_A),
    Batch(
        "endingOffsetsByTimestamp, for each partition",
        {"endingOffsetsByTimestamp": '{"$a": {"0": 3000, "1": 5000, "2": 1}}'},
        {"a0": (0, 2), "a1": (0, 2)},
    ),
    Batch(
        "endingTimestamp takes precedence over the other two",
        {
            "subscribe": "$b",
            "endingTimestamp": "9000",
            "endingOffsetsByTimestamp": '{"$b": {"0": 0}}',
            "endingOffsets": '{"$b": {"0": 2}}',
        },
        {"b0": (0, 1)},
    ),
    Batch(
        "endingOffsetsByTimestamp takes precedence over endingOffsets",
        {"subscribe": "$b", "endingOffsetsByTimestamp": '{"$b": {"0": 9000}}', "endingOffsets": "latest"},
        {"b0": (0, 1)},
    ),
    Batch("alignOn: ours", {"alignOn": "marks-of-$a"}, ALL_OF_A),
    Batch("minPartitions", {"assign": '{"$a": [0]}', "minPartitions": "3"}, {"a0": (0, 6)}, tasks=3),
    Batch("maxRecordsPerPartition", {"maxRecordsPerPartition": "4"}, ALL_OF_A, tasks=3),
    Batch("maxPartitions", {"maxPartitions": "1"}, ALL_OF_A, tasks=1),
    Batch("maxOffsetsPerTrigger is ignored", {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1"}, ALL_OF_A),
    Batch("includeHeaders", {"subscribe": "$b", "includeHeaders": "true"}, {"b0": (0, 2)}),
]

BAD: Sequence[tuple[Mapping[str, str], str]] = [
    ({"subscribe": ","}, "INVALID_OPTION.*subscribe"),
    ({"subscribe": "$a", "assign": '{"$a": [0]}'}, "FORBIDDEN_OPTION.*subscribe and assign"),
    ({"subscribe": "no-such-topic"}, "UNKNOWN_TOPIC.*no-such-topic.*option subscribe"),
    ({"assign": "$a"}, r"INVALID_OPTION.*assign.*\[0, 1\]"),
    ({"assign": '{"$a": [0, 7]}'}, "INVALID_OPTION.*assign is 'source-parity-a-7'"),
    ({"assign": '{"no-such-topic": [0]}'}, "UNKNOWN_TOPIC.*no-such-topic.*option assign"),
    ({"subscribePattern": "a("}, "INVALID_OPTION.*subscribePattern"),
    ({"startingOffsets": "first"}, "INVALID_OPTION.*startingOffsets is 'first'"),
    ({"startingOffsets": '{"$a": {"0": 1}}'}, "INVALID_OPTION.*startingOffsets is 'without source-parity-a-1"),
    (
        {"assign": '{"$a": [0]}', "startingOffsets": '{"$a": {"0": 7}}'},
        r"INVALID_OPTION.*startingOffsets is 'source-parity-a-0: 7'; expected offsets that .* \(source-parity-a-0: \[0, 6\)",
    ),
    ({"startingTimestamp": "now"}, "INVALID_OPTION.*startingTimestamp"),
    (
        {"startingTimestamp": "1000"},
        "INVALID_OPTION.*startingTimestamp is .*source-parity-a-2 since 1000.*startingOffsetsByTimestampStrategy",
    ),
    ({"startingOffsetsByTimestamp": "1000"}, "INVALID_OPTION.*startingOffsetsByTimestamp"),
    (
        {"startingOffsetsByTimestamp": '{"$a": {"0": 1}}'},
        "INVALID_OPTION.*startingOffsetsByTimestamp is 'without source-parity-a-1",
    ),
    (
        {"assign": '{"$a": [0]}', "startingOffsetsByTimestamp": '{"$a": {"0": 6001}}'},
        "INVALID_OPTION.*startingOffsetsByTimestamp is 'source-parity-a-0 since 6001",
    ),
    ({"startingOffsetsByTimestampStrategy": "earliest"}, "INVALID_OPTION.*Strategy.*error or latest"),
    ({"endingOffsets": "latest"}, "FORBIDDEN_OPTION.*endingOffsets"),
    ({"endingOffsetsByTimestamp": '{"$a": {"0": 1}}'}, "FORBIDDEN_OPTION.*endingOffsetsByTimestamp"),
    ({"endingTimestamp": "5"}, "FORBIDDEN_OPTION.*endingTimestamp"),
    ({"failOnDataLoss": "perhaps"}, "INVALID_OPTION.*failOnDataLoss.*true or false"),
    ({"maxOffsetsPerTrigger": "0"}, "INVALID_OPTION.*maxOffsetsPerTrigger.*whole number, 1 or more"),
    ({"minOffsetsPerTrigger": "-1"}, "INVALID_OPTION.*minOffsetsPerTrigger"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "INVALID_OPTION.*at most maxOffsetsPerTrigger"),
    ({"maxTriggerDelay": "later"}, "INVALID_OPTION.*maxTriggerDelay.*30s"),
    ({"minPartitions": "0"}, "INVALID_OPTION.*minPartitions"),
    ({"minPartitions": "3"}, "FORBIDDEN_OPTION.*minPartitions.*allowReordering"),
    ({"maxPartitions": "0"}, "INVALID_OPTION.*maxPartitions"),
    ({"minPartitions": "3", "maxPartitions": "2", "allowReordering": "true"}, "INVALID_OPTION.*at most maxPartitions"),
    ({"allowReordering": "perhaps"}, "INVALID_OPTION.*allowReordering.*true or false"),
    ({"maxRecordsPerPartition": "0"}, "INVALID_OPTION.*maxRecordsPerPartition"),
    ({"includeHeaders": "1"}, "INVALID_OPTION.*includeHeaders"),
    ({"columns": "value,body"}, "INVALID_OPTION.*columns"),
    ({"groupIdPrefix": ""}, "INVALID_OPTION.*groupIdPrefix"),
    ({"kafka.group.id": " "}, r"INVALID_OPTION.*kafka\.group\.id"),
    ({"kafkaConsumer.pollTimeoutMs": "2m"}, r"INVALID_OPTION.*kafkaConsumer\.pollTimeoutMs"),
    ({"fetchOffset.numRetries": "some"}, r"INVALID_OPTION.*fetchOffset\.numRetries"),
    ({"fetchOffset.retryIntervalMs": "-1"}, r"INVALID_OPTION.*fetchOffset\.retryIntervalMs"),
    ({"barrierInterval": "never"}, "INVALID_OPTION.*barrierInterval"),
    ({"minPauseBetweenCheckpoints": ""}, "INVALID_OPTION.*minPauseBetweenCheckpoints"),
    ({"alignOn": "no-such-marks"}, "UNKNOWN_TOPIC.*no-such-marks.*option alignOn"),
    ({"alignOn": "$b", "subscribe": "$a"}, "FORMAT_UNKNOWN.*record at source-parity-b"),
    (
        {"subscribe": "$b", "alignOn": "marks-of-$a"},
        "MARKS_DISAGREE.*marks of the topic source-parity-a, which this query",
    ),
    ({"checkpointLocation": "/q"}, "FORBIDDEN_OPTION.*checkpointLocation: it needs alignOn"),
    ({"alignOn": "marks-of-$a", "alignment": "best"}, "INVALID_OPTION.*alignment is 'best'"),
    ({"alignOn": "marks-of-$a", "alignment": "unaligned", "alignedTimeout": "later"}, "INVALID_OPTION.*alignedTimeout"),
    # What Spark's guide lists as not to be set.
    ({"kafka.auto.offset.reset": "latest"}, r"FORBIDDEN_OPTION.*kafka\.auto\.offset\.reset.*startingOffsets"),
    ({"kafka.key.deserializer": "x"}, r"FORBIDDEN_OPTION.*kafka\.key\.deserializer.*cast or parse"),
    ({"kafka.value.deserializer": "x"}, r"FORBIDDEN_OPTION.*kafka\.value\.deserializer.*cast or parse"),
    ({"kafka.enable.auto.commit": "true"}, r"FORBIDDEN_OPTION.*kafka\.enable\.auto\.commit.*checkpoint"),
    ({"kafka.interceptor.classes": "x"}, r"FORBIDDEN_OPTION.*kafka\.interceptor\.classes"),
]
"""Refused before a stream reads a row."""

BAD_BATCHES: Sequence[tuple[Mapping[str, str], str]] = [
    ({"startingOffsets": "latest"}, "INVALID_OPTION.*startingOffsets is 'latest'.*can't begin at its end"),
    ({"startingOffsets": '{"$a": {"0": -1, "1": 0, "2": 0}}'}, r"INVALID_OPTION.*startingOffsets is '-1 \(latest\)'"),
    ({"endingOffsets": "earliest"}, "INVALID_OPTION.*endingOffsets is 'earliest'.*can't end at its beginning"),
    ({"endingOffsets": '{"$a": {"0": -2}}'}, r"INVALID_OPTION.*endingOffsets is '-2 \(earliest\)'"),
    ({"endingOffsets": '{"$a": {"0": 1}}'}, "INVALID_OPTION.*endingOffsets is 'without source-parity-a-1"),
    (
        {"assign": '{"$a": [0]}', "endingOffsets": '{"$a": {"0": 8}}'},
        r"INVALID_OPTION.*endingOffsets is 'source-parity-a-0: 8'; expected offsets that exist",
    ),
    ({"endingOffsetsByTimestamp": "{}"}, "INVALID_OPTION.*endingOffsetsByTimestamp"),
    ({"endingTimestamp": "-5"}, "INVALID_OPTION.*endingTimestamp"),
    (
        {"assign": '{"$a": [0]}', "startingTimestamp": "5000", "endingOffsets": '{"$a": {"0": 2}}'},
        r"INVALID_OPTION.*endingOffsets is 'source-parity-a-0: from 4 to 2'; expected an end at or after startingTimestamp",
    ),
]


def filled(options: Mapping[str, str], kafka: Cluster) -> dict[str, str]:
    found = {key: Template(value).substitute(a=A, b=B) for key, value in options.items()}
    if not {key.lower() for key in found} & {"subscribe", "subscribepattern", "assign"}:
        found["subscribe"] = A
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **found}


def place(short: str) -> tuple[str, int]:
    return {"a": A, "b": B}[short[0]], int(short[1:])


def rows_of(part: Part) -> list[str]:
    return sorted(
        f"{topic}-{number}-{offset}"
        for (topic, number), (first, end) in ((place(short), offsets) for short, offsets in part.items())
        for offset in range(first, end)
    )


def told_of(case: Stream | Batch) -> str:
    return case.told


@pytest.fixture(scope="module")
def topics(kafka: Cluster) -> Cluster:
    """The two topics; nothing is ever added to them."""
    kafka.create_topic(A, partitions=3)
    kafka.create_topic(B)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, stamps in TOPICS.items():
        topic, _, number = partition.rpartition("-")
        for offset, stamp in enumerate(stamps):
            value = f"{partition}-{offset}".encode()
            producer.produce(topic, value, partition=int(number), timestamp=stamp, headers=[("place", value)])
    assert producer.flush(30) == 0
    with Injector(ClientConfig("test", {"bootstrap.servers": kafka.bootstrap_servers}), A, f"marks-of-{A}") as injector:
        assert injector.inject() is not None
    return kafka


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(BarrierKafkaDataSource)
    return spark


def stream_reader(options: Mapping[str, str]) -> BarrierKafkaStreamReader:
    columns = parse_read_options(options).columns
    return BarrierKafkaDataSource(dict(options)).streamReader(spark_schema(columns))


def asked(reader: BarrierKafkaStreamReader, start: dict[str, Any]) -> dict[str, Any] | None:
    """The next end through text, as Spark keeps it; None where it is `start`."""
    text = json.dumps(start)
    end = json.dumps(reader.latestOffset(json.loads(text), reader.getDefaultReadLimit()))
    return None if end == text else dict(json.loads(end))


# -- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STREAMS, ids=told_of)
def test_a_new_query_reads_these_offsets(topics: Cluster, case: Stream) -> None:
    options = filled(case.options, topics)
    BarrierKafkaDataSource(dict(options)).schema()
    reader = stream_reader(options)
    reader.prepareForTriggerAvailableNow()
    start, tasks = reader.initialOffset(), []
    for expected in case.batches:
        end = asked(reader, start)
        assert end is not None
        for short, offsets in expected.items():
            topic, number = place(short)
            assert (end["start"][topic][str(number)], end["topics"][topic][str(number)]) == offsets
        tasks.append(len(reader.partitions(start, end)))
        assert sorted((value or b"").decode() for _, _, value in rows_between(reader, start, end)) == rows_of(expected)
        start = end
    assert asked(reader, start) is None
    if tasks:
        assert tasks[0] == (len(case.batches[0]) if case.tasks is None else case.tasks)


@pytest.mark.parametrize("case", [case for case in STREAMS if case.in_spark], ids=told_of)
def test_spark_reads_these_offsets_with_available_now(
    topics: Cluster, registered: SparkSession, case: Stream, tmp_path: Path
) -> None:
    query, seen = collect(load(registered, filled(case.options, topics)), tmp_path, now=True)
    assert query.awaitTermination(180)
    read = [sorted(row.value.decode() for row in rows) for _, rows in sorted(seen.items())]
    # Spark runs a first micro-batch also where nothing is to be read.
    assert read == ([rows_of(each) for each in case.batches] or [[]])
    for row in (row for rows in seen.values() for row in rows):
        assert f"{row.topic}-{row.partition}-{row.offset}" == row.value.decode()
        if "includeHeaders" in case.options:
            assert [(header.key, header.value) for header in row.headers] == [("place", bytes(row.value))]


@pytest.mark.parametrize(("options", "told"), BAD, ids=[told for _, told in BAD])
def test_a_stream_refuses_it_before_a_row_is_read(topics: Cluster, options: Mapping[str, str], told: str) -> None:
    given = filled(options, topics)

    def start() -> None:  # in the order in which Spark calls them
        BarrierKafkaDataSource(dict(given)).schema()
        stream_reader(given).initialOffset()

    with pytest.raises((OptionError, StoreError), match=told):
        start()


def test_a_stream_with_an_end_fails_in_spark_before_a_row_is_read(
    topics: Cluster, registered: SparkSession, tmp_path: Path
) -> None:
    query, seen = collect(load(registered, filled({"endingOffsets": "latest"}, topics)), tmp_path, now=True)
    with pytest.raises(Exception, match=r"(?s)FORBIDDEN_OPTION.*endingOffsets"):
        query.awaitTermination(180)
    assert seen == {}


def test_every_option_has_a_case_and_a_bad_value() -> None:
    def keys(cases: Sequence[Mapping[str, str]]) -> set[str]:
        return {key.lower() for options in cases for key in options}

    # These need a query's location: tests/connector/kafka/source/test_meeting.py.
    elsewhere = {"checkpointlocation", "checkpointendpoint", "checkpointregion"}
    known = {option.key.lower() for option in (*READ_OPTIONS.options, GROUP_ID)} - elsewhere
    assert known <= keys([*(case.options for case in STREAMS), *(case.options for case in BATCHES)])
    assert known <= keys([options for options, _ in (*BAD, *BAD_BATCHES)])


def test_starting_offsets_mean_nothing_to_a_query_that_has_a_checkpoint(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(3), partitions=1)
    read = []
    # The last would be refused by a new query: the partition has only five rows.
    for starting in ("earliest", "latest", json.dumps({topic_name: {"0": 77}})):
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": topic_name,
            "startingOffsets": starting,
        }
        query, seen = collect(load(registered, options), tmp_path, now=True)
        assert query.awaitTermination(180)
        read.append([row.value for rows in seen.values() for row in rows])
        produce(kafka, topic_name, [len(read)], partitions=1)
    assert read == [[b"0", b"1", b"2"], [b"1"], [b"2"]]


def test_topics_that_come_while_a_pattern_is_read_are_read_from_their_first_row(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribePattern": f"{topic_name}-[0-9]",
        "minOffsetsPerTrigger": "1",
    }
    kafka.create_topic(f"{topic_name}-other")
    produce(kafka, f"{topic_name}-other", [99], partitions=1)
    query, seen = collect(load(registered, options), tmp_path, now=False)
    expected: set[int] = set()
    try:
        query.processAllAvailable()
        for number in (1, 2):
            kafka.create_topic(f"{topic_name}-{number}", partitions=2)
            produce(kafka, f"{topic_name}-{number}", range(number * 10, number * 10 + 4))
            expected.update(range(number * 10, number * 10 + 4))
            # What a new topic's brokers know of it, all of them know after a moment.
            wait_until(lambda: {int(row.value) for rows in seen.values() for row in rows} == expected)
    finally:
        query.stop()
    assert sorted(int(row.value) for rows in seen.values() for row in rows) == sorted(expected)


def test_a_partition_that_is_new_begins_at_its_first_row_that_is_left_where_data_loss_is_allowed(
    kafka: Cluster, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    reader = reader_of(kafka, topic_name)
    start = reader.initialOffset()
    add_partitions(kafka, topic_name, 2)
    produce(kafka, topic_name, [1, 1, 1, 1, 1])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(topic_name, 1, 3)]).values():
        answer.result(30)
    with pytest.raises(StoreError, match=rf"DATA_LOST.*{topic_name}-1 begins at 3.*failOnDataLoss"):
        reader.latestOffset(start, ReadAllAvailable())
    careless = reader_of(kafka, topic_name, failOnDataLoss="false")
    end = asked(careless, start)
    assert end is not None
    assert (end["start"][topic_name]["1"], end["topics"][topic_name]["1"]) == (3, 5)
    assert [offset for _, offset, _ in rows_between(careless, start, end)] == [3, 4]


def test_a_micro_batch_waits_for_the_least_or_for_the_delay_and_a_barrier_does_not(
    kafka: Cluster, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    clock = FakeClock()
    reader = reader_of(
        kafka,
        topic_name,
        minOffsetsPerTrigger="3",
        maxTriggerDelay="10s",
        maxOffsetsPerTrigger="4",
        barrierInterval="5s",
    )
    reader._clock = reader._backlog._clock = clock
    ends = [reader.initialOffset()]

    def after(seconds: float, rows: int) -> tuple[int, bool] | None:
        """The offset where the next micro-batch ends, and whether rows without a barrier are behind it."""
        clock.sleep(seconds)
        produce(kafka, topic_name, range(rows), partitions=1)
        end = asked(reader, ends[-1])
        if end is None:
            return None
        ends.append(end)
        return end["topics"][topic_name]["0"], end["barrierRows"]

    assert after(0, 1) == (1, False), "the first does not wait"
    assert after(1, 2) is None
    assert after(1, 1) == (4, True), "enough"
    assert after(2, 2) is None
    assert after(1, 0) == (4, False), "the barrier that is due comes without the rows that wait"
    assert after(6.9, 0) is None
    assert after(0.1, 0) == (6, False), "long enough"
    assert after(1, 9) == (10, True), "at most"
    assert asked(reader, ends[-1]) is not None, "enough are left"
    reader.stop()
    # Where Spark wants everything (Trigger.Once), no limit holds.
    produce(kafka, topic_name, range(2), partitions=1)
    assert reader.latestOffset(ends[-1], ReadAllAvailable())["topics"] == {topic_name: {"0": 17}}


def test_an_answer_behind_what_was_read_is_asked_for_again(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2), partitions=1)
    clock = FakeClock()
    reader = reader_of(kafka, topic_name, **{"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "500"})
    reader._clock = reader._backlog._clock = clock
    start = reader.initialOffset()
    start["topics"][topic_name]["0"] = 5
    with pytest.raises(StoreError, match=r"DATA_LOST.*read up to 5, ends at 2"):
        reader.latestOffset(start, ReadAllAvailable())
    assert clock.passed == 4 * 0.5


def test_a_query_that_stands_behind_an_open_transaction_waits_for_its_end(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"1", partition=0)
    assert producer.flush(30) == 0
    produce(kafka, topic_name, [2, 3], partitions=1)
    # As an older query, which read without regard to transactions, has left it.
    reader = reader_of(kafka, topic_name, startingOffsets=json.dumps({topic_name: {"0": 2}}))
    start = reader.initialOffset()
    assert asked(reader, start) is None
    # A batch read can't wait.
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
    ending = {**options, "endingOffsets": json.dumps({topic_name: {"0": 2}})}
    with pytest.raises(
        OptionError, match=r"INVALID_OPTION.*endingOffsets is '.*: 2'.*can be read now \(.*: 0\).*open transaction"
    ):
        batch_reader(ending).partitions()
    assert batch_reader({**ending, "failOnDataLoss": "false"}).partitions() == []
    producer.commit_transaction(30)
    wait_until(lambda: reader.latestOffset(start, ReadAllAvailable()) != start)
    end = asked(reader, start)
    assert end is not None
    assert [value for _, _, value in rows_between(reader, start, end)] == [b"3"]


def test_a_task_fails_when_nothing_comes_for_as_long_as_it_may_wait(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", **{"kafkaConsumer.pollTimeoutMs": "2500"})
    start = reader.initialOffset()
    end = asked(reader, start)
    assert end is not None
    end["topics"][topic_name]["0"] = 3
    reader._end = end  # as it was planned: a replay is looked at first
    with pytest.raises(StoreError, match=r"KAFKA_TIMEOUT.*2\.5 s \(option kafkaConsumer\.pollTimeoutMs\) at offset 2"):
        rows_between(reader, start, end)


@pytest.mark.parametrize(
    ("options", "group"), [({"groupIdPrefix": "by-prefix"}, "by-prefix-"), ({"kafka.group.id": "by-name"}, "by-name")]
)
def test_the_groups_offsets_are_kept_under_the_name_that_was_set(
    kafka: Cluster, topic_name: str, options: dict[str, str], group: str
) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, range(2), partitions=1)
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", **options)
    end = asked(reader, reader.initialOffset())
    assert end is not None
    reader.commit(end)
    name = reader._options.config.settings["group.id"]
    assert name.startswith(group)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def committed() -> dict[str, int]:
        asked_for = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
        return {at.topic: at.offset for at in asked_for.result(30).topic_partitions}

    wait_until(lambda: committed() == {topic_name: 2})


# -- batch reads ----------------------------------------------------------------------------------------------------


def batch_reader(options: Mapping[str, str]) -> BarrierKafkaBatchReader:
    return BarrierKafkaDataSource(dict(options)).reader(
        spark_schema(all_columns(options.get("includeHeaders") == "true"))
    )


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("barrier-kafka").options(**options).load()


@pytest.mark.parametrize("case", BATCHES, ids=told_of)
def test_spark_reads_these_offsets_in_a_batch(topics: Cluster, registered: SparkSession, case: Batch) -> None:
    options = filled(case.options, topics)
    rows = read(registered, options).collect()
    assert sorted(row.value.decode() for row in rows) == rows_of(case.rows)
    for row in rows:
        assert f"{row.topic}-{row.partition}-{row.offset}" == row.value.decode()
        assert row.timestamp.timestamp() * 1000 == TOPICS[f"{row.topic}-{row.partition}"][row.offset]
        assert ("headers" in row) == ("includeHeaders" in case.options)
    assert len(batch_reader(options).partitions()) == (len(case.rows) if case.tasks is None else case.tasks)


@pytest.mark.parametrize(("options", "told"), BAD_BATCHES, ids=[told for _, told in BAD_BATCHES])
def test_a_batch_read_refuses_it_before_a_row_is_read(topics: Cluster, options: Mapping[str, str], told: str) -> None:
    given = filled(options, topics)
    with pytest.raises(OptionError, match=told):
        batch_reader(given).partitions()


def test_a_refusal_of_a_batch_read_reaches_the_user(topics: Cluster, registered: SparkSession) -> None:
    with pytest.raises(Exception, match=r"(?s)INVALID_OPTION.*startingOffsets is 'latest'"):
        read(registered, filled({"startingOffsets": "latest"}, topics)).collect()
    with pytest.raises(Exception, match=r"(?s)FORBIDDEN_OPTION.*\.schema"):
        registered.read.format("barrier-kafka").schema("a INT").options(**filled({}, topics)).load().collect()


def test_a_batch_read_sees_committed_rows_only_and_none_that_come_later(
    kafka: Cluster, registered: SparkSession, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic_name})
    producer.init_transactions(30)
    for value in range(6):
        producer.begin_transaction()
        producer.produce(topic_name, str(value).encode(), partition=0)
        if value % 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
    assert [row.value for row in read(registered, options).collect()] == [b"0", b"2", b"4"]
    everything = read(registered, {**options, "kafka.isolation.level": "read_uncommitted"})
    assert [int(row.value) for row in everything.collect()] == list(range(6))
    reader = batch_reader(options)
    [partition] = reader.partitions()
    produce(kafka, topic_name, [6], partitions=1)
    assert sum(batch.num_rows for batch in reader.read(partition)) == 3


def test_the_isolation_level_means_the_same_in_any_case_to_the_driver_and_to_its_tasks(
    kafka: Cluster, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    produce(kafka, topic_name, [0], partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"open", partition=0)
    assert producer.flush(30) == 0
    found = {}
    for level in ("READ_COMMITTED", "Read_Uncommitted"):
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
        reader = batch_reader({**options, "kafka.isolation.level": level, "kafkaConsumer.pollTimeoutMs": "3000"})
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        found[level] = [value for batch in batches for value in batch.column("value").to_pylist()]
    producer.abort_transaction(30)
    assert found == {"READ_COMMITTED": [b"0"], "Read_Uncommitted": [b"0", b"open"]}
