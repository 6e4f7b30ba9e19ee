"""A user's program that makes one mistake after the other: ``python -m integration.mistakes FILE [--unregistered]``.

FILE holds JSON: `Mistake`s as mappings. What a terminal would show of each stands between two lines of `BEGIN`; where `start`
returned, the program waits for the query's end, as users do.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BEGIN", "RETURNED", "Mistake", "main"]

BEGIN = "=== the mistake "
RETURNED = "=== start() has returned"
SECONDS = 60


@dataclass(frozen=True)
class Mistake:
    """One program that can't work."""

    name: str
    sink: Mapping[str, str]  # Options of the sink.
    format: str = "2pc-kafka"  # Of the sink.
    source: Mapping[str, str] | None = None  # Options of ``barrier-kafka``; None: rows of Spark's own making.
    columns: Sequence[str] = ("CAST(value AS STRING) AS value",)  # Expressions over ``value``, a number.
    mode: str = "append"  # Output mode; ``complete`` aggregates.

    def to_json(self) -> dict[str, Any]:
        """As `main` reads it."""
        return asdict(self)


def main(arguments: Sequence[str]) -> int:
    """Make all of them in one session, as plain PySpark makes it."""
    mistakes = [Mistake(**each) for each in json.loads(Path(arguments[0]).read_text())]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    if "--unregistered" not in arguments:
        import connector

        connector.register(spark)
    for mistake in mistakes:
        print(f"{BEGIN}{mistake.name}", file=sys.stderr, flush=True)
        try:
            _run(spark, mistake)
        except Exception:  # noqa: BLE001 - as the interpreter prints what nobody catches
            traceback.print_exc()
        sys.stderr.flush()
    print(f"{BEGIN}of nobody", file=sys.stderr, flush=True)
    spark.stop()
    return 0


def _run(spark: SparkSession, mistake: Mistake) -> None:
    rows: DataFrame
    if mistake.source is None:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    else:
        rows = spark.readStream.format("barrier-kafka").options(**mistake.source).load()
    if mistake.mode == "complete":
        rows = rows.groupBy("value").count()
    rows = rows.selectExpr(*mistake.columns)
    writer = rows.writeStream.format(mistake.format).outputMode(mistake.mode).options(**mistake.sink)
    query = writer.trigger(availableNow=True).start()
    print(RETURNED, file=sys.stderr, flush=True)
    try:
        query.awaitTermination(SECONDS)
    finally:
        query.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
