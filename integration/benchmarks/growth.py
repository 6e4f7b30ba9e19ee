"""``make bench-growth``: more rows, more partitions, larger rows, beside Spark's own connector; commits of many transactions.

How to read it: one figure changes per table, the others stay at 4 partitions and rows of 100 bytes; what grows faster than the
work shows between two lines of one contestant. Small micro-batches have the named rows in all, from the named partitions. Every
output is read and counted. A contestant that fails is named, and has no figure. One table has no Spark: this many
prepared transactions are committed by one call, first until each is decided at its coordinator, then until readers see all.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from connector.kafka.sink.kafka_sink import KafkaSink
from integration.benchmarks import engines
from integration.benchmarks.contests import FLINK, OURS, SPARK, Contestant
from integration.benchmarks.copies import Copies, Input
from integration.benchmarks.engines import Launch
from integration.benchmarks.results import Results, add_options, arguments_of, settle
from integration.broker import Cluster
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Options, TransactionContext

MILLION = 1_000_000
BYTES = 500_000_000
INPUTS = {
    "rows": [Input(f"rows-{rows}", rows) for rows in (100_000, MILLION, 10 * MILLION)],
    "partitions": [Input(f"partitions-{count}", MILLION, partitions=count) for count in (1, 4, 16, 64, 200)],
    "bytes": [Input(f"bytes-{size}", BYTES // size, size) for size in (1000, 10_000, 100_000)],
}
TITLES = {"rows": "rows", "partitions": "partitions", "bytes": "bytes of a row"}
KEYS = (*INPUTS, "small", "commits")
SMALL = ((64, 4), (64, 64), (2000, 200))
"""Rows of a micro-batch, and the partitions that they come from."""
SMALL_BATCHES, SMALL_FIRST = 30, 5
"""How many of them, and how many are left out."""
COMMITTED = ((1, 4), (20, 4), (200, 4), (200, 1))
"""Transactions that one checkpoint commits, and partitions that each of them wrote."""


def main() -> int:
    """Run all of it, print the tables and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default=",".join(KEYS), help=f"some of {','.join(KEYS)}")
    parser.add_argument("--partitions", type=int, help="only topics of so many partitions")
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    only = given.only.split(",")
    flink, problem = engines.flink(given.flink, given.with_flink)
    print(problem, flush=True)
    results = Results("growth", ("rows_per_second_wall", "rows/s"), arguments_of(vars(given)))
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        growth = Growth(cluster, Copies(cluster, Path(folder)), results, given.partitions, flink)
        load = settle(given.settle)
        if "commits" in only:
            growth.commits(given.rounds, load)
        for number in range(given.rounds):
            load = settle(given.settle)
            for key in KEYS:
                if key in only and key in INPUTS:
                    growth.throughput(key, number, load)
            if "small" in only:
                growth.small(number, load)
    results.report(given.json)
    return 0


class Growth:
    """One broker, and the results.

    Parameters
    ----------
    cluster : Cluster
    copies : Copies
    results : Results
    partitions : int, optional
        Only topics of so many partitions.
    flink : Launch, optional
        Flink copies the topics of many partitions, too.
    """

    def __init__(
        self, cluster: Cluster, copies: Copies, results: Results, partitions: int | None, flink: Launch | None
    ) -> None:
        self._cluster, self._copies, self._results, self._partitions = cluster, copies, results, partitions
        self._flink = flink

    def commits(self, rounds: int, load: float) -> None:
        """Commit many transactions at once. The broker's JVM takes two rounds to compile what it runs."""
        for number in range(-2, rounds + 2):
            for count, partitions in COMMITTED:
                name = f"{count} prepared transactions, {partitions} partitions"
                figures = committed(self._cluster, count, partitions, f"commits-{number}-{count}-{partitions}")
                if number >= 0:
                    self._results.add("commits", name, number, load, figures)

    def throughput(self, key: str, number: int, load: float) -> None:
        """Copy the inputs of one kind."""
        for rows in INPUTS[key]:
            warm = Input(f"warm-{rows.name}", min(rows.rows // 4, 500_000), rows.size, rows.partitions)
            with self._filled(rows, warm) as wanted:
                several = [*_turns(number), FLINK] if key == "partitions" and self._flink else _turns(number)
                for contestant in several if wanted else ():
                    launch = self._flink if contestant.is_flink else engines.spark()
                    assert launch is not None
                    try:
                        with self._copies.engine(launch) as engine:
                            figures = self._copies.throughput(engine, contestant, rows, warm)
                    except engines.EngineError as problem:  # Spark's own, with 200 partitions
                        print(f"{_figure(key, rows):,} {TITLES[key]}, {contestant.name} failed: {problem}", flush=True)
                        continue
                    self._results.add(TITLES[key], f"{_figure(key, rows):,}, {contestant.name}", number, load, figures)

    def small(self, number: int, load: float) -> None:
        """Copy in small micro-batches."""
        for count, partitions in SMALL:
            rows = Input(f"small-{count}-{partitions}", count * SMALL_BATCHES, partitions=partitions)
            warm = Input(f"warm-{rows.name}", count, partitions=partitions)
            with self._filled(rows, warm) as wanted:
                for contestant in _turns(number) if wanted else ():
                    with self._copies.engine(engines.spark()) as engine:
                        figures = self._copies.small(engine, contestant, rows, warm, count, SMALL_FIRST)
                    name = f"{count:,} rows from {partitions} partitions, {contestant.name}"
                    self._results.add("small micro-batches", name, number, load, figures)

    @contextmanager
    def _filled(self, *inputs: Input) -> Iterator[bool]:
        """Write inputs, and delete them in the end. Yields False, and writes none, if they are not wanted."""
        if self._partitions not in (None, inputs[0].partitions):
            yield False
            return
        for each in inputs:
            self._copies.fill(each)
        yield True
        for each in inputs:
            self._copies.delete(each)


def _turns(number: int) -> tuple[Contestant, Contestant]:
    return (OURS, SPARK) if number % 2 == 0 else (SPARK, OURS)


def _figure(key: str, rows: Input) -> int:
    return {"rows": rows.rows, "partitions": rows.partitions}.get(key, rows.size)


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
