"""``python -m integration.benchmarks.frames``: what the JVM's Java code does in a copy, by Flight Recorder.

How to read it: percent of the samples of running Java code (`jdk.ExecutionSample`), topic to topic, ours beside
Spark's own connector. A sample belongs to the first line that one of its frames is of, from the innermost outwards.
What the JVM does in native code (system calls of sockets, compilation, garbage collection) is not in it: `threads`
has that. Needs a JDK, for jcmd and jfr.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from integration.benchmarks.accounts import ProcessTree
from integration.benchmarks.contests import CONTESTS, COPY, SPARK
from integration.benchmarks.copies import Copies, Input
from integration.broker import Cluster

LINES: Sequence[tuple[str, str]] = (
    (r"org\.apache\.kafka\.", "Kafka's clients"),
    (
        r"org\.apache\.arrow\.|org\.apache\.spark\.sql\.(execution\.arrow|vectorized|util\.ArrowUtils)",
        "Arrow: to rows and back",
    ),
    (
        r"sun\.nio\.ch\.|java\.net\.|java\.nio\.channels\.|org\.apache\.spark\.api\.python\.|java\.io\.(Data|Buffered)",
        "streams between the JVM and Python",
    ),
    (
        r"org\.apache\.spark\.sql\.(catalyst|execution\.(datasources|streaming|python|WholeStage|BufferedRow))",
        "Spark's operators and rows",
    ),
    (r"org\.apache\.spark\.(scheduler|executor|storage|rpc|network|util)", "Spark's scheduler"),
    (r"", "the rest"),
)
"""A pattern of a frame's method, and the line of the table."""


class Recording:
    """A flight recording of the JVM of a tree of processes. A context manager."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self.samples: Counter[str] = Counter()  # How many, by the lines of the table.

    def __enter__(self) -> Recording:
        self._tree.look()
        [self._jvm] = [each.pid for each in self._tree.processes() if _is_java(each)]
        self._ask("JFR.start", "name=frames", "settings=profile")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "frames.jfr")
            self._ask("JFR.dump", "name=frames", f"filename={file}")
            self._ask("JFR.stop", "name=frames")
            words = ["jfr", "print", "--json", "--stack-depth", "64", "--events", "jdk.ExecutionSample", file]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        for event in json.loads(said)["recording"]["events"]:
            self.samples[_line(event["values"])] += 1

    def _ask(self, *words: str) -> None:
        subprocess.run(["jcmd", str(self._jvm), *words], check=True, capture_output=True)


def _is_java(process: psutil.Process) -> bool:
    try:
        return str(process.name()) == "java"
    except psutil.Error:  # it has ended meanwhile
        return False


def _line(sample: dict[str, Any]) -> str:
    methods = [frame["method"] for frame in (sample["stackTrace"] or {"frames": []})["frames"]]
    names = [f"{each['type']['name']}.{each['name']}".replace("/", ".") for each in methods]
    return next((line for name in names for pattern, line in LINES[:-1] if re.match(pattern, name)), LINES[-1][1])


def main() -> int:
    """Run both, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.frames", description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--settle", type=float, default=180)
    given = parser.parse_args()
    if shutil.which("jcmd") is None or shutil.which("jfr") is None:
        parser.error("a JDK is needed: jcmd and jfr are not on the PATH")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    rows, warm = Input("input", given.rows), Input("warm", max(given.rows // 2, 1000))
    contestants = [next(each for each in CONTESTS[COPY] if each.name.startswith("ours")), SPARK]
    with Cluster(jvm_options=["-Xmx768m"]) as cluster, tempfile.TemporaryDirectory() as folder:
        watched = Copies(cluster, Path(folder)).watched(
            contestants, rows, warm, given.settle, lambda engine, _: Recording(engine)
        )
    found = {name: recording.samples for name, recording in watched.items()}
    table = Table("percent of the samples", *found, title=f"{given.rows:,} rows of {rows.size} bytes, topic to topic")
    for _, line in LINES:
        table.add_row(line, *(f"{100 * samples[line] / samples.total():.0f}" for samples in found.values()))
    table.add_row("samples", *(str(samples.total()) for samples in found.values()))
    Console(width=130).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
