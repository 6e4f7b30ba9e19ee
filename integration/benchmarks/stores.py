"""``make bench-stores``: `2pc-postgresql` beside Spark's own JDBC writer, `2pc-multi` beside its sink alone, on the same rows.

How to read it: rows a second are of this run, on this machine, the server included; only ratios carry over. Rows come from
Spark's own rate source. JDBC writes in ``foreachBatch``, at-least-once: as it is by default; tuned, with the driver's
``reWriteBatchedInserts`` and ten times the default batch; and, as it has no upsert, into a table beside, whose rows one
statement moves. The server syncs its log to the disk, as it does at a user's. *Commit* is the time from a checkpoint's decision
until all its rows can be read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from connector.location.location import CheckpointLocation
from integration.benchmarks.queries import Trigger, rows_per_second, triggers_of
from integration.benchmarks.sessions import SLOTS, session
from integration.jars import resolve_postgresql
from integration.postgresql import PASSWORD, USER, PostgresqlServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCHES = 4
"""The first of each query is left out: it starts workers and makes the tables."""

APPENDING, UPSERTING = "JDBC, append", "JDBC, tuned, and a statement, upsert"
"""What each way's ratio is to."""

PROPERTIES = {"user": USER, "password": PASSWORD, "driver": "org.postgresql.Driver"}

UPSERT = """
INSERT INTO rows SELECT DISTINCT ON (id) * FROM beside ORDER BY id
ON CONFLICT (id) DO UPDATE SET time = EXCLUDED.time, amount = EXCLUDED.amount, text = EXCLUDED.text
"""

COLUMNS = ["value AS id", "timestamp AS time", "value / 7 AS amount", "RPAD(CONCAT('row ', value), 70, 'x') AS text"]
"""100 bytes."""


def main() -> int:
    """Run each way, one after the other, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.stores", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="of a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = session("2g", resolve_postgresql())
    ways: dict[str, Callable[[SparkSession, PostgresqlServer, Path, int], StreamingQuery]] = {
        "2pc-postgresql, append": ours,
        "2pc-postgresql, upsert": lambda *given: ours(*given, upsertKey="id"),
        "2pc-multi of the append": several,
        APPENDING: jdbc,
        "JDBC, append, tuned": tuned_jdbc,
        UPSERTING: upserting_jdbc,
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    commits: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way, start in ways.items():
            with tempfile.TemporaryDirectory() as folder, PostgresqlServer(fsync="on", max_wal_size="4GB") as server:
                done = run(start(spark, server, Path(folder), arguments.rows))
                count = server.ask("SELECT count(*), count(DISTINCT id) FROM rows")[0]
                assert count[0] == count[1] >= (BATCHES + 1) * arguments.rows, count
                commits[way] += commits_of(Path(folder) / "checkpoint")
            found[way].append(rows_per_second(done))
            print(f"{way}, round {number}: {found[way][-1]:,.0f}", flush=True)
    spark.stop()
    table = Table(
        "",
        "rows a second",
        "ratio",
        "commit, s",
        title=f"PostgreSQL, micro-batches of {arguments.rows:,} rows of 100 bytes",
    )
    for way, rates in found.items():
        beside = statistics.median(found[UPSERTING if "upsert" in way else APPENDING])
        commit = f"{statistics.median(commits[way]):.2f}" if commits[way] else ""
        table.add_row(way, f"{statistics.median(rates):,.0f}", f"{statistics.median(rates) / beside:.2f}", commit)
    Console(width=100).print(table)
    return 0


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch")
    return source.options(rowsPerBatch=str(rows), numPartitions=str(SLOTS)).load().selectExpr(*COLUMNS)


def ours(spark: SparkSession, server: PostgresqlServer, folder: Path, rows: int, **options: str) -> StreamingQuery:
    """Our sink."""
    writer = rows_of(spark, rows).writeStream.format("2pc-postgresql").options(**options)
    writer = writer.option("url", server.url).option("dbtable", "rows")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def several(spark: SparkSession, server: PostgresqlServer, folder: Path, rows: int) -> StreamingQuery:
    """Our sink, as the only one of several."""
    options = {"sinks": "only", "only.format": "2pc-postgresql", "only.url": server.url, "only.dbtable": "rows"}
    writer = rows_of(spark, rows).writeStream.format("2pc-multi").options(**options)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def commits_of(location: Path) -> list[float]:
    """Return the seconds that the commits of checkpoints took; none without a journal."""
    found = (
        CheckpointLocation(str(location)).journal().load().checkpoints.values()
        if (location / "barrier").exists()
        else ()
    )
    return [(each.settled_at - each.time) / 1000 for each in found if each.settled_at is not None and each.rows]


def jdbc(spark: SparkSession, server: PostgresqlServer, folder: Path, rows: int) -> StreamingQuery:
    """Spark's own writer, as it is by default."""
    url = f"jdbc:{server.address}"
    return each_batch(spark, folder, rows, lambda frame: frame.write.jdbc(url, "rows", "append", PROPERTIES))


def tuned_jdbc(spark: SparkSession, server: PostgresqlServer, folder: Path, rows: int) -> StreamingQuery:
    """Spark's own writer, with one statement for 128 rows."""
    return each_batch(spark, folder, rows, lambda frame: write_tuned(frame, server, "rows", "append"))


def upserting_jdbc(spark: SparkSession, server: PostgresqlServer, folder: Path, rows: int) -> StreamingQuery:
    """Spark's own writer, tuned, into a table beside, and one statement that moves the rows: what there is for upserts."""

    def write(frame: DataFrame) -> None:
        write_tuned(frame, server, "beside", "overwrite")
        server.ask("CREATE TABLE IF NOT EXISTS rows (LIKE beside, PRIMARY KEY (id))")
        server.ask(UPSERT)

    return each_batch(spark, folder, rows, write)


def write_tuned(frame: DataFrame, server: PostgresqlServer, table: str, mode: str) -> None:
    url = f"jdbc:{server.address}?reWriteBatchedInserts=true"
    frame.write.option("truncate", "true").jdbc(url, table, mode, {**PROPERTIES, "batchsize": "10000"})


def each_batch(spark: SparkSession, folder: Path, rows: int, write: Callable[[DataFrame], None]) -> StreamingQuery:
    writer = rows_of(spark, rows).writeStream.foreachBatch(lambda frame, batch: write(frame))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def run(query: StreamingQuery) -> list[Trigger]:
    """Let a query run; return its later micro-batches."""
    done: list[Trigger] = []
    while len(done) <= BATCHES:
        query.awaitTermination(1)
        if (problem := query.exception()) is not None:
            raise problem
        done = [trigger for trigger in triggers_of(query) if trigger["numInputRows"]]
    query.stop()
    return done[1 : BATCHES + 1]


if __name__ == "__main__":
    sys.exit(main())
