"""Hosts a `TwoPhaseCommitSink` in Spark's Python data source writer.

`streamWriter` is called in the planning worker, where recovery and sweep run, and again in the commit worker before
every commit and abort, where they never do; constructors do nothing. See `connector.spark.internals.phase`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceWriter, WriterCommitMessage

from connector.options import HOST_OPTIONS, hides_value
from connector.spark import internals
from connector.spark.location import CheckpointLocation
from connector.spark.offset_log import spark_view
from transactional import faults
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest
from transactional.errors import OptionError, ProtocolError
from transactional.ledger import Ledger
from transactional.metadata import canonical
from transactional.recovery import SparkView
from transactional.settlement import mismatch
from transactional.sink import Options, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HostedSinkDataSource", "HostedStreamWriter", "data_source_for"]

SinkType = type[TwoPhaseCommitSink[Any, Any]]


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's acknowledgement as Spark carries it."""

    acknowledgement: Acknowledgement


class HostedSinkDataSource(DataSource):
    """The data source through which Spark reaches a sink. Subclasses set `sink`."""

    sink: ClassVar[SinkType]

    @classmethod
    def name(cls) -> str:
        """The sink's name is the format's."""
        return cls.sink.name()

    def streamWriter(self, schema: StructType, overwrite: bool) -> HostedStreamWriter:
        """*Called on the driver, in the planning worker once per micro-batch and in the commit worker.*"""
        writer = HostedStreamWriter(self.sink, Options(self.options), schema)
        if internals.phase() is internals.Phase.PLANNING:
            writer.prepare(overwrite)
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Batch writes are refused by name."""
        raise OptionError(
            "BATCH_WRITE", f"df.write.format({self.name()!r}) is not supported: use df.writeStream", option="format"
        )


def data_source_for(sink: SinkType) -> type[HostedSinkDataSource]:
    """Make the data source class of a sink, for ``spark.dataSource.register``.

    Parameters
    ----------
    sink : type[TwoPhaseCommitSink]
    """
    return type(f"{sink.__name__}DataSource", (HostedSinkDataSource,), {"sink": sink, "__module__": sink.__module__})


class HostedStreamWriter(DataSourceStreamArrowWriter):
    """Runs the sink's half on executors, and the coordinator on the driver.

    Pickled to executors with the plan; it holds no client, and the sink is built anew wherever it is needed.
    """

    def __init__(self, sink: SinkType, options: Options, schema: StructType) -> None:
        self._sink_type = sink
        self._options = options
        self._schema = schema
        self._plan: TaskPlan | None = None

    # -- driver, planning worker ------------------------------------------------------------------------------------

    def prepare(self, overwrite: bool) -> None:
        """Refuse what can't work, recover, and make the plan that the tasks carry."""
        if overwrite and not self._sink_type.supportsOverwrite:
            raise OptionError(
                "OUTPUT_MODE",
                f'outputMode("complete") is not supported by {self._sink_type.name()}: it can\'t replace what it has '
                'committed. Use outputMode("append"), with a watermark where the query aggregates',
                option="outputMode",
            )
        location = CheckpointLocation.from_options(self._options)
        sink, coordinator = self._coordinator(location, spark_view(location))
        try:
            self._plan = coordinator.plan()
        finally:
            sink.close()

    def _coordinator(
        self, location: CheckpointLocation, view: SparkView
    ) -> tuple[TwoPhaseCommitSink[Any, Any], CheckpointCoordinator]:
        journal = location.journal()
        prefix = self._options.get("transactionalIdPrefix") or view.queryId + journal.load().identity_suffix
        sink = self._build(prefix)
        settings = RunSettings(internals.driver_identity(), sink.name(), self._digest(prefix), prefix)
        most = int(HOST_OPTIONS.parse(_only_host(self._options))["maxBatchesPerCheckpoint"])

        def wants(ledger: Ledger) -> bool:
            return len(ledger.undecided()) + 1 >= most

        return sink, CheckpointCoordinator(journal, sink, settings, view, wants, self._build)

    def _build(self, prefix: str, **replaced: str) -> TwoPhaseCommitSink[Any, Any]:
        from pyspark.sql.pandas.types import to_arrow_schema

        options = self._options.replaced(transactionalidprefix=prefix, **replaced)
        return self._sink_type(options, to_arrow_schema(self._schema, timezone="UTC"))

    def _digest(self, prefix: str) -> str:
        """What makes two plannings the same run: options (but secrets, which may rotate) and schema."""
        shown = {key: value for key, value in self._options.items() if not hides_value(key)}
        text = canonical([shown, prefix, self._schema.jsonValue()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # -- executor ---------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """*Called on an executor, once per task.* Write and prepare, or drain, as the plan says."""
        plan = self._plan
        query, batch, partition, attempt = internals.task_batch()
        if plan is None or (plan.queryId, plan.batch) != (query, batch):
            raise ProtocolError(
                "PLAN_OF_ANOTHER_BATCH",
                f"a task of micro-batch {batch} of query {query} got the plan "
                f"{(plan.queryId, plan.batch) if plan else None}: is another driver at work on this location?",
            )
        bound = plan.mode is Mode.REPAIR and not all(part.free for part in plan.repairs.values())
        if bound and plan.writers is not None and partition >= plan.writers:
            raise mismatch(batch, "writer tasks", plan.writers, f"{partition + 1} or more")
        if plan.mode is Mode.DRAIN or (plan.mode is Mode.REPAIR and partition not in plan.repairs):
            rows = sum(arrow.num_rows for arrow in iterator)
            part, drained = Part(partition, None, rows, 0, ""), True
        else:
            part, drained = self._write_part(plan, iterator, partition, attempt), False
        return TaskMessage(Acknowledgement(plan.token, batch, partition, attempt, drained, part, plan.sources))

    def _write_part(self, plan: TaskPlan, iterator: Iterator[pa.RecordBatch], partition: int, attempt: int) -> Part:
        # a repair must be prepared, whatever deliveryGuarantee says by now
        replaced = {"deliveryguarantee": "exactly-once"} if plan.mode is Mode.REPAIR else {}
        sink = self._build(plan.prefix, **replaced)
        nonce = os.urandom(8).hex()
        context = TransactionContext(plan.queryId, plan.batch, partition, attempt, plan.prefix, nonce)
        digest = RowDigest()
        transaction: Any = None
        begun = prepared = False
        try:
            for arrow in iterator:
                if arrow.num_rows == 0:
                    continue
                if not begun:
                    transaction = sink.beginTransaction(context)
                    begun = True
                    faults.reach("task.begun")
                sink.write(transaction, arrow)
                digest.update(arrow)
                faults.reach("task.written")
            expected = plan.repairs.get(partition)
            found = (digest.rows, digest.bytes, digest.hexadecimal())
            if expected is not None and not expected.free and found != (expected.rows, expected.bytes, expected.digest):
                raise mismatch(
                    plan.batch,
                    f"partition {partition} of {plan.writers}",
                    (expected.rows, expected.digest),
                    (found[0], found[2]),
                )
            handle = sink.preCommit(transaction) if begun else None
            prepared = True
            faults.reach("task.prepared")
        finally:
            if begun and not prepared:
                sink.rollback(transaction)
            sink.close()
        return Part(partition, handle, digest.rows, digest.bytes, digest.hexadecimal())

    # -- driver, commit worker --------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """*Called on the driver, once per micro-batch.* Decide, then commit."""
        location = CheckpointLocation.from_options(self._options)
        sink, coordinator = self._coordinator(location, spark_view(location, batchId))
        try:
            coordinator.commit(_acknowledgements(messages), batchId)
        finally:
            sink.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """*Called on the driver, after a failure or a stop.* Give the micro-batch up unless the journal has it."""
        location = CheckpointLocation.from_options(self._options)
        sink, coordinator = self._coordinator(location, spark_view(location, batchId))
        try:
            coordinator.abort(_acknowledgements(messages), batchId)
        finally:
            sink.close()


def _only_host(options: Options) -> Options:
    known = {option.key.lower() for option in HOST_OPTIONS.options}
    return Options({key: value for key, value in options.items() if key in known})


def _acknowledgements(messages: Sequence[WriterCommitMessage | None]) -> list[Acknowledgement | None]:
    return [message.acknowledgement if isinstance(message, TaskMessage) else None for message in messages]
