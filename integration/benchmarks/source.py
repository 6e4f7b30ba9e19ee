"""``python -m integration.benchmarks.source``: `barrier-kafka` into Spark's noop sink beside bare consume loops.

How to read it: rows a second of this run, on this machine; only the ratios carry over to others. The bare loops call
``consume(10000)`` in as many processes as Spark runs tasks at once, on the same topic; with Arrow they convert as the source
does, so that this ratio is what Spark and the source's own work cost. Below: one `latestOffset` over 500 partitions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from integration.benchmarks.fill import fill
from integration.benchmarks.queries import Query, rows_per_second, topic_options
from integration.benchmarks.sessions import SLOTS, session
from integration.broker import Cluster

CASES = ((1, 100), (4, 100), (64, 100), (4, 10_000))
"""Partitions, and bytes of a row."""

BYTES = 200_000_000
MANY = 500


def main() -> int:
    """Run all of it and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.source", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each throughput measurement; the median is printed")
    arguments = parser.parse_args()
    table = Table("topic", "source to noop", "bare, to Arrow", "ratio", "bare", "ratio", title="rows a second")
    other = Table("what", "milliseconds")
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.create_topic("many", partitions=MANY)
        other.add_row(f"latestOffset, {MANY} partitions, median of 50", f"{1000 * latest(cluster, 'many'):.0f}")
        spark = session()
        for partitions, size in CASES:
            topic = f"input-{partitions}-{size}"
            cluster.create_topic(topic, partitions=partitions)
            fill(cluster, topic, BYTES // size, size)
            found: dict[str, list[float]] = {"source": [], "arrow": [], "bare": []}
            for number in range(-1, arguments.rounds):  # the first warms everything up
                location = Path(folder) / f"{topic}-{number}"
                rates = {
                    "source": through(spark, cluster, topic, BYTES // size, location),
                    "arrow": bare(cluster, topic, partitions, arrow=True),
                    "bare": bare(cluster, topic, partitions, arrow=False),
                }
                if number >= 0:
                    for name, rate in rates.items():
                        found[name].append(rate)
            source, arrow, alone = (statistics.median(found[name]) for name in ("source", "arrow", "bare"))
            row = (
                f"{partitions} partitions, {size:,} bytes",
                f"{source:,.0f}",
                f"{arrow:,.0f}",
                f"{source / arrow:.2f}",
            )
            table.add_row(*row, f"{alone:,.0f}", f"{source / alone:.2f}")
            print(" | ".join(row), flush=True)
            cluster.delete_topic(topic)
        spark.stop()
    Console(width=110).print(table, other)
    return 0


def through(spark: SparkSession, cluster: Cluster, topic: str, rows: int, location: Path) -> float:
    """Rows a second of the source, in two micro-batches."""
    options = topic_options(cluster.bootstrap_servers, topic, -(-rows // 2))
    triggers = Query("barrier-kafka", options, str(location)).run(spark).triggers
    done = [trigger for trigger in triggers if trigger["numInputRows"]]
    if sum(int(each["numInputRows"]) for each in done) != rows:
        raise RuntimeError(f"the source did not read {rows} rows")
    return rows_per_second(done)


def bare(cluster: Cluster, topic: str, partitions: int, *, arrow: bool) -> float:
    """Rows a second of bare loops, from the moment at which all processes are ready."""
    slots = min(SLOTS, partitions)
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(slots + 1), context.Queue()
    workers = [
        context.Process(
            target=_consume,
            args=(cluster.bootstrap_servers, topic, range(slot, partitions, slots), arrow, ready, counts),
        )
        for slot in range(slots)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.monotonic()
    rows = sum(counts.get(timeout=600) for _ in workers)
    seconds = time.monotonic() - begin
    for worker in workers:
        worker.join()
    return float(rows / seconds)


def _consume(servers: str, topic: str, partitions: Sequence[int], arrow: bool, ready: Any, counts: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    from connector.kafka.client.topics import Partition
    from connector.kafka.source.rows import COLUMNS, to_record_batch

    settings = {"bootstrap.servers": servers, "group.id": "bare", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in partitions}
    ready.wait()
    total = 0
    for partition, end in ends.items():
        consumer.assign([TopicPartition(topic, partition, 0)])
        position = 0
        while position < end:
            messages = consumer.consume(10_000, 0.1)
            if messages:
                if arrow:
                    to_record_batch(messages, ((Partition(topic, partition), len(messages)),), COLUMNS)
                position = (messages[-1].offset() or 0) + 1
                total += len(messages)
    consumer.close()
    counts.put(total)


def latest(cluster: Cluster, topic: str) -> float:
    """Seconds of one `latestOffset`."""
    from connector.kafka.source.data_source import BarrierKafkaDataSource

    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    source = BarrierKafkaDataSource(options)
    reader = source.streamReader(source.schema())
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        reader.latestOffset(start, limit)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
