"""What `StagedSqlSink` makes of a database's errors; the contract is kept by tests/test_write_a_sink.py's sink."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from connector.sql.control_tables import Cursor
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from transactional.errors import RowRefusedError, StoreError, TwoPhaseCommitError
from transactional.sink import Options


class Failing(StagedSqlSink):
    """Raises what it is told to."""

    locking = ""
    problem: Exception | None = None

    @classmethod
    def name(cls) -> str:
        return "2pc-sqlite"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.options["path"], isolation_level=None)

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        cursor.execute("BEGIN IMMEDIATE")

    def create(self, cursor: Cursor) -> None:
        if self.problem is not None:
            raise self.problem

    def has(self, cursor: Cursor, name: str) -> bool:
        cursor.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,))
        return bool(cursor.fetchall())

    def staging(self, cursor: Cursor) -> str:
        return "staged"

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        raise NotImplementedError

    def publish(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        raise NotImplementedError


def sink(path: Path) -> Failing:
    return Failing(Options({"path": str(path)}), pa.schema([]))


def test_a_database_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*2pc-sqlite.*unable to open"):
        sink(tmp_path / "missing" / "events.db").identify()


@pytest.mark.parametrize(
    ("problem", "kind", "condition"),
    [
        (sqlite3.OperationalError("password=hunter2 is wrong"), StoreError, "DATABASE_UNREACHABLE"),
        (sqlite3.InterfaceError("password=hunter2 is wrong"), StoreError, "DATABASE_UNREACHABLE"),
        (sqlite3.IntegrityError("password=hunter2 is wrong"), RowRefusedError, "ROW_REFUSED"),
        (sqlite3.DataError("password=hunter2 is wrong"), RowRefusedError, "ROW_REFUSED"),
        (sqlite3.ProgrammingError("password=hunter2 is wrong"), StoreError, "DATABASE_REFUSED"),
    ],
)
def test_a_databases_errors_are_ours_by_their_standard_names(
    tmp_path: Path, problem: Exception, kind: type[TwoPhaseCommitError], condition: str
) -> None:
    failing = sink(tmp_path / "events.db")
    failing.problem = problem
    with pytest.raises(kind, match=condition) as refused:
        failing.identify()
    assert "hunter2" not in str(refused.value)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    failing = sink(tmp_path / "events.db")
    failing.problem = KeyError("a mistake in the sink")
    with pytest.raises(KeyError):
        failing.identify()


def test_the_control_tables_are_named_once(tmp_path: Path) -> None:
    """Two queries that begin at once agree, and so do copies of the database."""
    found = {sink(tmp_path / "events.db").identify()["cluster"] for _ in range(3)}
    assert len(found) == 1
