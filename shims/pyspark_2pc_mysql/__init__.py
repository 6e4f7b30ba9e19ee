"""PySpark finds the format ``2pc-mysql`` here, without a registration call."""

from pyspark_barrier_kafka.default_source import default_source

DefaultSource = default_source("2pc-mysql")
