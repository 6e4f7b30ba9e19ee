"""The file sink with its calls written down, and with gates at which a test holds a task."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from integration.file_sink import FileHandle, FileSink, FileTransaction
from transactional.capabilities import GuardsRuns
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Cutoff, HandleState, RunMark, TransactionContext

__all__ = ["ProbedFileSink", "calls", "gate"]

ROLES = {
    "pyspark.worker": "task",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit",
    "pyspark.sql.worker.write_into_data_source": "planning",  # in tasks, too: it made their function
}
"""Spark's modules in the call stack tell whose call it is; the first of these that is there counts."""


class ProbedFileSink(GuardsRuns, FileSink):
    """Appends every call to ``<path>/calls``; waits in `beginTransaction` where a gate is closed."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "2pc-testfile-probed"

    def beginTransaction(self, context: TransactionContext) -> FileTransaction:
        """Wait at the gate ``begin``, then begin."""
        self._note("beginTransaction", batch=context.batchId, partition=context.partitionId)
        taken = self._folder / "gates" / "begin.taken"
        try:
            os.rename(self._folder / "gates" / "begin", taken)
        except FileNotFoundError:
            return super().beginTransaction(context)
        taken.write_text(str(os.getpid()))
        while not (self._folder / "gates" / "begin.open").exists():
            time.sleep(0.02)
        return super().beginTransaction(context)

    def preCommit(self, transaction: FileTransaction) -> FileHandle:
        """Note it."""
        handle = super().preCommit(transaction)
        self._note("preCommit", file=handle["file"])
        return handle

    def guardRun(self, mark: RunMark | None) -> RunMark:
        """Note it."""
        self._note("guardRun")
        return {}

    def commit(self, handles: Sequence[FileHandle], checkpoint: DecidedCheckpoint) -> None:
        """Note it."""
        self._note("commit", files=[handle["file"] for handle in handles], checkpoint=checkpoint.id)
        super().commit(handles, checkpoint)

    def abort(self, handles: Sequence[FileHandle]) -> Sequence[FileHandle]:
        """Note it."""
        self._note("abort", files=[handle["file"] for handle in handles])
        return super().abort(handles)

    def inspect(self, handles: Sequence[FileHandle]) -> Sequence[HandleState]:
        """Note it."""
        self._note("inspect", files=[handle["file"] for handle in handles])
        return super().inspect(handles)

    def sweep(self, known: Sequence[FileHandle], before: Cutoff) -> int:
        """Note it."""
        found = super().sweep(known, before)
        self._note("sweep", found=found)
        return found

    def _note(self, call: str, **facts: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"call": call, "pid": os.getpid(), "role": _role(), **facts}) + "\n"
        with open(self._folder / "calls", "a", encoding="utf-8") as file:
            file.write(line)  # one short write: lines of several processes don't mix


def _role() -> str:
    names = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        spec = frame.f_globals.get("__spec__")
        names.add(spec.name if module == "__main__" and spec is not None else module)
        frame = frame.f_back
    return next((role for module, role in ROLES.items() if module in names), "unknown")


def calls(folder: Path) -> list[dict[str, Any]]:
    """All calls so far, in the order in which they were written down."""
    try:
        lines = (folder / "calls").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def gate(folder: Path) -> Path:
    """Close the gate ``begin`` for the next transaction; the returned file, once made, opens it."""
    gates = folder / "gates"
    gates.mkdir(parents=True, exist_ok=True)
    (gates / "begin").touch()
    return gates / "begin.open"
