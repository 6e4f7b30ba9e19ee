"""From a topic that Debezium writes to a PostgreSQL table, which becomes a copy of Debezium's table, deletes included.

The password is in the environment variable PGPASSWORD.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

ROW = "STRUCT<id: LONG, customer: STRING, amount: DOUBLE>"
changes = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "shop.public.orders")
    .option("startingOffsets", "earliest")
    .load()
    .where("value IS NOT NULL")  # after each delete, Debezium also writes a tombstone
    .selectExpr(f"from_json(CAST(value AS STRING), 'before {ROW}, after {ROW}, op STRING') AS change")
    .selectExpr("coalesce(change.after, change.before) AS row", "change.op = 'd' AS deleted")
    .select("row.*", "deleted")
)
query = (
    changes.writeStream.format("2pc-postgresql")
    .option("url", "postgresql://localhost:5432/postgres")
    .option("user", "writer")
    .option("password", os.environ["PGPASSWORD"])
    .option("dbtable", "orders_copy")
    .option("upsertKey", "id")
    .option("deleteColumn", "deleted")
    .option("checkpointLocation", "/tmp/barrier/orders-copy")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
