"""The lag of a query's ``barrier-kafka`` sources, as metrics with the names that Spark's own Kafka source uses.

Spark collects no metrics from a Python source (its progress has ``metrics: {}``). But the progress has the source's
position (``endOffset``) and the latest offsets of the brokers (``latestOffset``), from which the lag is computed here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SOURCE_NAME, positions_from_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceLag:
    """The lag of one source.

    Parameters
    ----------
    number : int
        The number of the source, from 0, in the order of the query's plan.
    by_partition : Mapping[Partition, int]
        The number of offsets between the end of the micro-batch and the latest offset, per partition; never negative.
    """

    number: int
    by_partition: Mapping[Partition, int]

    @property
    def total(self) -> int:
        """Return the sum of the lags of all partitions."""
        return sum(self.by_partition.values())

    @property
    def metrics(self) -> dict[str, str]:
        """Return the lag as metrics with the names of Spark's own Kafka source; empty if the source reads no partition."""
        if not self.by_partition:
            return {}
        lags = self.by_partition.values()
        return {
            "minOffsetsBehindLatest": str(min(lags)),
            "maxOffsetsBehindLatest": str(max(lags)),
            "avgOffsetsBehindLatest": str(self.total / len(lags)),
        }


@dataclass(frozen=True)
class QueryLag:
    """The lag of a query after a micro-batch.

    Parameters
    ----------
    id, runId : str
        Spark's ids of the query and of this run.
    name : str or None
        The query's name, if it has one.
    batchId : int
        The number of the micro-batch.
    timestamp : str
        When the micro-batch began (UTC), in Spark's format.
    sources : Sequence[SourceLag]
        The lag of each ``barrier-kafka`` source whose latest offsets are known.
    """

    id: str
    runId: str
    name: str | None
    batchId: int
    timestamp: str
    sources: Sequence[SourceLag]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with the metrics and partitions of each source."""
        sources = [
            {
                "source": each.number,
                **each.metrics,
                "partitions": {str(partition): offsets for partition, offsets in each.by_partition.items()},
            }
            for each in self.sources
        ]
        return {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "batchId": self.batchId,
            "timestamp": self.timestamp,
            "sources": sources,
        }

    def __str__(self) -> str:
        """Return the lag as one line of text, for a log."""
        lags = []
        for each in self.sources:
            metrics = " ".join(f"{name}={value}" for name, value in each.metrics.items())
            lags.append(f"source {each.number}: {metrics or 'no partitions'}")
        return f"query {self.name or self.id} micro-batch {self.batchId}: {'; '.join(lags)}"


def lag_of(progress: Any) -> QueryLag | None:
    """Return a query's lag from its progress; None if the progress has no ``barrier-kafka`` source."""
    sources = []
    for number, source in enumerate(_field(progress, "sources")):
        end, latest = _offset(_field(source, "endOffset")), _offset(_field(source, "latestOffset"))
        if not end or latest is None or end.get("source") != SOURCE_NAME:
            continue
        at, newest = positions_from_json(end["topics"]), positions_from_json(latest)
        # A partition that no longer exists is only in `end`. One that was created after availableNow set its target is only
        # in `latest`.
        lags = {partition: max(0, newest[partition] - at[partition]) for partition in at if partition in newest}
        sources.append(SourceLag(number, lags))
    if not sources:
        return None
    return QueryLag(
        id=str(_field(progress, "id")),
        runId=str(_field(progress, "runId")),
        name=_field(progress, "name"),
        batchId=int(_field(progress, "batchId")),
        timestamp=str(_field(progress, "timestamp")),
        sources=tuple(sources),
    )


class LagListener(StreamingQueryListener):
    """Logs the consumer lag of each query with ``barrier-kafka`` sources, and passes it to your callback.

    Spark calls the listener in your driver program, in Spark's listener thread, once per progress event. If the
    callback raises, the error is logged, and the query is not affected.

    Parameters
    ----------
    callback : Callable[[QueryLag], None], optional
        Called after each micro-batch with the lag, in offsets per partition.
    level : int
        The level of the log lines (logger ``connector.kafka.source.lag``). Pass `logging.DEBUG` to hide them in most setups.

    Examples
    --------
    >>> spark.streams.addListener(barrier_kafka.LagListener(lambda lag: gauge.set(lag.sources[0].total)))
    """

    def __init__(self, callback: Callable[[QueryLag], None] | None = None, level: int = logging.INFO) -> None:
        self._callback = callback
        self._level = level

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query has read no rows yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log the lag after a micro-batch, and pass it to the callback."""
        try:
            lag = lag_of(event.progress)
        except Exception:
            log.exception("the lag of query %s could not be computed", event.progress.id)
            return
        if lag is None:
            return
        log.log(self._level, "%s", lag)
        if self._callback is None:
            return
        try:
            self._callback(lag)
        except Exception:
            log.exception("the callback of a LagListener raised an error; the query is not affected")

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: there is no micro-batch, so there are no new offsets."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the query has ended."""


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name)


def _offset(value: Any) -> Mapping[str, Any] | None:
    """Return an offset of a query's progress as a mapping, parsed if it is JSON text; None if it is not a mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None
