"""Bad input through Spark itself: the error names the option and the remedy, before a row is read or written.

One mistake for each moment at which it can be found; the others of its kind are in ``tests/connector/kafka``.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

import connector
from integration.broker import Cluster
from integration.driver_process import final_rows, wait_until
from integration.topic_output import TopicOutput
from transactional.entry import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 180.0
ROW_WAS_READ = "a row was read"
UNREACHABLE = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    connector.register(spark)
    return spark


@pytest.fixture(scope="module")
def never(kafka: Cluster) -> Iterator[str]:
    """Return a topic into which nothing may ever be written."""
    topic = "bad-input-never"
    kafka.create_topic(topic, partitions=2)
    yield topic
    assert_empty(kafka, topic)


def assert_empty(kafka: Cluster, topic: str) -> None:
    """Nothing was ever written: no row, not even one that was aborted. Looked at again when all tests are over."""
    ends = TopicOutput(kafka.bootstrap_servers, topic, "").ends(IsolationLevel.READ_UNCOMMITTED)
    assert {*ends.values()} == {0}


def numbers(session: SparkSession, rows: int = 5) -> DataFrame:
    return session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()


def unreadable(session: SparkSession, *columns: str) -> DataFrame:
    """Rows whose value can't be made: a query that reads one fails with that instead of what is expected."""
    trap = f"IF(value >= 0, raise_error('{ROW_WAS_READ}'), 'x')"
    frame = numbers(session).selectExpr(f"{trap} AS trap", "value AS number")
    return frame.selectExpr(*(columns or ("trap AS value",)))


def start(frame: DataFrame, options: Mapping[str, str | None], mode: str = "append") -> StreamingQuery:
    """Start as PySpark does, unchecked: `test_mistakes` has the same mistakes where `start` is to raise them."""
    given = {key: value for key, value in options.items() if value is not None}
    writer = frame.writeStream.format("2pc-kafka").outputMode(mode).options(**given)
    plain: Callable[[Any], StreamingQuery] = inspect.unwrap(DataStreamWriter.start)
    return plain(writer)


def failure(query: StreamingQuery) -> str:
    """Wait until the query fails; what it says."""
    try:
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination(int(SECONDS))
    finally:
        query.stop()
    return str(failed.value)


def assert_told(told: str, *parts: str) -> None:
    assert f"] {ROW_WAS_READ}" not in told  # the query's plan in the message has the text, too
    assert re.search(".*".join(parts), told, re.DOTALL), told


def valid(kafka: Cluster, topic: str | None, location: Path, **more: str | None) -> dict[str, str | None]:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, "checkpointLocation": str(location)}
    return {**options, **more}


# -- source ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"subscribe": "no-such-topic"}, ["UNKNOWN_TOPIC", "no-such-topic", "subscribe", "Create the topic"]),
        ({"subscirbe": "x"}, ["UNKNOWN_OPTION", "subscirbe", "did you mean subscribe"]),
    ],
)
def test_the_source_refuses_it_at_load(
    kafka: Cluster, session: SparkSession, never: str, wrong: dict[str, str | None], told: list[str]
) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": never, **wrong}
    given = {key: value for key, value in options.items() if value is not None}
    with pytest.raises(Exception, match="(?s)" + ".*".join(told)):
        session.readStream.format("barrier-kafka").options(**given).load()


# -- sink: refused at the first planning ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topic": "no-such-topic"}, ["UNKNOWN_TOPIC", "no-such-topic", "option topic", "Create the topic"]),
        ({"transactionIdPrefix": "x"}, ["UNKNOWN_OPTION", "transactionidprefix", "did you mean transactionalIdPrefix"]),
        ({"kafka.bogus.setting": "1"}, ["INVALID_OPTION", r"bogus\.setting"]),
        (
            {"kafka.transaction.timeout.ms": "900001"},
            ["INVALID_OPTION", "900001", "at most 900000", r"transaction\.max\.timeout\.ms"],
        ),
    ],
)
def test_the_sink_refuses_the_option_before_a_row_is_read(
    kafka: Cluster, session: SparkSession, never: str, tmp_path: Path, wrong: dict[str, str | None], told: list[str]
) -> None:
    options = {**valid(kafka, never, tmp_path / "location"), **wrong}
    assert_told(failure(start(unreadable(session), options)), *told)
    assert_empty(kafka, never)


def test_the_sink_refuses_the_columns_before_a_row_is_read(
    kafka: Cluster, session: SparkSession, never: str, tmp_path: Path
) -> None:
    query = start(unreadable(session, "trap AS key", "number AS value"), valid(kafka, never, tmp_path / "location"))
    assert_told(failure(query), "COLUMNS_MISMATCH", "value is int64", "string or binary", "cast")
    assert_empty(kafka, never)


def test_a_checkpoint_location_that_only_the_session_sets_is_refused_with_the_way_out(
    kafka: Cluster, session: SparkSession, never: str, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "locations"))
    try:
        query = start(unreadable(session), {**valid(kafka, never, tmp_path), "checkpointLocation": None})
        told = failure(query)
    finally:
        session.conf.unset("spark.sql.streaming.checkpointLocation")
    assert_told(told, "MISSING_OPTION", r'\.option\("checkpointLocation", \.\.\.\)', r"on the writer itself")
    assert_empty(kafka, never)


def test_no_checkpoint_location_at_all_is_refused_by_name(
    kafka: Cluster, session: SparkSession, never: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r'option\("checkpointLocation"'):
        start(unreadable(session), {**valid(kafka, never, tmp_path), "checkpointLocation": None})


def test_complete_mode_is_refused_by_name(kafka: Cluster, session: SparkSession, never: str, tmp_path: Path) -> None:
    counts = unreadable(session, "trap").groupBy("trap").count().selectExpr("CAST(count AS STRING) AS value")
    told = failure(start(counts, valid(kafka, never, tmp_path), mode="complete"))
    assert_told(told, "OUTPUT_MODE", "2pc-kafka", r'outputMode\("complete"\)', r'outputMode\("append"\)')
    assert_empty(kafka, never)


def test_a_batch_write_needs_to_say_which_it_is(
    kafka: Cluster, session: SparkSession, never: str, tmp_path: Path
) -> None:
    frame = session.range(3).selectExpr(f"IF(id >= 0, raise_error('{ROW_WAS_READ}'), 'x') AS value")
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": never, "checkpointLocation": str(tmp_path)}
    with pytest.raises(Exception, match=r"(?s)MISSING_OPTION.*2pc-kafka.*needs the option txnAppId"):
        frame.write.format("2pc-kafka").mode("append").options(**options).save()
    assert_empty(kafka, never)


@pytest.mark.slow
def test_brokers_that_the_sink_cannot_reach_are_refused_within_30_seconds(
    session: SparkSession, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": UNREACHABLE, "topic": "t", "checkpointLocation": str(tmp_path)}
    began = time.monotonic()
    told = failure(start(unreadable(session), options))
    assert time.monotonic() - began < 30
    assert_told(told, "BROKERS_UNREACHABLE", r"127\.0\.0\.1:1", "Check the addresses")


# -- checkpoint locations -------------------------------------------------------------------------------------------


def copied(location: Path) -> Path:
    """Copy the location; the original could go on, too."""
    shutil.copytree(location, location.with_name("copy"))
    return location.with_name("copy")


def with_a_newer_entry(location: Path) -> Path:
    """Let a newer release have written into the journal."""
    log = location / "barrier" / "log"
    last = max(int(file.stem) for file in log.glob("*.json"))
    entry = json.loads((log / f"{last}.json").read_text())
    (log / f"{last + 1}.json").write_text(json.dumps({**entry, "format": FORMAT + 1, "number": last + 1}))
    return location


def of_another_query(location: Path) -> Path:
    """Let Spark believe that the location is another query's."""
    (location / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    (location / ".metadata.crc").unlink(missing_ok=True)
    return location


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (copied, ["LOCATION_MOVED", "barrier restore --as-is LOCATION --claim", "--no-claim"]),
        (with_a_newer_entry, ["FORMAT_UNKNOWN", f"format {FORMAT + 1}"]),
        (of_another_query, ["LOCATION_MOVED", "barrier restore --as-is"]),
    ],
)
def test_a_spoilt_location_is_refused_before_a_row_is_read(
    kafka: Cluster,
    session: SparkSession,
    topic_name: str,
    tmp_path: Path,
    spoil: Callable[[Path], Path],
    told: list[str],
) -> None:
    kafka.create_topic(topic_name)
    options = valid(kafka, topic_name, tmp_path / "location")
    query = start(numbers(session).selectExpr("CAST(value AS STRING) AS value"), options)
    try:
        first_row(kafka, topic_name)
    finally:
        query.stop()
    output = TopicOutput(kafka.bootstrap_servers, topic_name, str(query.id))
    wait_until(output.is_quiet, "no open transaction, no reader held back")
    ends = output.ends(IsolationLevel.READ_UNCOMMITTED)
    location = spoil(tmp_path / "location")
    assert_told(failure(start(unreadable(session), {**options, "checkpointLocation": str(location)})), *told)
    assert output.ends(IsolationLevel.READ_UNCOMMITTED) == ends


# -- while it runs --------------------------------------------------------------------------------------------------


def test_of_two_live_queries_with_one_prefix_the_fenced_one_stops_and_says_so(
    kafka: Cluster, session: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    source = f"{topic_name}-in"
    for topic in (source, topic_name):
        kafka.create_topic(topic)
    read = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": source, "startingOffsets": "earliest"}
    rows = session.readStream.format("barrier-kafka").options(**read).load().select("value")
    options = {"transactionalIdPrefix": topic_name}
    produce(kafka, source, "1")
    first = start(rows, valid(kafka, topic_name, tmp_path / "first", **options))
    second = None
    try:
        first.processAllAvailable()
        second = start(rows, valid(kafka, topic_name, tmp_path / "second", **options))
        second.processAllAvailable()
        produce(kafka, source, "2")
        assert_told(
            failure(first), "PREFIX_TAKEN", f"transactionalIdPrefix {topic_name}", "its own transactionalIdPrefix"
        )
        second.processAllAvailable()
        assert second.isActive
    finally:
        first.stop()
        if second is not None:
            second.stop()
    seen = final_rows(TopicOutput(kafka.bootstrap_servers, topic_name, topic_name))
    assert seen == {1: 2, 2: 1}, "each query copies the topic: the first until it is fenced"


def test_a_row_that_is_too_large_fails_its_batch_with_size_and_partition(
    kafka: Cluster, session: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    rows = numbers(session, rows=8).selectExpr(
        "IF(value = 5, repeat('x', 2000000), 'small') AS value", "CAST(value % 2 AS INT) AS partition"
    )
    told = failure(start(rows, valid(kafka, topic_name, tmp_path)))
    assert_told(told, "ROW_TOO_LARGE", "2000000 bytes", rf"{re.escape(topic_name)} \[1\]", r"max\.message\.bytes")
    output = TopicOutput(kafka.bootstrap_servers, topic_name, "")
    assert final_rows(output) == {}


def test_a_null_value_is_a_tombstone(kafka: Cluster, session: SparkSession, topic_name: str, tmp_path: Path) -> None:
    kafka.create_topic(topic_name)
    rows = numbers(session, rows=1).selectExpr("'deleted' AS key", "CAST(NULL AS STRING) AS value")
    query = start(rows, valid(kafka, topic_name, tmp_path))
    try:
        found = first_row(kafka, topic_name)
    finally:
        query.stop()
    assert (found.key(), found.value()) == (b"deleted", None)


def produce(kafka: Cluster, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, value.encode())
    assert producer.flush(SECONDS) == 0


def first_row(kafka: Cluster, topic: str) -> Any:
    """Wait for a topic's first row."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                return message
    finally:
        consumer.close()
    raise AssertionError(f"{topic} has no row after {SECONDS} s")
