"""``make bench``: throughput beside bare client loops, the source alone, the price of the two phases and the digest.

How to read it: every line compares two things measured in this run, on this machine; only ratios carry over to others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from integration.benchmarks.bare_loop import run_bare_loops
from integration.benchmarks.fill import fill
from integration.benchmarks.plain_sink import PlainSinkDataSource
from integration.benchmarks.queries import Query, Trigger, rows_per_second, topic_options
from integration.benchmarks.sessions import SLOTS, session
from integration.broker import Cluster

PARTITIONS = 4
ROW = 100
SMALL_BATCHES = 40  # micro-batches of 10 rows; the first ten are left out


def main() -> int:
    """Run all of it and print the table."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of each throughput measurement; the median is printed")
    arguments = parser.parse_args()
    console = Console(width=110)
    table = Table("what", "measured", "beside", "ratio", title=f"{arguments.rows:,} rows of {ROW} bytes")
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        bench = Benchmark(cluster, Path(folder), arguments.rows)
        bare, through, source = [], [], []
        bench.throughput("warm")  # after it Spark's code is compiled and its Python workers are there
        for number in range(arguments.rounds):
            bare.append(bench.bare(f"bare-{number}"))
            through.append(bench.throughput(f"through-{number}"))
            source.append(bench.source_only())
            console.print(
                f"round {number}: bare {bare[-1]:,.0f}, 2pc {through[-1]:,.0f}, source {source[-1]:,.0f} rows/s"
            )
        rate, beside = statistics.median(through), statistics.median(bare)
        table.add_row(
            "topic to topic, exactly-once", _rate(rate), f"bare loops {_rate(beside)}", f"{rate / beside:.2f}"
        )
        alone = statistics.median(source)
        table.add_row("source to noop", _rate(alone), f"bare loops {_rate(beside)}", f"{alone / beside:.2f}")
        two, plain = bench.small_batches("2pc-kafka"), bench.small_batches("plain-kafka")
        two, plain = min(two, bench.small_batches("2pc-kafka")), min(plain, bench.small_batches("plain-kafka"))
        table.add_row(
            "micro-batch of 10 rows", f"{two:.0f} ms", f"without protocol {plain:.0f} ms", f"{two - plain:+.0f} ms"
        )
        price = bench.digest()
        table.add_row(
            "digest", f"{price:.2f} µs/row", f"whole way {1e6 / rate:.2f} µs/row", f"{price * rate / 1e6:.2f}"
        )
        bench.spark.stop()
    console.print(table)
    return 0


def _rate(rows: float) -> str:
    return f"{rows:,.0f} rows/s"


class Benchmark:
    """One broker, one Spark session, one input topic."""

    def __init__(self, cluster: Cluster, folder: Path, rows: int) -> None:
        self._cluster, self._folder, self._rows = cluster, folder, rows
        cluster.create_topic("input", partitions=PARTITIONS)
        fill(cluster, "input", rows, ROW)
        self.spark = session()
        self.spark.dataSource.register(PlainSinkDataSource)

    def _run(self, source: str, per_trigger: int, sink: str, target: str, name: str) -> list[Trigger]:
        servers = self._cluster.bootstrap_servers
        write = {} if sink == "noop" else {"kafka.bootstrap.servers": servers, "topic": target}
        read = topic_options(servers, source, per_trigger)
        query = Query("barrier-kafka", read, str(self._folder / name), sink, write, ("key", "value"))
        return [trigger for trigger in query.run(self.spark).triggers if trigger["numInputRows"]]

    def throughput(self, name: str) -> float:
        """Rows a second from topic to topic through Spark, exactly once."""
        self._cluster.create_topic(name, partitions=PARTITIONS)
        progress = self._run("input", self._rows // 2, "2pc-kafka", name, name)
        self._cluster.delete_topic(name)
        return rows_per_second(progress)

    def bare(self, name: str) -> float:
        """Rows a second of the bare loops."""
        self._cluster.create_topic(name, partitions=PARTITIONS)
        bootstrap = self._cluster.bootstrap_servers
        seconds, rows = run_bare_loops(bootstrap, "input", name, PARTITIONS, SLOTS)
        self._cluster.delete_topic(name)
        if rows != self._rows:
            raise RuntimeError(f"the bare loops copied {rows} of {self._rows} rows")
        return rows / seconds

    def source_only(self) -> float:
        """Rows a second of the source into Spark's noop sink."""
        name = f"noop-{time.monotonic_ns()}"
        return rows_per_second(self._run("input", self._rows // 2, "noop", "", name))

    def small_batches(self, sink: str) -> float:
        """Median milliseconds of a micro-batch of 10 rows."""
        topic = f"small-{sink}-{time.monotonic_ns()}"
        target = f"{topic}-out"
        self._cluster.create_topic(topic)
        self._cluster.create_topic(target)
        fill(self._cluster, topic, 10 * SMALL_BATCHES, ROW)
        progress = self._run(topic, 10, sink, target, topic)
        return statistics.median(float(p["durationMs"]["triggerExecution"]) for p in progress[10:])

    def digest(self) -> float:
        """Microseconds a row of the digest over key and value."""
        import pyarrow as pa

        from transactional.digest import RowDigest

        keys = pa.array([b"%d" % n for n in range(10_000)])
        batch = pa.record_batch([keys, pa.array([bytes(ROW)] * 10_000)], names=["key", "value"])
        begin = time.perf_counter()
        for _ in range(50):
            RowDigest().update(batch)
        return (time.perf_counter() - begin) / 500_000 * 1e6


if __name__ == "__main__":
    sys.exit(main())
