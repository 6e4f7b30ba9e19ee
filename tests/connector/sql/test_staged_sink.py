"""What `StagedSqlSink` makes of a database's errors; the contract is kept by tests/test_write_a_sink.py's sink."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
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


class Db2Error(Exception):
    """A driver's: all it knows is a SQLSTATE."""

    sqlstate = ""


class OperationalError(Db2Error):
    """By PEP 249's name it is an outage, whatever happened."""


class DatabaseError(Db2Error):
    """By PEP 249's name it is none."""


def of_odbc(state: str) -> Exception:
    return OperationalError(state, "[driver] what happened")


def of_psycopg2(state: str) -> Exception:
    found = OperationalError("what happened")
    found.pgcode = state  # type: ignore[attr-defined]
    return found


def of_others(state: str) -> Exception:
    found = DatabaseError("what happened")
    found.sqlstate = state
    return found


@pytest.mark.parametrize("made", [of_odbc, of_psycopg2, of_others])
@pytest.mark.parametrize(
    ("state", "condition"),
    [
        ("22001", "ROW_REFUSED"),
        ("23505", "ROW_REFUSED"),
        ("44000", "ROW_REFUSED"),
        ("54000", "ROW_REFUSED"),
        ("42501", "DATABASE_REFUSED"),
        ("42P01", "DATABASE_REFUSED"),
        ("55006", "DATABASE_REFUSED"),
        ("58030", "DATABASE_REFUSED"),
        ("XX001", "DATABASE_REFUSED"),
        ("HY000", "DATABASE_REFUSED"),
        ("53400", "DATABASE_REFUSED"),
        ("08006", "DATABASE_UNREACHABLE"),
        ("25006", "DATABASE_UNREACHABLE"),
        ("40001", "DATABASE_UNREACHABLE"),
        ("40P01", "DATABASE_UNREACHABLE"),
        ("53100", "DATABASE_REFUSED"),
        ("53300", "DATABASE_UNREACHABLE"),
        ("57P01", "DATABASE_UNREACHABLE"),
        ("55P03", "DATABASE_SLOW"),
        ("57014", "DATABASE_SLOW"),
        ("HYT00", "DATABASE_SLOW"),
    ],
)
def test_an_error_is_judged_by_its_sqlstate_and_not_by_the_name_of_its_class(
    tmp_path: Path, made: Callable[[str], Exception], state: str, condition: str
) -> None:
    """An error that never passes was retried for ever, if its driver calls it operational."""
    found = sink(tmp_path / "events.db").translated(made(state))
    assert found is not None
    assert found.condition == condition


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11, errors of sqlite3 have no result code")
def test_what_sqlite_refuses_for_ever_is_no_outage(tmp_path: Path) -> None:
    """All of these are an OperationalError."""
    path = tmp_path / "events.db"

    def raised(statement: str) -> str:
        with closing(sqlite3.connect(path, timeout=0)) as connection, pytest.raises(sqlite3.Error) as refused:
            connection.execute(statement)
        found = sink(path).translated(refused.value)
        assert found is not None
        return found.condition

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (a CHECK (a > 0))")
        assert raised("INSERT INTO missing VALUES (1)") == "DATABASE_REFUSED"
        assert raised("INSERT INTO t VALUES (0)") == "ROW_REFUSED"
        assert raised("INSERT INTO t VALUES (zeroblob(2000000000))") == "ROW_REFUSED"
        other.execute("BEGIN IMMEDIATE")
        assert raised("INSERT INTO t VALUES (1)") == "DATABASE_UNREACHABLE"


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    failing = sink(tmp_path / "events.db")
    failing.problem = KeyError("a mistake in the sink")
    with pytest.raises(KeyError):
        failing.identify()


def test_the_control_tables_are_named_once(tmp_path: Path) -> None:
    """Two queries that begin at once agree, and so do copies of the database."""
    found = {sink(tmp_path / "events.db").identify()["cluster"] for _ in range(3)}
    assert len(found) == 1
