"""A checkpoint location made by hand, with Spark's logs, a journal, and files of the file sink; no JVM."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from connector.cli import main
from connector.formats.discovery import remember_sink
from connector.location.location import CheckpointLocation
from integration.file_sink import FileSink
from tests.transactional.bodies import fact_of, lines, recorded, run_body, settled
from transactional import faults
from transactional.barrier import sources_digest
from transactional.capabilities import Restorable
from transactional.checkpoint import DecidedCheckpoint
from transactional.entry import EntryKind
from transactional.ledger import Ledger
from transactional.sink import Options, TransactionContext

__all__ = [
    "CliPlace",
    "RestorableSink",
    "another_user",
    "answer",
    "dead_process",
    "option_words",
    "shared_folder",
    "two_users",
]

SCHEMA = StructType([StructField("value", LongType())])


class RestorableSink(Restorable, FileSink):
    """Takes its output back in so far as it says that it did."""

    def output(self, handles: Sequence[Any], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Nothing: a test writes into the journal what it wants."""
        return {}

    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        """Leave a note."""
        (self._folder / "restored").write_text(json.dumps([dict(output), rewind]))


class CliPlace:
    """A query's location, whose micro-batches are recorded one after the other."""

    def __init__(self, folder: Path, sink: type[FileSink] = FileSink) -> None:
        self.path = folder / "place"
        self.output = folder / "output"
        self.sink = sink
        remember_sink(sink)
        for log in ("offsets", "commits"):
            (self.path / log).mkdir(parents=True)
        (self.path / "metadata").write_text('{"id":"q"}')
        self.checkpoints: list[int] = []
        self.keeps_logs = False

    def __str__(self) -> str:
        return str(self.path)

    def append(self, kind: str, body: Mapping[str, Any]) -> int:
        """A journal entry; returns its number."""
        journal = CheckpointLocation(str(self.path)).journal()
        journal.load()
        return journal.append(fact_of(kind, body), lambda ledger: None).number

    def ledger(self) -> Ledger:
        """The journal's fold."""
        return CheckpointLocation(str(self.path)).journal().load()

    def run(self, **replaced: Any) -> int:
        """A run, of whose driver nothing is known."""
        setup = {
            "class": f"{self.sink.__module__}:{self.sink.__qualname__}",
            "options": {"path": str(self.output), "checkpointlocation": str(self.path)},
            "schema": SCHEMA.jsonValue(),
        }
        known = {"setup": setup, "location": str(self.path), "sink": self.sink.name()}
        return self.append(EntryKind.RUN, run_body(**{**known, **replaced}))

    def prepared(self, batch: int, rows: int = 5, in_spark: bool = True) -> None:
        """A micro-batch that closes no checkpoint."""
        self.append(EntryKind.PREPARED, self._body(batch, rows))
        if in_spark:
            (self.path / "commits" / str(batch)).write_text("v1\n{}")

    def decided(
        self,
        batch: int,
        rows: int = 5,
        settle: bool = True,
        output: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> int:
        """A micro-batch that closes one; returns the checkpoint."""
        covers = [record.batch for record in self.ledger().undecided()]
        body = self._body(batch, rows, covers, reason="BARRIER", barrier=1_000, began=3_000, **more)
        checkpoint = self.append(EntryKind.DECIDED, body)
        if settle:
            handles = [part.handles[-1] for part in self.ledger().parts_of(self.ledger().checkpoints[checkpoint])]
            self.made().commit(handles, DecidedCheckpoint(checkpoint, (batch,), 0, self.ledger().identity("q"), "p"))
            self.append(EntryKind.SETTLED, settled(checkpoint, **(output or {})))
            (self.path / "commits" / str(batch)).write_text("v1\n{}")
        self.checkpoints.append(checkpoint)
        return checkpoint

    def made(self) -> Any:
        """A sink, as the query's."""
        return self.sink(Options({"path": str(self.output), "transactionalIdPrefix": "p"}), pa.schema([]))

    def _body(self, batch: int, rows: int, covers: Sequence[int] | None = None, **replaced: Any) -> dict[str, Any]:
        (self.path / "offsets" / str(batch)).write_text(f"v1\n{{}}\nline {batch}")
        sink = self.made()
        transaction = sink.beginTransaction(TransactionContext("q", batch, 0, 0, "p", f"n{batch}"))
        sink.write(transaction, pa.record_batch({"value": list(range(rows))}))
        part = {"partition": 0, "handle": sink.preCommit(transaction), "rows": rows, "bytes": 8 * rows, "digest": "1:0"}
        log = f"v1\n{{}}\nline {batch}" if self.keeps_logs else ""
        return recorded(batch, [part], covers, sources=sources_digest(lines(f"line {batch}")), log=log, **replaced)

    def _move(self, handle: Mapping[str, Any], folder: str) -> None:
        (self.output / "pending" / handle["file"]).rename(self.output / folder / handle["file"])

    def files(self, folder: str) -> list[int]:
        """Micro-batches of the sink's files in ``pending``, ``committed`` or ``aborted``."""
        return sorted(int(path.name.split("~")[1]) for path in (self.output / folder).iterdir())

    def spark(self, log: str) -> list[int]:
        """Micro-batches in one of Spark's logs."""
        return sorted(int(path.name) for path in (self.path / log).iterdir())


@functools.cache
def dead_process() -> Mapping[str, Any]:
    """A process of this machine that has ended."""
    program = "import json; from connector.spark.process import this_process; print(json.dumps(this_process()))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def answer(capsys: Any, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command with ``--output json``: its exit status, its one document, and what it said beside."""
    capsys.readouterr()
    status = main([*arguments, "--output", "json"])
    said = capsys.readouterr()
    return status, json.loads(said.out), said.err


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as words of a command."""
    return [word for key, value in options.items() for word in ("--option", f"{key}={value}")]


two_users = pytest.mark.skipif(os.geteuid() != 0, reason="it takes two users")

NOBODY = 65534


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Others may write in it, and take nothing away that is not theirs; pytest's own folders are closed to them."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        base.chmod(0o1777)
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def another_user(*owned: Path) -> Iterator[None]:
    """One that owns these folders, and may do nothing else."""
    for root in owned:
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(faults.VARIABLE, raising=False)  # its folder is closed to others, as all of pytest's
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
