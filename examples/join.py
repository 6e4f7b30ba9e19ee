"""Orders with their payments, which come on another topic within ten minutes: a join of two streams."""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")


def read(topic, schema):
    return (
        spark.readStream.format("barrier-kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{schema}') AS o")
        .select("o.*")
        .withWatermark("time", "10 minutes")
    )


orders = read("orders", "id LONG, customer STRING, amount DOUBLE, time TIMESTAMP").alias("o")
payments = read("payments", "id LONG, amount DOUBLE, time TIMESTAMP").alias("p")
paid = orders.join(payments, how="inner").where(
    "o.id = p.id AND p.time BETWEEN o.time AND o.time + INTERVAL 10 MINUTES"
)
query = (
    paid.selectExpr("o.customer AS key", "to_json(struct(o.id, o.amount, p.amount AS paid)) AS value")
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "paid")
    .option("checkpointLocation", "/tmp/barrier/paid")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
