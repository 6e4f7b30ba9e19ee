import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)  # start() then reports mistakes before it writes anything; wide topics are read faster
brokers = os.environ.get("BROKERS", "localhost:9092")

rows = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    rows.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "orders-upper")
    .option("checkpointLocation", "/tmp/barrier/orders-upper")
    .trigger(availableNow=True)  # read what is there now, then end; without it, run forever
    .start()
)
query.awaitTermination()
print(sum(progress.numInputRows for progress in query.recentProgress), "rows committed")
