"""Runs a `TwoPhaseCommitSink` in Spark's processes: the sink's half on executors, the coordinator on the driver."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from connector.options import HOST_OPTIONS
from connector.spark import internals
from connector.spark.location import CheckpointLocation
from connector.spark.process import driver_process
from transactional import faults
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest
from transactional.errors import OptionError
from transactional.hooks import hooks_of
from transactional.metadata import canonical
from transactional.recovery import SparkView
from transactional.secrets import hides_value, hiding, secrets_of
from transactional.settlement import mismatch
from transactional.sink import Options, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HostedSink", "SinkType", "TaskMessage", "acknowledgements"]

SinkType = type[TwoPhaseCommitSink[Any, Any]]


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's acknowledgement as Spark carries it, and the streaming query in whose ``foreachBatch`` it ran, if any."""

    acknowledgement: Acknowledgement
    query: str = ""


def acknowledgements(messages: Sequence[WriterCommitMessage | None]) -> list[Acknowledgement | None]:
    """What the tasks have acknowledged; None for those that did not finish."""
    return [message.acknowledgement if isinstance(message, TaskMessage) else None for message in messages]


CHANGING = ("txnversion",)
"""Options that differ between two writes of one run."""


class HostedSink:
    """A sink with its options and its rows' schema. Pickled to executors; holds no client.

    The sink is built anew wherever it is needed.

    Parameters
    ----------
    sink : type[TwoPhaseCommitSink]
    options : Options
        As Spark passes them.
    schema : StructType
    """

    def __init__(self, sink: SinkType, options: Options, schema: StructType) -> None:
        self.type = sink
        self.options = options
        self.schema = schema
        self.location = CheckpointLocation.from_options(options)

    # -- driver -----------------------------------------------------------------------------------------------------

    def refuse_overwrite(self, how: str, instead: str) -> None:
        """Raise the error of a sink that can't replace what it has committed.

        Raises
        ------
        OptionError
        """
        if not self.type.supportsOverwrite:
            raise OptionError(
                "OUTPUT_MODE",
                f"{how} is not supported by {self.type.name()}: it can't replace what it has committed. Use {instead}",
                option="outputMode",
            )

    @contextmanager
    def coordinator(
        self, view: SparkView, driver: str | None = None, process: Mapping[str, Any] | None = None
    ) -> Iterator[CheckpointCoordinator]:
        """A coordinator with a sink of its own, which is closed in the end; what they raise quotes no secret of the options.

        Parameters
        ----------
        view : SparkView
        driver, process : optional
            Where no Python worker of a driver calls it: who does, and the process that its run records.
        """
        with hiding(secrets_of(self.options)), self._coordinator(view, driver, process) as coordinator:
            yield coordinator

    @contextmanager
    def _coordinator(
        self, view: SparkView, driver: str | None, process: Mapping[str, Any] | None
    ) -> Iterator[CheckpointCoordinator]:
        journal = self.location.journal()
        prefix = self.options.get("transactionalIdPrefix") or journal.load().identity(view.queryId)
        sink = self.build(prefix)
        own = self.own_options()
        most = sink.maxPrepared
        if most is not None and own["maxBatchesPerCheckpoint"] > most:
            told = f"at most {most} for {sink.name()}, which can't keep more micro-batches prepared at once"
            raise HOST_OPTIONS.invalid("maxBatchesPerCheckpoint", str(own["maxBatchesPerCheckpoint"]), told)
        settings = RunSettings(
            driver=driver or internals.driver_identity(),
            sink=sink.name(),
            digest=self._digest(prefix),
            prefix=prefix,
            process=driver_process() if process is None else process,
            setup=self._setup(),
            retained=own["retainedCheckpoints"],
            max_batches=own["maxBatchesPerCheckpoint"],
            commit_seconds=own["commitTimeoutMs"] / 1000,
            tolerable=own["tolerableFailedCheckpoints"],
            hooks=hooks_of(own["checkpointHooks"], self.options),
            secrets=secrets_of(self.options),
        )
        try:
            yield CheckpointCoordinator(journal, sink, settings, view, self.build)
        finally:
            sink.close()

    def own_options(self) -> Mapping[str, Any]:
        """The host's own options, parsed."""
        known = {option.key.lower() for option in HOST_OPTIONS.options}
        return HOST_OPTIONS.parse({key: value for key, value in self.options.items() if key in known})

    def build(self, prefix: str, **replaced: str) -> TwoPhaseCommitSink[Any, Any]:
        """The sink, with this prefix and these options replaced."""
        from pyspark.sql.pandas.types import to_arrow_schema

        options = self.options.replaced(transactionalidprefix=prefix, **replaced)
        return self.type(options, to_arrow_schema(self.schema, timezone="UTC"))

    def _shown(self) -> dict[str, str]:
        return {key: value for key, value in self.options.items() if not (hides_value(key) or key in CHANGING)}

    def _setup(self) -> dict[str, Any]:
        """What `from_setup` takes; secrets are left out, and given to the command line anew."""
        path = f"{self.type.__module__}:{self.type.__qualname__}"
        hidden = sorted(key for key in self.options if hides_value(key))
        return {"class": path, "options": self._shown(), "schema": self.schema.jsonValue(), "hidden": hidden}

    @classmethod
    def from_setup(cls, setup: Mapping[str, Any], given: Mapping[str, str]) -> HostedSink:
        """The sink of a run that the journal recorded.

        Parameters
        ----------
        setup : Mapping[str, Any]
            `RunRecord.setup` of the newest run.
        given : Mapping[str, str]
            Options that the journal does not keep (secrets), or that have changed.

        Raises
        ------
        OptionError
            The sink's class can't be imported here.
        """
        from pyspark.sql.types import StructType

        module, _, name = str(setup.get("class", "")).partition(":")
        try:
            sink = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as problem:
            raise OptionError(
                "UNKNOWN_SINK",
                f"the query's sink {module}:{name} can't be imported here ({problem}): run this command where the query's "
                "own packages are (PYTHONPATH)",
            ) from problem
        return cls(sink, Options({**setup["options"], **given}), StructType.fromJson(setup["schema"]))

    def _digest(self, prefix: str) -> str:
        """What makes two plannings the same run: options (but secrets, which may rotate) and schema."""
        text = canonical([self._shown(), prefix, self.schema.jsonValue()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # -- executor ---------------------------------------------------------------------------------------------------

    def write(
        self, plan: TaskPlan, iterator: Iterator[pa.RecordBatch], partition: int, attempt: int
    ) -> Acknowledgement:
        """Write and prepare a task's rows, or drain them, as the plan says."""
        bound = plan.mode is Mode.REPAIR and not all(part.free for part in plan.repairs.values())
        if bound and plan.writers is not None and partition >= plan.writers:
            raise mismatch(plan.batch, "writer tasks", plan.writers, f"{partition + 1} or more")
        if plan.mode is Mode.DRAIN or (plan.mode is Mode.REPAIR and partition not in plan.repairs):
            rows = sum(arrow.num_rows for arrow in iterator)
            part, drained = Part(partition, None, rows, 0, ""), True
        else:
            with hiding(secrets_of(self.options)):
                part, drained = self._write_part(plan, iterator, partition, attempt), False
        return Acknowledgement(plan.token, plan.batch, partition, attempt, drained, part, plan.sources)

    def _write_part(self, plan: TaskPlan, iterator: Iterator[pa.RecordBatch], partition: int, attempt: int) -> Part:
        # a repair must be prepared, whatever deliveryGuarantee says by now
        replaced = {"deliveryguarantee": "exactly-once"} if plan.mode is Mode.REPAIR else {}
        sink = self.build(plan.prefix, **replaced)
        nonce = os.urandom(8).hex()
        context = TransactionContext(plan.identity, plan.batch, partition, attempt, plan.prefix, nonce, plan.token)
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
