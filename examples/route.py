"""Several topics by a column: small orders to one topic, large ones to another, and what is no order to a third.

All of it is one transaction per task: the three topics agree after any crash.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

rows = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("key", "value", "from_json(CAST(value AS STRING), 'amount DOUBLE').amount AS amount")
)
query = (
    rows.selectExpr(
        "CASE WHEN amount IS NULL THEN 'dead' WHEN amount < 25 THEN 'small' ELSE 'large' END AS topic", "key", "value"
    )
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("checkpointLocation", "/tmp/barrier/routes")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
