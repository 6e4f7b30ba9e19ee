"""A query from text files to a topic: ``python -m integration.files_query SERVERS FOLDER TO LOCATION``; ends with the files."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

__all__ = ["main"]


def main(servers: str, folder: str, target: str, location: str) -> None:
    """Write each line as a row; one file a micro-batch."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.config("spark.driver.memory", "512m").getOrCreate()
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(folder)
    query = (
        rows.selectExpr("value")
        .writeStream.format("2pc-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", location)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
