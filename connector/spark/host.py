"""The data source through which Spark reaches a `TwoPhaseCommitSink`, and its writer for streams.

`streamWriter` is called in the planning worker, where recovery and sweep run, and again in the commit worker before
every commit and abort, where they never do; constructors do nothing. See `connector.spark.internals.phase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from connector.formats.discovery import SinkType, find_sink, remember_sink
from connector.location.offset_log import spark_view
from connector.spark import internals
from connector.spark.batch_writer import HostedBatchWriter
from connector.spark.collector import collector_patient
from connector.spark.hosted_sink import HostedSink, TaskMessage, acknowledgements
from connector.spark.worker_log import show_progress
from transactional.checkpoint import TaskPlan
from transactional.errors import OptionError, ProtocolError, StoreError, TwoPhaseCommitError
from transactional.sink import Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HostedSinkDataSource", "HostedStreamWriter", "data_source_for"]


class HostedSinkDataSource(DataSource):
    """The data source through which Spark reaches a sink."""

    format: ClassVar[str]
    """Subclasses set it."""

    sink: ClassVar[SinkType | None] = None
    """A sink of the user's own, which travels with the class. Any other is found by the format when it is used."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format

    @classmethod
    def sink_type(cls) -> SinkType:
        """Return the sink. A format can be listed without it, so without its clients."""
        return cls.sink or find_sink(cls.format)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HostedStreamWriter:
        """Make the writer. *Called on the driver, in the planning worker once per micro-batch and in the commit worker.*"""
        show_progress()
        try:
            writer = HostedStreamWriter(HostedSink(self.sink_type(), Options(self.options), schema))
            if internals.phase() is internals.Phase.PLANNING:
                writer.prepare(overwrite)
        except (OptionError, StoreError) as problem:
            raise problem.with_traceback(
                None
            ) from None  # people read it among Spark's own lines: the sentence is enough
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> HostedBatchWriter:
        """Make the writer. *Called on the driver, once per ``df.write``; the commit worker gets a copy of the writer.*"""
        try:
            writer = HostedBatchWriter(HostedSink(self.sink_type(), Options(self.options), schema))
            writer.prepare(overwrite)
        except (OptionError, StoreError) as problem:
            raise problem.with_traceback(None) from None
        return writer


def data_source_for(sink: SinkType) -> type[HostedSinkDataSource]:
    """Make the data source class of a sink, for ``spark.dataSource.register``."""
    remember_sink(sink)
    body = {"format": sink.name(), "sink": sink, "__module__": sink.__module__}
    return type(f"{sink.__name__}DataSource", (HostedSinkDataSource,), body)


class HostedStreamWriter(DataSourceStreamArrowWriter):
    """A sink under ``writeStream``. Pickled to executors with the plan."""

    def __init__(self, sink: HostedSink) -> None:
        self._sink = sink
        self._plan: TaskPlan | None = None

    @collector_patient()
    def prepare(self, overwrite: bool) -> None:
        """Refuse impossible settings, recover, and make the plan that the tasks carry. *Driver, planning worker.*"""
        try:
            self._sink.refuse_stream(overwrite)
            with self._sink.coordinator(spark_view(self._sink.location)) as coordinator:
                self._plan = coordinator.plan()
        except (OptionError, StoreError) as problem:
            if self._is_first():
                raise _with_the_start(problem, self._sink.location.path) from None
            raise

    def _is_first(self) -> bool:
        """Return whether no run has begun here: Spark has recorded where the query begins, and nothing else."""
        location = self._sink.location
        try:
            offsets = [name for name in location.files.names("offsets") if name.isdigit()]
            return offsets == ["0"] and not location.journal().load().position
        except (TwoPhaseCommitError, OSError):
            return False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write and prepare, or discard, as the plan says. *Called on an executor, once per task.*"""
        plan = self._plan
        query, batch, partition, attempt = internals.task_batch()
        if plan is None or (plan.queryId, plan.batch) != (query, batch):
            planned = (plan.queryId, plan.batch) if plan else None
            raise ProtocolError(
                "CONCURRENT_COMMIT",
                reason=f"a task of micro-batch {batch} of query {query} got the plan of {planned}",
                batch=batch,
            )
        return TaskMessage(self._sink.write(plan, iterator, partition, attempt))

    @collector_patient()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Decide, then commit. *Called on the driver, once per micro-batch, in the commit worker.*"""
        view = spark_view(self._sink.location, batchId)
        with self._sink.coordinator(view) as coordinator:
            coordinator.commit(acknowledgements(messages), batchId)

    @collector_patient()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Give the micro-batch up unless the journal has it. *Called on the driver, after a failure or a stop.*"""
        with self._sink.coordinator(spark_view(self._sink.location, batchId)) as coordinator:
            coordinator.abort(acknowledgements(messages), batchId)


def _with_the_start(problem: TwoPhaseCommitError, path: str) -> TwoPhaseCommitError:
    """Add what Spark had recorded before it called the sink, and how to find the mistake earlier.

    ``offsets/0`` stays: with ``startingOffsets=latest`` the rows that came since would be left out without it.
    """
    return problem.with_note(
        f"Nothing was written. Spark has already recorded in {path}/offsets/0 where the query begins. To change the source's "
        "startingOffsets as well, use another checkpointLocation, or empty this one. If you call barrier_kafka.register(spark) "
        "first, start() itself reports such a mistake, before Spark records anything."
    )
