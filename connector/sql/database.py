"""`Database`: a sink's connection to its database, with transactions, retries, and translation of errors."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

import tenacity

from connector.sinks import Deadline, SystemClock, without_named_secrets
from transactional import RowRefusedError, StoreError, StoreUnreachableError, TwoPhaseCommitError

RETRY_SECONDS: Final = 0.2

SLOW: Final = frozenset({"57014", "55P03", "25P03", "25P04", "HYT00"})
"""SQLSTATEs of timeouts: a canceled statement, a lock that another session holds, a transaction that took too long."""

AWAY: Final = ("08", "25006", "28", "3D", "40", "53300", "57", "HYT01")
"""SQLSTATEs, or their first characters, of errors that may be temporary, so that a retry can succeed. In order: connection
errors, a server that is now a standby, a wrong password, a missing database, rollbacks and deadlocks, too many connections, a
server that shuts down, a connection timeout. A full disk (53100) and too little memory are left out: retries do not help."""

ROWS: Final = ("21", "22", "23", "44", "45", "54", "P0")
"""SQLSTATE classes of errors that a row causes. 54 includes rows that are too large for an index; P0 is raised by triggers."""

STATE: Final = re.compile("[0-9A-Z]{5}")

SQLITE: Final = {5: "40", 6: "40", 10: "08", 13: "53", 14: "08", 15: "08", 18: "54", 19: "23", 20: "22"}
"""SQLite's result code -> SQLSTATE class. In order: busy, locked, I/O error, disk full, can't open, protocol; value too
big, violated constraint, type mismatch."""

Result = TypeVar("Result")


class Connection(Protocol):
    """A database connection as PEP 249 defines it, not in autocommit mode."""

    def cursor(self) -> Any:
        """Return a new cursor."""

    def commit(self) -> None:
        """Commit all changes since the last commit."""

    def rollback(self) -> None:
        """Undo all changes since the last commit."""

    def close(self) -> None:
        """Close the connection."""


class Owner(Protocol):
    """The part of `StagedSqlSink` that `Database` uses."""

    def connect(self) -> Connection:
        """Connect to the database."""

    def begin(self, cursor: Any, seconds: float | None) -> None:
        """Begin a database transaction."""

    def translated(self, problem: Exception) -> TwoPhaseCommitError | None:
        """Return the framework's error for a database error; None if `problem` is not a database error."""


class Database:
    """A sink's connection to its database, opened at the first use, and opened again after an error."""

    def __init__(self, owner: Owner, seconds: float) -> None:
        # The sink, held by a weak reference. So if a sink is dropped without `close`, the connection is dropped immediately,
        # not at the next garbage collection.
        self._owner: Owner = weakref.proxy(owner)
        self._seconds = seconds  # The driver's time limit: how many seconds one of its transactions may take.
        self._connection: Connection | None = None
        self._clock = SystemClock()

    def connection(self) -> Any:
        """Return the connection; connect first if necessary."""
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
        """Run the ``with`` block in one database transaction of the driver. Any exception rolls the transaction back."""
        with self.reaching():
            try:
                yield self.begin(self._seconds if seconds is None else seconds)
                self.connection().commit()
            except BaseException:
                self.close()
                raise

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Run the ``with`` block. If the block raises a database error, raise the framework's error instead."""
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
        """Call `attempt`, and return its result.

        While the database can't be reached, repeat the call until a time limit.

        Parameters
        ----------
        attempt : Callable[[float], Result]
            A function that gets the number of seconds until the driver's time limit.
        what : str
            The operation's name, for a note in the error that is raised when the time is up.
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
            raise problem.with_note(f"The error interrupted {what}, which a new run will finish.") from problem

    def close(self) -> None:
        """Roll back, then close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()


def plain(problem: Exception) -> str:
    """Return an error's text on one line, without the secrets in it."""
    return " ".join(without_named_secrets(str(problem)).split())


def standard_error(
    problem: Exception, state: str, owner: str, table: str, seconds: float
) -> TwoPhaseCommitError | None:
    """Return the framework's error for a database error, chosen by SQLSTATE; None if `problem` is not a database error.

    After an outage (``DATABASE_UNREACHABLE``), the statement is retried. After an outage or a timeout
    (``DATABASE_SLOW``), a restart of the query helps; any other error has to be fixed first. Clients raise
    ``OperationalError`` in all of these cases, so the error's class is used only if there is no SQLSTATE, that is, if
    the client itself found the error.

    Parameters
    ----------
    problem : Exception
        The error that the database client raised.
    state : str
        The error's SQLSTATE, from `sqlstate`; empty if the error has none.
    owner, table : str
        The names of the sink and of the target, for the message.
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
    """Return an error's SQLSTATE, wherever the client stores it (psycopg and PyMySQL, psycopg2, ODBC); empty if it has none."""
    first = problem.args[0] if problem.args else None
    for found in (getattr(problem, "sqlstate", None), getattr(problem, "pgcode", None), first):
        if isinstance(found, str) and STATE.fullmatch(found):
            return found
    return ""


def _likely(problem: Exception, names: set[str]) -> str:
    """Return an SQLSTATE class for an error without an SQLSTATE, from SQLite's result code or the error's class name.

    Before Python 3.11, errors of ``sqlite3`` have no result code, so every OperationalError counts as an outage.
    """
    code = getattr(problem, "sqlite_errorcode", None)
    if code is not None:
        return SQLITE.get(code & 0xFF, "HY")
    if {"DataError", "IntegrityError"} & names:
        return "22"
    return "08" if {"OperationalError", "InterfaceError"} & names else "HY"
