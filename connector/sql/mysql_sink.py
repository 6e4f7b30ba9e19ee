"""The format ``2pc-mysql``: tasks stage rows in MySQL or MariaDB, and one database transaction commits a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from connector.sql.dialect import DELETES, OWN_COLUMNS, Target
from connector.sql.mysql_examination import examine_database
from connector.sql.mysql_rows import as_values
from connector.sql.mysql_table import NAME, Column, Mysql
from connector.sql.mysql_url import named, parse_mysql_url
from connector.sql.staged_sink import StagedHandle, StagedTransaction
from connector.sql.table_sink import Staged, TableSink, is_deleting, literal, names_of
from connector.sql.write_options import MYSQL_OPTIONS
from transactional import Finding, Options, RowRefusedError, StoreUnreachableError, TwoPhaseCommitError

STATEMENT_BYTES: Final = 1 << 20
"""The approximate size of an INSERT statement in bytes. Larger statements are not faster."""

ROOM: Final = 4096
"""The number of bytes that stay free in a packet that contains the beginning of an INSERT statement and one row."""

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
"""Session variables of each transaction. Other values, which the server, the user or a pooler may have set, could
change or hide rows."""

IDLE_SECONDS: Final = 8 * 3600
"""The maximum number of seconds for which a task may wait for its rows. This is also the default limit for idle
sessions in MySQL."""

IDLE_LIMITS: Final = (
    "idle_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "idle_write_transaction_timeout",
)

"""MariaDB's variables that limit how long a transaction may be idle."""

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
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), "42501"),
}
"""Error number -> the SQLSTATE that the error should have. For these errors, the server sends a general SQLSTATE, most
often HY000. In order: a lock wait that took too long, and interrupted statements; connection errors; too few threads or
locks at the moment; a full disk, too little memory; conflicts; a server that is or is becoming a replica; a value that
a column can't store, a missing value, a row that fits no partition, a violated CHECK, an error from a trigger; a row
that is too large; missing rights."""

TRIED: Final = 1000
"""The number of rows that each task tries out: it inserts them into the target before the checkpoint is decided, then
rolls back."""

TRIAL_SECONDS: Final = 1.0
"""The maximum number of seconds that a trial may take, including waits for locks. The result of a longer trial is
ignored."""

REFUSED: Final = frozenset({"ROW_REFUSED", "DATABASE_REFUSED"})
"""Error conditions that fail the task if they occur in a trial, because they would also stop the commit."""

FOREIGN_KEYS: Final = frozenset({1216, 1217, 1451, 1452})
"""Error numbers of violated foreign keys. A trial ignores them, because before the commit the parent row may be added,
or the child row deleted."""


class MysqlSink(TableSink):
    """Appends rows to a MySQL or MariaDB table, or replaces rows by key. A whole checkpoint becomes visible at one instant."""

    dialect_type = Mysql
    dialect: Mysql
    table_of_options = MYSQL_OPTIONS
    package: ClassVar[str] = "pymysql"
    dataset_server: ClassVar[tuple[str, int]] = ("mysql", 3306)
    at_once: ClassVar[int] = 1
    _is_galera: bool
    _packet: int

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        parsed = self.parsed
        self._address = parse_mysql_url(parsed["url"], NAME)
        self._user = parsed["user"] if parsed["user"] is not None else self._address.user
        self._password = parsed["password"] if parsed["password"] is not None else self._address.password
        self._names = named(parsed["dbtable"], self._address.database)
        if not self._names[0]:
            expectation = "database.table, because the url names no database"
            raise MYSQL_OPTIONS.invalid("dbtable", parsed["dbtable"], expectation)
        self.place = ".".join(map(Mysql.quoted, self._names))

    @classmethod
    def dataset(cls, table: str, database: str) -> str:
        """Return a table's name in OpenLineage: ``database.table``."""
        return ".".join(named(table, database))

    def table(self) -> str:
        """Return the target's name with its database: ``database.table``."""
        return ".".join(self._names)

    def described(self) -> str:
        """Return the target's name with the server's host and port."""
        return f"{self.table()} at {self._address.host}:{self._address.port}"

    # -- sessions ---------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Connect; find out whether the server is MariaDB or in a Galera cluster, and its maximum packet size."""
        import pymysql

        address, limit = self._address, math.ceil(self.commit_seconds) + 10
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=self._user,
            password=(self._password or "").encode(),  # PyMySQL would encode text as Latin 1
            database=address.database or self._names[0],  # a DELETE with an alias needs one
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=10,
            read_timeout=limit,
            write_timeout=limit,
            program_name=NAME,
            ssl=address.tls(NAME),
            ssl_disabled=address.mode == "disabled",
        )
        self.dialect = Mysql("mariadb" in connection.get_server_info().lower())
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_big_selects = 1, SESSION completion_type = 0")
            self._is_galera = _variable(cursor, "wsrep_on").upper() == "ON"
            self._packet = int(_variable(cursor, "max_allowed_packet"))
        connection.rollback()
        return connection

    def begin(self, cursor: Any, seconds: float | None) -> None:
        """Set the session variables for this database transaction."""
        limit = IDLE_SECONDS if seconds is None else math.ceil(seconds)
        settings = {
            **SETTINGS,
            self.dialect.isolation: "'READ-COMMITTED'",
            "innodb_lock_wait_timeout": str(limit),
            "lock_wait_timeout": str(limit),
            "wait_timeout": str(IDLE_SECONDS if seconds is None else max(limit, 60)),
        }
        if self.dialect.mariadb:
            settings["max_statement_time"] = "0" if seconds is None else str(limit)
            settings |= dict.fromkeys(IDLE_LIMITS, "0")
            settings["check_constraint_checks"] = "1"
        if self._is_galera:
            settings["wsrep_sync_wait"] = "15"  # if another node took over, it first applies all commits
        cursor.execute("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items()))

    def sqlstate(self, problem: Exception) -> str:
        """Return the SQLSTATE for an error: from `STATES` if its number is there, otherwise the server's SQLSTATE."""
        number = problem.args[0] if problem.args else None
        state = STATES.get(number or 0, "") or super().sqlstate(problem)
        return "42000" if state == "42501" and not hasattr(self, "dialect") else state  # the user may not connect

    def server(self, cursor: Any) -> str:
        """Return the server's id, which its replicas do not share. Raise a retriable error if the server is read-only.

        Without this check, a privileged user could write to a replica, or to a primary that is about to become one.
        """
        cursor.execute(self.dialect.server)
        name, is_read_only = cursor.fetchone()
        if int(is_read_only):
            reason = "the server is read-only: it is a replica, or is about to become one"
            raise StoreUnreachableError("DATABASE_UNREACHABLE", owner=NAME, table=self.described(), reason=reason)
        return str(name)

    # -- driver -----------------------------------------------------------------------------------------------------

    def findings(self, cursor: Any, target: Target[Column] | None) -> Iterable[Finding]:
        """Return findings about the server and the target."""
        return examine_database(cursor, self.described(), target, self._key, self.dialect, self._is_galera)

    def look_up_whole(self, cursor: Any) -> Target[Column] | None:
        """Return the target's description, and lock the target.

        No one can alter the target until this database transaction ends. Raise if the user may not read all columns,
        because the information schema then hides some of the indexes.
        """
        target = self.look_up(cursor)
        if target is not None:
            cursor.execute(f"SELECT * FROM {target.name} LIMIT 0")
            target = self.look_up(cursor)
        return target

    # -- executor ---------------------------------------------------------------------------------------------------

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Insert rows into the staging table, many per statement. Raise if the server warns that it changed a value."""
        cursor, names = transaction.cursor, [column.name for column in self.task.staged]
        own = ", ".join([*OWN_COLUMNS, *map(self.dialect.quoted, names)])
        begin = f"INSERT INTO {self.task.staging} ({own}) VALUES ".encode()
        columns = [_widened(column) for column in batch.columns]
        rows = as_values(columns, names, transaction.context.nonce, transaction.rows)
        if rows.largest() > self._packet - ROOM - len(begin):
            size = f"a row of {rows.largest()} bytes of text is too large for the server's max_allowed_packet = {self._packet}"
            raise RowRefusedError("ROW_REFUSED", owner=NAME, reason=f"{self.described()}: {size}")
        for values in rows.portions(min(STATEMENT_BYTES, self._packet // 2)):
            cursor.execute(begin + values)
            if cursor.warning_count:
                cursor.execute("SHOW WARNINGS LIMIT 1")
                said = cursor.fetchone()
                reason = f"{self.described()}: the database would change a value: {said[-1] if said else ''}"
                raise RowRefusedError("ROW_REFUSED", owner=NAME, reason=reason)

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Commit the staged rows, then try out the first of them. If the target rejects them, abort and raise."""
        handle = super().preCommit(transaction)
        try:
            self._try(handle)
        except TwoPhaseCommitError:
            self.abort([handle])
            raise
        return handle

    def _try(self, handle: StagedHandle) -> None:
        """Insert a task's first rows into the target, and roll back.

        Without the trial, an error would stop the commit after the checkpoint is decided. The trial has a separate
        database transaction, because after a deadlock MySQL rolls back a whole transaction. If the target has or may
        have a trigger, no row is tried out, because a rollback does not undo a trigger's writes to tables without
        transactions.
        """
        with self.database.reaching():
            try:
                cursor, more = self.database.begin(TRIAL_SECONDS), handle["more"]
                target = self.look_up(cursor)
                tries = target is not None and self.dialect.has_trigger(cursor, target) is False
                staged = Staged(handle["staging"], names_of(more), more["key"], [handle["nonce"]], is_deleting(more))
                if target is not None and (tries or staged.deletes):  # with no row, only rights are tried
                    self.insert(cursor, target, staged, f" AND s.barrier_row < {TRIED}" if tries else " AND FALSE")
            except Exception as problem:
                found = self.translated(problem)
                if found is None or (found.condition in REFUSED and problem.args[0] not in FOREIGN_KEYS):
                    raise
            finally:
                self.database.close()

    # -- commit -----------------------------------------------------------------------------------------------------

    def lock(self, cursor: Any) -> None:
        """Lock the target, so that no one can alter, rename or drop it before this database transaction ends."""
        if self.look_up_whole(cursor) is None:
            raise self.refusal("the table no longer exists")

    def insert(self, cursor: Any, target: Target[Column], staged: Staged, more: str = "") -> tuple[int, int | None]:
        """Insert the staged rows of one transaction into the target.

        If rows may be deletions, only the last row of each key counts.
        """
        names, (nonce,) = list(map(self.dialect.quoted, staged.names)), staged.nonces
        source, own = f"{staged.staging} AS s", f"s.barrier_nonce = {literal(nonce)}{more}"
        if staged.deletes:
            keys = list(map(self.dialect.quoted, staged.key))
            equal = " AND ".join(f"t.{name} = s.{name}" for name in keys)
            cursor.execute(f"DELETE t FROM {target.name} AS t JOIN {source} ON {equal} WHERE {own} AND s.{DELETES}")
            of_key = ", ".join(f"s.{name}" for name in keys)
            last = f"SELECT MAX(s.barrier_row) AS row_of_key FROM {source} WHERE {own} GROUP BY {of_key}"
            source += f" JOIN ({last}) AS l ON s.barrier_row = l.row_of_key"
            own += f" AND NOT s.{DELETES}"
        statement = (
            f"INSERT INTO {target.name} ({', '.join(names)}) SELECT {', '.join(f's.{name}' for name in names)} "
            f"FROM {source} WHERE {own} ORDER BY s.barrier_row"
        )
        if staged.key:  # also sets the key: an equal string may be spelled differently
            statement += " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in names)
        taken = int(cursor.execute(statement))
        return taken, taken if staged.key else None  # the server counts a replaced row twice

    def unstage(self, cursor: Any, staging: str, nonces: Sequence[str]) -> None:
        """Delete the transactions' staged rows by primary key.

        A scan would wait for rows that running tasks are inserting.
        """
        for nonce in nonces:
            statement = f"DELETE {staging} FROM {staging} FORCE INDEX (PRIMARY) WHERE barrier_nonce = ?"
            self.run(cursor, statement, (nonce,))


def _widened(column: pa.Array) -> pa.Array:
    """Return floats as doubles: MySQL could read a float's text as a different number, or as one that is too large."""
    return column.cast(pa.float64()) if pa.types.is_float32(column.type) else column


def _variable(cursor: Any, name: str) -> str:
    """Return the value of a server variable; empty if the server has no variable with this name."""
    cursor.execute("SHOW VARIABLES WHERE variable_name = %s", (name,))
    found = cursor.fetchone()
    return str(found[1]) if found else ""
