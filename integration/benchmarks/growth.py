"""``make bench-growth``: more rows, more partitions, larger rows, beside Spark's own connector; commits of many transactions.

How to read it: one figure changes per table, the others stay at 4 partitions and rows of 100 bytes; what grows faster than the
work shows between two lines of one contestant. Every output is read and counted. The last table has no Spark: this many
prepared transactions are committed by one call, first until each is decided at its coordinator, then until readers see all.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from connector.kafka.sink.kafka_sink import KafkaSink
from integration.benchmarks import engines
from integration.benchmarks.contests import OURS, SPARK
from integration.benchmarks.copies import Copies, Input
from integration.benchmarks.results import Results, add_options, arguments_of, settle
from integration.broker import Cluster
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Options, TransactionContext

MILLION = 1_000_000
BYTES = 500_000_000
INPUTS = {
    "rows": [Input(f"rows-{rows}", rows) for rows in (100_000, MILLION, 10 * MILLION)],
    "partitions": [Input(f"partitions-{count}", MILLION, partitions=count) for count in (1, 16, 64)],
    "bytes of a row": [Input(f"bytes-{size}", BYTES // size, size) for size in (1000, 10_000, 100_000)],
}
COMMITTED = ((1, 4), (20, 4), (200, 4), (200, 1))
"""Transactions that one checkpoint commits, and partitions that each of them wrote."""


def main() -> int:
    """Run all of it, print the tables and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    results = Results("growth", ("rows_per_second_wall", "rows/s"), arguments_of(vars(given)))
    launch = engines.spark()
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        copies = Copies(cluster, Path(folder))
        load = settle(given.settle)
        for number in range(-2, given.rounds + 2):  # the broker's JVM takes two rounds to compile what it runs
            for count, partitions in COMMITTED:
                name = f"{count} prepared transactions, {partitions} partitions"
                figures = committed(cluster, count, partitions, f"commits-{number}-{count}-{partitions}")
                if number >= 0:
                    results.add("commits", name, number, load, figures)
        for number in range(given.rounds):
            load = settle(given.settle)
            for what, inputs in INPUTS.items():
                for rows in inputs:
                    warm = Input(f"warm-{rows.name}", min(rows.rows // 4, 500_000), rows.size, rows.partitions)
                    for each in (rows, warm):
                        copies.fill(each)
                    for contestant in (OURS, SPARK) if number % 2 == 0 else (SPARK, OURS):
                        with copies.engine(launch) as engine:
                            figures = copies.throughput(engine, contestant, rows, warm)
                        name = f"{_figure(what, rows):,}, {contestant.name}"
                        results.add(what, name, number, load, figures)
                    for each in (rows, warm):
                        copies.delete(each)
    results.report(given.json)
    return 0


def _figure(what: str, rows: Input) -> int:
    return {"rows": rows.rows, "partitions": rows.partitions}.get(what, rows.size)


def committed(cluster: Cluster, count: int, partitions: int, topic: str) -> dict[str, float]:
    """Prepare this many transactions of ten rows, commit them at once, and return what that took."""
    cluster.create_topic(topic, partitions=partitions)
    batch = pa.RecordBatch.from_pydict({"key": [b"%d" % n for n in range(10)], "value": [bytes(100)] * 10})
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "transactionalIdPrefix": topic}
    handles = []
    begin = time.monotonic()
    for partition in range(count):
        sink = KafkaSink(Options(given), batch.schema)
        transaction = sink.beginTransaction(TransactionContext("query", 0, partition, 0, topic, "nonce"))
        sink.write(transaction, batch)
        handle = sink.preCommit(transaction)
        assert handle is not None
        handles.append(handle)
        sink.close()
    prepared = time.monotonic()
    driver = KafkaSink(Options(given), batch.schema)
    driver.identify()  # as at every planning: connected
    checkpoint = DecidedCheckpoint(1, (0,), int(1000 * time.time()), "query", topic)
    begun = time.monotonic()
    driver.commit(handles, checkpoint)
    decided = time.monotonic()
    driver.ensureVisible(handles, checkpoint)
    seen = time.monotonic()
    driver.close()
    cluster.delete_topic(topic)
    return {
        "each_prepared_ms": 1000 * (prepared - begin) / count,
        "commit_ms": 1000 * (decided - begun),
        "visible_ms": 1000 * (seen - begun),
    }


if __name__ == "__main__":
    sys.exit(main())
