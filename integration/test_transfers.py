"""The demo of queries whose checkpoints agree, under Spark: three drivers that are killed, and every version of C's tables."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from barrier_kafka.reader import complete_offsets
from connector.kafka.client.config import ClientConfig
from connector.kafka.sink.injector import Injector
from integration.broker import Cluster
from integration.dag import read_rows, write_rows
from integration.transfers.judge import Finding, judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.matrix
@pytest.mark.timeout(1500)
def test_the_transfers_of_the_demo_are_whole_in_every_version() -> None:
    """It exits with 0 only if the aligned table has no torn version, and the one without alignment has some."""
    command = [sys.executable, "-m", "integration.transfers", "--checkpoints", "15", "--kills", "3", "--seed", "7"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kill -9: tables" in run.stdout


def test_the_judge_finds_torn_versions_and_doubled_bookings(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    def write(*bookings: tuple[int, int, int]) -> None:
        columns = dict(zip(("id", "account", "amount"), map(list, zip(*bookings, strict=True)), strict=True))
        write_deltalake(str(tmp_path), pa.table(columns), mode="append")

    write((1, 7, -5), (1, 8, 5))
    assert judge(tmp_path) == Finding(checkpoints=1, torn=0, off_by=0, transfers=1, doubled=0)
    write((2, 7, -9))
    assert judge(tmp_path) == Finding(checkpoints=2, torn=1, off_by=9, transfers=1, doubled=0)
    write((2, 8, 9), (1, 8, 5))
    assert judge(tmp_path) == Finding(checkpoints=3, torn=1, off_by=9, transfers=2, doubled=1)


@pytest.mark.slow
def test_a_stream_and_a_batch_under_spark_end_at_the_newest_barrier(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, topic_name: str
) -> None:
    source, output, servers = f"s-{topic_name}", f"o-{topic_name}", kafka.bootstrap_servers
    for topic in (source, output):
        kafka.create_topic(topic, partitions=2)
    write_rows(servers, source, [(str(number), str(number)) for number in range(10)])
    with Injector(ClientConfig("test", {"bootstrap.servers": servers}), source, f"{source}-marks") as injector:
        assert injector.inject() is not None
    write_rows(servers, source, [(str(number), str(number)) for number in range(10, 15)])
    options = {"kafka.bootstrap.servers": servers, "subscribe": source, "alignOn": f"{source}-marks"}

    batch = spark.read.format("barrier-kafka").options(**options).load()
    assert sorted(int(row.value) for row in batch.select("value").collect()) == list(range(10))

    stream = spark.readStream.format("barrier-kafka").options(**options).option("startingOffsets", "earliest").load()
    query = (
        stream.select("key", "value")
        .writeStream.format("2pc-kafka")
        .options(**{"kafka.bootstrap.servers": servers, "topic": output, "barrierTopic": f"{output}-marks"})
        .option("checkpointLocation", str(tmp_path / "location"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(int(value) for _, _, value in read_rows(servers, output)) == list(range(10))
    with closing(Consumer({"bootstrap.servers": servers, "group.id": "reader"})) as consumer:
        ends = complete_offsets(consumer, f"{output}-marks")[output]
    assert sum(offset < ends[partition] for partition, offset, _ in read_rows(servers, output)) == 10
    cut = query.lastProgress.sources[0].endOffset if query.lastProgress else ""
    assert '"exact":true' in cut.replace(" ", "")
