"""PySpark finds the format ``barrier-kafka`` here, without a registration call."""

from pyspark_barrier_kafka.default_source import default_source

DefaultSource = default_source("barrier-kafka")
