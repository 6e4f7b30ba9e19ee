"""Adapters of the checkpoint protocol: Spark, Kafka and other stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from transactional.errors.catalogue import catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.kafka.source.lag import LagListener
    from connector.operations.listener import CheckpointListener, listen
    from connector.operations.supervised_query import StopWish, supervise
    from transactional.sink import TwoPhaseCommitSink

__all__ = ["CheckpointListener", "LagListener", "StopWish", "listen", "register", "supervise"]


catalogue.extend(__name__)  # whose remedies name the commands


_HOMES: Final = {
    "CheckpointListener": "connector.operations.listener",
    "LagListener": "connector.kafka.source.lag",
    "StopWish": "connector.operations.supervised_query",
    "listen": "connector.operations.listener",
    "supervise": "connector.operations.supervised_query",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: commands need no PySpark, and tasks and the source's process no journal."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(spark: SparkSession, *sinks: type[TwoPhaseCommitSink[Any, Any]]) -> None:
    """Make our formats known to a session, and ``start()`` refuse mistakes at the sink. *Driver program, once per session*.

    From this call on every ``writeStream...start()`` of the program checks our sinks first: options, columns, output mode,
    brokers, topic, rights. ``start()`` itself then raises the mistake, in one sentence, before Spark writes anything into
    the checkpoint location. Without the call the first micro-batch finds it.

    If the package is installed, Spark finds our formats without it; zips (``--py-files``), subclasses of `TwoPhaseCommitSink`,
    and a session whose search for formats was killed need it. A second call changes nothing.

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
    from connector.registration import sessions

    sessions.register(spark, *sinks)
