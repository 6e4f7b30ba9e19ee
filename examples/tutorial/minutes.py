"""From shop-orders: the paid amounts of each minute, into the table minutes of PostgreSQL."""

import barrier_kafka
from pyspark.sql import SparkSession
from pyspark.sql import functions

from settings import BROKERS, DATABASE, PLACE

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
barrier_kafka.register(spark)

orders = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", BROKERS)
    .option("subscribe", "shop-orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("from_json(CAST(value AS STRING), 'amount DECIMAL(10, 2), status STRING, time TIMESTAMP') AS event")
    .select("event.*")
)
minutes = (
    orders.where("status = 'paid'")
    .withWatermark("time", "10 seconds")
    .groupBy(functions.window("time", "1 minute"))
    .agg(functions.count("*").alias("orders"), functions.sum("amount").alias("amount"))
)
query = (
    minutes.select("window.start", "orders", "amount")
    .writeStream.format("2pc-postgresql")
    .option("url", DATABASE)
    .option("dbtable", "minutes")
    .option("checkpointLocation", f"{PLACE}/minutes")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
