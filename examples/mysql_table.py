"""From a topic to a table of MySQL or MariaDB: every order once.

The password is in the environment variable MYSQL_PASSWORD.
"""

import os

import barrier_kafka
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
barrier_kafka.register(spark)
brokers = os.environ.get("BROKERS", "localhost:9092")

orders = (
    spark.readStream.format("barrier-kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("from_json(CAST(value AS STRING), 'id LONG, customer STRING, amount DOUBLE, time TIMESTAMP') AS o")
    .select("o.*")
)
query = (
    orders.writeStream.format("2pc-mysql")
    .option("url", "mysql://localhost:3306/shop")
    .option("user", "writer")
    .option("password", os.environ["MYSQL_PASSWORD"])
    .option("dbtable", "orders")
    .option("checkpointLocation", "/tmp/barrier/mysql-orders")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
