"""``make bench-latency``: how long a row takes from its producer through a query to a ``read_committed`` reader.

How to read it: a paced producer in a process of its own writes the time into each row; the reader, on the same machine and
clock, subtracts it when its client hands the row over. Each contestant has the machine for itself, first for a while that
does not count. All rows, those of that while too, must arrive once. Quantiles are values that were measured.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from integration.benchmarks import engines
from integration.benchmarks.accounts import Meter, ProcessTree
from integration.benchmarks.contests import FLINK, OURS, SPARK, Contestant
from integration.benchmarks.copies import PARTITIONS
from integration.benchmarks.engines import Engine, Launch
from integration.benchmarks.pacer import lateness, pace, parse
from integration.benchmarks.quantiles import quantile
from integration.benchmarks.results import Results, add_options, arguments_of, data_plane, settle
from integration.broker import Cluster

QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
ARRIVAL_SECONDS = 180.0
"""How long the reader waits for the next row."""


def main() -> int:
    """Measure every contestant at every pace, print the table and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.latency", description=__doc__)
    parser.add_argument("--rates", default="10000,100", help="rows a second, several with commas")
    parser.add_argument("--seconds", type=int, default=60, help="that count, of each contestant at each pace")
    parser.add_argument("--warm", type=int, default=30, help="seconds before them")
    parser.add_argument("--rounds", type=int, default=1)
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    flink, problem = engines.flink(given.flink, given.with_flink)
    print("Our source moves rows as {source}, our sink as {sink}.".format(**data_plane()), problem, flush=True)
    results = Results("latency", ("p99_ms", "ms"), arguments_of(vars(given)))
    launches = {False: engines.spark(), True: flink}
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        bench = Latency(cluster, Path(folder), given.warm, given.seconds)
        for number, rate in itertools.product(range(given.rounds), map(int, given.rates.split(","))):
            load = settle(given.settle)
            for contestant in (OURS, SPARK, FLINK):
                if (launch := launches[contestant.is_flink]) is None:
                    continue
                figures = bench.measure(contestant, launch, rate, results)
                results.add(f"{rate:,} rows a second", contestant.name, number, load, figures)
    results.report(given.json)
    return 0


class Latency:
    """One broker; topics and a process for each measurement.

    Parameters
    ----------
    cluster : Cluster
    folder : Path
    warm, seconds : int
        Seconds that do not count, and seconds that do.
    """

    def __init__(self, cluster: Cluster, folder: Path, warm: int, seconds: int) -> None:
        self._cluster, self._folder, self._warm, self._seconds = cluster, folder, warm, seconds
        self._numbers = itertools.count()
        self._broker = ProcessTree(cluster.brokers[0].pid)

    def measure(self, contestant: Contestant, launch: Launch, rate: int, results: Results) -> dict[str, float]:
        """Return the figures of one contestant at one pace.

        Raises
        ------
        RuntimeError
            If a row is missing or there twice.
        EngineError
            If the engine ended.
        """
        number, servers = next(self._numbers), self._cluster.bootstrap_servers
        source, target = f"input-{number}", f"output-{number}"
        for topic in (source, target):
            self._cluster.create_topic(topic, partitions=PARTITIONS)
        rows, location = rate * (self._warm + self._seconds), str(self._folder / f"checkpoint-{number}")
        reader = Reader(servers, target, 1 + rows, first=1 + rate * self._warm)
        with Engine(launch, self._folder / f"engine-{number}") as engine:
            if contestant.is_flink:
                results.versions["Flink"] = engine.ready["version"]
            engine.ask("start", contestant.query(servers, source, target, location, rows))
            with pace(servers, source, 1, 0, 1):  # one row goes ahead: what a cold query takes is not its latency
                reader.read(1)
            meter = Meter(engine.tree, [self._broker], sampling=False)
            with pace(servers, source, rate, 1, rows) as producer, meter:
                ages = reader.read(1 + rows)
                late = lateness(producer)
            reader.close()
            engine.ask("stop", True)
        for topic in (source, target):
            self._cluster.delete_topic(topic)
        return {
            **summary(ages),
            "latest_write_ms": late,
            "memory_mib": meter.peak_bytes / 2**20,
            "query_us_per_row": 1e6 * meter.seconds / rows,
            "broker_us_per_row": 1e6 * meter.beside_seconds[0] / rows,
            "others_cores": meter.others_cores,
        }


class Reader:
    """A ``read_committed`` reader of the output that checks that each row arrives once.

    Parameters
    ----------
    servers, topic : str
    rows : int
        All that will come.
    first : int
        The number of the first row that counts.
    """

    def __init__(self, servers: str, topic: str, rows: int, first: int) -> None:
        settings = {"bootstrap.servers": servers, "group.id": topic, "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._seen, self._count, self._first = bytearray(rows), 0, first
        self._ages = array("d")

    def read(self, rows: int) -> array[float]:
        """Read until that many rows have arrived, and return the milliseconds that each one that counts took.

        Raises
        ------
        RuntimeError
            If a row comes twice, or none for `ARRIVAL_SECONDS`.
        """
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while self._count < rows:
            if self._take(0.05):
                deadline = time.monotonic() + ARRIVAL_SECONDS
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{rows - self._count:,} of {rows:,} rows did not arrive")
        return self._ages

    def close(self) -> None:
        """Check that nothing comes behind the last row, where a doubled one would be."""
        self._take(2.0)
        self._consumer.close()

    def _take(self, seconds: float) -> int:
        messages = self._consumer.consume(10_000, seconds)
        now = time.time_ns()
        for message in messages:
            if (problem := message.error()) is not None:
                raise RuntimeError(f"the output can't be read: {problem}")
            written, number = parse(message.value() or b"")
            if self._seen[number]:
                raise RuntimeError(f"row {number:,} arrived twice")
            self._seen[number] = 1
            if number >= self._first:
                self._ages.append((now - written) / 1e6)
        self._count += len(messages)
        return len(messages)


def summary(ages: array[float]) -> dict[str, float]:
    """Return the quantiles and the mean of all ages."""
    ordered = sorted(ages)
    return {**{name: quantile(ordered, share) for name, share in QUANTILES.items()}, "mean_ms": statistics.fmean(ages)}


if __name__ == "__main__":
    sys.exit(main())
