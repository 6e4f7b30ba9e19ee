"""Orders to a Delta table, and what is no order to a topic: one decision for both.

Whatever crashes, in the end each record is in exactly one of the two, once.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

rows = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
)
decoded = expr("""
    struct(
        from_json(CAST(value AS STRING), 'id LONG, customer STRING, amount DOUBLE') AS value,
        if(try_parse_json(CAST(value AS STRING)) IS NULL, 'it is no JSON', NULL) AS error
    )
""")
frame, options = barrier_kafka.dead_letters(rows, decoded, good="table", bad="dead")
query = (
    frame.writeStream.format("2pc-multi")
    .options(**options)
    .option("table.format", "2pc-delta")
    .option("table.path", "/tmp/barrier/tables/good-orders")
    .option("dead.format", "2pc-kafka")
    .option("dead.kafka.bootstrap.servers", brokers)
    .option("dead.topic", "dead-orders")
    .option("checkpointLocation", "/tmp/barrier/fan-out")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
