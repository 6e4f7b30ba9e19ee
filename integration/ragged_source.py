"""A source whose micro-batches end anywhere: two drivers that pick the same one's end pick another each.

Rows are 0, 1, 2, ... whoever reads them: between two ends they are the same for everybody. No rate limit, no barrier.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from integration import jobs
from integration.file_sink import FileSink
from integration.jobs import Job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RaggedSource", "position_of_line"]

MOST = 12
"""Rows of a micro-batch."""


@dataclass
class _Part(InputPartition):
    first: int
    end: int
    step: int


class _Reader(DataSourceStreamReader):
    """Never ends: what is above the job's rows is filtered."""

    def __init__(self, writers: int) -> None:
        self._writers = writers

    def initialOffset(self) -> dict[str, Any]:
        """Row 0."""
        return {"row": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        """Anywhere."""
        return {"row": int(start["row"]) + random.SystemRandom().randint(1, MOST)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """Every so manieth row each."""
        return [_Part(int(start["row"]) + n, int(end["row"]), self._writers) for n in range(self._writers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """*On an executor.*"""
        import pyarrow as pa

        assert isinstance(partition, _Part)
        rows = list(range(partition.first, partition.end, partition.step))
        yield pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.int64())})


class RaggedSource(DataSource):
    """Option ``writers``: partitions."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "test-ragged"

    def schema(self) -> str:
        """One column."""
        return "value LONG"

    def streamReader(self, schema: StructType) -> _Reader:
        """*On the driver.*"""
        return _Reader(int(self.options.get("writers", "2")))


def position_of_line(line: str) -> int:
    """Where a micro-batch ends, in its line of Spark's offset log."""
    return int(json.loads(line)["row"])


def ragged(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """`RaggedSource` -> the file sink. Row values are 0 to batches * rows - 1."""
    from connector.spark.host import data_source_for

    session.dataSource.register(RaggedSource)
    session.dataSource.register(data_source_for(FileSink))
    frame = session.readStream.format(RaggedSource.name()).option("writers", str(job.writers)).load()
    return frame.where(f"value < {job.batches * job.rows}"), FileSink.name(), {"path": job.output}


jobs.JOBS["ragged"] = ragged
