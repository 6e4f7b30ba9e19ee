"""A batch: all orders up to now, counted per customer and written into a topic once, however often this is run."""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

counts = (
    spark.read.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .load()
    .selectExpr("CAST(key AS STRING) AS key")
    .groupBy("key")
    .count()
)
(
    counts.selectExpr("key", "CAST(count AS STRING) AS value")
    .write.format("2pc-kafka")
    .mode("append")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "counts")
    .option("checkpointLocation", "/tmp/barrier/counts")
    .option("txnAppId", "counts")
    .option("txnVersion", 20260101)  # of this day's run: the same version again writes nothing
    .option("txnCompareRows", False)  # more orders may have come since
    .save()
)
