"""The newest order of each customer in a Delta table: MERGE in foreachBatch, each micro-batch once.

It needs a session with Delta: ``spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 merge.py``.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")
table = "/tmp/barrier/tables/newest"
spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` (customer STRING, id LONG, amount DOUBLE) USING delta")


def upsert(frame, batch):
    newest = frame.groupBy("customer").agg({"id": "max"}).withColumnRenamed("max(id)", "id")
    barrier_kafka.idempotent_merge(
        newest.join(frame, ["customer", "id"]),
        table,
        "source.customer = target.customer",
        lambda merge: merge.whenMatchedUpdateAll().whenNotMatchedInsertAll(),
        version=batch,
    )


query = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("from_json(CAST(value AS STRING), 'customer STRING, id LONG, amount DOUBLE') AS o")
    .select("o.*")
    .writeStream.foreachBatch(upsert)
    .option("checkpointLocation", "/tmp/barrier/newest")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
