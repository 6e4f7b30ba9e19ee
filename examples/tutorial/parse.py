"""From shop: events that can be parsed to shop-orders, all others to shop-dead, byte for byte."""

import barrier_kafka
from pyspark.sql import SparkSession

from settings import BROKERS, PLACE

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)

events = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", BROKERS)
    .option("subscribe", "shop")
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    events.selectExpr(
        "IF(try_parse_json(CAST(value AS STRING)) IS NULL, 'shop-dead', 'shop-orders') AS topic", "key", "value"
    )
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", BROKERS)
    .option("checkpointLocation", f"{PLACE}/parse")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
