"""A driver without Spark: the calls that Spark makes, in Spark's order, around the real host, coordinator and sink.

It writes ``metadata``, ``offsets/N`` and ``commits/N`` as Spark does, plans each micro-batch with a new writer, runs its
tasks on pickled copies of it, and commits or aborts with yet another. What it reads is the same at every replay.

A death is an `InjectedFault` after which the driver does nothing more: no abort, no rollback. Its tasks live on as
zombies, whose rows arrive nevertheless. ``python -m integration.engine`` runs one in a process that can be killed.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pyarrow as pa

from connector.formats.discovery import SinkType, find_sink
from connector.kafka.client.topics import Partition
from connector.kafka.sink.kafka_sink import KafkaSink, KafkaTransaction
from connector.kafka.source.offsets import SourceOffset
from connector.multi.sink import MultiSink
from connector.spark import internals
from connector.spark.host import HostedStreamWriter
from connector.spark.hosted_sink import HostedSink
from integration.jobs import newest
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.faults import InjectedFault
from transactional.sink import Options

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

__all__ = ["SCHEMA", "Engine", "MortalSink", "Work"]

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string()), ("partition", pa.int32())])

FLUSH_SECONDS = 120.0


@dataclass(frozen=True)
class Work:
    """What a query does, however often it is started. Row values are 0 to batches * rows - 1."""

    location: str  # The checkpoint location.
    options: Mapping[str, str] = field(default_factory=dict)  # Of the sink.
    # Micro-batches, rows in each, and writer tasks. In each second micro-batch the last task has no row.
    batches: int = 2
    rows: int = 24
    writers: int = 3
    partitions: int = 1  # Of the output topic; every task with rows writes into all of them.
    # Names of sinks under ``2pc-multi``: rows go to each in turn, and every last one to all of them.
    routes: Sequence[str] = ()
    format: str = ""  # Of the sink, Kafka's by default.

    def route(self, value: int) -> str | None:
        """Where a row goes; None for all sinks."""
        return (*self.routes, None)[value % (len(self.routes) + 1)]

    @property
    def expected(self) -> int:
        """Rows in the end: their values are 0 to this, exclusive."""
        return self.batches * self.rows

    def values(self, batch: int, writer: int) -> range:
        """Values of the rows that a task of the micro-batch has."""
        busy = self.writers - 1 if batch % 2 and self.writers > 1 else self.writers
        if writer >= busy:
            return range(0)
        first = batch * self.rows
        return range(first + self.rows * writer // busy, first + self.rows * (writer + 1) // busy)

    def task(self, batch: int, writer: int) -> Iterator[pa.RecordBatch]:
        """A task's rows, in two Arrow batches."""
        values = list(self.values(batch, writer))
        for part in (values[: len(values) // 2], values[len(values) // 2 :]):
            columns: dict[str, list[Any]] = {
                "key": [f"key-{value}" for value in part],
                "value": [str(value) for value in part],
                "partition": [value % self.partitions for value in part],
            }
            schema = SCHEMA
            if self.routes:
                schema = schema.append(pa.field("route", pa.string()))
                columns["route"] = list(map(self.route, part))
            yield pa.RecordBatch.from_pydict(columns, schema=schema)

    def offset(self, batch: int) -> str:
        """The source's line in ``offsets/<batch>``: every micro-batch ends with a barrier."""
        source = Partition("input", 0)
        barrier = CheckpointBarrier(batch + 1, BarrierKind.CHECKPOINT, 0)
        return json.dumps(SourceOffset({source: (batch + 1) * self.rows}, {source: 0}, barrier).to_json())


class MortalSink(KafkaSink):
    """The Kafka sink, whose tasks can die: then nothing is rolled back, and their rows arrive all the same."""

    dying: ClassVar[bool] = False
    zombies: ClassVar[list[KafkaTransaction]] = []

    def rollback(self, transaction: KafkaTransaction) -> None:
        """Roll back, unless the task is dead."""
        if not (MortalSink.dying and isinstance(sys.exc_info()[1], InjectedFault)):
            super().rollback(transaction)
            return
        MortalSink.zombies.append(transaction)
        assert transaction.producer is not None
        assert transaction.producer.flush(FLUSH_SECONDS) == 0

    @classmethod
    def bury(cls) -> None:
        """Drop the zombies."""
        while cls.zombies:
            cls.zombies.pop().drop()


class Engine:
    """One driver's life."""

    def __init__(self, work: Work, prepared: Callable[[int], None] = lambda batch: None) -> None:
        self.work = work
        self._prepared = prepared  # Called with each micro-batch's number when its tasks are done, before the commit.
        self._driver = f"driver-{uuid.uuid4().hex}"
        self.attempt = 0
        """Spark's task attempt id of the next task; starts at 0 in every driver."""

    def run(self, batches: int | None = None, *, error: bool = False) -> None:
        """Run micro-batches until so many are committed, all by default.

        Parameters
        ----------
        batches : int, optional
        error : bool
            Whether an injected fault is an error, after which Spark aborts, or the death of the driver.
        """
        MortalSink.dying = not error
        if not self._begun():
            self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        last = self.work.batches if batches is None else batches
        while (batch := self._next()) < last:
            if self._newest("offsets") < batch:
                line = self._line(batch)
                if line is None:
                    return
                self._write(f"offsets/{batch}", f"v1\n{{}}\n{line}\n")
            self._micro_batch(batch, error)
            self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}\n')

    def _line(self, batch: int) -> str | None:
        """The source's line of a new micro-batch; None if it has nothing."""
        return self.work.offset(batch)

    def _rows(self, batch: int) -> Sequence[Iterator[pa.RecordBatch]]:
        """The rows of each of a micro-batch's tasks."""
        return [self.work.task(batch, partition) for partition in range(self.work.writers)]

    def _next(self) -> int:
        return max(self._newest("offsets"), self._newest("commits") + 1)

    def _micro_batch(self, batch: int, error: bool) -> None:
        rows = self._rows(batch)
        messages: list[WriterCommitMessage | None] = [None] * len(rows)
        with mock.patch.object(internals, "driver_identity", return_value=self._driver):
            planned = self._writer()
            planned.prepare(overwrite=False)
            try:
                for partition, batches in enumerate(rows):
                    messages[partition] = self._task(planned, batch, partition, batches)
                self._prepared(batch)
                self._writer().commit(messages, batch)
            except Exception as problem:
                if error or not isinstance(problem, InjectedFault):
                    self._writer().abort(messages, batch)
                raise

    def _task(
        self, planned: HostedStreamWriter, batch: int, partition: int, rows: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        writer: HostedStreamWriter = pickle.loads(pickle.dumps(planned))
        query = json.loads(self._read("metadata"))["id"]
        attempt, self.attempt = self.attempt, self.attempt + 1
        with mock.patch.object(internals, "task_batch", return_value=(query, batch, partition, attempt)):
            message = writer.write(rows)
        copy: WriterCommitMessage = pickle.loads(pickle.dumps(message))
        return copy

    def _writer(self) -> HostedStreamWriter:
        from pyspark.sql.types import StructType

        schema = StructType().add("key", "string").add("value", "string").add("partition", "integer")
        if self.work.routes:
            schema = schema.add("route", "string")
        options = Options({**self.work.options, "checkpointLocation": self.work.location})
        return HostedStreamWriter(HostedSink(self._sink(), options, schema))

    def _sink(self) -> SinkType:
        if self.work.routes:
            return MultiSink
        return find_sink(self.work.format) if self.work.format else MortalSink

    def _newest(self, log: str) -> int:
        return newest(self.work.location, log)

    def _begun(self) -> bool:
        return (Path(self.work.location) / "metadata").exists()

    def _read(self, name: str) -> str:
        return (Path(self.work.location) / name).read_text(encoding="utf-8")

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, as Spark writes its logs."""
        path = Path(self.work.location) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def main(description: str) -> None:
    """Run the work to its end. An armed point kills the process."""
    given: dict[str, Any] = json.loads(description)
    Engine(Work(**given)).run()


def command(work: Work) -> list[str]:
    """The command line that runs the work in a process of its own."""
    return [sys.executable, "-m", "integration.engine", json.dumps(asdict(replace(work, options=dict(work.options))))]


if __name__ == "__main__":
    main(sys.argv[1])
