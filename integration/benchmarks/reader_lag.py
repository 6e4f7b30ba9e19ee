"""``python -m integration.benchmarks.reader_lag``: how long a ``read_committed`` reader of the output topic waits.

How to read it: rows are 'the query's', which are invisible until their checkpoint is committed, and 'another writer's' in
the same partitions, which Kafka hides behind our open transactions. Both are aged from their `produce` to the reader. The
bound is what the documentation promises: the interval, two micro-batches, and the commit phase, the longest of the run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from connector.location.location import CheckpointLocation
from integration.benchmarks.quantiles import quantile
from integration.benchmarks.queries import Query, Trigger, topic_options, triggers_of
from integration.benchmarks.sessions import session
from integration.broker import Cluster
from transactional.stats import history

INTERVALS = (0, 2, 5, 10)
ROWS_PER_SECOND = 200
PARTITIONS = 2
OURS, OTHERS = b"q", b"o"


@dataclass
class Ages:
    """Seconds from `produce` to the reader, by who wrote the row; the thread that reads fills it."""

    query: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)


def main() -> int:
    """Measure each interval and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.reader_lag", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of each interval")
    arguments = parser.parse_args()
    spark = session("1g")
    heads = (
        "interval",
        "the query's rows: median, 99 %, longest",
        "another writer's",
        "micro-batch",
        "commit",
        "bound",
    )
    table = Table(*heads, title="seconds from a row's produce to a read_committed reader")
    with Cluster(jvm_options=["-Xmx512m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        measure(spark, cluster, Path(folder) / "warm", 1, 10)  # Spark compiles its code, and starts its workers
        for interval in INTERVALS:
            location = Path(folder) / f"checkpoint-{interval}"
            ages, progress = measure(spark, cluster, location, interval, arguments.seconds)
            batch = max(float(each["durationMs"]["triggerExecution"]) for each in progress[1:]) / 1000
            journal = CheckpointLocation(str(location)).journal()
            journal.load()
            commit = max(each.committing_ms or 0 for each in history(journal.ledger)[1:]) / 1000
            bound = interval + 2 * batch + commit
            row = (_three(ages.query), _three(ages.other), f"{batch:.2f} s", f"{commit:.3f} s", f"{bound:.1f} s")
            table.add_row(f"{interval} s", *row)
            print(f"{interval} s: {', '.join(row)}", flush=True)
    spark.stop()
    Console(width=130).print(table)
    return 0


def measure(
    spark: SparkSession, cluster: Cluster, location: Path, interval: int, seconds: int
) -> tuple[Ages, list[Trigger]]:
    """Run a query with that interval, beside another writer, and age what a reader sees."""
    source, output = f"in-{interval}", f"out-{interval}"
    cluster.create_topic(source, partitions=PARTITIONS)
    cluster.create_topic(output, partitions=PARTITIONS)
    ages, over = Ages(), threading.Event()
    threads = [
        threading.Thread(target=_write, args=(cluster.bootstrap_servers, {source: OURS, output: OTHERS}, over)),
        threading.Thread(target=_read, args=(cluster.bootstrap_servers, output, ages, over)),
    ]
    servers = cluster.bootstrap_servers
    query = Query(
        "barrier-kafka",
        topic_options(servers, source, barrierInterval=f"{interval}s"),
        str(location),
        "2pc-kafka",
        {"kafka.bootstrap.servers": servers, "topic": output},
        ("value",),
    ).start(spark)
    while not query.recentProgress:  # until its workers are there
        time.sleep(0.2)
    for thread in threads:
        thread.start()
    time.sleep(5)
    ages.query.clear()  # what waited for the first of a cold query
    ages.other.clear()
    time.sleep(seconds)
    done = [trigger for trigger in triggers_of(query) if trigger["numInputRows"]]
    over.set()
    for thread in threads:
        thread.join()
    query.stop()
    return ages, done


def _write(servers: str, topics: Mapping[str, bytes], over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    while not over.wait(1 / ROWS_PER_SECOND):
        for topic, who in topics.items():
            producer.produce(topic, value=who + str(time.time()).encode())  # without a key: to all partitions
        producer.poll(0)
    producer.flush()


def _read(servers: str, topic: str, ages: Ages, over: threading.Event) -> None:
    settings = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    reader = Consumer(settings)
    reader.subscribe([topic])
    while not over.is_set():
        for message in reader.consume(1000, 0.05):
            value = message.value()
            if message.error() is None and value is not None:
                (ages.query if value[:1] == OURS else ages.other).append(time.time() - float(value[1:]))
    reader.close()


def _three(ages: Sequence[float]) -> str:
    return f"{statistics.median(ages):.2f}, {quantile(sorted(ages), 0.99):.2f}, {max(ages):.2f}"


if __name__ == "__main__":
    sys.exit(main())
