"""PySpark finds the format ``2pc-multi`` here, without a registration call."""

from pyspark_barrier_kafka.default_source import default_source

DefaultSource = default_source("2pc-multi")
