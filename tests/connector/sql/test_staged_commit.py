"""What `StagedSqlSink` does in the moment of a commit, an abort and a sweep, with SQLite as the database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from connector.sql.control_tables import ControlTables, Cursor, Prepared
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from tests.simulation.product import IN_SQL, SimulatedSqlSink
from tests.simulation.world import World
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import (
    AmbiguousOutcomeError,
    FencedError,
    RowRefusedError,
    StoreError,
    StoreReplacedError,
    TransactionLostError,
)
from transactional.history import RunMark
from transactional.sink import Cutoff, Options, Outcome, TransactionContext

SCHEMA = pa.schema([("value", pa.int64())])


class ServerError(Exception):
    """A driver's, with its SQLSTATE."""

    def __init__(self, state: str) -> None:
        super().__init__("what happened")
        self.sqlstate = state


class OperationalError(ServerError):
    """By PEP 249's name it is a database's."""


class Numbers(StagedSqlSink):
    """Appends numbers below 100 to a table."""

    locking = ""
    on = "one"
    """The server."""

    until_locked: Callable[[Cursor], None] | None = None
    """What another session does until the lock of the target is granted."""

    @classmethod
    def name(cls) -> str:
        return "2pc-numbers"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.options["path"], isolation_level=None)

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        cursor.execute("BEGIN IMMEDIATE")

    def create(self, cursor: Cursor) -> None:
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (value CHECK (value < 100))")
        cursor.execute("CREATE TABLE IF NOT EXISTS staged (barrier_nonce, value)")

    def has(self, cursor: Cursor, name: str) -> bool:
        return bool(self.run(cursor, "SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def server(self, cursor: Cursor) -> str:
        return self.on

    def target(self, cursor: Cursor) -> str:
        return str(self.run(cursor, "SELECT sql FROM sqlite_master WHERE name = 'numbers'"))

    def lock(self, cursor: Cursor) -> None:
        if self.until_locked is not None:
            self.until_locked(cursor)

    def staging(self, cursor: Cursor) -> str:
        return "staged"

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        for value in batch["value"].to_pylist():
            self.run(transaction.cursor, "INSERT INTO staged VALUES (?, ?)", (transaction.context.nonce, value))

    def publish(self, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        for handle in handles:
            statement = "INSERT INTO numbers (value) SELECT value FROM staged WHERE barrier_nonce = ? ORDER BY rowid"
            self.run(cursor, statement, (handle["nonce"],))


class Place:
    """A database, and a run of a query that writes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sink = self.another()
        self.sink.identify()
        self.mark = self.sink.guardRun(None)

    def another(self) -> Numbers:
        """Return a sink of another process."""
        options = {"path": str(self.path), "transactionalIdPrefix": "p", "commitTimeoutMs": "1000"}
        return Numbers(Options(options), SCHEMA)

    def prepared(self, nonce: str, *values: int, batch: int = 0, partition: int = 0) -> StagedHandle:
        """Return what a task has prepared."""
        with closing(self.another()) as task:
            transaction = task.beginTransaction(TransactionContext("q", batch, partition, 0, "p", nonce))
            task.write(transaction, pa.record_batch({"value": list(values)}, SCHEMA))
            return task.preCommit(transaction)

    def rows(self, statement: str = "SELECT value FROM numbers ORDER BY rowid") -> list[int]:
        """Return the first column of a query."""
        return [row[0] for row in self.run(statement)]

    def run(self, *statements: str) -> list[tuple[int, ...]]:
        """Run statements as somebody else; return the rows of the last one."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                found = connection.execute(statement).fetchall()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "numbers.db")


def decided(number: int, after: int = 0) -> DecidedCheckpoint:
    return DecidedCheckpoint(number, [0], 0, "q", "p", after)


def test_rows_are_published_in_the_order_of_their_micro_batches_and_tasks(place: Place) -> None:
    handles = [
        place.prepared("a", 5, batch=2),
        place.prepared("b", 4, batch=1, partition=1),
        place.prepared("c", 2, 3, batch=1),
        place.prepared("d", 1, batch=0, partition=3),
    ]
    place.sink.commit(handles, decided(1))
    assert place.rows() == [1, 2, 3, 4, 5]


def test_a_transaction_whose_staged_rows_are_not_all_there_is_lost_for_good(place: Place) -> None:
    handle = place.prepared("a", 1, 2)
    place.run("DELETE FROM staged WHERE value = 2")
    with pytest.raises(TransactionLostError) as lost:
        place.sink.commit([handle], decided(1))
    assert lost.value.handles == [handle]
    assert place.sink.inspect([handle])[0].outcome is Outcome.LOST
    place.run("INSERT INTO staged VALUES ('a', 1)", "INSERT INTO staged VALUES ('a', 2)")
    with pytest.raises(TransactionLostError):
        place.sink.commit([handle], decided(1))
    assert place.rows() == []


def test_a_checkpoint_of_which_a_part_is_lost_is_not_committed_in_part(place: Place) -> None:
    aborted, gone, living = (place.prepared(nonce, number) for number, nonce in enumerate("abc"))
    place.sink.abort([aborted])
    place.run("DELETE FROM staged WHERE value = 1")
    with pytest.raises(TransactionLostError) as lost:
        place.sink.commit([aborted, gone, living], decided(1))
    assert lost.value.handles == [aborted, gone]
    assert place.rows() == []
    place.sink.commit([living], decided(1))
    assert place.rows() == [2]


def test_a_table_that_is_replaced_until_it_is_locked_is_not_written_into(place: Place) -> None:
    handle = place.prepared("a", 1)

    def replace(cursor: Cursor) -> None:
        cursor.execute("DROP TABLE numbers")
        cursor.execute("CREATE TABLE numbers (value, note)")

    place.sink.until_locked = replace
    with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN"):
        place.sink.commit([handle], decided(1))
    place.sink.until_locked = None
    assert (place.rows(), place.rows("SELECT value FROM staged")) == ([], [1]), "it is rolled back"
    place.sink.commit([handle], decided(1))
    assert place.rows() == [1]


@pytest.mark.parametrize("counts", [False, True])
def test_rows_that_are_deleted_after_they_were_counted_are_not_committed_in_part(
    place: Place, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of a database transaction may see what others have done by then; the sink may count what it inserts."""
    handle = place.prepared("a", 1, 2)
    tried: list[None] = []

    def delete(cursor: Cursor) -> None:
        tried.append(None)
        if len(tried) == 1:
            cursor.execute("DELETE FROM staged WHERE value = 1")

    def publish(sink: Numbers, cursor: Cursor, handles: Sequence[StagedHandle]) -> None:
        real(sink, cursor, handles)
        if counts and sink.run(cursor, "SELECT COUNT(*) FROM numbers") != [(2,)]:
            raise StoreError("DATABASE_REFUSED", owner="numbers", table="numbers", reason="it took 1 row of 2")

    real = Numbers.publish
    monkeypatch.setattr(Numbers, "publish", publish)
    place.sink.until_locked = delete
    place.sink.commit([handle], decided(1))
    assert (len(tried), place.rows()) == (2, [1, 2])


def test_what_is_committed_or_aborted_leaves_no_staged_row(place: Place) -> None:
    committed, aborted, _ = (place.prepared(nonce, number) for number, nonce in enumerate("abc"))
    place.sink.commit([committed], decided(1))
    assert place.sink.abort([committed, aborted]) == [committed]
    assert place.rows("SELECT value FROM staged") == [2]


def test_an_older_copy_of_the_database_takes_no_commit(place: Place, tmp_path: Path) -> None:
    place.sink.close()
    shutil.copy(place.path, tmp_path / "copy")
    place.sink.commit([place.prepared("a", 1)], decided(5))
    place.sink.close()
    shutil.copy(tmp_path / "copy", place.path)
    handle = place.prepared("b", 2)
    with pytest.raises(StoreError, match="STORE_WENT_BACK"):
        place.sink.commit([handle], decided(6, after=5))
    assert place.rows() == []


def test_a_server_that_has_taken_over_is_noticed_by_task_and_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = place.prepared("a", 1)
    monkeypatch.setattr(Numbers, "on", "two")
    with pytest.raises(StoreReplacedError, match="DATABASE_FAILED_OVER"):
        place.prepared("b", 2)
    with pytest.raises(StoreReplacedError, match="DATABASE_FAILED_OVER"):
        place.sink.commit([handle], decided(1))
    with pytest.raises(StoreReplacedError, match="DATABASE_FAILED_OVER"):
        place.sink.guardRun(place.mark)
    assert place.rows() == []
    place.sink.guardRun(None)
    place.sink.commit([handle], decided(1))
    assert place.rows() == [1], "a new run has compared the database with the journal"


def test_a_run_whose_prefix_another_has_taken_ends(place: Place) -> None:
    assert place.sink.guardRun(place.mark) == place.mark
    taken: RunMark = place.another().guardRun(None)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        place.sink.guardRun(place.mark)
    assert place.sink.guardRun(taken) == taken


def test_two_first_runs_that_take_a_prefix_at_once_have_it_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no row yet that the first could lock, so the second finds one only when it inserts its own."""
    place = Place(tmp_path / "db")
    claimed, answers = ControlTables.claimed, [None]

    def look(tables: ControlTables, cursor: Cursor, lock: bool = False) -> tuple[str, str] | None:
        return answers.pop() if answers else claimed(tables, cursor, lock)

    monkeypatch.setattr(ControlTables, "claimed", look)
    taken = place.another().guardRun(None)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        place.sink.guardRun(place.mark)
    assert place.sink.guardRun(taken) == taken


def test_what_a_failed_commit_has_done_is_not_committed_with_the_next_one(place: Place) -> None:
    whole, refused = place.prepared("a", 1), place.prepared("b", 100)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*Checkpoint 1 is decided"):
        place.sink.commit([whole, refused], decided(1))
    place.sink.abort([refused])
    place.sink.commit([whole], decided(2))
    assert place.rows() == [1]


@pytest.mark.parametrize(
    ("state", "condition", "attempts"), [("08006", "", 2), ("42501", "DATABASE_REFUSED", 1), ("57014", "SLOW", 1)]
)
def test_a_commit_is_tried_again_only_while_the_database_is_away(
    place: Place, state: str, condition: str, attempts: int
) -> None:
    handle, tried = place.prepared("a", 1), []

    def fails_once(cursor: Cursor) -> None:
        tried.append(state)
        if len(tried) < 2:
            raise OperationalError(state)

    place.sink.until_locked = fails_once
    if condition:
        with pytest.raises(StoreError, match=condition):
            place.sink.commit([handle], decided(1))
    else:
        place.sink.commit([handle], decided(1))
    assert len(tried) == attempts
    assert place.rows() == ([] if condition else [1])


def test_a_sweep_keeps_what_is_committed_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions as PostgreSQL has them: SQLite lets nobody commit while another writes."""
    world = World([], IN_SQL)
    monkeypatch.setattr(SimulatedSqlSink, "world", world, raising=False)
    schema = pa.schema([("value", pa.string())])
    task, driver, late = (SimulatedSqlSink(Options({"transactionalIdPrefix": "p"}), schema) for _ in range(3))
    driver.identify()
    driver.guardRun(None)
    transaction = task.beginTransaction(TransactionContext("q", 0, 0, 0, "p", "a"))
    task.write(transaction, pa.record_batch({"value": ["1"]}, schema))
    handle = task.preCommit(transaction)
    looked = ControlTables.all

    def then_committed(self: ControlTables, cursor: Cursor) -> list[Prepared]:
        found = looked(self, cursor)
        driver.commit([handle], decided(1))
        return found

    monkeypatch.setattr(ControlTables, "all", then_committed)
    assert late.sweep([], Cutoff("q", 9, 0)) == 0
    assert driver.inspect([handle])[0].outcome is Outcome.COMMITTED
    monkeypatch.undo()
    monkeypatch.setattr(SimulatedSqlSink, "world", world, raising=False)
    assert driver.sweep([], Cutoff("q", 2, 1)) == 0, "no row of it is staged any more"
    assert driver.inspect([handle])[0].outcome is Outcome.LOST, "nobody asks about what is over"
