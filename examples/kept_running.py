"""A query that goes on until SIGTERM, restarted after failures, and stopped with everything committed.

kill -TERM PID            # or: barrier stop /tmp/barrier/kept-running
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")


def start():
    return (
        spark.readStream.format("barrier-kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("2pc-kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", "kept")
        .option("checkpointLocation", "/tmp/barrier/kept-running")
        .start()
    )


barrier_kafka.supervise(start, barrier_kafka.ExponentialDelay())
