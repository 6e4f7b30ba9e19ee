"""A `TwoPhaseCommitSink` in Spark's processes: the sink writes on the executors, the coordinator runs on the driver."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from connector.formats.discovery import SinkType
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest
from connector.options import HOST_OPTIONS, OptionTable, prefix_of
from connector.spark import internals
from connector.spark.collector import collector_patient
from connector.spark.process import driver_process
from transactional import faults
from transactional.barrier import SourceLine
from transactional.capabilities import Examines, Routes, WarmsUp
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest
from transactional.entry import canonical
from transactional.errors import OptionError
from transactional.finding import Level
from transactional.hooks import hooks_of
from transactional.journal import Journal
from transactional.recovery import QueryView, check_rows, check_schedule, mismatch
from transactional.secrets import hiding, is_secret, masked_finding, secrets_of, without_secrets
from transactional.sink import ONE, Options, TransactionContext, TwoPhaseCommitSink, lifetime_of, routes_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HostedSink", "SinkType", "TaskMessage", "acknowledgements"]

log = logging.getLogger(__name__)


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's commit message for Spark: the acknowledgement and, in ``foreachBatch``, the streaming query's id."""

    acknowledgement: Acknowledgement
    query: str = ""


def acknowledgements(messages: Sequence[WriterCommitMessage | None]) -> list[Acknowledgement | None]:
    """Unpack Spark's commit messages: return each task's acknowledgement, or None if the task did not finish."""
    return [message.acknowledgement if isinstance(message, TaskMessage) else None for message in messages]


NO_QUERY = "00000000-0000-0000-0000-000000000000"
"""A placeholder for the query's id, which Spark creates only after the checks of ``start()``."""


def _log_findings(sink: TwoPhaseCommitSink[Any, Any], prefix: str | None, secrets: Sequence[str]) -> None:
    try:
        for found in sink.examine(prefix) if isinstance(sink, Examines) else ():
            if found.level in (Level.WARNING, Level.PROBLEM):
                each = masked_finding(found, secrets)
                log.warning("%s [%s]: %s %s", sink.name(), each.check, each.sentence, each.remedy)
    except Exception as problem:  # noqa: BLE001 - advice only: the query runs without it
        text = without_secrets(str(problem), secrets)
        log.info("%s could not be examined: %s: %s", sink.name(), type(problem).__name__, text)


@lru_cache(maxsize=8)
def _journal(location: tuple[tuple[str, str], ...], thread: int) -> Journal:
    """Return a location's journal, cached per thread, so that a reused worker reads only the entries that are new to it."""
    return CheckpointLocation.from_options(dict(location)).journal()


STARTED_AFTER = "startedAfter"
"""An option that ``start()`` adds: the number of the journal's last entry when the query is started."""

STARTED_SOURCES = "startedSources"
"""An option that ``start()`` adds: the names of the query's sources, as a JSON list."""

CHANGING = ("txncomparerows", "txnversion")
"""Options that may differ between two writes of one run."""

_ADDRESS_NOTHING: Final = frozenset(option.key.lower() for option in HOST_OPTIONS.options) - {"path"}


def _names(text: str) -> frozenset[str] | None:
    return frozenset(json.loads(text)) if text else None


class HostedSink:
    """A sink's class, its options, and the schema of its rows.

    The object is pickled to the executors, so it holds no client. Each process builds the sink itself.

    Parameters
    ----------
    sink : type[TwoPhaseCommitSink]
        The class of the sink.
    options : Options
        The options, as Spark passes them.
    schema : StructType
        The schema of the rows.
    """

    def __init__(self, sink: SinkType, options: Options, schema: StructType) -> None:
        self.type = sink
        given = dict(options)
        started = given.pop(STARTED_AFTER.lower(), "")
        self.started = int(started) if started else None
        # The names of the query's sources; None if they are not known.
        self.running: frozenset[str] | None = _names(given.pop(STARTED_SOURCES.lower(), ""))
        self.options = Options(given)
        self.schema = schema
        self.location = CheckpointLocation.from_options(options)

    # -- driver -----------------------------------------------------------------------------------------------------

    def is_first(self) -> bool:
        """Return whether the location's offset log is still empty: Spark has not planned any micro-batch yet."""
        return newest(self.location, "offsets") < 0

    def position(self) -> int:
        """Return the number of the journal's last entry; 0 if there is none."""
        return self.location.journal().load().position

    def sources_unknown(self) -> OptionError:
        """Return the error to raise if the offset log names the query's sources, but this start has not reported any."""
        reason = (
            "the query may have lost a source since the micro-batch was planned. Only a program that calls "
            "barrier_kafka.register(spark) before start(), and does not use Spark Connect, reports the query's sources"
        )
        path = self.location.files.shown("offsets")
        return OptionError("SPARK_OFFSETS_UNKNOWN", path=path, version="2", option="", reason=reason)

    def refuse_overwrite(self, how: str, instead: str) -> None:
        """Raise `OptionError` if the sink can't replace committed rows; `how` is the user's setting, `instead` a valid one."""
        if not self.type.supportsOverwrite:
            raise OptionError("OUTPUT_MODE", sink=self.type.name(), mode=how, instead=instead, option="outputMode")

    def refuse_update(self) -> None:
        """Raise `OptionError` for output mode ``update``, which Python sinks can't support.

        Spark itself would only report "requirement failed: 2".
        """
        instead = 'outputMode("append"), with a watermark if the query aggregates'
        raise OptionError(
            "OUTPUT_MODE", sink=self.type.name(), mode='outputMode("update")', instead=instead, option="outputMode"
        )

    def refuse_stream(self, overwrite: bool) -> None:
        """Reject options that are only for ``df.write`` and, unless the sink supports it, output mode ``complete``."""
        if overwrite:
            self.refuse_overwrite(
                'outputMode("complete")', 'outputMode("append"), with a watermark if the query aggregates'
            )
        for option in ("txnAppId", "txnVersion", "txnCompareRows"):
            if option in self.options:
                raise OptionError(
                    "FORBIDDEN_OPTION",
                    owner=self.type.name(),
                    option=option,
                    reason="it is for df.write; a streaming query numbers its own batches",
                )

    def check_start(self, overwrite: bool, lines: Sequence[SourceLine] = ()) -> None:
        """Reject settings with which every micro-batch would fail. This changes nothing.

        Called in the user's program, before Spark starts the query. `lines` describe the query's sources; without them,
        the sources' schedule is not checked. At the first start at a location, also log the warnings and problems that
        the sink finds (`Examines.examine`).
        """
        self.refuse_stream(overwrite)
        self.location.check_writable()
        prefix = prefix_of(self.options)
        with hiding(secrets_of(self.options)):
            sink = self.build(prefix or NO_QUERY)
            try:
                hooks_of(self._own_options(sink)["checkpointHooks"], self.options)
                if isinstance(sink, Examines):
                    sink.checkStart(prefix)
                lifetime = lifetime_of(sink) if any(line.longest_wait for line in lines) else None
                check_schedule(lines, (), lifetime, sink.replacesRows, planned=False, query=self.location.path)
                if self.is_first():
                    _log_findings(sink, prefix, secrets_of(self.options))
            finally:
                sink.close()

    @contextmanager
    def coordinator(
        self, view: QueryView, driver: str | None = None, process: Mapping[str, Any] | None = None
    ) -> Iterator[CheckpointCoordinator]:
        """Yield a coordinator with its own sink, and close the sink at the end.

        Errors contain no secrets from the options. `driver` and `process` identify the driver of the coordinator's run.
        By default, this is the driver of the calling process.
        """
        with hiding(secrets_of(self.options)), self._coordinator(view, driver, process) as coordinator:
            yield coordinator

    @contextmanager
    def _coordinator(
        self, view: QueryView, driver: str | None, process: Mapping[str, Any] | None
    ) -> Iterator[CheckpointCoordinator]:
        journal = _journal(tuple(sorted(self.location.as_options().items())), threading.get_ident())
        prefix = prefix_of(self.options) or journal.load().identity(view.queryId)
        sink = self.build(prefix)
        own = self._own_options(sink)
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
            allow_non_restored=own["allowNonRestoredState"],
            secrets=secrets_of(self.options),
            started=self.started,
            host_options=_ADDRESS_NOTHING,
        )
        try:
            yield CheckpointCoordinator(journal, sink, settings, view, self.build)
        finally:
            sink.close()

    def own_options(self) -> Mapping[str, Any]:
        """Return the parsed options that every sink has (`HOST_OPTIONS`), but not the options of this sink's format."""
        known = {option.key.lower() for option in HOST_OPTIONS.options}
        given = {key: value for key, value in self.options.items() if key in known}
        return OptionTable(self.type.name(), ()).parse(given, also=HOST_OPTIONS)

    def _own_options(self, sink: TwoPhaseCommitSink[Any, Any]) -> Mapping[str, Any]:
        own = self.own_options()
        most = sink.maxPrepared
        if most is not None and own["maxBatchesPerCheckpoint"] > most:
            expected = (
                f"at most {most} for {sink.name()}, which can't keep more micro-batches prepared at the same time"
            )
            raise HOST_OPTIONS.invalid("maxBatchesPerCheckpoint", str(own["maxBatchesPerCheckpoint"]), expected)
        return own

    def build(self, prefix: str, **replaced: str) -> TwoPhaseCommitSink[Any, Any]:
        """Build the sink with this prefix as its ``transactionalIdPrefix``, and with these options replaced."""
        options = self.options.replaced(transactionalidprefix=prefix, **replaced)
        return self.type(options, internals.arrow_schema(self.schema))

    def _shown(self) -> dict[str, str]:
        options = self.options.items()
        return {key: value for key, value in options if not (is_secret(key, value) or key in CHANGING)}

    def _setup(self) -> dict[str, Any]:
        """Return the sink's description for the journal, from which `connector.spark.recorded_sink` builds the sink.

        The description has the names of secret options without their values, so users must pass the values to commands
        again. It names the sink's class only for messages: commands look up the sink by the name of its format.
        """
        path = f"{self.type.__module__}:{self.type.__qualname__}"
        hidden = sorted(key for key, value in self.options.items() if is_secret(key, value))
        return {"class": path, "options": self._shown(), "schema": self.schema.jsonValue(), "hidden": hidden}

    def _digest(self, prefix: str) -> str:
        """Return a digest of a run's fixed settings: prefix, schema, and options without secrets and `CHANGING`."""
        text = canonical([self._shown(), prefix, self.schema.jsonValue()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # -- executor ---------------------------------------------------------------------------------------------------

    @collector_patient()
    def write(
        self, plan: TaskPlan, iterator: Iterator[pa.RecordBatch], partition: int, attempt: int
    ) -> Acknowledgement:
        """Write and prepare a task's rows, or discard them, as the plan says."""
        bound = plan.mode is Mode.REPAIR and not all(part.free for part in plan.repairs.values())
        if bound and plan.writers is not None and partition >= plan.writers:
            raise mismatch(plan.batch, "writer tasks", plan.writers, f"{partition + 1} or more")
        drained = plan.drains(partition)
        # a repair must be prepared, even if deliveryGuarantee has changed since
        replaced = {"deliveryguarantee": "exactly-once"} if plan.mode is Mode.REPAIR else {}
        with hiding(secrets_of(self.options)):
            sink = self.build(plan.prefix, **replaced)
            try:
                parts = _write(sink, plan, iterator, partition, attempt, drained)
            finally:
                sink.close()
        return Acknowledgement(plan.token, plan.batch, partition, attempt, drained, parts, plan.sources)


class _OpenPart:
    """The rows of one task for one sink, while the task writes or only reads them.

    Holds the digest of the rows so far and, if they are written, their transaction.
    """

    def __init__(self, sink: TwoPhaseCommitSink[Any, Any], plan: TaskPlan, context: TransactionContext) -> None:
        self._sink = sink
        self._context = context
        self._digest = RowDigest()
        self._expected = plan.repairs.get((context.partitionId, context.route))
        self._writers = plan.writers
        self._reads_only = plan.mode is not Mode.WRITE and self._expected is None
        self._transaction: Any = None
        self._begun = self._prepared = False

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows to the digest and, unless they are only read, to the transaction. The first call begins the transaction."""
        if not self._reads_only:
            if not self._begun:
                self._transaction = self._sink.beginTransaction(self._context)
                self._begun = True
                faults.reach("task.begun")
            self._sink.write(self._transaction, rows)
        self._digest.update(rows)
        if not self._reads_only:
            faults.reach("task.written")

    def prepare(self) -> Part:
        """Prepare the written rows, and return the part. If lost rows are written again, first check that they are the same."""
        partition, route = self._context.partitionId, self._context.route
        seen = self._digest
        part = Part(partition, None, seen.rows, seen.bytes, seen.hexadecimal(), route)
        if self._expected is not None and not self._expected.free:
            where = f"partition {partition} of {self._writers}{f', sink {route}' if route else ''}"
            check_rows(self._context.batchId, where, self._expected, part)
        if self._begun:
            part = replace(part, handle=self._sink.preCommit(self._transaction))
        self._prepared = True
        return part

    def give_up(self) -> None:
        """Roll back the transaction, if it was started but not prepared."""
        if self._begun and not self._prepared:
            self._sink.rollback(self._transaction)


def _write(
    sink: TwoPhaseCommitSink[Any, Any],
    plan: TaskPlan,
    iterator: Iterator[pa.RecordBatch],
    partition: int,
    attempt: int,
    drained: bool,
) -> list[Part]:
    """Write and prepare a task's rows, or only read them. Return one part for each sink (``2pc-multi`` has several)."""
    contexts = {
        route: TransactionContext(
            *(plan.identity, plan.batch, partition, attempt, plan.prefix, os.urandom(8).hex(), plan.token, route)
        )
        for route in routes_of(sink)
    }
    parts = {route: _OpenPart(sink, plan, context) for route, context in contexts.items()}
    with ExitStack() as giving_up:
        for part in parts.values():
            giving_up.callback(part.give_up)
        rows: Iterator[pa.RecordBatch] = (arrow for arrow in iterator if arrow.num_rows)
        with _warming_up(sink, list(contexts.values()), partition in plan.likely and not drained):
            first = next(rows, None)
        for arrow in rows if first is None else chain((first,), rows):
            for route, routed in sink.route(arrow) if isinstance(sink, Routes) else ((ONE[0], arrow),):
                parts[route].write(routed)
        prepared = [part.prepare() for part in parts.values()]
        if not drained:
            faults.reach("task.prepared")
        return prepared


def _warm_up(sink: WarmsUp, contexts: Sequence[TransactionContext]) -> None:
    for context in contexts:
        sink.warmUp(context)


@contextmanager
def _warming_up(
    sink: TwoPhaseCommitSink[Any, Any], contexts: Sequence[TransactionContext], likely: bool
) -> Iterator[None]:
    """Warm up the sink in another thread, while the block waits for the task's first row.

    This is done only if the task will probably get rows (`likely`), and if the sink supports it.
    """
    if not likely or not isinstance(sink, WarmsUp):
        yield
        return
    warm: Future[Any] | None = None
    with ThreadPoolExecutor(1) as thread:
        with suppress(RuntimeError):  # no more threads are allowed: no warm-up
            warm = thread.submit(_warm_up, sink, contexts)
        yield
    problem = warm.exception() if warm is not None else None
    if problem is not None:  # usually, `beginTransaction` raises the same error
        log.info("the warm-up of partition %d failed: %s", contexts[0].partitionId, type(problem).__name__)
