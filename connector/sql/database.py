"""A database as a sink uses it: one connection, database transactions, errors as ours, and another try when it is away."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

import tenacity

from connector.sinks import Deadline, SystemClock, without_named_secrets
from transactional import RowRefusedError, StoreError, StoreUnreachableError, TwoPhaseCommitError

__all__ = ["Connection", "Database", "Owner", "plain", "sqlstate", "standard_error"]

RETRY_SECONDS: Final = 0.2

SLOW: Final = frozenset({"57014", "55P03", "25P03", "25P04", "HYT00"})
"""A statement that was stopped, a lock that another session holds, and transactions that took too long."""

AWAY: Final = ("08", "25006", "28", "3D", "40", "53300", "57", "HYT01")
"""SQLSTATEs, or their classes, that another try may not meet: connections, a server that is a stand-by now, a wrong password,
rollbacks and deadlocks, too many connections, a server that stops. A full disk (53100) and too little memory do not pass by
themselves."""

ROWS: Final = ("21", "22", "23", "44", "45", "54", "P0")
"""Classes of SQLSTATE that a row is to blame for: also one that is too large for an index, and what a trigger raises."""

STATE: Final = re.compile("[0-9A-Z]{5}")

SQLITE: Final = {5: "40", 6: "40", 10: "08", 13: "53", 14: "08", 15: "08", 18: "54", 19: "23", 20: "22"}
"""Result codes of SQLite -> classes: busy, locked, I/O, full, can't open, protocol; too big, a constraint, a mismatch."""

Result = TypeVar("Result")


class Connection(Protocol):
    """A connection of PEP 249 that is not in autocommit mode."""

    def cursor(self) -> Any:
        """Return a cursor."""

    def commit(self) -> None:
        """Commit what was done since the last commit."""

    def rollback(self) -> None:
        """Give up what was done since the last commit."""

    def close(self) -> None:
        """Close it."""


class Owner(Protocol):
    """The sink that a database is for: a part of `StagedSqlSink`."""

    def connect(self) -> Connection:
        """Connect to the database."""

    def begin(self, cursor: Any, seconds: float | None) -> None:
        """Begin a database transaction."""

    def translated(self, problem: Exception) -> TwoPhaseCommitError | None:
        """Return the database's error as ours."""


class Database:
    """A sink's database. It is connected when it is first needed, and again after an error.

    Parameters
    ----------
    owner : Owner
        Is not kept alive: a sink that is dropped without `close` drops its connection with it, not at the next collection.
    seconds : float
        How long a transaction of the driver's may take.
    """

    def __init__(self, owner: Owner, seconds: float) -> None:
        self._owner: Owner = weakref.proxy(owner)
        self._seconds = seconds
        self._connection: Connection | None = None
        self._clock = SystemClock()

    def connection(self) -> Any:
        """Return the connection."""
        if self._connection is None:
            self._connection = self._owner.connect()
        return self._connection

    def begin(self, seconds: float | None) -> Any:
        """Begin a database transaction; return its cursor."""
        cursor = self.connection().cursor()
        self._owner.begin(cursor, seconds)
        return cursor

    @contextmanager
    def transaction(self, seconds: float | None = None) -> Iterator[Any]:
        """Run one database transaction of the driver's; whatever is raised inside rolls it back."""
        with self.reaching():
            try:
                yield self.begin(self._seconds if seconds is None else seconds)
                self.connection().commit()
            except BaseException:
                self.close()
                raise

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Raise the database's errors as ours."""
        try:
            yield
        except TwoPhaseCommitError:
            raise
        except Exception as problem:
            translated = self._owner.translated(problem)
            if translated is None:
                raise
            raise translated from problem

    def retried(self, attempt: Callable[[float], Result], what: str) -> Result:
        """Try again while the database can't be reached, until the driver's time is over.

        Parameters
        ----------
        attempt : Callable[[float], Result]
            Is given the seconds that are left.
        what : str
            For the error's note.
        """
        deadline = Deadline(self._seconds, self._clock)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StoreUnreachableError),
            stop=lambda state: deadline.passed(),
            wait=tenacity.wait_fixed(RETRY_SECONDS),
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            return attempts(lambda: attempt(max(deadline.left(), 1.0)))
        except StoreUnreachableError as problem:
            raise problem.with_note(f"It was {what}: a new run continues with it.") from problem

    def close(self) -> None:
        """Close the connection, after a rollback."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()


def plain(problem: Exception) -> str:
    """Return an error's text in one line, without secrets that it names."""
    return " ".join(without_named_secrets(str(problem)).split())


def standard_error(
    problem: Exception, state: str, owner: str, table: str, seconds: float
) -> TwoPhaseCommitError | None:
    """Return a database's error as ours, by its SQLSTATE. None if it is no database's.

    An outage passes: the statement is tried again, and the query is started again. Nothing else does, so it stops the query.
    Drivers call both an ``OperationalError``. This name counts only if there is no SQLSTATE: then the driver found it.

    Parameters
    ----------
    problem : Exception
    state : str
        As `sqlstate` returns it.
    owner, table : str
        For the message.
    seconds : float
        The option ``commitTimeoutMs``, in seconds.
    """
    names = {each.__name__ for each in type(problem).__mro__}
    if not {"DatabaseError", "InterfaceError", "OperationalError"} & names:
        return None
    state, reason = state or _likely(problem, names), plain(problem)
    if state in SLOW:
        return StoreError("DATABASE_SLOW", owner=owner, table=table, limit=round(1000 * seconds), reason=reason)
    if state.startswith(AWAY):
        return StoreUnreachableError("DATABASE_UNREACHABLE", owner=owner, table=table, reason=reason)
    if state.startswith(ROWS):
        return RowRefusedError("ROW_REFUSED", owner=owner, reason=f"{table}: {reason}")
    return StoreError("DATABASE_REFUSED", owner=owner, table=table, reason=reason)


def sqlstate(problem: Exception) -> str:
    """Return an error's SQLSTATE where its driver keeps it (psycopg and PyMySQL, psycopg2, ODBC); empty if it has none."""
    first = problem.args[0] if problem.args else None
    for found in (getattr(problem, "sqlstate", None), getattr(problem, "pgcode", None), first):
        if isinstance(found, str) and STATE.fullmatch(found):
            return found
    return ""


def _likely(problem: Exception, names: set[str]) -> str:
    """Return the class of SQLSTATE that an error without one would have."""
    code = getattr(problem, "sqlite_errorcode", None)
    if code is not None:
        return SQLITE.get(code & 0xFF, "HY")
    if {"DataError", "IntegrityError"} & names:
        return "22"
    return "08" if {"OperationalError", "InterfaceError"} & names else "HY"
