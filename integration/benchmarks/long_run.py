"""``make bench-long``: one query copies gigabytes from topic to topic; does its memory grow?

How to read it: a line every ten seconds with the rows so far and the memory (PSS) of the JVM and of the Python processes; in
the end the medians of the second and of the last quarter of the run. It fails if a row is missing, doubled or out of order,
or if either memory grew by more than a tenth. Both topics keep 1 GB: the producer, in this process, waits for the reader.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.benchmarks import engines
from integration.benchmarks.accounts import ProcessTree
from integration.benchmarks.contests import OURS
from integration.benchmarks.copies import PARTITIONS
from integration.benchmarks.engines import Engine
from integration.benchmarks.fill import DIGITS
from integration.benchmarks.results import Results, add_options, arguments_of
from integration.broker import Cluster

ROW = 1000
PADDING = b"x" * (ROW - DIGITS)
CHUNK = 10_000
LEAD = 400_000
"""Rows that the producer is ahead of the reader at most."""

PER_TRIGGER = 200_000
SAMPLE_SECONDS = 10.0
ARRIVAL_SECONDS = 180.0
MOST_GROWTH = 1.1
TOPIC = {"retention.bytes": str(256 << 20), "segment.bytes": str(32 << 20)}
BROKER = {"log.retention.check.interval.ms": "5000"}


@dataclass(frozen=True)
class Sample:
    """Memory in bytes of the query's processes."""

    java: int
    python: int


def main() -> int:
    """Run it, print the table and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.long_run", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=24.0)
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = int(given.gigabytes * 1e9) // ROW
    with Cluster(jvm_options=["-Xmx768m"], properties=BROKER) as cluster, tempfile.TemporaryDirectory() as folder:
        for topic in ("input", "output"):
            cluster.create_topic(topic, partitions=PARTITIONS, config=TOPIC)
        with Engine(engines.spark(), Path(folder) / "engine") as engine:
            location = str(Path(folder) / "checkpoint")
            engine.ask("start", OURS.query(cluster.bootstrap_servers, "input", "output", location, rows, PER_TRIGGER))
            begin = time.monotonic()
            run = Copy(cluster.bootstrap_servers, rows)
            samples = run.go(engine.tree)
            seconds = time.monotonic() - begin
            engine.ask("stop", True)
            run.close()
    figures = {"rows_per_second": rows / seconds, **growth(samples)}
    results = Results("long run", ("python_growth", "ratio"), arguments_of(vars(given)))
    results.add(f"{given.gigabytes:g} GB", OURS.name, 0, 0.0, figures)
    results.report(given.json)
    grew = max(figures["java_growth"], figures["python_growth"]) > MOST_GROWTH
    print("Memory grew." if grew else "Every row came once and in order; memory did not grow.")
    return int(grew)


class Copy:
    """Produces rows, and reads them behind the query."""

    def __init__(self, servers: str, rows: int) -> None:
        # The sink's partitioner: so each partition of the output has the rows of one of the input, in its order.
        settings = {"partitioner": "murmur2_random", "queue.buffering.max.messages": 2 * LEAD, "linger.ms": 20}
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **settings})
        committed = {"isolation.level": "read_committed", "enable.auto.commit": False, "group.id": "long"}
        self._reader = Consumer({"bootstrap.servers": servers, **committed})
        self._reader.assign([TopicPartition("output", partition, 0) for partition in range(PARTITIONS)])
        self._rows, self._fed, self._seen = rows, 0, 0
        self._times_seen = bytearray(rows)
        self._last = [-1] * PARTITIONS

    def go(self, tree: ProcessTree) -> list[Sample]:
        """Go on until all rows have come; return the memory of the query's processes, every ten seconds from the first row on.

        Raises
        ------
        RuntimeError
            If a row is missing, there twice, or out of order.
        """
        samples: list[Sample] = []
        begin = due = time.monotonic()
        deadline = begin + ARRIVAL_SECONDS
        while self._seen < self._rows:
            ahead = self._feed()
            if self._take(0.0 if ahead else 0.1):
                deadline = time.monotonic() + ARRIVAL_SECONDS
            now = time.monotonic()
            if now > deadline:
                raise RuntimeError(f"{self._fed - self._seen:,} of {self._fed:,} rows did not arrive")
            if self._seen and now >= due:
                due = now + SAMPLE_SECONDS
                samples.append(weigh(tree))
                java, python = samples[-1].java >> 20, samples[-1].python >> 20
                print(
                    f"{now - begin:6.0f} s {self._seen:12,} rows  JVM {java:5,} MiB  Python {python:5,} MiB", flush=True
                )
        return samples

    def close(self) -> None:
        """Check that nothing comes behind the last row. Call it when the query has ended."""
        self._take(5.0)
        self._reader.close()
        if len(self._producer):
            raise RuntimeError(f"{len(self._producer)} rows were not delivered")

    def _feed(self) -> bool:
        """Produce some rows if the reader is not too far behind; return whether there would be more."""
        if self._fed < self._rows and self._fed - self._seen < LEAD:
            numbers = range(self._fed, min(self._fed + CHUNK, self._rows))
            rows = [{"key": b"%08d" % number, "value": b"%010d" % number + PADDING} for number in numbers]
            if self._producer.produce_batch("input", rows) != len(rows):
                raise RuntimeError("the producer's queue is full")
            self._fed = numbers.stop
        self._producer.poll(0)
        return self._fed < self._rows and self._fed - self._seen < LEAD

    def _take(self, seconds: float) -> int:
        messages = self._reader.consume(CHUNK, seconds)
        for message in messages:
            if (problem := message.error()) is not None:
                raise RuntimeError(f"the output can't be read: {problem}")
            number, partition = int((message.value() or b"")[:DIGITS]), message.partition() or 0
            if self._times_seen[number]:
                raise RuntimeError(f"row {number:,} came twice")
            if number <= self._last[partition]:
                raise RuntimeError(f"partition {partition} has row {number:,} after row {self._last[partition]:,}")
            self._times_seen[number], self._last[partition] = 1, number
        self._seen += len(messages)
        return len(messages)


def weigh(tree: ProcessTree) -> Sample:
    """Return the memory of a query's processes."""
    tree.look()
    sizes = {True: 0, False: 0}
    for process in tree.processes():
        try:
            sizes["java" in process.name()] += int(process.memory_full_info().pss)
        except psutil.Error:  # noqa: PERF203 - it has ended meanwhile
            continue
    return Sample(sizes[True], sizes[False])


def growth(samples: list[Sample]) -> dict[str, float]:
    """Return the medians of the second and the last quarter of the samples, and how the last compares with the second."""
    size = max(1, len(samples) // 4)
    figures: dict[str, float] = {}
    for kind in ("java", "python"):
        values = [getattr(sample, kind) / 2**20 for sample in samples]
        second, end = statistics.median(values[size : 2 * size] or values), statistics.median(values[-size:])
        figures |= {
            f"{kind}_second_quarter_mib": second,
            f"{kind}_last_quarter_mib": end,
            f"{kind}_growth": end / second,
        }
    return figures


if __name__ == "__main__":
    sys.exit(main())
