"""A streaming query of a benchmark, as values that travel as JSON, and what Spark reports of its micro-batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Query", "Run", "Trigger", "rows_per_second", "topic_options", "triggers_of"]

PARQUET_SCHEMA = "key BINARY, value BINARY"

Trigger = Mapping[str, Any]
"""Of one micro-batch: ``numInputRows`` and ``durationMs``, as in Spark's progress reports."""


def topic_options(servers: str, topic: str, per_trigger: int | None = None, **more: str) -> dict[str, str]:
    """Return the options of a Kafka source that reads a topic from its beginning, ours or Spark's own.

    Parameters
    ----------
    servers, topic : str
    per_trigger : int, optional
        Rows of a micro-batch; all that are there by default.
    **more : str
        Further options.
    """
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **more}
    return {**options, "maxOffsetsPerTrigger": str(per_trigger)} if per_trigger else options


@dataclass(frozen=True)
class Run:
    """What one query took."""

    load_seconds: float  # To make the stream, before the query is started.
    seconds: float  # From the query's start to its end, by the clock.
    triggers: Sequence[Trigger]  # Of all its micro-batches.


@dataclass(frozen=True)
class Query:
    """A query."""

    # Formats. Without a sink the rows go to Spark's ``noop``.
    source: str
    # Their options.
    read: Mapping[str, str]
    location: str  # Its checkpoint location.
    sink: str = "noop"
    write: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ()  # What is written; all columns if empty.

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it with a micro-batch whenever there are rows."""
        return self._writer(self._frame(spark)).start()

    def run(self, spark: SparkSession) -> Run:
        """Run it to its end over what is there now. Raises what the query raises."""
        begin = time.monotonic()
        frame = self._frame(spark)
        loaded = time.monotonic()
        query = self._writer(frame).trigger(availableNow=True).start()
        query.awaitTermination()
        return Run(loaded - begin, time.monotonic() - loaded, triggers_of(query))

    def _frame(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format(self.source).options(**self.read)
        return (reader.schema(PARQUET_SCHEMA) if self.source == "parquet" else reader).load()

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        writer = (frame.select(*self.columns) if self.columns else frame).writeStream.format(self.sink)
        return writer.options(**self.write).option("checkpointLocation", self.location)


def triggers_of(query: StreamingQuery) -> list[Trigger]:
    """Return the reports of a query's micro-batches, also of those without rows; JSON types."""
    return [
        {
            "numInputRows": int(progress["numInputRows"]),
            "durationMs": {name: int(taken) for name, taken in progress["durationMs"].items()},
        }
        for progress in query.recentProgress
    ]


def rows_per_second(triggers: Sequence[Trigger]) -> float:
    """Return the rows of these micro-batches over the time that their triggers took."""
    rows = sum(int(each["numInputRows"]) for each in triggers)
    return rows / (sum(float(each["durationMs"]["triggerExecution"]) for each in triggers) / 1000)
