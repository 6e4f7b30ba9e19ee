"""From a topic to a Delta table: one version per checkpoint."""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

orders = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("from_json(CAST(value AS STRING), 'id LONG, customer STRING, amount DOUBLE, time TIMESTAMP') AS o")
    .select("o.*")
)
query = (
    orders.writeStream.format("2pc-delta")
    .option("checkpointLocation", "/tmp/barrier/orders-table")
    .option("partitionBy", "customer")
    .trigger(availableNow=True)
    .start("/tmp/barrier/tables/orders")
)
query.awaitTermination()
