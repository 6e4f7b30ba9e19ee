"""The driver whose world the faults change: queries as users write them, each kept running by `supervise`.

``python -m integration.faults.query --scratch FOLDER --settings FILE``: the file is a JSON list of `Query.to_json`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from barrier_kafka import FixedDelay, StopRequest, supervise
from integration.demo.query import end_with_the_demo
from integration.jobs import Job, build_session

__all__ = ["Query", "write_settings"]


@dataclass(frozen=True)
class Query:
    """One query."""

    location: str
    # Options; the sink's has its ``format``.
    source: Mapping[str, str]
    sink: Mapping[str, str]
    select: Sequence[str]  # SQL of the sink's columns.
    stateful: bool = False  # Whether it takes every value once: the input repeats some.

    def start(self, spark: SparkSession) -> Any:
        """Start it."""
        rows = spark.readStream.format("barrier-kafka").options(**self.source).load()
        if self.stateful:
            rows = rows.dropDuplicates(["value"])
        sink = dict(self.sink)
        name = sink.pop("format")
        stream = rows.selectExpr(*self.select).writeStream.format(name)
        return stream.options(**sink).option("checkpointLocation", self.location).start()


def write_settings(queries: Sequence[Query], file: Path) -> None:
    """Write what a driver runs."""
    file.write_text(json.dumps([asdict(query) for query in queries]), encoding="utf-8")


def main() -> int:
    """Run the queries until SIGTERM, or until one of them needs a person."""
    parser = argparse.ArgumentParser(prog="python -m integration.faults.query")
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    chosen = parser.parse_args()
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    queries = [Query(**each) for each in json.loads(chosen.settings.read_text(encoding="utf-8"))]
    wishes = [StopRequest() for _ in queries]

    def ask(*_: Any) -> None:
        for wish in wishes:
            wish.ask()

    signal.signal(signal.SIGTERM, ask)
    spark = build_session(Job("", "", name="faults"))
    problems: list[BaseException] = []

    def keep(query: Query, wish: StopRequest) -> None:
        try:
            options = {key: text for key, text in query.sink.items() if key != "format"}
            supervise(lambda: query.start(spark), FixedDelay(10**6, 0.5), options=options, stop=wish)
        except BaseException as problem:  # noqa: BLE001 - reported below, in the main thread
            problems.append(problem)
            ask()

    threads = [threading.Thread(target=keep, args=pair) for pair in zip(queries, wishes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # signals come to the main thread between two of these
    for problem in problems:
        print(f"NEEDS A PERSON: {type(problem).__name__}: {problem}", flush=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
