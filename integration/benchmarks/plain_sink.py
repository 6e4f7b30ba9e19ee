"""A Kafka sink without any protocol: what a micro-batch costs before there are two phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["PlainSinkDataSource"]


class PlainSinkDataSource(DataSource):
    """Format ``plain-kafka``: a producer a task, without idempotence (whose first id takes up to 0.5 s), flushed at its end."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "plain-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlainWriter:
        """Called for every micro-batch, twice."""
        return PlainWriter(dict(self.options))


class PlainWriter(DataSourceStreamArrowWriter):
    """Produces and flushes."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called once per task."""
        from confluent_kafka import Producer

        producer = None
        for batch in iterator:
            if batch.num_rows and producer is None:
                producer = Producer({"bootstrap.servers": self._options["kafka.bootstrap.servers"], "linger.ms": 0})
            rows = [
                {"key": k, "value": v}
                for k, v in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            ]
            if producer is not None:
                producer.produce_batch(self._options["topic"], rows)
        if producer is not None:
            producer.flush(30)
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to commit: rows are visible."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back."""
