"""The writer that ``df.write`` uses for a sink. Each write has a version; repeating a version writes no row twice.

Spark creates the writer once, in a planning process. Tasks and the commit process get pickled copies of the writer. So
commit and abort know the plan, and do not plan again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from connector.location.files import read_file
from connector.spark import internals
from connector.spark.collector import collector_patient
from connector.spark.hosted_sink import HostedSink, TaskMessage, acknowledgements
from transactional.barrier import SourceLine
from transactional.capabilities import Routes
from transactional.checkpoint import TaskPlan
from transactional.entry import UNFIT, canonical
from transactional.errors import LocationError, OptionError, ProtocolError
from transactional.recovery import QueryView

if TYPE_CHECKING:
    import pyarrow as pa

WHOSE = "batch-writer.json"
"""The file in ``<checkpointLocation>/barrier`` that names the application (``txnAppId``) that writes there."""


class HostedBatchWriter(DataSourceArrowWriter):
    """The writer that ``df.write`` uses for a sink. The tasks get pickled copies of the writer and its plan.

    Raises
    ------
    OptionError
        ``MISSING_OPTION``: ``txnAppId`` or ``txnVersion`` is missing.
    """

    def __init__(self, sink: HostedSink) -> None:
        own = sink.own_options()
        for option in ("txnAppId", "txnVersion"):
            if own[option] is None:
                raise OptionError(
                    "MISSING_OPTION",
                    owner=f"df.write.format({sink.type.name()!r})",
                    option=option,
                    reason="txnAppId is a name that only this job has, and txnVersion a number that increases (in "
                    "foreachBatch, the batch id). Each version is written once, even if you repeat the write",
                )
        # The sink. Its options include ``txnAppId``, ``txnVersion`` and a ``checkpointLocation`` that only these writes use.
        self._sink = sink
        self._app: str = own["txnAppId"]
        self._version: int = own["txnVersion"]
        self._compare: bool = own["txnCompareRows"]
        self._plan: TaskPlan | None = None

    @collector_patient()
    def prepare(self, overwrite: bool) -> None:
        """Reject invalid settings, recover, and make the plan for the tasks.

        Called on the driver, in the planning process.
        """
        if overwrite:
            self._sink.refuse_overwrite('mode("overwrite")', 'mode("append")')
        with self._sink.coordinator(self._view()) as coordinator:
            self._plan = coordinator.plan()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write and prepare a task's rows. Called on an executor, once per task."""
        partition, attempt, query = internals.batch_task()
        return TaskMessage(self._sink.write(self._planned(), iterator, partition, attempt), query)

    @collector_patient()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the commit decision into the journal, then commit the rows.

        Called on the driver, in the commit process, after all tasks have succeeded.
        """
        queries = {message.query for message in messages if isinstance(message, TaskMessage)}
        origin = ",".join(sorted(queries))
        with self._sink.coordinator(self._view()) as coordinator:
            coordinator.commit(acknowledgements(messages), self._version, origin)

    @collector_patient()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the write. Called on the driver, in the commit process, after a failure."""
        with self._sink.coordinator(self._view()) as coordinator:
            coordinator.abort(acknowledgements(messages), self._version)

    def _planned(self) -> TaskPlan:
        if self._plan is None:
            raise ProtocolError("UNKNOWN_SPARK", reason="a task got a writer that was never prepared")
        return self._plan

    def _view(self) -> QueryView:
        """Return what recovery needs to know about this application's writes.

        These writes have no Spark logs, so each version counts as a micro-batch.
        """
        line = SourceLine(canonical({"txnAppId": self._app, "txnVersion": self._version}))
        return QueryView(
            self._writer_id(),
            self._sink.location.path,
            self._version,
            -1,
            [line],
            None,
            gaps=True,
            compare=self._compare,
        )

    def _writer_id(self) -> str:
        """Return the id of the application at this location. The application's first write creates the id.

        Raises LocationError (``LOCATION_TAKEN``) if the location belongs to a streaming query, another application or
        another output.
        """
        path, files = self._sink.location.path, self._sink.location.files
        if files.exists("metadata"):
            raise LocationError(
                "LOCATION_TAKEN", location=path, reason="it belongs to a streaming query, but this is a df.write"
            )
        store = files.journal_store("barrier")
        options = self._sink.options
        target = [self._sink.type.name(), options.get("path", ""), options.get("topic", "")]
        target += [options["dbtable"]] if "dbtable" in options else []
        if issubclass(self._sink.type, Routes):
            places = (".path", ".topic", ".dbtable", ".format")
            target += sorted(f"{key}={value}" for key, value in options.items() if key.endswith(places))
        made = {"id": str(uuid.uuid4()), "txnAppId": self._app, "target": target}
        if WHOSE not in store.names():
            store.create(WHOSE, canonical(made).encode())
        name = f"barrier/{WHOSE}"
        try:
            found: dict[str, Any] = json.loads(read_file(files, name))
            app, former_target, identity = found["txnAppId"], found["target"], str(found["id"])
        except UNFIT as error:
            shown = files.shown(name)
            raise LocationError("LOGS_INCONSISTENT", reason=f"{shown} can't be read ({error!r})", path=shown) from error
        if app != self._app:
            raise LocationError(
                "LOCATION_TAKEN",
                location=path,
                reason=f"it belongs to txnAppId {app!r}, but this write has {self._app!r}",
            )
        if former_target != target:
            former, now = (" ".join(filter(None, each)) for each in (former_target, target))
            raise LocationError(
                "LOCATION_TAKEN",
                location=path,
                reason=f"its versions are written to {former}, but this write goes to {now}",
            )
        return identity
