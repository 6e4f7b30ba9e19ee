"""The control tables of a database sink: tasks' transactions, the owner of each prefix, and committed checkpoints.

All statements are SQL-92, with ``?`` for each parameter.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from transactional import TransactionContext

AT_ONCE: Final = 500
"""The maximum number of nonces in one statement."""

TRANSACTIONS: Final = "barrier_transactions"
PREFIXES: Final = "barrier_prefixes"
QUERIES: Final = "barrier_queries"
STORE: Final = "barrier_store"

CONTROL_TABLES: Final[Mapping[str, str]] = {
    TRANSACTIONS: "nonce VARCHAR(32) NOT NULL PRIMARY KEY, prefix VARCHAR(250) NOT NULL, query VARCHAR(250) NOT NULL, "
    "run BIGINT NOT NULL, batch BIGINT NOT NULL, task BIGINT NOT NULL, staged BIGINT NOT NULL, "
    "staging VARCHAR(250) NOT NULL, state VARCHAR(10) NOT NULL",
    PREFIXES: "prefix VARCHAR(250) NOT NULL PRIMARY KEY, token VARCHAR(40) NOT NULL, server VARCHAR(250) NOT NULL",
    QUERIES: "prefix VARCHAR(250) NOT NULL, query VARCHAR(250) NOT NULL, checkpoint BIGINT NOT NULL, "
    "PRIMARY KEY (prefix, query)",
    STORE: "one INTEGER NOT NULL PRIMARY KEY, id VARCHAR(40) NOT NULL",
}
"""Table name -> columns. The tables contain, in order: the tasks' transactions with their states; the run that owns
each prefix, with the server on which the run began; each query's newest committed checkpoint; the id of the control
tables. A copy of the database keeps this id."""


Value = TypeVar("Value")


class Cursor(Protocol):
    """A database cursor as PEP 249 defines it."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Any:
        """Run a statement."""

    def fetchall(self) -> list[Any]:
        """Return all rows of the last query."""


class Prepared(NamedTuple):
    """The row of a task's transaction in the control table."""

    nonce: str
    query: str
    run: int
    batch: int
    staging: str
    state: str


def marks(values: Sequence[Any]) -> str:
    """Return the placeholders for these values: one ``?`` per value, separated by commas."""
    return ", ".join("?" * len(values))


def portions(values: Sequence[Value], size: int = AT_ONCE) -> Iterator[Sequence[Value]]:
    """Yield slices of at most `size` values, each short enough for one statement."""
    for first in range(0, len(values), size):
        yield values[first : first + size]


class Owner(Protocol):
    """The part of `StagedSqlSink` that `ControlTables` uses."""

    locking: ClassVar[str]
    at_once: ClassVar[int]

    def control_table(self, name: str) -> str:
        """Return a control table's name as SQL writes it."""

    def run(self, cursor: Cursor, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run a statement; return its rows."""


class ControlTables:
    """Reads and writes the control tables for one prefix. Each method runs in the database transaction of its `cursor`.

    Parameters
    ----------
    owner : Owner
        The sink, to which this object keeps only a weak reference.
    prefix : str
        The option ``transactionalIdPrefix``.
    """

    def __init__(self, owner: Owner, prefix: str) -> None:
        name = owner.control_table
        self._owner: Owner = weakref.proxy(owner)
        self._locking, self._at_once, self._prefix = owner.locking, owner.at_once, prefix
        self._transactions, self._prefixes = name(TRANSACTIONS), name(PREFIXES)
        self._queries, self._store = name(QUERIES), name(STORE)

    # -- the tasks' transactions ------------------------------------------------------------------------------------

    def add(self, cursor: Cursor, context: TransactionContext, rows: int, staging: str) -> None:
        """Insert the row of a prepared transaction, with its number of rows and the name of its staging table."""
        names = "nonce, prefix, query, run, batch, task, staged, staging, state"
        task = (context.queryId, context.run, context.batchId, context.partitionId)
        values = (context.nonce, self._prefix, *task, rows, staging, "prepared")
        self._owner.run(cursor, f"INSERT INTO {self._transactions} ({names}) VALUES ({marks(values)})", values)

    def states(self, cursor: Cursor, nonces: Sequence[str], lock: bool = False) -> dict[str, str]:
        """Return the state (prepared, committed or aborted) of each transaction that has a row, by the transaction's nonce.

        With `lock`, lock these rows, so that the states can't change before the database transaction ends.
        """
        found: dict[str, str] = {}
        for some in portions(sorted(nonces), self._at_once if lock else AT_ONCE):
            where = f"WHERE nonce IN ({marks(some)}) ORDER BY nonce{self._locking if lock else ''}"
            found |= dict(self._owner.run(cursor, f"SELECT nonce, state FROM {self._transactions} {where}", some))
        return found

    def end(self, cursor: Cursor, nonces: Sequence[str], state: str) -> None:
        """Set the state of transactions to `state`. The caller has locked their rows."""
        for some in portions(nonces, self._at_once):
            where = f"WHERE nonce IN ({marks(some)})"
            self._owner.run(cursor, f"UPDATE {self._transactions} SET state = ? {where}", (state, *some))

    def all(self, cursor: Cursor) -> list[Prepared]:
        """Return all transactions of the prefix that have a row in the control table, ordered by nonce."""
        names = ", ".join(Prepared._fields)
        statement = f"SELECT {names} FROM {self._transactions} WHERE prefix = ? ORDER BY nonce"
        return [Prepared(*row) for row in self._owner.run(cursor, statement, (self._prefix,))]

    def forget(self, cursor: Cursor, nonces: Sequence[str]) -> None:
        """Delete the rows of transactions. The caller has locked these rows."""
        for some in portions(nonces, self._at_once):
            self._owner.run(cursor, f"DELETE FROM {self._transactions} WHERE nonce IN ({marks(some)})", some)

    # -- the prefix and the query -----------------------------------------------------------------------------------

    def claim(self, cursor: Cursor, server: str) -> str:
        """Make a new run the owner of this prefix, in place of any earlier run. Return the new run's token."""
        token = uuid.uuid4().hex
        statement = f"INSERT INTO {self._prefixes} (token, server, prefix) VALUES (?, ?, ?)"
        if self.claimed(cursor, lock=True) is not None:
            statement = f"UPDATE {self._prefixes} SET token = ?, server = ? WHERE prefix = ?"
        self._owner.run(cursor, statement, (token, server, self._prefix))
        return token

    def claimed(self, cursor: Cursor, lock: bool = False) -> tuple[str, str] | None:
        """Return the token of the prefix's newest run, and the server on which it began; None if the prefix has no run.

        With `lock`, lock the prefix's row, so that no run can claim the prefix before the database transaction ends.
        """
        where = f"WHERE prefix = ?{self._locking if lock else ''}"
        found = self._owner.run(cursor, f"SELECT token, server FROM {self._prefixes} {where}", (self._prefix,))
        return (str(found[0][0]), str(found[0][1])) if found else None

    def newest(self, cursor: Cursor, query: str) -> int:
        """Return the newest committed checkpoint of a query, under any prefix; 0 if it has none."""
        found = self._owner.run(cursor, f"SELECT MAX(checkpoint) FROM {self._queries} WHERE query = ?", (query,))
        return int(found[0][0] or 0)

    def record(self, cursor: Cursor, query: str, checkpoint: int) -> None:
        """Record that a checkpoint is committed.

        The caller has locked the prefix's row, so no other commit runs under the prefix.
        """
        whose = (self._prefix, query)
        own = self._owner.run(cursor, f"SELECT checkpoint FROM {self._queries} WHERE prefix = ? AND query = ?", whose)
        statement = f"INSERT INTO {self._queries} (checkpoint, prefix, query) VALUES (?, ?, ?)"
        if own:
            statement = f"UPDATE {self._queries} SET checkpoint = ? WHERE prefix = ? AND query = ?"
        self._owner.run(cursor, statement, (max(self.newest(cursor, query), checkpoint), *whose))

    # -- the id of the control tables -------------------------------------------------------------------------------

    def store(self, cursor: Cursor) -> str | None:
        """Return the id of the control tables; None if they have no id yet."""
        found = self._owner.run(cursor, f"SELECT id FROM {self._store}", ())
        return str(found[0][0]) if found else None

    def name_store(self, cursor: Cursor) -> None:
        """Give the control tables an id. If they already have one, the database rejects the INSERT."""
        self._owner.run(cursor, f"INSERT INTO {self._store} (one, id) VALUES (1, ?)", (uuid.uuid4().hex,))
