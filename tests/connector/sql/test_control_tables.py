"""What the control tables hold, and how their rows are locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import pytest

from connector.sql.control_tables import CONTROL_TABLES, TRANSACTIONS, ControlTables, Cursor
from tests.simulation.database import DatabaseError, SimulatedDatabase
from tests.simulation.product import IN_SQL
from tests.simulation.world import World
from transactional.transaction import TransactionContext


class Owner:
    """A sink without anything else; it remembers the statements, and what they were asked about."""

    locking: ClassVar[str] = " FOR UPDATE"
    at_once: ClassVar[int] = 500

    def __init__(self) -> None:
        self.said: list[tuple[str, tuple[Any, ...]]] = []

    def control_table(self, name: str) -> str:
        return name

    def run(self, cursor: Cursor, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self.said.append((statement, tuple(parameters)))
        cursor.execute(statement, tuple(parameters))
        return list(cursor.fetchall()) if statement.startswith("SELECT") else []


class OneByOne(Owner):
    """As MySQL, which would lock the whole table for several."""

    locking: ClassVar[str] = ""
    at_once: ClassVar[int] = 1


def add(control: ControlTables, cursor: Cursor, *nonces: str) -> None:
    for nonce in nonces:
        control.add(cursor, TransactionContext("q", 0, 0, 0, "p", nonce), 1, "staged")


def create(cursor: Cursor) -> None:
    for name, columns in CONTROL_TABLES.items():
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")


@pytest.fixture
def cursor() -> Iterator[sqlite3.Cursor]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        found = connection.cursor()
        create(found)
        yield found


def test_states_that_are_locked_stay_until_the_end_of_the_transaction() -> None:
    world, owner = World([], IN_SQL), Owner()
    assert isinstance(world.store, SimulatedDatabase)
    control = ControlTables(owner, "p")
    one, two = world.store.connect(), world.store.connect()
    create(one)
    add(control, one, "a", "b")
    one.commit()
    two.limit = 0.0
    assert control.states(one, ["a"]) == {"a": "prepared"}
    control.end(two, ["a"], "aborted")
    two.commit()
    assert control.states(one, ["a", "b"], lock=True) == {"a": "aborted", "b": "prepared"}
    with pytest.raises(DatabaseError) as locked:
        control.end(two, ["b"], "aborted")
    assert locked.value.sqlstate == "57014"
    control.end(one, ["b"], "committed")
    one.commit()
    assert control.states(world.store.connect(), ["b"]) == {"b": "committed"}


def test_states_are_locked_in_one_order_whoever_asks(cursor: sqlite3.Cursor) -> None:
    owner = OneByOne()
    control = ControlTables(owner, "p")
    add(control, cursor, "c", "a", "b")
    for names in ("cabd", "dbac"):
        owner.said.clear()
        assert control.states(cursor, [*names], lock=True) == dict.fromkeys("abc", "prepared")
        assert [nonce for statement, (nonce,) in owner.said if TRANSACTIONS in statement] == ["a", "b", "c", "d"]


def test_the_newest_checkpoint_is_known_under_whatever_prefix(cursor: sqlite3.Cursor) -> None:
    owner = OneByOne()
    former, now = ControlTables(owner, "p"), ControlTables(owner, "p2")
    former.record(cursor, "q", 5)
    assert (now.newest(cursor, "q"), now.newest(cursor, "other")) == (5, 0)
    now.record(cursor, "q", 7)
    now.record(cursor, "other", 1)
    assert former.newest(cursor, "q") == 7
    former.record(cursor, "q", 6)
    assert now.newest(cursor, "q") == 7, "a checkpoint that is committed again is not the newest"
