"""Queries with Spark's own Kafka source that go on with barrier-kafka."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions

from connector.cli import main
from integration import ROOT
from integration.broker import Cluster
from integration.driver_process import final_rows, wait_until
from integration.topic_jobs import produce
from integration.topic_output import TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def old_rows(spark: SparkSession, kafka: Cluster, topic: str, **more: str) -> DataFrame:
    """The rows as the job read them so far."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, **more}
    return spark.readStream.format("kafka").options(**options).load()


def program_of(word: str) -> str:
    """The program of the page that has this word."""
    page = (ROOT / "docs" / "migrate.md").read_text()
    [program] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if word in block]
    return str(program)


def go_on(spark: SparkSession, kafka: Cluster, topic: str, output: str, location: Path) -> None:
    """The same job with our formats, until everything is read."""
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    # No startingOffsets: latest would lose all rows that came meanwhile, were it taken.
    rows = spark.readStream.format("barrier-kafka").options(**servers, subscribe=topic).load()
    writer = rows.select("key", "value").writeStream.format("2pc-kafka").options(**servers, topic=output)
    query = writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    assert query.awaitTermination(180), "the query goes on for ever"


def import_offsets(old: Path, new: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["import-offsets", str(old), str(new), "--yes", "--output", "json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_every_row_is_written_once_by_the_old_query_and_the_new_one(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, old, new = f"{topic_name}-out", tmp_path / "old", tmp_path / "deep" / "new"
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(output, partitions=2)
    produce(kafka, topic_name, range(25), 2)
    rows = old_rows(spark, kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    writer = rows.select("key", "value").writeStream.format("kafka").option("topic", output)
    query = (
        writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("checkpointLocation", str(old)).start()
    )
    query.processAllAvailable()
    query.stop()
    produce(kafka, topic_name, range(25, 40), 2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic_name, 3)])[topic_name].result(30)
    wait_until(lambda: partitions_of(kafka, topic_name) == 3, "a third partition")
    produce(kafka, topic_name, range(41, 60, 3), 3)  # all of them in the new partition

    found = import_offsets(old, new, capsys)
    assert (found["batch"], found["uncommitted"]) == (2, None)
    assert found["offsets"] == [{topic_name: {"0": 13, "1": 12}}]
    go_on(spark, kafka, topic_name, output, new)
    assert final_rows(TopicOutput(kafka.bootstrap_servers, output, "")) == Counter([*range(40), *range(41, 60, 3)])


@pytest.mark.slow
def test_a_micro_batch_that_the_old_query_left_half_written_is_read_again_and_named(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, old, new = f"{topic_name}-out", tmp_path / "old", tmp_path / "new"
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(output, partitions=1)
    produce(kafka, topic_name, range(20), 2)

    def write_half(frame: DataFrame, batch: int) -> None:
        half = frame if batch == 0 else frame.where("CAST(CAST(value AS STRING) AS INT) < 15")
        half.select("value").write.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).option(
            "topic", output
        ).save()
        if batch == 1:
            raise RuntimeError("the old job dies")

    rows = old_rows(spark, kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query = rows.writeStream.foreachBatch(write_half).option("checkpointLocation", str(old)).start()
    wait_until(lambda: not query.isActive, "the old query's end")
    assert sorted(path.name for path in (old / "commits").glob("[0-9]*")) == ["0"]

    found = import_offsets(old, new, capsys)
    assert (found["batch"], found["uncommitted"]) == (0, 1)
    program = program_of("intersectAll").replace("orders-upper", output).replace('"orders"', f'"{topic_name}"')
    program = program.replace("localhost:9092", kafka.bootstrap_servers).replace("OLD_LOCATION", str(old))
    exec(program.replace("uncommitted = 42", "uncommitted = 1"), {"spark": spark})
    assert capsys.readouterr().out == "5 of 10 rows are in the topic\n"
    assert any("Micro-batch 1 was started but not committed" in line for line in found["consequences"])
    go_on(spark, kafka, topic_name, output, new)
    assert final_rows(TopicOutput(kafka.bootstrap_servers, output, "")) == Counter([*range(20), *range(10, 15)])


def test_a_query_without_a_commit_begins_where_it_began(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(20), 2)

    def fail(frame: DataFrame, batch: int) -> None:
        raise RuntimeError("the old job dies")

    starting = json.dumps({topic_name: {"0": 3, "1": -1}})
    rows = old_rows(spark, kafka, topic_name, startingOffsets=starting)
    query = rows.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "old")).start()
    wait_until(lambda: not query.isActive, "the old query's end")
    found = import_offsets(tmp_path / "old", tmp_path / "new", capsys)
    assert (found["batch"], found["uncommitted"]) == (-1, 0)
    assert found["offsets"] == [{topic_name: {"0": 3, "1": 10}}]


def test_a_watermark_goes_on_and_state_stays_behind_only_when_it_is_said(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    kafka.create_topic(topic_name, partitions=1)
    produce(kafka, topic_name, range(3), 1)
    rows = old_rows(spark, kafka, topic_name, startingOffsets="earliest").withWatermark("timestamp", "0 seconds")
    counts = rows.groupBy("timestamp").count()
    query = counts.writeStream.format("noop").option("checkpointLocation", str(old)).start()
    query.processAllAvailable()
    query.stop()
    assert main(["import-offsets", str(old), str(new), "--yes"]) == 1
    assert "[STATE_STAYS_BEHIND]" in capsys.readouterr().err
    assert not new.exists()
    found = import_offsets(old, new, capsys, "--drop-state")
    assert found["dropped_state"]
    assert found["watermark"] > 1_600_000_000_000

    again = spark.readStream.format("barrier-kafka").options(
        **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
    )
    frame = again.load().withWatermark("timestamp", "0 seconds").groupBy("timestamp").count()
    produce(kafka, topic_name, range(3, 5), 1)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(new)).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    first = query.recentProgress[0]
    assert (first.batchId, first.numInputRows) == (0, 0)
    assert first.eventTime["watermark"] >= "2020"
    assert sum(each.numInputRows for each in query.recentProgress) == 2


def partitions_of(kafka: Cluster, topic: str) -> int:
    return len(
        AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        .list_topics(topic, timeout=60)
        .topics[topic]
        .partitions
    )


def test_a_query_continues_where_a_consumer_group_stopped(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the program of the page."""
    output = f"{topic_name}-out"
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(output)
    produce(kafka, topic_name, range(25), 2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic_name, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic_name])
        read = [int(message.value() or b"") for message in consumer.consume(15, 60)]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    program = program_of("list_consumer_group_offsets")
    exec(program.replace("localhost:9092", kafka.bootstrap_servers).replace("flink-orders", topic_name), {})
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    given = {"subscribe": topic_name, "startingOffsets": capsys.readouterr().out.strip()}
    rows = spark.readStream.format("barrier-kafka").options(**servers, **given).load()
    writer = rows.select("key", "value").writeStream.format("2pc-kafka").options(**servers, topic=output)
    query = writer.option("checkpointLocation", str(tmp_path / "q")).trigger(availableNow=True).start()
    assert query.awaitTermination(180), "the query does not end"
    assert len(read) == 15
    assert Counter(read) + TopicOutput(kafka.bootstrap_servers, output, "q").rows() == Counter(range(25))
