"""A simulated database: sessions, transactions that read what is committed, locks on rows, and servers that end.

As PostgreSQL's READ COMMITTED: a statement sees what was committed before it and what its own transaction has changed, and
whoever changes or locks a row waits for the transaction that has it, then looks again. It knows the statements of
`connector.sql`, and no others. A session ends when its client is gone, sooner or later, or when it is idle for too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from connector.sql.control_tables import TRANSACTIONS

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["STAGING", "TARGET", "DatabaseError", "Session", "SimulatedDatabase"]

STAGING, TARGET = "staged_rows", "target_rows"
NOTICED_SECONDS = (0.0, 0.0, 1.0, 30.0, 130.0)  # until a server ends the session of a client that is gone
DOWN_SECONDS = (0.0, 1.0, 12.0)
LONGEST_PAUSE_SECONDS = 1.0

STATEMENT = ("refused", "refused", "all refused", "answer lost")
COMMIT = ("refused", "answer lost", "answer lost", "late")

Key = tuple[Any, ...]
Row = dict[str, Any]
Place = tuple[str, Key]
"""A row: its table, and its key there."""


class DatabaseError(Exception):
    """A server's error, with its SQLSTATE."""

    def __init__(self, state: str, what: str) -> None:
        super().__init__(what)
        self.sqlstate = state


@dataclass
class Table:
    """A table: the columns that make a row unique (without any, each is), and the rows that are committed."""

    unique: Sequence[str]
    rows: dict[Key, Row] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """A statement, taken apart. `where` has its columns, and how many parameters each may be equal to."""

    verb: str
    table: str
    columns: Sequence[str]
    values: Sequence[str]
    where: Sequence[tuple[str, int]]
    order: str
    locks: bool


CREATE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*)\)")
SELECT = re.compile(r"SELECT (.+?) FROM (\w+)(?: WHERE (.+?))?(?: GROUP BY \w+)?(?: ORDER BY (\w+))?( FOR UPDATE)?")
INSERT = re.compile(r"INSERT INTO (\w+) \((.+?)\) VALUES \((.+)\)")
UPDATE = re.compile(r"UPDATE (\w+) SET (.+?) WHERE (.+)")
DELETE = re.compile(r"DELETE FROM (\w+) WHERE (.+)")


@cache
def parsed(text: str) -> Statement:
    """Take a statement apart."""
    text = text.strip()
    if match := CREATE.fullmatch(text):
        table, columns = match.groups()
        together = re.search(r"PRIMARY KEY \((.+)\)", columns)
        alone = re.search(r"(\w+) \w+(?:\(\d+\))? NOT NULL PRIMARY KEY", columns)
        keys = together[1].split(", ") if together else [alone[1]] if alone else []
        return Statement("CREATE", table, keys, (), (), "", False)
    if match := SELECT.fullmatch(text):
        what, table, where, order, locks = match.groups()
        return Statement("SELECT", table, what.split(", "), (), _conditions(where), order or "", bool(locks))
    if match := INSERT.fullmatch(text):
        table, names, values = match.groups()
        return Statement("INSERT", table, names.split(", "), values.split(", "), (), "", True)
    if match := UPDATE.fullmatch(text):
        table, sets, where = match.groups()
        names = [each.removesuffix(" = ?") for each in sets.split(", ")]
        return Statement("UPDATE", table, names, ["?"] * len(names), _conditions(where), "", True)
    if match := DELETE.fullmatch(text):
        return Statement("DELETE", match[1], (), (), _conditions(match[2]), "", True)
    raise AssertionError(f"a statement that the simulated database does not know: {text}")


def _conditions(text: str | None) -> list[tuple[str, int]]:
    """Return the columns of a condition, and how many parameters each may be equal to."""
    found = []
    for each in (text or "").split(" AND ") if text else ():
        column, _, rest = each.partition(" ")
        assert rest.startswith(("= ?", "IN (?")), each
        found.append((column, rest.count("?")))
    return found


class Session:
    """A connection of PEP 249, and its one cursor."""

    def __init__(self, database: SimulatedDatabase, world: World) -> None:
        self._database, self._world = database, world
        self.owner = world.scheduler.current
        self.limit: float | None = None  # How many seconds a statement may take, and a pause between two.
        self.ended = ""  # Why its server has ended it, as SQLSTATE.
        self.lost_until: float | None = None
        self.idle_since: float | None = world.time
        self.changes: dict[Place, Row | None] = {}
        self.waits: Session | None = None
        self._broken = False
        self._rows: list[Any] = []

    def cursor(self) -> Session:
        """Return itself."""
        return self

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        statement = parsed(text)
        label = f"{statement.verb} {statement.table}"
        self._rows = self._ask(label, lambda: self._database.run(self, statement, list(parameters)), STATEMENT)

    def fetchall(self) -> list[Any]:
        """Return the rows of the last statement."""
        return self._rows

    def commit(self) -> None:
        """Commit."""
        self._ask("COMMIT", lambda: self._database.commit(self), COMMIT)

    def rollback(self) -> None:
        """Roll back."""
        if not self._broken:
            self._ask("ROLLBACK", lambda: self._database.end(self, "25000"), STATEMENT)

    def close(self) -> None:
        """Close it: its server rolls back, if that was not done."""
        if not self._broken:
            self._database.end(self, "08003")

    def _ask(self, label: str, act: Callable[[], Any], kinds: Sequence[str]) -> Any:
        if self._broken:
            raise DatabaseError("08003", "the connection is broken")
        try:
            return self._world.faults.request(label, lambda: self._database.serve(self, act), kinds)
        except OSError as problem:
            self._broken = True
            self._database.lose(self)
            raise DatabaseError("08006", str(problem)) from problem


class SimulatedDatabase:
    """The store of a world whose sink writes into a database."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.server = 1  # Changes when another server goes on. What was committed is there.
        self.tables: dict[str, Table] = {}
        self._sessions: list[Session] = []
        self._locks: dict[Place, Session] = {}
        self._inserted = 0
        self._down_until = 0.0

    # -- what a world does with it ----------------------------------------------------------------------------------------

    def open(self) -> list[str]:
        """Return the transactions that are prepared."""
        table = self.tables.get(TRANSACTIONS, Table(()))
        return sorted(row["nonce"] for row in table.rows.values() if row["state"] == "prepared")

    def expire(self, nonce: str) -> None:
        """Nothing expires; somebody deletes what is staged."""
        rows = self.tables[STAGING].rows
        self._world.did["loss"] += 1
        for key in [key for key, row in rows.items() if row["barrier_nonce"] == nonce]:
            del rows[key]

    def acts(self) -> Mapping[str, Callable[[], object]]:
        """Servers end."""
        return {"store is hurt": self._disturb}

    def _disturb(self) -> None:
        kind = self._world.choices.one_of(("restart", "restart", "fail over"))
        self._world.did["fault"] += 1
        self._world.did[kind] += 1
        self._world.see(f"database: {kind}")
        self.server += kind == "fail over"
        self._down_until = self._world.time + self._world.choices.one_of(DOWN_SECONDS)
        for session in list(self._sessions):
            self.end(session, "57P01")

    def well(self) -> None:
        """Servers run, and see whose client is gone."""
        self._down_until = 0.0
        for session in list(self._sessions):
            if session.lost_until is not None or session.owner is None or not session.owner.living:
                self.end(session, "08006")

    # -- sessions ---------------------------------------------------------------------------------------------------------

    def connect(self) -> Session:
        """Connect to whatever server runs now."""

        def connected() -> Session:
            self._advance()
            session = Session(self, self._world)
            self._sessions.append(session)
            return session

        try:
            return self._world.faults.request("CONNECT", connected, STATEMENT)
        except OSError as problem:
            raise DatabaseError("08001", str(problem)) from problem

    def serve(self, session: Session, act: Callable[[], Any]) -> Any:
        """Do what a session's client asks for; an error ends its transaction."""
        self._advance()
        if session.ended:
            raise DatabaseError(session.ended, "the server has ended the session")
        session.idle_since = None
        try:
            return act()
        except DatabaseError:
            self.end(session, "25P02")
            raise
        finally:
            session.idle_since = self._world.time

    def lose(self, session: Session) -> None:
        """A client is gone, or can't be reached: its server notices some time later."""
        if session.lost_until is None:
            session.lost_until = self._world.time + self._world.choices.one_of(NOTICED_SECONDS)

    def end(self, session: Session, state: str) -> None:
        """End a session: what it did not commit is gone, and its locks are free."""
        session.ended = session.ended or state
        self._end_transaction(session)
        if session in self._sessions:
            self._sessions.remove(session)

    def _end_transaction(self, session: Session) -> None:
        session.changes = {}
        self._locks = {place: holder for place, holder in self._locks.items() if holder is not session}

    def _advance(self) -> None:
        """Do what is due by now."""
        now = self._world.time
        if now < self._down_until:
            raise DatabaseError("08001", "no server runs")
        for session in list(self._sessions):
            if session.owner is not None and not session.owner.living:
                self.lose(session)
            limit, since = session.limit, session.idle_since
            if session.lost_until is not None and session.lost_until <= now:
                self.end(session, "08006")
            elif limit is not None and since is not None and now - since > limit:
                self.end(session, "25P03")

    # -- statements -------------------------------------------------------------------------------------------------------

    def run(self, session: Session, statement: Statement, parameters: list[Any]) -> list[Any]:
        """Run a statement of a session's transaction; return its rows."""
        if statement.verb == "CREATE":
            self.tables.setdefault(statement.table, Table(statement.columns))
            return []
        if statement.table == "servers":
            return [(str(self.server),)]
        if statement.table == "tables":
            return [(name,) for name in self.tables if name == parameters[0]]
        if statement.verb == "INSERT":
            values = (int(value) if value != "?" else parameters.pop(0) for value in statement.values)
            return self._insert(session, statement.table, dict(zip(statement.columns, values, strict=True)))
        news = {column: parameters.pop(0) for column in statement.columns} if statement.verb == "UPDATE" else {}
        wanted = {}
        for column, count in statement.where:
            wanted[column], parameters = set(parameters[:count]), parameters[count:]
        found = self._matching(session, statement.table, wanted)
        if statement.locks:
            locked = [self._locked(session, statement.table, key, wanted) for key, _ in found]
            found = [each for each in locked if each is not None]
        if statement.verb == "SELECT":
            return _selected(statement, [row for _, row in found])
        for key, row in found:
            session.changes[statement.table, key] = {**row, **news} if statement.verb == "UPDATE" else None
        return []

    def _insert(self, session: Session, table: str, row: Row) -> list[Any]:
        unique = self.tables[table].unique
        self._inserted += 1
        key = tuple(row[column] for column in unique) if unique else (self._inserted,)
        changing = self._locks.get((table, key), session)
        if changing is not session and (table, key) in changing.changes:  # else whoever locks it leaves it there
            self._lock(session, (table, key))
        if self._row(session, table, key) is not None:
            raise DatabaseError("23505", f"{key} is in {table} already")
        self._lock(session, (table, key))
        session.changes[table, key] = row
        return []

    def _row(self, session: Session, table: str, key: Key) -> Row | None:
        """Return a row as a session sees it."""
        if (table, key) in session.changes:
            return session.changes[table, key]
        return self.tables[table].rows.get(key)

    def _matching(self, session: Session, table: str, wanted: Mapping[str, Any]) -> list[tuple[Key, Row]]:
        if table not in self.tables:
            raise DatabaseError("42P01", f"there is no {table}")
        keys = dict.fromkeys((*self.tables[table].rows, *(key for name, key in session.changes if name == table)))
        rows = ((key, self._row(session, table, key)) for key in keys)
        return [(key, row) for key, row in rows if row is not None and _fits(row, wanted)]

    def _locked(self, session: Session, table: str, key: Key, wanted: Mapping[str, Any]) -> tuple[Key, Row] | None:
        """Lock a row, and look again: it may have been changed, or be gone."""
        self._lock(session, (table, key))
        row = self._row(session, table, key)
        return (key, row) if row is not None and _fits(row, wanted) else None

    def _lock(self, session: Session, place: Place) -> None:
        begun, pause = self._world.time, 0.01
        try:
            while self._locks.get(place, session) is not session:
                session.waits = self._locks[place]
                if session in _waiting_for(session):
                    raise DatabaseError("40P01", "deadlock")
                if session.limit is not None and self._world.time - begun > session.limit:
                    holder = session.waits.owner
                    at_work = holder is not None and holder.living and holder.until <= self._world.time
                    self._world.did["lock of the dead"] += not at_work
                    raise DatabaseError("57014", f"{place} is locked")
                self._world.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                self._advance()
                if session.ended:
                    raise DatabaseError(session.ended, "the server has ended the session")
        finally:
            session.waits = None
        self._locks[place] = session

    def commit(self, session: Session) -> None:
        """Make what a session has changed visible, in one instant."""
        shown = []
        for (table, key), row in session.changes.items():
            if row is None:
                self.tables[table].rows.pop(key, None)
            else:
                self.tables[table].rows[key] = row
                shown += [(key[0], int(row["value"]))] if table == TARGET else []
        self._end_transaction(session)
        if shown:
            self._world.auditor.appear([row for _, row in sorted(shown)], "", min(shown)[0])


def _fits(row: Row, wanted: Mapping[str, Any]) -> bool:
    return all(row[column] in values for column, values in wanted.items())


def _waiting_for(session: Session) -> Iterator[Session]:
    """Yield whom it waits for, and whom that one does."""
    each, seen = session.waits, []
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = each.waits


def _selected(statement: Statement, rows: list[Row]) -> list[Any]:
    first = statement.columns[0]
    if first.startswith("MAX("):
        return [(max((row[first[4:-1]] for row in rows), default=None),)]
    if statement.columns[-1] == "COUNT(*)":
        names = [row[first] for row in rows]
        return [(name, names.count(name)) for name in dict.fromkeys(names)]
    if statement.order:
        rows.sort(key=lambda row: row[statement.order])
    return [tuple(row[column] for column in statement.columns) for row in rows]
