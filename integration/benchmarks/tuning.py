"""``make bench-tuning``: one setting changed at a time, topic to topic, exactly-once.

How to read it: the variants take turns in each round, each in a process of its own; the ratio of a variant's median to that
of the defaults is what docs/tuning.md quotes. Every output is read and counted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from integration.benchmarks import engines
from integration.benchmarks.contests import OURS, Contestant
from integration.benchmarks.copies import Copies, Input
from integration.benchmarks.results import Results, add_options, arguments_of, settle
from integration.broker import Cluster

ARROW = "spark.sql.execution.arrow"


@dataclass(frozen=True)
class Variant:
    """What differs from the defaults."""

    name: str
    # Of the session, the source and the sink.
    conf: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False  # It takes minutes: left out unless it is named.

    def contestant(self) -> Contestant:
        """Return it as one that copies rows."""
        return Contestant(self.name, OURS.source, OURS.sink, self.read, self.write)


VARIANTS = (
    Variant("defaults"),
    Variant("columns=key,value", read={"columns": "key,value"}),
    Variant("unix domain sockets", {"spark.python.unix.domain.socket.enabled": "true"}),
    Variant("Arrow batches of 1,000 rows", {f"{ARROW}.maxRecordsPerBatch": "1000"}),
    Variant("Arrow batches of 50,000 rows", {f"{ARROW}.maxRecordsPerBatch": "50000"}),
    Variant("worker reuse off", {"spark.python.worker.reuse": "false"}),
    Variant("rows compressed by lz4", write={"kafka.compression.type": "lz4"}),
    Variant("barrierInterval=10s", read={"barrierInterval": "10s"}),
    Variant(
        "columns=key,value and unix domain sockets",
        {"spark.python.unix.domain.socket.enabled": "true"},
        read={"columns": "key,value"},
    ),
    Variant("Arrow compressed by lz4", {f"{ARROW}.compression.codec": "lz4"}, slow=True),
)


def main() -> int:
    """Run all of it, print the table and write the file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.tuning", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--who", default="", help="variants whose names contain this; all but slow ones by default")
    add_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    results = Results("tuning", ("rows_per_second_wall", "rows/s"), arguments_of(vars(given)))
    rows, warm = Input("input", given.rows), Input("warm", max(given.rows // 4, 1000))
    chosen = [each for each in VARIANTS if (given.who in each.name if given.who else not each.slow)]
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        copies = Copies(cluster, Path(folder))
        copies.fill(rows)
        copies.fill(warm)
        for number in range(given.rounds):
            load = settle(given.settle)
            first = number % len(chosen)
            for variant in chosen[first:] + chosen[:first]:
                with copies.engine(engines.spark(variant.conf)) as engine:
                    figures = copies.throughput(engine, variant.contestant(), rows, warm)
                results.add("topic to topic", variant.name, number, load, figures)
    results.report(given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
