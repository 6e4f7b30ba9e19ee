"""A real query's lag, as a listener of its session hears it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from connector import LagListener
from connector.kafka.client.topics import Partition
from connector.kafka.source.lag import QueryLag, lag_of
from integration.broker import Cluster
from integration.driver_process import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_that_catches_up_is_seen_to_do_so(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in range(25):
        producer.produce(topic_name, str(value).encode(), partition=int(value >= 20))
    assert producer.flush(30) == 0
    heard: list[QueryLag] = []
    listener = LagListener(heard.append)
    spark.streams.addListener(listener)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
    rows = spark.readStream.format("barrier-kafka").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="15"
    )
    writer = rows.load().writeStream.format("noop").queryName("catching-up")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180)
        wait_until(lambda: bool(heard) and heard[-1].sources[0].total == 0, "the last event")
    finally:
        spark.streams.removeListener(listener)
    first = heard[0]
    assert (first.name, first.id, first.batchId) == ("catching-up", str(query.id), 0)
    metrics = first.sources[0].metrics
    assert sum(first.sources[0].by_partition.values()) == 10
    assert set(first.sources[0].by_partition) == {Partition(topic_name, 0), Partition(topic_name, 1)}
    assert float(metrics["avgOffsetsBehindLatest"]) == 5.0
    assert int(metrics["minOffsetsBehindLatest"]) <= 5 <= int(metrics["maxOffsetsBehindLatest"])
    assert lag_of(query.recentProgress[0]) == first
    assert heard[-1].sources[0].metrics["maxOffsetsBehindLatest"] == "0"
