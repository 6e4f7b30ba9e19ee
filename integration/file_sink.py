"""A two-phase-commit sink over a folder: the smallest store with which the whole protocol can be tested.

``<path>/pending/<prefix>~<batch>~<partition>~<nonce>`` is renamed to ``committed/`` or to ``aborted/``: a rename of one
source has one winner, so commit and abort of a handle end in exactly one of the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from transactional import faults
from transactional.capabilities import NamesDatasets
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import OptionError, TransactionLostError
from transactional.sink import Cutoff, HandleState, Options, Outcome, TransactionContext, TwoPhaseCommitSink

__all__ = ["FileHandle", "FileSink", "committed_rows", "pending_files"]


class FileHandle(TypedDict):
    """A prepared file."""

    folder: str
    file: str


@dataclass
class FileTransaction:
    """An open file; its rows wait in memory until preCommit."""

    path: Path
    lines: list[str] = field(default_factory=list)


class FileSink(NamesDatasets, TwoPhaseCommitSink[FileTransaction, FileHandle]):
    """Writes each row as a line of JSON. Option ``path``: the folder."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        if "path" not in options:
            raise OptionError("MISSING_OPTION", "set the option path: the folder to write to", option="path")
        self._folder = Path(options["path"])
        self._prefix = options.get("transactionalIdPrefix", "")

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "2pc-testfile"

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """The folder."""
        return [("file", options["path"])]

    def beginTransaction(self, context: TransactionContext) -> FileTransaction:
        """Open a pending file, so that a task that dies leaves something to sweep."""
        for part in ("pending", "committed", "aborted"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        name = f"{context.prefix}~{context.batchId}~{context.partitionId}~{context.nonce}"
        path = self._folder / "pending" / name
        path.touch(exist_ok=False)
        return FileTransaction(path)

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """Keep the rows."""
        transaction.lines += [json.dumps(row, sort_keys=True, default=str) + "\n" for row in batch.to_pylist()]

    def preCommit(self, transaction: FileTransaction) -> FileHandle:
        """Write and sync; a swept file (its transaction was aborted) must not come back."""
        with open(transaction.path, "r+", encoding="utf-8") as file:
            file.writelines(transaction.lines)
            file.flush()
            os.fsync(file.fileno())
        return FileHandle(folder=str(self._folder), file=transaction.path.name)

    def rollback(self, transaction: FileTransaction) -> None:
        """Drop the pending file."""
        transaction.path.unlink(missing_ok=True)

    def commit(self, handles: Sequence[FileHandle], checkpoint: DecidedCheckpoint) -> None:
        """Rename to ``committed/``."""
        lost = []
        for handle in handles:
            if self._move(handle, "committed"):
                faults.reach("commit.one")
            elif self._state(handle) is not Outcome.COMMITTED:
                lost.append(handle)
        if lost:
            raise TransactionLostError("FILE_LOST", f"{len(lost)} pending files are gone", [dict(h) for h in lost])
        if checkpoint.completed > self.newestCheckpoint(checkpoint.queryId):
            fresh = self._newest(checkpoint.queryId).with_suffix(f".{os.urandom(4).hex()}")
            fresh.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(str(checkpoint.completed))
            fresh.rename(self._newest(checkpoint.queryId))

    def isThere(self, route: str = "") -> bool:
        """Whether there is a folder."""
        return self._folder.is_dir()

    def newestCheckpoint(self, queryId: str, route: str = "") -> int:
        """What the last commit has noted."""
        path = self._newest(queryId)
        return int(path.read_text()) if path.exists() else 0

    def _newest(self, query: str) -> Path:
        return self._folder / "newest" / query

    def abort(self, handles: Sequence[FileHandle]) -> Sequence[FileHandle]:
        """Rename to ``aborted/``."""
        for handle in handles:
            self._move(handle, "aborted")
        return [handle for handle in handles if self._state(handle) is Outcome.COMMITTED]

    def inspect(self, handles: Sequence[FileHandle]) -> Sequence[HandleState]:
        """Where each file is."""
        return [HandleState(state, evidence=f"file is {state.value}") for state in map(self._state, handles)]

    def sweep(self, known: Sequence[FileHandle], before: Cutoff) -> int:
        """Rename our pending files that `known` does not name."""
        names = {handle["file"] for handle in known}
        lingering = [
            name for name in pending_files(self._folder) if name.split("~")[0] == self._prefix and name not in names
        ]
        for name in lingering:
            self._move(FileHandle(folder=str(self._folder), file=name), "aborted")
        return len(lingering)

    @staticmethod
    def _move(handle: FileHandle, target: str) -> bool:
        folder = Path(handle["folder"])
        try:
            os.rename(folder / "pending" / handle["file"], folder / target / handle["file"])
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _state(handle: FileHandle) -> Outcome:
        folder = Path(handle["folder"])
        if (folder / "pending" / handle["file"]).exists():
            return Outcome.PREPARED
        return Outcome.COMMITTED if (folder / "committed" / handle["file"]).exists() else Outcome.LOST


def committed_rows(folder: Path) -> list[dict[str, Any]]:
    """All visible rows."""
    return [
        json.loads(line) for path in sorted((folder / "committed").glob("*")) for line in path.open(encoding="utf-8")
    ]


def pending_files(folder: Path) -> list[str]:
    """Names of open and prepared transactions."""
    pending = folder / "pending"
    return sorted(os.listdir(pending)) if pending.is_dir() else []
