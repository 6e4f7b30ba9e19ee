"""``python -m integration.benchmarks.fields``: JSON from Kafka, parsed by ``from_json``, into a topic and into a Delta table.

How to read it: both columns are rows a second of this run, without the first micro-batch of each query; only the ratio carries
over to other machines. A row is a JSON object with numbers and texts in turn; Spark parses it into a column for each field. The
topic gets ``to_json`` of all columns, the table gets the columns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.table import Table

from barrier_kafka import register
from integration.benchmarks.queries import rows_per_second, topic_options, triggers_of
from integration.benchmarks.sessions import DELTA, session
from integration.broker import Cluster
from integration.jars import resolve_delta, resolve_spark_kafka

FIELDS = (5, 20, 50)
PARTITIONS, MICRO_BATCHES = 4, 5
KINDS = ("BIGINT", "DOUBLE", "STRING")


def main() -> int:
    """Run all queries, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.fields", description=__doc__)
    parser.add_argument("--fields", type=int, default=5_000_000, help="in all rows together (default: 5 million)")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    spark = session("3g", [*resolve_delta(), *resolve_spark_kafka()], DELTA)
    register(spark)
    table = Table("into", "fields", "ours", "Spark's own", "ratio", title="JSON from Kafka, rows a second")
    with Cluster(jvm_options=["-Xmx768m"]) as cluster:
        for fields in FIELDS:
            rows = given.fields // fields
            topic = f"fields-{fields}"
            fill(cluster, topic, rows, fields)
            for into, sinks in (("topic", ("2pc-kafka", "kafka")), ("Delta", ("2pc-delta", "delta"))):
                rates: dict[str, list[float]] = {sink: [] for sink in sinks}
                for number in range(given.rounds):
                    for sink in sinks if number % 2 == 0 else reversed(sinks):
                        rates[sink].append(rate(spark, cluster, topic, rows, fields, sink))
                ours, theirs = (statistics.median(rates[sink]) for sink in sinks)
                print(f"{into}, {fields} fields: {rates}", flush=True)
                table.add_row(into, str(fields), f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}")
    spark.stop()
    Console(width=100).print(table)
    return 0


def schema(fields: int) -> str:
    """Of a row, as DDL."""
    return ", ".join(f"field_{n} {KINDS[n % len(KINDS)]}" for n in range(fields))


def objects(rows: int, fields: int) -> Iterator[bytes]:
    """The rows as JSON."""
    for row in range(rows):
        values = (
            row + n if n % 3 == 0 else row / (n + 1) if n % 3 == 1 else f"text {row % 1009}" for n in range(fields)
        )
        yield json.dumps({f"field_{n}": value for n, value in enumerate(values)}).encode()


def fill(cluster: Cluster, topic: str, rows: int, fields: int) -> None:
    """Write the rows, in turn into the partitions."""
    cluster.create_topic(topic, partitions=PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "queue.buffering.max.messages": 1_000_000, "linger.ms": 20}
    )
    for number, value in enumerate(objects(rows, fields)):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def rate(spark: SparkSession, cluster: Cluster, topic: str, rows: int, fields: int, sink: str) -> float:
    """Rows a second of a query's later micro-batches. Raises if it read other rows than there are."""
    ours = sink.startswith("2pc-")
    more = {"columns": "value"} if ours else {}
    read = topic_options(cluster.bootstrap_servers, topic, -(-rows // MICRO_BATCHES), **more)
    frame = spark.readStream.format("barrier-kafka" if ours else "kafka").options(**read).load()
    parsed = frame.select(from_json(col("value").cast("string"), schema(fields)).alias("row")).select("row.*")
    with tempfile.TemporaryDirectory() as folder:
        output = f"{topic}-output-{Path(folder).name}"
        if sink.endswith("kafka"):
            cluster.create_topic(output, partitions=PARTITIONS)
        writer = _written(parsed, sink, cluster.bootstrap_servers, output, Path(folder))
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        done = [trigger for trigger in triggers_of(query) if trigger["numInputRows"]]
        if sink.endswith("kafka"):
            cluster.delete_topic(output)
    if sum(trigger["numInputRows"] for trigger in done) != rows:
        raise RuntimeError(f"{sink} read other rows than {rows}")
    return rows_per_second(done[1:])


def _written(parsed: DataFrame, sink: str, servers: str, topic: str, folder: Path) -> DataStreamWriter:
    if sink.endswith("delta"):
        return parsed.writeStream.format(sink).option("path", str(folder / "table"))
    values = parsed.select(to_json(struct("*")).alias("value"))
    return values.writeStream.format(sink).option("kafka.bootstrap.servers", servers).option("topic", topic)


if __name__ == "__main__":
    sys.exit(main())
