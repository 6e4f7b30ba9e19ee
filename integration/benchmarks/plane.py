"""``python -m integration.benchmarks.plane``: the data plane beside confluent-kafka's objects, without Spark.

How to read it: microseconds of the main thread a row, best of the rounds; only the ratios carry over to other machines. Each
measurement is a process of its own, and the two ways take turns, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from connector.kafka.client.topics import Partition
from connector.kafka.native.library import OBJECTS_ONLY
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.reading.fetch import read_ranges
from connector.spark.collector import collector_patient
from integration.broker import Cluster
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Options, TransactionContext

ROW = 100
BATCH = 10_000


def main() -> int:
    """Run all of it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what, servers, topic = given.measure.rsplit(",", 2)
        print(json.dumps(MEASURES[what](servers, topic, given.rows)))
        return 0
    numbers = itertools.count()
    found: dict[tuple[str, bool], list[float]] = {}
    with Cluster(jvm_options=["-Xmx768m"]) as cluster:
        for _ in range(given.rounds):
            for objects in (True, False):
                topic = f"plane-{next(numbers)}"
                cluster.create_topic(topic)
                for what in MEASURES:
                    seconds = _in_a_process(what, cluster.bootstrap_servers, topic, given.rows, objects)
                    found.setdefault((what, objects), []).append(1e6 * seconds / given.rows)
    table = Table(
        "main thread", "objects", "data plane", "ratio", title=f"µs a row, {given.rows:,} rows of {ROW} bytes"
    )
    for what in MEASURES:
        before, now = min(found[what, True]), min(found[what, False])
        table.add_row(what, f"{before:.2f}", f"{now:.2f}", f"{before / now:.1f}")
    Console(width=100).print(table)
    return 0


def _in_a_process(what: str, servers: str, topic: str, rows: int, objects: bool) -> float:
    command = [sys.executable, "-m", "integration.benchmarks.plane"]
    command += ["--rows", str(rows), "--measure", f"{what},{servers},{topic}"]
    environment = {**os.environ, OBJECTS_ONLY: "1" if objects else "0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout))


def _write(servers: str, topic: str, rows: int) -> float:
    batch = pa.RecordBatch.from_pydict({"key": [b"%08d" % n for n in range(BATCH)], "value": [bytes(ROW - 8)] * BATCH})
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "transactionalIdPrefix": topic}
    sink = KafkaSink(Options(given), batch.schema)
    sink.identify()
    transaction = sink.beginTransaction(TransactionContext("query", 0, 0, 0, topic, "nonce"))
    begun = time.thread_time()
    with collector_patient():
        for _ in range(rows // BATCH):
            sink.write(transaction, batch)
    taken = time.thread_time() - begun
    handle = sink.preCommit(transaction)
    assert handle is not None
    checkpoint = DecidedCheckpoint(1, (0,), 0, "query", topic)
    sink.commit([handle], checkpoint)
    sink.ensureVisible([handle], checkpoint)
    sink.close()
    return taken


def _read(servers: str, topic: str, rows: int, **more: Any) -> float:
    options = parse_read_options({"kafka.bootstrap.servers": servers, "subscribe": topic, **more})
    begun = time.thread_time()
    count = sum(batch.num_rows for batch in read_ranges(options, [OffsetRange(Partition(topic, 0), 0, rows + 1)], {}))
    assert count == rows // BATCH * BATCH
    return time.thread_time() - begun


MEASURES: dict[str, Callable[[str, str, int], float]] = {
    "Arrow to librdkafka": _write,
    "librdkafka to Arrow": _read,
    "the same, columns=key,value": lambda servers, topic, rows: _read(servers, topic, rows, columns="key,value"),
}

if __name__ == "__main__":
    sys.exit(main())
