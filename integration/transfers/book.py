"""The programs of the demo: A books debits, B books credits, C brings both into tables. The demo kills them.

C runs its query four times at once, with each way of alignment, and without any: the tables show what the difference is.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from integration.demo.query import end_with_the_demo, small_session

__all__ = ["BOOKING", "WAYS", "main"]

TRANSFER = "id BIGINT, source INT, target INT, amount BIGINT"
BOOKING = "id BIGINT, account INT, amount BIGINT"

WAYS: dict[str, dict[str, str]] = {
    "exactly-once": {"alignOn": "debits-marks,credits-marks"},
    "at-least-once": {"alignOn": "debits-marks,credits-marks", "alignment": "at-least-once"},
    "unaligned": {"alignOn": "debits-marks,credits-marks", "alignment": "unaligned"},
    "without alignOn": {},
}
"""Options of C's source."""


def source(spark: SparkSession, servers: str, topics: str, **options: str) -> DataFrame:
    """Read values as text."""
    return (
        spark.readStream.format("barrier-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )


def book(spark: SparkSession, chosen: argparse.Namespace, side: str) -> Any:
    """Start A or B: bookings of one side of each transfer, and a mark for each checkpoint."""
    account, sign = ("source", "-") if side == "debits" else ("target", "")
    return (
        source(spark, chosen.servers, "transfers", alignOn="transfers-marks")
        .selectExpr(f"from_json(value, '{TRANSFER}') AS t")
        .selectExpr(
            f"CAST(t.{account} AS STRING) AS key",
            f"to_json(named_struct('id', t.id, 'account', t.{account}, 'amount', {sign}t.amount)) AS value",
        )
        .writeStream.format("2pc-kafka")
        .option("kafka.bootstrap.servers", chosen.servers)
        .option("topic", side)
        .option("barrierTopic", f"{side}-marks")
        .option("checkpointLocation", f"{chosen.folder}/{side}-checkpoint")
        .start()
    )


def collect(spark: SparkSession, chosen: argparse.Namespace, way: str) -> Any:
    """Start C: one version of a Delta table for each checkpoint."""
    name = way.replace(" ", "-")
    return (
        source(spark, chosen.servers, "debits,credits", **WAYS[way])
        .selectExpr(f"from_json(value, '{BOOKING}') AS b")
        .selectExpr("b.*")
        .writeStream.format("2pc-delta")
        .option("path", f"{chosen.folder}/{name}-table")
        .option("checkpointLocation", f"{chosen.folder}/{name}-checkpoint")
        .start()
    )


def main() -> int:
    """Run one of the programs until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m integration.transfers.book")
    parser.add_argument("part", choices=("debits", "credits", "tables"))
    for name in ("servers", "folder", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    chosen = parser.parse_args()
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    spark = small_session(chosen.part, chosen.scratch, cores=2 if chosen.part == "tables" else 1, memory="512m")
    if chosen.part == "tables":
        for way in WAYS:
            query = collect(spark, chosen, way)
            while query.status["message"] == "Initializing sources":  # one Python process after the other
                time.sleep(0.1)
    else:
        book(spark, chosen, chosen.part)
    spark.streams.awaitAnyTermination()
    return 1


if __name__ == "__main__":
    sys.exit(main())
