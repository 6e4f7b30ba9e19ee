"""A stream-stream join of two topics that follow barriers, in a process of its own.

``python -m integration.joining_query CONFIG``, where CONFIG is a JSON object with ``servers``, ``topics`` (two), ``barriers``
(the barrier topics of both), ``target``, ``targetBarriers`` and ``location``. A row's key is the number that both sides have,
and its value has both sides' values.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import barrier_kafka


def main(config: dict[str, Any]) -> None:
    """Run the query until it is killed."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    barrier_kafka.register(spark)

    def read(topic: str, side: str) -> DataFrame:
        reader = spark.readStream.format("barrier-kafka").option("kafka.bootstrap.servers", config["servers"])
        reader = (
            reader.option("subscribe", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "5")
        )
        reader = reader.option("alignOn", ",".join(config["barriers"])).option("checkpointLocation", config["location"])
        return reader.load().selectExpr(
            "split(CAST(value AS STRING), ' ')[2] AS number", f"CAST(value AS STRING) AS {side}"
        )

    left, right = read(config["topics"][0], "debit"), read(config["topics"][1], "credit")
    rows = left.join(right, "number").selectExpr("number AS key", "concat(debit, ' ', credit) AS value")
    writer = rows.writeStream.format("2pc-kafka").option("kafka.bootstrap.servers", config["servers"])
    writer = writer.option("topic", config["target"]).option("barrierTopic", config["targetBarriers"])
    writer.option("checkpointLocation", config["location"]).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
