"""The number of each order among those of its customer: state of your own, with transformWithState.

It needs RocksDB for the state and the package protobuf (pip install protobuf).
"""

import os

import barrier_kafka
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", 2)
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")


class Counter(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key, frames, timers):
        before = self.count.get()[0] if self.count.exists() else 0
        for frame in frames:
            numbers = range(before + 1, before + 1 + len(frame))
            yield pd.DataFrame({"key": key[0], "value": [f"order {number} of {key[0]}" for number in numbers]})
            before += len(frame)
        self.count.update((before,))

    def close(self):
        pass


numbered = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("CAST(key AS STRING) AS customer")
    .groupBy("customer")
    .transformWithStateInPandas(Counter(), "key STRING, value STRING", "append", "none")
)
query = (
    numbered.writeStream.format("2pc-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", "numbered")
    .option("checkpointLocation", "/tmp/barrier/numbered")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
