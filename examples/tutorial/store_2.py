"""As store.py, with one more column, at another checkpoint location."""

import barrier_kafka
from pyspark.sql import SparkSession

from settings import BROKERS, DATABASE, PLACE

spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
barrier_kafka.register(spark)

orders = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", BROKERS)
    .option("subscribe", "shop-orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 20_000)
    .load()
    .selectExpr(
        "from_json(CAST(value AS STRING), "
        "'id LONG, customer STRING, amount DECIMAL(10, 2), status STRING, time TIMESTAMP') AS event"
    )
    .select("event.*")
    .selectExpr("*", "CAST(amount * 100 AS LONG) AS cents")
)
query = (
    orders.writeStream.format("2pc-multi")
    .option("sinks", "newest,all")
    .option("newest.format", "2pc-postgresql")
    .option("newest.url", DATABASE)
    .option("newest.dbtable", "orders")
    .option("newest.upsertKey", "id")
    .option("all.format", "2pc-delta")
    .option("all.path", f"{PLACE}/events")
    .option("all.mergeSchema", "true")
    .option("checkpointLocation", f"{PLACE}/store-2")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
