"""The simulated database answers as PostgreSQL does: random statements of several sessions, run on both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import psycopg
import pytest

from connector.sql.control_tables import CONTROL_TABLES, PREFIXES, QUERIES, STORE, TRANSACTIONS, ControlTables
from integration.postgresql import PostgresqlServer
from tests.simulation.database import DatabaseError, SimulatedDatabase
from tests.simulation.product import IN_SQL
from tests.simulation.world import World
from transactional.transaction import TransactionContext

SESSIONS = 3
NONCES = ("a", "b", "c", "d")
OPERATIONS = 300
LOCKED = frozenset({"55P03", "57014"})  # by a limit of the lock, or of the statement


class Real:
    """One server, and sessions that wait for a lock a moment."""

    locking: ClassVar[str] = " FOR UPDATE"
    at_once: ClassVar[int] = 500

    def __init__(self, url: str) -> None:
        self._url = url

    def connect(self) -> Any:
        return psycopg.connect(self._url, options="-c lock_timeout=100ms")

    def control_table(self, name: str) -> str:
        return name

    def run(self, cursor: Any, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        cursor.execute(statement.replace("?", "%s"), tuple(parameters))
        return list(cursor.fetchall()) if statement.startswith("SELECT") else []


class Simulated(Real):
    """The simulated one. A lock that another session has is an error at once."""

    def __init__(self) -> None:
        self._world = World([], IN_SQL)
        assert isinstance(self._world.store, SimulatedDatabase)
        self._store = self._world.store

    def connect(self) -> Any:
        return self._store.connect()

    def run(self, cursor: Any, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        cursor.limit, cursor.idle_since = 0.0, self._world.time  # of this statement only, not of the pause before it
        try:
            cursor.execute(statement, parameters)
        finally:
            cursor.limit = None
        return [tuple(row) for row in cursor.fetchall()] if statement.startswith("SELECT") else []


class Side:
    """One of the two, with its sessions; tokens and ids are told by the order in which they appear."""

    def __init__(self, owner: Real) -> None:
        self._owner = owner
        self._control = {prefix: ControlTables(owner, prefix) for prefix in ("p", "q")}
        first = owner.connect()
        for name, columns in CONTROL_TABLES.items():
            owner.run(first.cursor(), f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        first.commit()
        first.close()
        self._sessions = [owner.connect() for _ in range(SESSIONS)]
        self._names: dict[str, str] = {}

    def do(self, session: int, act: Callable[[ControlTables, Any], Any], prefix: str) -> Any:
        """Do something in a session; an error ends it, and a new one takes its place."""
        connection = self._sessions[session]
        try:
            return self._told(act(self._control[prefix], connection.cursor()))
        except (DatabaseError, psycopg.Error) as problem:
            state = problem.sqlstate
            connection.close()
            self._sessions[session] = self._owner.connect()
            return "locked" if state in LOCKED else state

    def end(self, session: int, commits: bool) -> None:
        """Commit, or roll back."""
        connection = self._sessions[session]
        if commits:
            connection.commit()
        else:
            connection.close()
            self._sessions[session] = self._owner.connect()

    def contents(self) -> list[Any]:
        """Return what is committed."""
        connection = self._owner.connect()
        columns = {
            TRANSACTIONS: "nonce, prefix, batch, state",
            PREFIXES: "prefix, token, server",
            QUERIES: "prefix, query, checkpoint",
            STORE: "one, id",
        }
        found = [
            sorted(self._owner.run(connection.cursor(), f"SELECT {names} FROM {table}"))
            for table, names in columns.items()
        ]
        connection.close()
        return [self._told(row) for rows in found for row in rows]

    def _told(self, answer: Any) -> Any:
        if isinstance(answer, (tuple, list)):
            return [self._told(each) for each in answer]
        if isinstance(answer, str) and len(answer) == 32:
            return self._names.setdefault(answer, f"name {len(self._names)}")
        return answer

    def close(self) -> None:
        for connection in self._sessions:
            connection.close()


def operation(dice: random.Random) -> tuple[str, Callable[[ControlTables, Any], Any]]:
    """Return one thing that a sink does, and what it is called."""
    nonces = dice.sample(NONCES, dice.randint(1, 3))
    number, lock = dice.randrange(9), dice.random() < 0.5
    state = dice.choice(["prepared", "committed", "aborted"])
    context = TransactionContext("query", number, 0, 0, "p", nonces[0])
    return dice.choice(
        [
            (f"add {nonces[0]}", lambda control, cursor: control.add(cursor, context, 1, "staging")),
            (f"states {nonces} {lock}", lambda control, cursor: sorted(control.states(cursor, nonces, lock).items())),
            (f"end {nonces} {state}", lambda control, cursor: control.end(cursor, nonces, state)),
            ("all", lambda control, cursor: control.all(cursor)),
            (f"forget {nonces}", lambda control, cursor: control.forget(cursor, nonces)),
            ("claim", lambda control, cursor: control.claim(cursor, "server")),
            (f"claimed {lock}", lambda control, cursor: control.claimed(cursor, lock)),
            ("newest", lambda control, cursor: control.newest(cursor, "query")),
            (f"record {number}", lambda control, cursor: control.record(cursor, "query", number)),
            ("store", lambda control, cursor: control.store(cursor)),
            ("name", lambda control, cursor: control.name_store(cursor)),
        ]
    )


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(4))
def test_random_statements_of_several_sessions_are_answered_alike(postgresql: PostgresqlServer, seed: int) -> None:
    dice = random.Random(seed)
    with postgresql.connect() as connection:
        for name in CONTROL_TABLES:
            connection.execute(f"DROP TABLE IF EXISTS {name}")
    sides = [Side(Real(postgresql.url)), Side(Simulated())]
    done: list[str] = []
    met: set[str] = set()
    try:
        for _ in range(OPERATIONS):
            session, prefix = dice.randrange(SESSIONS), dice.choice("pq")
            if dice.random() < 0.25:
                commits = dice.random() < 0.7
                done.append(f"{session}: {'commit' if commits else 'rollback'}")
                for side in sides:
                    side.end(session, commits)
                answers: list[Any] = [side.contents() for side in sides]
            else:
                name, act = operation(dice)
                done.append(f"{session}: {name} of {prefix}")
                answers = [side.do(session, act, prefix) for side in sides]
                met.update(answer for answer in answers if isinstance(answer, str))
            assert answers[0] == answers[1], "\n".join(done[-20:])
    finally:
        for side in sides:
            side.close()
    assert {"locked", "23505"} <= met
