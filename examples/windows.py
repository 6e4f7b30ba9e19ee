"""Amounts per customer and minute: an aggregation with a watermark, in mode append, from topic to topic.

The row of a minute is written once, when the watermark has passed the minute's end. The newest minutes stay open.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession
from pyspark.sql import functions

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

orders = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("from_json(CAST(value AS STRING), 'customer STRING, amount DOUBLE, time TIMESTAMP') AS o")
    .select("o.*")
)
minutes = (
    orders.withWatermark("time", "10 seconds")
    .groupBy(functions.window("time", "1 minute").alias("minute"), "customer")
    .agg(functions.sum("amount").alias("amount"))
)
query = (
    minutes.selectExpr("customer AS key", "to_json(struct(minute.start, customer, amount)) AS value")
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "minutes")
    .option("checkpointLocation", "/tmp/barrier/minutes")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
