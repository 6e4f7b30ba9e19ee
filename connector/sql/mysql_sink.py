"""The format ``2pc-mysql``: rows go into a staging table of MySQL or MariaDB, and a checkpoint is one database transaction."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import pyarrow as pa

from connector.options import HOST_OPTIONS
from connector.sql.control_tables import CONTROL_TABLES, Cursor
from connector.sql.fitting import staging_name
from connector.sql.mysql_examination import examine_database
from connector.sql.mysql_rows import as_values
from connector.sql.mysql_table import (
    NAME,
    Column,
    Flavour,
    Target,
    create_statement,
    describe,
    fit_table,
    has_trigger,
    quoted,
    staging_statement,
    why_no_key,
)
from connector.sql.mysql_url import named, parse_mysql_url
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from connector.sql.write_options import MYSQL_OPTIONS
from transactional.capabilities import Examines, NamesDatasets, WarmsUp
from transactional.errors import OptionError, RowRefusedError, StoreError, TwoPhaseCommitError
from transactional.finding import Finding
from transactional.sink import Options, TransactionContext

__all__ = ["MysqlSink"]

STATEMENT_BYTES: Final = 1 << 20
"""Of an INSERT, about. Larger ones are not faster."""

ROOM: Final = 4096
"""Bytes of a statement that are not rows, at most."""

SETTINGS: Final[Mapping[str, str]] = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO'",
    "time_zone": "'+00:00'",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "sql_safe_updates": "0",
    "sql_select_limit": "18446744073709551615",
    "sql_big_selects": "1",
    "sql_notes": "1",
    "completion_type": "0",
}
"""Of each database transaction: what a server, a user or a pooler has set otherwise would change or hide rows."""

IDLE_SECONDS: Final = 8 * 3600
"""How long a task may wait for its rows: as long as MySQL lets sessions wait by default."""

IDLE_LIMITS: Final = (
    "idle_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "idle_write_transaction_timeout",
)
"""MariaDB's, for transactions that wait."""

NO_RIGHT: Final = frozenset({1044, 1142, 1143, 1227, 1370})
STATES: Final[Mapping[int, str]] = {
    **dict.fromkeys((1205, 1317, 1969, 3024), "57014"),
    **dict.fromkeys(
        (1047, 1049, 1129, 1130, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927, 3169, 4031), "08000"
    ),
    **dict.fromkeys((1135, 1206, 1637), "53300"),
    **dict.fromkeys((1021, 1037, 1038, 1041, 1114), "53100"),
    **dict.fromkeys((1020, 1180, 1297, 3100), "40000"),
    **dict.fromkeys((1290, 1792, 1836), "25006"),
    **dict.fromkeys((1265, 1300, 1364, 1366, 1411, 1526, 1644, 3819), "22000"),
    **dict.fromkeys((1118, 1713), "54000"),
}
"""Numbers of errors -> the SQLSTATE that they should have: most have HY000, or one that says too little. A lock wait that took
too long and statements that were stopped; connections; threads and locks that are used up for now; a full disk, too little
memory; conflicts; a server that is a replica now, or is about to be; a value that a column can't have, a column without one, a
row for no partition, a violated CHECK, a trigger that raises; a row that is too large."""

TRIED: Final = 1000
"""Rows of a task that are inserted before the decision, and taken back."""

TRIAL_SECONDS: Final = 1.0
"""For this, and for the locks that it waits for. If that is too little, it proves nothing."""

REFUSED: Final = frozenset({"ROW_REFUSED", "DATABASE_REFUSED"})
"""What a trial proves: it would stop the commit, too."""

NO_PARENT: Final = frozenset({1216, 1452})
"""A foreign key: the parent may come with the same checkpoint."""


class MysqlSink(Examines, WarmsUp, NamesDatasets, StagedSqlSink):
    """Appends rows to a table of MySQL or MariaDB, or replaces those of the same key, a whole checkpoint at one instant.

    Parameters
    ----------
    options : Options
        See `connector.sql.write_options`.
    schema : pyarrow.Schema
        Of the rows; columns are found by name.

    Raises
    ------
    OptionError
        Offline: unknown or missing options, an address that can't be read.
    """

    marker: ClassVar[str] = "%s"

    at_once: ClassVar[int] = 1

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        if find_spec("pymysql") is None:
            raise OptionError("MISSING_PACKAGE", owner=NAME, package="barrier-kafka[mysql]", option="format")
        parsed = MYSQL_OPTIONS.parse(options, also=HOST_OPTIONS)
        if parsed["deliveryGuarantee"] != "exactly-once":
            expectation = "exactly-once, as its commits are whole checkpoints either way"
            raise MYSQL_OPTIONS.invalid("deliveryGuarantee", parsed["deliveryGuarantee"], expectation)
        self._address = parse_mysql_url(parsed["url"], NAME)
        self._user = parsed["user"] if parsed["user"] is not None else self._address.user
        self._password = parsed["password"] if parsed["password"] is not None else self._address.password
        self._schema: str = parsed["stagingSchema"]
        self._key: Sequence[str] = parsed["upsertKey"]
        self.replacesRows = bool(self._key)
        self._written: str = parsed["dbtable"]
        self._place = named(self._written, self._address.database)
        if not self._place[0]:
            raise MYSQL_OPTIONS.invalid("dbtable", self._written, "database.table, as the url names no database")

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def table(self) -> str:
        """Return the table and its database."""
        return ".".join(self._place)

    def described(self) -> str:
        """Return the table, and where it is."""
        return f"{self.table()} at {self._address.host}:{self._address.port}"

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Connect."""
        import pymysql

        address, limit = self._address, math.ceil(self.commit_seconds) + 10
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=self._user,
            password=(self._password or "").encode(),  # as text it would be taken for Latin 1
            database=address.database or None,
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=10,
            read_timeout=limit,
            write_timeout=limit,
            program_name=NAME,
            ssl=address.tls(NAME),
            ssl_disabled=address.mode == "disabled",
        )
        self._flavour = Flavour("mariadb" in connection.get_server_info().lower())
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_big_selects = 1, SESSION completion_type = 0")
            self._is_galera = _variable(cursor, "wsrep_on").upper() == "ON"
            self._packet = int(_variable(cursor, "max_allowed_packet"))
        connection.rollback()
        return connection

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        """Set what holds for this transaction."""
        limit = IDLE_SECONDS if seconds is None else math.ceil(seconds)
        settings = {
            **SETTINGS,
            self._flavour.isolation: "'READ-COMMITTED'",
            "innodb_lock_wait_timeout": str(limit),
            "lock_wait_timeout": str(limit),
            "wait_timeout": str(IDLE_SECONDS if seconds is None else max(limit, 60)),
        }
        if self._flavour.mariadb:
            settings["max_statement_time"] = "0" if seconds is None else str(limit)
            settings |= dict.fromkeys(IDLE_LIMITS, "0")
            settings["check_constraint_checks"] = "1"
        if self._is_galera:
            settings["wsrep_sync_wait"] = "15"  # a node that took over has applied what was committed elsewhere
        cursor.execute("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items()))

    def sqlstate(self, problem: Exception) -> str:
        """Return the SQLSTATE that an error's number stands for, if it is in `STATES`; else the server's."""
        number = problem.args[0] if problem.args else None
        return STATES.get(number or 0, "") or super().sqlstate(problem)

    def server(self, cursor: Any) -> str:
        """Return what distinguishes this server from its replicas. One that is read-only is waited for.

        A user with many rights could write to it nevertheless: to a replica, or to a primary that is about to be one.
        """
        cursor.execute(self._flavour.server)
        name, is_read_only = cursor.fetchone()
        if int(is_read_only):
            reason = "the server is read-only: a replica, or one that is about to be"
            raise StoreError("DATABASE_UNREACHABLE", owner=NAME, table=self.described(), reason=reason)
        return str(name)

    def control_table(self, name: str) -> str:
        """Return the table in `stagingSchema`."""
        return f"{quoted(self._schema)}.{name}"

    # -- driver -----------------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Check that the table, if there is one, can take the rows, or could be created."""
        with self.database.transaction() as cursor:
            target = self._whole_target(cursor)
            if self.schema.names:  # else they are not known
                self._fitting(target)

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Look at the server and the table."""
        with self.database.transaction() as cursor:
            target = self._target(cursor)
            return list(examine_database(cursor, self.described(), target, self._key, self._flavour, self._is_galera))

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the table."""
        where = urlsplit(options.get("url", "").removeprefix("jdbc:"))
        if where.hostname is None:
            return []
        database, name = named(options["dbtable"], where.path.lstrip("/"))
        return [(f"mysql://{where.hostname}:{where.port or 3306}", f"{database}.{name}")]

    def identify(self) -> dict[str, str]:
        """Create what is missing: the staging schema and its tables, and the target."""
        try:
            return super().identify()
        except StoreError as problem:
            cause = problem.__cause__
            number = cause.args[0] if isinstance(cause, Exception) and cause.args else None
            if number not in NO_RIGHT or not hasattr(self, "_flavour"):  # which a connection has found out
                raise
            statements = self._statements()
            raise StoreError("MISSING_DDL", owner=NAME, reason=str(cause), statements=statements) from None

    def create_control_tables(self) -> None:
        """Create the control tables unless they are there: a query without the right to create may use them."""
        with self.database.transaction() as cursor:
            found = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
            if not cursor.execute(found, (self._schema,)):
                cursor.execute(self._schema_statement())
            for name, columns in CONTROL_TABLES.items():
                if not self._is_there(cursor, name):
                    cursor.execute(self._control_statement(name, columns))

    def create(self, cursor: Any) -> None:
        """Create the target, if it is not there, and the staging table. MySQL commits after each."""
        target = self._target(cursor)
        if target is None:
            cursor.execute(self._target_statement())
        target = self._whole_target(cursor)
        assert target is not None
        written = self._fitting(target)
        staging = self._staging_of(target, written)
        if not self._is_there(cursor, staging):
            cursor.execute(staging_statement(self._qualified(staging), target, written, self._flavour))

    def has(self, cursor: Any, name: str) -> bool:
        """Return whether there is a control table of this name."""
        return self._is_there(cursor, name)

    def has_target(self, cursor: Any) -> bool:
        """Return whether the table is there."""
        return self._target(cursor) is not None

    def staging(self, cursor: Cursor) -> str:
        """Return the staging table of this prefix, this target and its columns as they are."""
        return self._task[0]

    def more(self) -> dict[str, Any]:
        """Return the columns, with their types, and those of the key."""
        _, written, key = self._task
        return {"columns": {column.name: column.whole for column in written}, "key": key}

    # -- executor ---------------------------------------------------------------------------------------------------

    def warmUp(self, context: TransactionContext) -> None:
        """Connect."""
        self.database.connection()

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Look at the table, and begin."""
        transaction = super().beginTransaction(context)
        with self.database.reaching():
            target = self._target(transaction.cursor)
            if target is None:
                raise self._refusal("the table is not there any more")
            written = self._fitting(target)
            key = [column.name for name in self._key if (column := target.column(name)) is not None]
            self._task = self._qualified(self._staging_of(target, written)), written, key
        return transaction

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Insert the rows, many with one statement. What the database would change, it warns of: that is refused."""
        staging, written, _ = self._task
        names = ", ".join(["barrier_nonce", "barrier_row", *(quoted(column.name) for column in written)])
        columns = [_widened(column) for column in batch.columns]
        begin = f"INSERT INTO {staging} ({names}) VALUES ".encode()
        rows = as_values(columns, [column.name for column in written], transaction.context.nonce, transaction.rows)
        if rows.largest() > self._packet - ROOM - len(begin):
            size = f"a row of {rows.largest()} bytes, as text, is larger than the server's max_allowed_packet = {self._packet}"
            raise RowRefusedError("ROW_REFUSED", owner=NAME, reason=f"{self.described()}: {size}")
        for values in rows.portions(min(STATEMENT_BYTES, self._packet // 2)):
            transaction.cursor.execute(begin + values)
            if transaction.cursor.warning_count:
                transaction.cursor.execute("SHOW WARNINGS LIMIT 1")
                said = transaction.cursor.fetchone()
                reason = f"{self.described()}: the database would change a value: {said[-1] if said else ''}"
                raise RowRefusedError("ROW_REFUSED", owner=NAME, reason=reason)

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Commit the rows, then try them."""
        handle = super().preCommit(transaction)
        try:
            self._try(handle)
        except TwoPhaseCommitError:
            self.abort([handle])
            raise
        return handle

    def _try(self, handle: StagedHandle) -> None:
        """Insert the first rows, and take them back: what stops them now would stop the commit, after the decision.

        It is a database transaction of its own, as MySQL rolls back the whole of one after a deadlock. If a trigger may be
        there, no row is tried: what it writes to a table without transactions would stay.
        """
        with self.database.reaching():
            try:
                cursor = self.database.begin(TRIAL_SECONDS)
                target = self._target(cursor)
                if target is not None and has_trigger(cursor, target, self._flavour) is False:
                    self._insert(cursor, target, handle, f" LIMIT {TRIED}")
            except Exception as problem:
                found = self.translated(problem)
                if found is None or (found.condition in REFUSED and problem.args[0] not in NO_PARENT):
                    raise
            finally:
                self.database.close()

    # -- commit -----------------------------------------------------------------------------------------------------

    def lock(self, cursor: Any) -> None:
        """Let no one alter or rename the table until the end of the transaction."""
        if self._whole_target(cursor) is None:
            raise self._refusal("the table is not there any more")

    def publish(self, cursor: Any, handles: Sequence[StagedHandle]) -> None:
        """Insert the rows, in order; with a key each replaces the one of its key."""
        target = self._target(cursor)
        for handle in handles:
            self._check_unchanged(target, **handle["more"])
            count = self._insert(cursor, target, handle)
            if not handle["more"]["key"] and count != handle["rows"]:
                raise self._refusal(f"it took {count} rows of {handle['rows']}")

    def _insert(self, cursor: Any, target: Target, handle: StagedHandle, limit: str = "") -> int:
        """Insert staged rows; return how many the server counted."""
        names = [quoted(name) for name in handle["more"]["columns"]]
        nonce, keys = handle["nonce"], handle["more"]["key"]
        if not nonce.isalnum():
            raise ValueError(nonce)
        statement = (
            f"INSERT INTO {target.name} ({', '.join(names)}) SELECT {', '.join(f's.{name}' for name in names)} "
            f"FROM {handle['staging']} AS s WHERE s.barrier_nonce = '{nonce}' ORDER BY s.barrier_row{limit}"
        )
        if keys:  # the key, too: one that is equal may be spelled otherwise
            statement += " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in names)
        return int(cursor.execute(statement))

    def unstage(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> None:
        """Delete staged rows: of one transaction after the other, by the index, as a scan waits for what open tasks insert."""
        for nonce in nonces:
            statement = f"DELETE {staging} FROM {staging} FORCE INDEX (PRIMARY) WHERE barrier_nonce = ?"
            self.run(cursor, statement, (nonce,))

    def staged(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return how many rows are staged."""
        if not self._is_there(cursor, named(staging, "")[1]):
            return {}
        return super().staged(cursor, staging, nonces)

    # -- tables -----------------------------------------------------------------------------------------------------

    _task: tuple[str, Sequence[Column], Sequence[str]]
    _flavour: Flavour
    _is_galera: bool
    _packet: int

    def _target(self, cursor: Any) -> Any:
        return describe(cursor, *self._place, self._flavour)

    def _whole_target(self, cursor: Any) -> Any:
        """Return the table, which no one can alter until the end of the transaction; None if it is not there.

        Who may not read all of its columns is refused: indexes of the others are in no information schema.
        """
        target = self._target(cursor)
        if target is not None:
            cursor.execute(f"SELECT * FROM {target.name} LIMIT 0")
            target = self._target(cursor)
        return target

    def _fitting(self, target: Target | None) -> list[Column]:
        if target is None:
            self._target_statement()
            return []
        return fit_table(self.schema, target, self._key)

    def _staging_of(self, target: Target, written: Sequence[Column]) -> str:
        columns = [column.staged(self._flavour) for column in written]
        return staging_name(target.plain, self._prefix, target.name, columns, target.checks_on(written))

    def _qualified(self, staging: str) -> str:
        return f"{quoted(self._schema)}.{quoted(staging)}"

    def _is_there(self, cursor: Any, table: str) -> bool:
        statement = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return bool(cursor.execute(statement, (self._schema, table)))

    def _check_unchanged(self, target: Target, columns: Mapping[str, str], key: Sequence[str]) -> None:
        """Check that columns and key are as they were: a value might change on its way, or replace another key's row."""
        now = {column.name: column.whole for column in target.columns}
        changed = [
            f"{name} was {kind}, and " + (f"is {now[name]}" if name in now else "is gone")
            for name, kind in columns.items()
            if now.get(name) != kind
        ]
        if key and (reason := why_no_key(target, columns, key)):
            changed.append(reason)
        if changed:
            raise StoreError("TABLE_CHANGED", table=self.described(), columns="; ".join(changed))

    def _refusal(self, reason: str) -> StoreError:
        return StoreError("DATABASE_REFUSED", owner=NAME, table=self.described(), reason=reason)

    # -- statements that create -------------------------------------------------------------------------------------

    def _schema_statement(self) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {quoted(self._schema)}"

    def _control_statement(self, name: str, columns: str) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns}) {self._flavour.table_options}"

    def _target_statement(self) -> str:
        name = ".".join(map(quoted, self._place))
        return create_statement(self.schema, name, self._key, self._flavour)

    def _statements(self) -> str:
        found = [self._schema_statement(), *(self._control_statement(*each) for each in CONTROL_TABLES.items())]
        with suppress(Exception), self.database.transaction() as cursor:
            target = self._target(cursor)
            if target is None:
                found.append(self._target_statement())
            else:
                written = self._fitting(target)
                staging = self._qualified(self._staging_of(target, written))
                found.append(staging_statement(staging, target, written, self._flavour))
        return ";\n".join(found) + ";"


def _widened(column: pa.Array) -> pa.Array:
    """Return floats as doubles: the text of 0.1 is another number in a double, and that of the largest is too large."""
    return column.cast(pa.float64()) if pa.types.is_float32(column.type) else column


def _variable(cursor: Any, name: str) -> str:
    """Return a server's variable; empty if it has none of this name."""
    cursor.execute("SHOW VARIABLES WHERE variable_name = %s", (name,))
    found = cursor.fetchone()
    return str(found[1]) if found else ""
