"""Adapters that connect the checkpoint protocol to Spark, Kafka and other stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from transactional.errors.catalogue import catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.kafka.source.lag import LagListener
    from connector.operations.listener import CheckpointListener, add_listener
    from connector.operations.supervised_query import StopRequest, supervise
    from transactional.sink import TwoPhaseCommitSink

__all__ = ["CheckpointListener", "LagListener", "StopRequest", "add_listener", "register", "supervise"]


catalogue.extend(__name__)  # adds this package's conditions, and remedies that name its commands


_HOMES: Final = {
    "CheckpointListener": "connector.operations.listener",
    "LagListener": "connector.kafka.source.lag",
    "StopRequest": "connector.operations.supervised_query",
    "add_listener": "connector.operations.listener",
    "supervise": "connector.operations.supervised_query",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so commands need no PySpark, and Spark's tasks load no journal code."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(spark: SparkSession, *sinks: type[TwoPhaseCommitSink[Any, Any]]) -> None:
    """Register the formats in a Spark session, and make ``start()`` check them. Call this once per session.

    After this call, every ``writeStream...start()`` in the driver program first checks the sink: options, columns,
    output mode, brokers, topic and rights. If something is wrong, ``start()`` raises a short error before Spark writes
    anything into the checkpoint location. Without this call, the query fails later, in its first micro-batch.

    ``barrier-kafka`` then also knows how many tasks the cluster can run at the same time (see its option ``maxPartitions``).

    If barrier-kafka is installed as a package, Spark finds its formats without this call. You need the call in three cases: you
    ship barrier-kafka as a zip (``--py-files``), you use your own subclasses of `TwoPhaseCommitSink`, or the Python process
    in which Spark looks for formats was killed in this session. A second call changes nothing.

    Parameters
    ----------
    spark : SparkSession
    *sinks : type[TwoPhaseCommitSink]
        Your own sinks. Spark then knows each one as the format that its ``name()`` returns.

    Examples
    --------
    >>> register(spark, MySink)
    >>> df.writeStream.format(MySink.name()).option("checkpointLocation", ...).start()
    """
    from connector.registration import sessions

    sessions.register(spark, *sinks)
