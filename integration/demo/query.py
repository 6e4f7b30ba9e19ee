"""The query of the demo, run in a process of its own, which the demo kills.

It is what a user would write, but for the small JVM and for the thread that ends it with the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows it by

from integration.demo.flights import airline_names

EVENT = """
    event BIGINT, carrier STRING, flight INT, origin STRING, dest STRING, distance INT,
    dep_time INT, dep_delay INT, arr_delay INT, time_hour STRING
"""


def flights_that_departed(messages: DataFrame) -> DataFrame:
    """Parse the events, leave out cancelled flights, and add the airline's name."""
    event = messages.select(F.from_json(F.col("value").cast("string"), EVENT).alias("event")).select("event.*")
    return event.where("dep_time IS NOT NULL").select(
        F.col("carrier").alias("key"),
        F.to_json(
            F.struct(
                "event",
                _airlines()[F.col("carrier")].alias("airline"),
                F.concat("carrier", F.col("flight").cast("string")).alias("flight"),
                "origin",
                "dest",
                "distance",
                F.col("dep_time").alias("departed"),
                "dep_delay",
                "arr_delay",
                F.col("time_hour").alias("scheduled"),
            )
        ).alias("value"),
    )


def _airlines() -> Column:
    return F.create_map(*[F.lit(text) for pair in airline_names().items() for text in pair])


def small_session(name: str, scratch: str, cores: int = 2, memory: str = "1g") -> SparkSession:
    """Start a session whose files are all in a folder of the demo's."""
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # Half a minute of a JVM is not worth its second compiler.
        .config(
            "spark.driver.extraJavaOptions",
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={scratch}",
        )
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def run(chosen: argparse.Namespace) -> None:
    """Run the query until it has read what the topic held at its start."""
    spark = small_session("flights", chosen.scratch)
    options = dict(pair.split("=", 1) for pair in chosen.option)
    messages = (
        spark.readStream.format("barrier-kafka")
        .option("kafka.bootstrap.servers", chosen.servers)
        .option("subscribe", chosen.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", chosen.rows_per_batch)
        .options(**{key: text for key, text in options.items() if key.startswith("kafka.")})
        .load()
    )
    query = (
        flights_that_departed(messages)
        .writeStream.format("2pc-kafka")
        .option("kafka.bootstrap.servers", chosen.servers)
        .option("topic", chosen.output)
        .option("deliveryGuarantee", chosen.guarantee)
        .option("checkpointLocation", chosen.location)
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def end_with_the_demo() -> None:
    """End this process group when the pipe to the demo breaks: it is gone, however it went."""
    with contextlib.suppress(OSError):
        os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Read the demo's orders and run."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo.query")
    for name in ("servers", "input", "output", "location", "guarantee", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows-per-batch", type=int, required=True)
    parser.add_argument(
        "--option", action="append", default=[], help="KEY=VALUE of the sink; kafka.* of the source, too"
    )
    chosen = parser.parse_args()
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    run(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
