"""A source and a sink in Python that move rows and do nothing else: what Spark's Python Data Source API costs by itself.

The difference between a contestant and these is the contestant's own cost; what is left is out of a connector's reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FloorSink", "FloorSource"]

BATCH = 10_000
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
"""That of the Kafka sources."""


class FloorSource(DataSource):
    """Format ``floor-source``: rows of 108 bytes, made once per task. Options ``rows``, ``per_trigger`` (0: all), ``tasks``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "floor-source"

    def schema(self) -> str:
        """Seven columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> FloorReader:
        """Called in the source's process, and for every planning."""
        return FloorReader(*(int(self.options[name]) for name in ("rows", "per_trigger", "tasks")))


class FloorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts from 0 to its end."""

    def __init__(self, rows: int, per_trigger: int, tasks: int) -> None:
        self._rows, self._per_trigger, self._tasks = rows, per_trigger or rows, tasks

    def initialOffset(self) -> dict[str, Any]:
        """Row 0."""
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Rows of a micro-batch."""
        return ReadMaxRows(self._per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing comes while the query runs."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called once per trigger."""
        most = self._rows if isinstance(limit, ReadAllAvailable) else self._per_trigger
        return {"row": min(self._rows, start["row"] + most)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One range a task."""
        first, rows = start["row"], end["row"] - start["row"]
        return [
            InputPartition((first + rows * n // self._tasks, first + rows * (n + 1) // self._tasks))
            for n in range(self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Slices of one batch."""
        import pyarrow as pa

        first, last = partition.value
        size = min(BATCH, last - first)
        if not size:
            return
        keys, values = [b"%08d" % n for n in range(size)], [bytes(100)] * size
        columns = [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["topic"] * size),
            pa.array([0] * size, pa.int32()),
            pa.array(range(size), pa.int64()),
            pa.array([0] * size, pa.timestamp("us", tz="UTC")),
            pa.array([0] * size, pa.int32()),
        ]
        names = [column.split()[0] for column in SCHEMA.split(", ")]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        for begin in range(first, last, size):
            yield batch.slice(0, min(size, last - begin))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to forget."""


class FloorSink(DataSource):
    """Format ``floor-sink``: counts rows."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "floor-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FloorWriter:
        """Called for every micro-batch, twice."""
        return FloorWriter()


class FloorCount(WriterCommitMessage):
    """Rows of a task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class FloorWriter(DataSourceStreamArrowWriter):
    """Reads its rows to their end."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called once per task."""
        return FloorCount(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to commit."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to abort."""
