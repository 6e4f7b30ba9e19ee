"""From a topic to a PostgreSQL table: of each customer the newest order.

The password is in the environment variable PGPASSWORD.
"""

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
    orders.writeStream.format("2pc-postgresql")
    .option("url", "postgresql://localhost:5432/postgres")
    .option("user", "writer")
    .option("password", os.environ["PGPASSWORD"])
    .option("dbtable", "newest_orders")
    .option("upsertKey", "customer")
    .option("checkpointLocation", "/tmp/barrier/newest-orders")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
