"""The data source through which Spark uses a `TwoPhaseCommitSink`, and the writer for streams.

Spark calls `streamWriter` in the planning process, and again in the commit process before every commit and abort. Recovery
runs only in the planning process (see `connector.spark.internals.phase`). Constructors change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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


class HostedSinkDataSource(DataSource):
    """The data source through which Spark uses a sink."""

    format: ClassVar[str]
    """The name of the format, which each subclass sets."""

    sink: ClassVar[SinkType | None] = None
    """A user's own sink, which is pickled with this class. If None, the sink is looked up by `format` when it is needed."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format

    @classmethod
    def sink_type(cls) -> SinkType:
        """Return the sink's class. Only this method imports the class, so formats can be listed without the sinks' clients."""
        return cls.sink or find_sink(cls.format)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HostedStreamWriter:
        """Return the writer of a streaming query. In the planning process, also prepare the writer.

        Called on the driver: in the planning process once per micro-batch, in the commit process before each commit or
        abort.
        """
        show_progress()
        try:
            writer = HostedStreamWriter(HostedSink(self.sink_type(), Options(self.options), schema))
            if internals.phase() is internals.Phase.PLANNING:
                writer.prepare(overwrite)
        except (OptionError, StoreError) as problem:
            raise problem.with_traceback(
                None
            ) from None  # people read the message among Spark's own lines, so it needs no traceback
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> HostedBatchWriter:
        """Return the prepared writer of one ``df.write``. Called once on the driver; the commit process gets a copy."""
        try:
            writer = HostedBatchWriter(HostedSink(self.sink_type(), Options(self.options), schema))
            writer.prepare(overwrite)
        except (OptionError, StoreError) as problem:
            raise problem.with_traceback(None) from None
        return writer


def data_source_for(sink: SinkType) -> type[HostedSinkDataSource]:
    """Return the data source class of a sink, for ``spark.dataSource.register``."""
    remember_sink(sink)
    body = {"format": sink.name(), "sink": sink, "__module__": sink.__module__}
    return type(f"{sink.__name__}DataSource", (HostedSinkDataSource,), body)


class HostedStreamWriter(DataSourceStreamArrowWriter):
    """The writer that ``writeStream`` uses for a sink. The executors get pickled copies of the writer and its plan."""

    def __init__(self, sink: HostedSink) -> None:
        self._sink = sink
        self._plan: TaskPlan | None = None

    @collector_patient()
    def prepare(self, overwrite: bool) -> None:
        """Reject invalid settings, recover, and make the plan for the tasks.

        Called on the driver, in the planning process.
        """
        try:
            self._sink.refuse_stream(overwrite)
            view = replace(spark_view(self._sink.location), running=self._sink.running)
            if view.running is None and any(line.name for line in view.lines):
                raise self._sink.sources_unknown()
            with self._sink.coordinator(view) as coordinator:
                self._plan = coordinator.plan()
        except (OptionError, StoreError) as problem:
            if self._is_first():
                raise _with_the_start(problem, self._sink.location.path) from None
            raise

    def _is_first(self) -> bool:
        """Return whether no run has started at the location yet, and Spark's offset log contains only ``offsets/0``."""
        location = self._sink.location
        try:
            offsets = [name for name in location.files.names("offsets") if name.isdigit()]
            return offsets == ["0"] and not location.journal().load().position
        except (TwoPhaseCommitError, OSError):
            return False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write and prepare a task's rows, or discard them, as the plan says. Called on an executor, once per task."""
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
        """Write the micro-batch into the journal. If the micro-batch closes a checkpoint, commit the checkpoint.

        Called on the driver, in the commit process, after all tasks of the micro-batch have succeeded.
        """
        view = spark_view(self._sink.location, batchId)
        with self._sink.coordinator(view) as coordinator:
            coordinator.commit(acknowledgements(messages), batchId)

    @collector_patient()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the micro-batch, unless it is already in the journal.

        Called on the driver, in the commit process, after a failure or a stop.
        """
        with self._sink.coordinator(spark_view(self._sink.location, batchId)) as coordinator:
            coordinator.abort(acknowledgements(messages), batchId)


def _with_the_start(problem: TwoPhaseCommitError, path: str) -> TwoPhaseCommitError:
    """Return the error with a note: Spark has already written ``offsets/0``, and ``start()`` can report such errors earlier.

    ``offsets/0`` is not deleted. Otherwise, with ``startingOffsets=latest``, the next start would skip the rows that arrived in
    the meantime.
    """
    return problem.with_note(
        f"Nothing was written. Spark has already recorded in {path}/offsets/0 where the query begins. To change the source's "
        "startingOffsets as well, use another checkpointLocation, or empty this one. If you call barrier_kafka.register(spark) "
        "first, start() itself reports such a mistake, before Spark records anything."
    )
