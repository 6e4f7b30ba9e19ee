"""``python -m integration.benchmarks.threads``: processor time per row by kinds of threads, ours beside Spark's own connector.

How to read it: microseconds of processor time per row, topic to topic, from the times that the kernel keeps for each thread,
looked at ten times a second. Threads are told apart by the names that the JVM, librdkafka and the broker give them. What a
thread did after the last look before its end is lost: the sums are a little below those of `make bench`.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
from rich.console import Console
from rich.table import Table

from integration.benchmarks.accounts import ProcessTree
from integration.benchmarks.contests import CONTESTS, COPY, SPARK
from integration.benchmarks.copies import Copies, Input
from integration.broker import Cluster

INTERVAL = 0.1
KINDS: Sequence[tuple[str, str, str]] = (
    ("java", r"Executor task", "JVM: tasks"),
    ("java", r"stream execut", "JVM: the query's own thread"),
    ("java", r"C[12] Compiler|Sweeper", "JVM: compilation"),
    ("java", r"GC Thread|G1 |VM Thread|VM Periodic", "JVM: garbage collection"),
    ("java", r"kafka-producer|kafka-consumer|Kafka", "JVM: Kafka's clients"),
    ("java", r"", "JVM: other"),
    ("python", r"rdk:", "librdkafka's threads"),
    ("python", r"", "Python: main threads"),
)
"""The name of a process, what the name of a thread begins with, and the line of the table."""


class ThreadTimes:
    """Processor seconds by kinds of threads, of a tree of processes and of a broker. A context manager."""

    def __init__(self, tree: ProcessTree, broker: ProcessTree) -> None:
        self._tree, self._broker = tree, broker
        self._times: dict[tuple[int, int], tuple[str, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seconds: Mapping[str, float] = {}

    def __enter__(self) -> ThreadTimes:
        self._begin = dict(self._look())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        found: dict[str, float] = defaultdict(float)
        for key, (name, seconds) in self._look().items():
            found[name] += seconds - self._begin.get(key, ("", 0.0))[1]
        self.seconds = found

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self._look()

    def _look(self) -> Mapping[tuple[int, int], tuple[str, float]]:
        for tree, is_broker in ((self._tree, False), (self._broker, True)):
            tree.look()
            for process in tree.processes():
                try:
                    times = process.threads()
                    kind = "java" if "java" in process.name() else "python"
                except psutil.Error:  # it has ended meanwhile
                    continue
                for each in times:
                    name = "broker" if is_broker else _kind(kind, process.pid, each.id)
                    if name:  # as it is now: Spark names a thread when it gets a task
                        self._times[process.pid, each.id] = name, each.user_time + each.system_time
        return self._times


def _kind(process: str, pid: int, thread: int) -> str:
    try:
        name = Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()
    except OSError:
        return ""
    return next(line for kind, begin, line in KINDS if kind == process and re.match(begin, name))


def main() -> int:
    """Run both, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.threads", description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--who", default="", help="contestants whose names contain this")
    parser.add_argument("--size", type=int, default=100, help="bytes of a row's value")
    parser.add_argument("--settle", type=float, default=180)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    rows, warm = Input("input", given.rows, given.size), Input("warm", max(given.rows // 4, 1000), given.size)
    there = [*(each for each in CONTESTS[COPY] if each.name.startswith("ours")), SPARK]
    contestants = [each for each in there if given.who in each.name]
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        watched = Copies(cluster, Path(folder)).watched(contestants, rows, warm, given.settle, ThreadTimes)
    found = {name: times.seconds for name, times in watched.items()}
    table = Table("µs of processor per row", *found, title=f"{given.rows:,} rows of {rows.size} bytes, topic to topic")
    for line in dict.fromkeys([*(line for *_, line in KINDS), "broker"]):
        table.add_row(line, *(f"{1e6 * seconds.get(line, 0.0) / given.rows:.2f}" for seconds in found.values()))
    table.add_row("all", *(f"{1e6 * sum(seconds.values()) / given.rows:.2f}" for seconds in found.values()))
    Console(width=130).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
