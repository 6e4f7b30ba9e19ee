"""A Spark Connect client that copies a topic: ``python -m integration.connect_query PORT SERVERS FROM TO LOCATION``.

It goes on until it is killed.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

__all__ = ["main"]


def main(port: str, servers: str, source: str, target: str, location: str) -> None:
    """Start the query, and wait for its end."""
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    rows = (
        spark.readStream.format("barrier-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
    )
    query = (
        rows.selectExpr("key", "value")
        .writeStream.format("2pc-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", location)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
