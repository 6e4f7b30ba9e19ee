"""``python -m integration.benchmarks.delta``: `2pc-delta` beside Spark's own Delta streaming sink, on the same rows.

How to read it: both columns are rows a second of this run, on this machine; only the ratio carries over to others. Rows come
from Spark's own rate source, so both ways begin in the JVM; ours carries them to Python for Parquet and back as add actions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from integration.benchmarks.queries import Trigger, rows_per_second, triggers_of
from integration.benchmarks.sessions import DELTA, SLOTS, session
from integration.jars import resolve_delta

BATCHES = 4
"""The first of each query is left out: it starts workers and makes the table."""

NARROW = ["value", "timestamp", "CAST(value AS STRING) AS text"]
WIDE = [
    "value",
    *(f"value * {n} AS number_{n}" for n in range(1, 10)),
    *(f"value / {n + 1} AS ratio_{n}" for n in range(10)),
    *(f"CONCAT('text-{n}-', value % 10007) AS text_{n}" for n in range(10)),
]


def main() -> int:
    """Run both sinks on narrow and on wide rows, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.delta", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a micro-batch of narrow rows; wide: a quarter")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = session("3g", resolve_delta(), DELTA)
    table = Table("rows", "2pc-delta", "Spark's delta sink", "ratio", title="Delta, rows a second")
    for name, columns, rows in (
        (f"narrow, {len(NARROW)} columns", NARROW, arguments.rows),
        (f"wide, {len(WIDE)} columns", WIDE, arguments.rows // 4),
    ):
        ours, theirs = [], []
        for number in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                ours.append(rate(spark, Path(folder), "2pc-delta", columns, rows))
                theirs.append(rate(spark, Path(folder), "delta", columns, rows))
            print(f"{name}, round {number}: {ours[-1]:,.0f} beside {theirs[-1]:,.0f}", flush=True)
        mine, beside = statistics.median(ours), statistics.median(theirs)
        table.add_row(name, f"{mine:,.0f}", f"{beside:,.0f}", f"{mine / beside:.2f}")
    spark.stop()
    Console(width=100).print(table)
    return 0


def rate(spark: SparkSession, folder: Path, sink: str, columns: list[str], rows: int) -> float:
    """Rows a second of one query's later micro-batches."""
    source = spark.readStream.format("rate-micro-batch")
    frame = source.options(rowsPerBatch=str(rows), numPartitions=str(SLOTS)).load().selectExpr(*columns)
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(folder / f"{sink}-checkpoint"))
    query = writer.start(str(folder / sink))
    done: list[Trigger] = []
    while len(done) <= BATCHES:
        query.awaitTermination(1)
        if (problem := query.exception()) is not None:
            raise problem
        done = [trigger for trigger in triggers_of(query) if trigger["numInputRows"]]
    query.stop()
    return rows_per_second(done[1 : BATCHES + 1])


if __name__ == "__main__":
    sys.exit(main())
