"""A query whose sources have names, in a process of its own: it writes their union to a topic, and ends when all rows are read.

``python -m integration.evolving_query CONFIG``, where CONFIG is a JSON object with ``servers``, ``target``, ``location``,
``version`` (of Spark's offset log), ``settings`` (of the session), and ``sources``: a list of lists ``name, topic,
startingOffsets``. A source whose name is empty has none.
"""

from __future__ import annotations

import json
import sys
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import barrier_kafka


def main(config: dict[str, Any]) -> None:
    """Run the query until it has read all rows."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.offsetLog.formatVersion": config["version"],
        **config.get("settings", {}),
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    barrier_kafka.register(spark)
    rows = reduce(DataFrame.union, [_read(spark, config["servers"], *source) for source in config["sources"]])
    writer = rows.writeStream.format("2pc-kafka").option("kafka.bootstrap.servers", config["servers"])
    writer = writer.option("topic", config["target"]).option("checkpointLocation", config["location"])
    writer.trigger(availableNow=True).start().awaitTermination()


def _read(spark: SparkSession, servers: str, name: str, topic: str, starting: str) -> DataFrame:
    reader = spark.readStream.format("barrier-kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", starting).option("maxOffsetsPerTrigger", "40")
    if name:
        reader = reader.name(name)
    return reader.load().selectExpr("key", "value")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
