"""Adapters of the checkpoint protocol: Spark, Kafka and other stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.spark.listener import CheckpointListener, listen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from connector.spark.lag import LagListener
    from connector.spark.supervisor import StopWish, supervise
    from transactional.sink import TwoPhaseCommitSink

__all__ = ["CheckpointListener", "LagListener", "StopWish", "listen", "register", "supervise"]


def __getattr__(name: str) -> Any:
    """What needs PySpark, or much of ours, is imported when it is asked for: a command needs no PySpark."""
    if name == "LagListener":
        from connector.spark.lag import LagListener

        return LagListener
    if name in ("StopWish", "supervise"):
        from connector.spark import supervisor

        return getattr(supervisor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession, *sinks: type[TwoPhaseCommitSink[Any, Any]]) -> None:
    """Make our formats, and sinks of your own, known to a session. *Called on the driver, once per session*.

    Where the package is installed, Spark finds ``barrier-kafka``, ``2pc-kafka`` and ``2pc-delta`` without it. It is for zips
    (``--py-files``), notebooks, and subclasses of `TwoPhaseCommitSink`. To call it again changes nothing.

    Parameters
    ----------
    spark : SparkSession
    *sinks : type[TwoPhaseCommitSink]
        Each becomes the format of its ``name()``.

    Examples
    --------
    >>> register(spark, MySink)
    >>> df.writeStream.format(MySink.name()).option("checkpointLocation", ...).start()
    """
    from connector.delta.format import TwoPhaseDeltaDataSource
    from connector.kafka.sink import TwoPhaseKafkaDataSource
    from connector.kafka.source import BarrierKafkaDataSource

    formats: list[type[DataSource]] = [BarrierKafkaDataSource, TwoPhaseKafkaDataSource, TwoPhaseDeltaDataSource]
    if sinks:
        from connector.spark.host import data_source_for

        formats += [data_source_for(sink) for sink in sinks]
    for each in formats:
        spark.dataSource.register(each)
