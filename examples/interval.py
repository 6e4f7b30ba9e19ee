"""Several micro-batches in a checkpoint: their rows become visible together. A listener prints each checkpoint."""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")
location = "/tmp/barrier/large-checkpoints"


class Printer(barrier_kafka.CheckpointListener):
    def onCheckpointCompleted(self, checkpoint):
        print(
            f"checkpoint {checkpoint.id}: micro-batches {list(checkpoint.batches)}, {checkpoint.rows} rows", flush=True
        )


listening = barrier_kafka.add_listener(spark, location, Printer())
query = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 20_000)
    .option("barrierInterval", "30s")  # a time, and it ends with the query's last micro-batch at the latest
    .load()
    .select("key", "value")
    .writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "copies")
    .option("checkpointLocation", location)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
listening.poll()  # what Spark's events have not brought yet
listening.stop()
spark.stop()
