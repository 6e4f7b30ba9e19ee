"""The Spark session of a benchmark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["DELTA", "SLOTS", "session"]

SLOTS = 2
"""Tasks that Spark runs at once."""

DELTA: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.databricks.delta.snapshotPartitions": "2",  # its default of 50 is for clusters, and costs seconds here
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a session that uses Spark's own Delta."""


def session(memory: str = "2g", jars: Sequence[Path | str] = (), conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a quiet local session.

    Parameters
    ----------
    memory : str
        The JVM's heap.
    jars : Sequence[Path or str]
    conf : Mapping[str, str], optional
        Further settings.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark takes the first python3 of the PATH otherwise
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(SLOTS),
        **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
        **(conf or {}),
    }
    spark: SparkSession = SparkSession.builder.master(f"local[{SLOTS}]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
