"""Repartition a checkpoint's state with Spark's own function (Spark 4.2), in a small session in this process.

The repartition adds a micro-batch to a stopped query's location, but no sink gets that micro-batch.
`connector.location.offset_log.repartitions_before` recognizes such a micro-batch, so recovery accepts it, even if another
program has run the repartition.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest
from connector.location.state_files import metadata_line, shuffle_partitions
from transactional.errors import LocationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_STORE = "spark.sql.streaming.stateStore."
PROVIDER = f"{STATE_STORE}providerClass"
ROCKSDB = "RocksDBStateStoreProvider"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
}
"""Settings of the small Spark session in which a repartition runs."""


def repartition(location: CheckpointLocation, partitions: int, session: SparkSession | None = None) -> int:
    """Repartition a stopped query's state. Return the number of the micro-batch that Spark has added.

    Parameters
    ----------
    location : CheckpointLocation
    partitions : int
        The new number of partitions.
    session : SparkSession, optional
        The session to use. By default, a new session is created, and stopped at the end.

    Raises
    ------
    LocationError
        ``REPARTITION_REFUSED``
    """
    batch = newest(location, "commits")
    before_that = shuffle_partitions(location, batch)
    conf = (metadata_line(location, batch) or {}).get("conf", {})
    provider = str(conf.get(PROVIDER, ""))
    if ROCKSDB not in provider or before_that == partitions:  # Spark would leave half a micro-batch
        why = f"it already has {partitions}" if before_that == partitions else f"its store is {provider or 'unknown'}"
        raise refused(partitions, why)
    settings = {key: str(value) for key, value in conf.items() if key.startswith(STATE_STORE)}
    own = session is None
    spark = session if session is not None else _session()
    try:
        before = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            _ = spark.streams.active  # its first use starts the coordinator of the state stores
            manager: Any = spark._streamingCheckpointManager
            manager.repartition(location.path, partitions)
        except Exception as problem:
            java = getattr(problem, "java_exception", None)
            raise refused(partitions, str(java.getMessage() if java is not None else problem)) from problem
        finally:
            for key, former in before.items():
                spark.conf.unset(key)
                if former is not None:
                    spark.conf.set(key, former)
    finally:
        if own:
            spark.stop()
    return newest(location, "commits")


def refused(partitions: int, why: str) -> LocationError:
    """Return the error for a state that can't be repartitioned."""
    return LocationError("REPARTITION_REFUSED", partitions=partitions, reason=why)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("barrier restore")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
