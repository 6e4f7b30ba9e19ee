"""A query without Spark, to be started again and again: real coordinator, file sink, journal, and Spark's logs in a folder."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from connector.formats.discovery import remember_sink
from connector.location.location import CheckpointLocation
from connector.location.offset_log import spark_view
from integration.file_sink import FileSink, committed_rows
from tests.connector.cli_place import dead_process
from tests.transactional.bodies import fact_of
from transactional.checkpoint import Acknowledgement, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest
from transactional.errors import TwoPhaseCommitError
from transactional.sink import Options, TransactionContext

__all__ = ["FollowedQuery"]

SCHEMA = StructType([StructField("value", LongType())])
ARROW = pa.schema([("value", pa.int64())])


class FollowedQuery:
    """Micro-batch N has the rows 10 N and 10 N + 1. Each start is another driver, and the former one is dead.

    Parameters
    ----------
    folder : Path
        Location and output are made in it.
    sink : type[FileSink], optional
    known : bool
        Whether commands in this process find the sink by its name.
    """

    def __init__(self, folder: Path, sink: type[FileSink] = FileSink, known: bool = True) -> None:
        self.path = folder / "location"
        self.output = folder / "output"
        self.prefix = "p"
        self.process: Mapping[str, Any] = dead_process()
        self._sink_type = sink
        if known:
            remember_sink(sink)
        for log in ("offsets", "commits"):
            (self.path / log).mkdir(parents=True)
        (self.path / "metadata").write_text('{"id":"q"}')

    def __str__(self) -> str:
        return str(self.path)

    def start(self, micro_batches: int = 1, *, closes: bool = True, commits: bool = True) -> FollowedQuery:
        """Start the query, and let it run: Spark goes on with what its logs say, as it does.

        Parameters
        ----------
        micro_batches : int
        closes : bool
            Whether each of them closes a checkpoint.
        commits : bool
            Whether Spark comes as far as to write ``commits/N``.
        """
        driver = uuid.uuid4().hex
        for _ in range(micro_batches):
            offsets = self._newest("offsets")
            batch = offsets + 1 if offsets == self._newest("commits") else offsets
            if batch > offsets:
                (self.path / "offsets" / str(batch)).write_text(self.planned(batch, closes))
            coordinator = self._coordinator(driver, batch)
            plan = coordinator.plan()
            coordinator.commit(self.task(plan, batch), batch)
            if commits:
                (self.path / "commits" / str(batch)).write_text("v1\n{}")
        return self

    def refused(self, **how: Any) -> TwoPhaseCommitError:
        """Start it; return the error that refuses it."""
        with pytest.raises(TwoPhaseCommitError) as stopped:
            self.start(**how)
        return stopped.value

    def task(self, plan: TaskPlan, batch: int) -> list[Acknowledgement | None]:
        """Run the one task of a micro-batch."""
        rows = pa.record_batch({"value": [10 * batch, 10 * batch + 1]}, schema=ARROW)
        digest = RowDigest()
        digest.update(rows)
        handle = None
        if not plan.drains(0):
            sink = self._sink()
            context = TransactionContext(plan.identity, batch, 0, 0, self.prefix, uuid.uuid4().hex[:16], plan.token)
            transaction = sink.beginTransaction(context)
            sink.write(transaction, rows)
            handle = dict(sink.preCommit(transaction))
        part = Part(0, handle, digest.rows, digest.bytes, digest.hexadecimal())
        return [Acknowledgement(plan.token, batch, 0, 0, plan.drains(0), [part], plan.sources)]

    def rows(self) -> Sequence[int]:
        """What a reader sees, sorted."""
        return sorted(row["value"] for row in committed_rows(self.output))

    def has_all_of(self, *micro_batches: int) -> bool:
        """Whether readers see every row of these micro-batches once, and nothing else."""
        return self.rows() == [10 * batch + row for batch in micro_batches for row in (0, 1)]

    def moved_to(self, path: Path) -> FollowedQuery:
        """The same query, at the place to which its location was moved or copied."""
        self.path = path
        return self

    def planned(self, batch: int, closes: bool = True) -> str:
        """Return what Spark writes to ``offsets/N``: with a barrier of its own, or that of the micro-batch before."""
        barrier: Any = {"kind": "checkpoint", "number": batch + 1, "timestamp": batch}
        if not closes:
            barrier = json.loads((self.path / "offsets" / str(batch - 1)).read_text().splitlines()[2])["barrier"]
        line = {"source": "barrier-kafka", "topics": {"t": {"0": 2 * batch + 2}}, "barrier": barrier}
        return f"v1\n{{}}\n{json.dumps(line)}"

    def journals(self, kind: str, body: Mapping[str, Any]) -> None:
        """Append an entry to the journal."""
        journal = CheckpointLocation(str(self.path)).journal()
        journal.load()
        journal.append(fact_of(kind, body), lambda ledger: None)

    def checkpoints(self) -> Sequence[int]:
        """Return the ids that the journal keeps."""
        return sorted(CheckpointLocation(str(self.path)).journal().load().checkpoints)

    def _coordinator(self, driver: str, batch: int) -> CheckpointCoordinator:
        location = CheckpointLocation(str(self.path))
        setup = {
            "class": f"{self._sink_type.__module__}:{self._sink_type.__qualname__}",
            "options": {"path": str(self.output), "checkpointlocation": str(self.path)},
            "schema": SCHEMA.jsonValue(),
        }
        settings = RunSettings(
            driver, self._sink_type.name(), "options", self.prefix, process=self.process, setup=setup
        )
        return CheckpointCoordinator(location.journal(), self._sink(), settings, spark_view(location, batch))

    def _sink(self) -> FileSink:
        return self._sink_type(Options({"path": str(self.output), "transactionalIdPrefix": self.prefix}), ARROW)

    def _newest(self, log: str) -> int:
        return max((int(name) for name in os.listdir(self.path / log) if name.isdigit()), default=-1)
