"""The format ``2pc-postgresql``: rows are copied into a staging table, and a checkpoint is one database transaction."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import groupby
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import pyarrow as pa

from connector.options import HOST_OPTIONS
from connector.sql.binary_rows import as_binary
from connector.sql.connection_url import parse_url
from connector.sql.control_tables import CONTROL_TABLES, Cursor
from connector.sql.csv_rows import as_csv, numbers, repeated
from connector.sql.database import plain
from connector.sql.fitting import staging_name
from connector.sql.postgresql_examination import examine_database
from connector.sql.postgresql_table import (
    NAME,
    Column,
    Target,
    create_statement,
    describe,
    fit_table,
    longest,
    quoted,
)
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from connector.sql.write_options import POSTGRESQL_OPTIONS
from transactional.capabilities import Examines, NamesDatasets, WarmsUp
from transactional.errors import OptionError, RowRefusedError, StoreError, TwoPhaseCommitError
from transactional.finding import Finding
from transactional.sink import Options, TransactionContext

__all__ = ["PostgresqlSink"]

CONNECTION: Final[Mapping[str, str]] = {
    "application_name": NAME,
    "connect_timeout": "10",
    "target_session_attrs": "primary",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Parameters that the address may set otherwise; of several hosts the one that is no stand-by. A server that is gone without a
word is noticed within a minute."""

AT_ONCE: Final = 64 << 20
"""Bytes of rows that are copied at once, about: their other form is in memory, too."""

OWN_COLUMNS: Final = {"barrier_nonce": "text", "barrier_row": "bigint"}
"""The first columns of a staging table: whose row it is, and which of its rows."""

SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "timezone_abbreviations": "Default",
    "xmloption": "content",
    "array_nulls": "on",
    "lock_timeout": "0",
}
"""Valid for one transaction, so that they hold behind a pooler, too. A task may wait for its rows, and may wait long."""

DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
"""A role or a database may have it off, and then a crash takes commits back that were answered."""

RAISED_BY: Final = frozenset({"ExecWithCheckOptions", "exec_stmt_raise"})
"""The server's functions that refuse a row for a policy, or because a trigger said so, whatever SQLSTATE it named."""

TRIED: Final = 1000
"""Rows of a task that are inserted before the decision, and taken back, if the table may refuse what its columns allow."""

LONG: Final = 1000
"""Bytes in the indexed columns of a row that may be too many for an index: a third of a page is the limit."""

UNDECIDED: Final = frozenset({"23503", "40P01", "55P03", "57014"})
"""What a trial proves nothing by: parents may come with the same checkpoint, and two trials may wait for each other."""

MOST: Final = 63
"""Bytes of a name, without its quotation marks."""

ONE_CREATES: Final = "SELECT pg_advisory_xact_lock(hashtextextended('barrier-kafka', 0))"
"""Queries that begin at once create one after the other: IF NOT EXISTS alone lets two collide in the catalog."""

SERVER: Final = (
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()"
)
"""The id of the cluster, and its timeline, which every failover and every recovery to a point in time changes."""


class PostgresqlSink(Examines, WarmsUp, NamesDatasets, StagedSqlSink):
    """Appends rows to a table of PostgreSQL, or replaces those of the same key, a whole checkpoint at one instant.

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

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        if find_spec("psycopg") is None:
            raise OptionError("MISSING_PACKAGE", owner=NAME, package="barrier-kafka[postgresql]", option="format")
        parsed = POSTGRESQL_OPTIONS.parse(options, also=HOST_OPTIONS)
        if parsed["deliveryGuarantee"] != "exactly-once":
            expectation = "exactly-once, as its commits are whole checkpoints either way"
            raise POSTGRESQL_OPTIONS.invalid("deliveryGuarantee", parsed["deliveryGuarantee"], expectation)
        self._table: str = parsed["dbtable"]
        self._key: Sequence[str] = parsed["upsertKey"]
        self.replacesRows = bool(self._key)
        self._schema: str = parsed["stagingSchema"]
        names = [(name, "dbtable") for name in re.findall(r'"(?:[^"]|"")*"|[^".]+', self._table)]
        for name, option in [*names, (self._schema, "stagingSchema")]:
            if len(name.strip('"').replace('""', '"').encode()) > MOST:
                expectation = f"names of at most {MOST} bytes: PostgreSQL cuts longer ones, and two tables may be one"
                raise POSTGRESQL_OPTIONS.invalid(option, parsed[option], expectation)
        self._address = parse_url(parsed["url"], NAME)
        self._address |= {name: parsed[name] for name in ("user", "password") if parsed[name] is not None}

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def table(self) -> str:
        """Return the option ``dbtable``."""
        return self._table

    def described(self) -> str:
        """Return the table, and where it is."""
        address = self._address
        server = f"{address.get('host', 'localhost')}:{address.get('port', 5432)}"
        return f"{self.table()} of {address.get('dbname', '')} at {server}"

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Connect; no statement is prepared, as poolers may give each transaction another connection of the server's."""
        from connector.sql.postgresql_session import Session

        given: dict[str, Any] = {**CONNECTION, **self._address}
        session = Session.connect(**given, prepare_threshold=None)
        session.commit_seconds = self.commit_seconds
        return session

    def begin(self, cursor: Cursor, seconds: float | None) -> None:
        """Set what holds for this transaction."""
        limit = 0 if seconds is None else round(seconds * 1000)
        limits = ("statement_timeout", "idle_in_transaction_session_timeout")
        settings = {**SETTINGS, **dict.fromkeys(limits, str(limit))}
        calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
        cursor.execute(f"SELECT {calls}")
        cursor.execute(DURABLE)

    def translated(self, problem: Exception) -> TwoPhaseCommitError | None:
        """Return psycopg's errors as ours: what a policy or a trigger refuses is a row, whatever SQLSTATE it named."""
        if getattr(getattr(problem, "diag", None), "source_function", None) in RAISED_BY:
            return RowRefusedError("ROW_REFUSED", owner=NAME, reason=f"{self.described()}: {plain(problem)}")
        return super().translated(problem)

    def server(self, cursor: Cursor) -> str:
        """Return the cluster's id and its timeline; empty if this server does not show them."""
        import psycopg

        try:
            with self.database.connection().transaction():
                return str(cursor.execute(SERVER).fetchone()[0])
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.FeatureNotSupported,
        ):
            return ""

    def control_table(self, name: str) -> str:
        """Return the table in `stagingSchema`."""
        return f"{quoted(self._schema)}.{name}"

    # -- driver -----------------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Check that the table, if there is one, can take the rows, or could be created."""
        with self.database.transaction() as cursor:
            target = self._target(cursor)
            if self.schema.names:  # else they are not known
                self._fitting(cursor, target)

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Look at the server, the table and this user's rights."""
        with self.database.transaction() as cursor:
            target = self._target(cursor)
            server = self.server(cursor)
            return list(examine_database(cursor, self.described(), server, target, self._key, self._schema))

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the table."""
        where = urlsplit(options.get("url", "").removeprefix("jdbc:"))
        if where.hostname is None:
            return []
        name = options["dbtable"].replace('"', "")
        whole = name if "." in name else f"public.{name}"
        return [(f"postgres://{where.hostname}:{where.port or 5432}", f"{where.path.lstrip('/')}.{whole}")]

    def identify(self) -> dict[str, str]:
        """Create what is missing: the schema and its tables, and the target."""
        import psycopg

        try:
            try:
                return self._created()
            except RowRefusedError as problem:
                if not isinstance(problem.__cause__, psycopg.errors.UniqueViolation):
                    raise
                return self._created()  # another query has created the same
        except StoreError as problem:
            if not isinstance(problem.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            reason = str(problem.__cause__).splitlines()[0]
            raise StoreError("MISSING_DDL", owner=NAME, reason=reason, statements=self._statements()) from None

    def _created(self) -> dict[str, str]:
        with self.database.transaction() as cursor:
            cursor.execute(ONE_CREATES)
            if cursor.execute("SELECT to_regnamespace(%s)", (quoted(self._schema),)).fetchone()[0] is None:
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
        return super().identify()

    def create_control_tables(self) -> None:
        """Create the control tables unless they are there: a query without the right to create may use them."""
        with self.database.transaction() as cursor:
            cursor.execute(ONE_CREATES)
            for name, columns in CONTROL_TABLES.items():
                if cursor.execute("SELECT to_regclass(%s)", (self.control_table(name),)).fetchone()[0] is None:
                    cursor.execute(f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns})")

    def create(self, cursor: Cursor) -> None:
        """Create the target, if it is not there, and the staging table."""
        cursor.execute(ONE_CREATES)
        target = self._target(cursor)
        if target is None:
            cursor.execute(create_statement(self.schema, self._table, self._key))
            target = self._target(cursor)
        written = self._fitting(cursor, target)
        staging = self._staging_of(target, written)
        if cursor.execute("SELECT to_regclass(%s)", (staging,)).fetchone()[0] is None:
            cursor.execute(_staging_statement(staging, target, written))
            # Else a publication FOR ALL TABLES lets no row be deleted.
            cursor.execute(f"ALTER TABLE {staging} REPLICA IDENTITY FULL")

    def staging(self, cursor: Cursor) -> str:
        """Return the staging table of this prefix, this target and its columns as they are."""
        return self._place[0]

    def has(self, cursor: Cursor, name: str) -> bool:
        """Return whether there is a control table of this name."""
        found = cursor.execute("SELECT to_regclass(%s)", (self.control_table(name),)).fetchone()[0]
        return found is not None

    def has_target(self, cursor: Cursor) -> bool:
        """Return whether the table is there."""
        return bool(self.target(cursor))

    def target(self, cursor: Cursor) -> str:
        """Return the table's oid."""
        found = cursor.execute("SELECT to_regclass(%s)::oid::text", (self._table,)).fetchone()[0]
        return found or ""

    def more(self) -> dict[str, Any]:
        """Return the columns, with their types, and those of the key."""
        _, written, key = self._place
        return {"columns": {column.name: column.type for column in written}, "key": list(key)}

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
                reason = "the table is not there any more"
                raise StoreError("DATABASE_REFUSED", owner=NAME, table=self.described(), reason=reason)
            written = self._fitting(transaction.cursor, target)
            key = [column.name for name in self._key if (column := target.column(name)) is not None]
            self._place = self._staging_of(target, written), written, key
            self._indexed = [at for at, column in enumerate(written) if column.name in target.indexed]
            self._long = False
        return transaction

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Copy the rows into the staging table: in binary form if all of their types have one, else as CSV."""
        staging, written, _ = self._place
        self._long = self._long or sum(longest(batch.column(at)) for at in self._indexed) > LONG
        names = ", ".join([*OWN_COLUMNS, *(quoted(column.name) for column in written)])
        nonce, begin, done = transaction.context.nonce, transaction.rows, 0
        portion = max(1, min(batch.num_rows, AT_ONCE * batch.num_rows // max(batch.nbytes, 1)))
        for rows in (batch.slice(at, portion) for at in range(0, batch.num_rows, portion)):
            whole = as_binary(rows.columns, [column.base for column in written], nonce, begin + done)
            form = "csv" if whole is None else "binary"
            if whole is None:
                count = rows.num_rows
                whole = [as_csv(_widened(rows, written), repeated(nonce, count), numbers(begin + done, count))]
            with transaction.cursor.copy(f"COPY {staging} ({names}) FROM STDIN (FORMAT {form})") as copy:
                for piece in whole:
                    copy.write(piece)
            done += rows.num_rows

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Try the rows that the table may refuse, and commit."""
        with self.database.reaching():
            target = self._target(transaction.cursor)
            if target is not None and transaction.rows and (target.may_refuse(*self._place[1:]) or self._long):
                self._try(transaction, target)
        return super().preCommit(transaction)

    def _try(self, transaction: StagedTransaction, target: Target) -> None:
        """Insert the first rows, and all that are long where an index is, and take them back.

        What stops them now would stop the commit, after the decision.
        """
        import psycopg

        staging, written, key = self._place
        sizes = [f"coalesce(pg_column_size(s.{quoted(written[at].name)}), 0)" for at in self._indexed]
        also = f" AND (s.barrier_row < {TRIED if target.may_refuse(written, key) else 0}"
        also += f" OR {' + '.join(sizes)} > {LONG})" if sizes else ")"
        cursor, names = transaction.cursor, [column.name for column in written]
        with self.database.connection().transaction() as trial:
            try:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
                self._insert(cursor, target, staging, names, key, [transaction.context.nonce], also)
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except psycopg.Error as problem:
                if problem.sqlstate not in UNDECIDED and not (key and problem.sqlstate in ("23505", "23P01")):
                    raise
            raise psycopg.Rollback(trial)

    # -- commit -----------------------------------------------------------------------------------------------------

    def lock(self, cursor: Any) -> None:
        """Let no one alter or rename the table until the end of the transaction."""
        if self._target(cursor) is not None:
            cursor.execute(f"LOCK TABLE {self._table} IN ROW EXCLUSIVE MODE")

    def publish(self, cursor: Any, handles: Sequence[StagedHandle]) -> None:
        """Insert the rows, in order; with a key its last row, also over those that are in the table."""
        target = self._target(cursor)
        for (staging, key), group in groupby(handles, lambda handle: (handle["staging"], handle["more"]["key"])):
            some = list(group)
            written = self._columns(cursor, target, staging, some[0]["more"].get("columns"))
            taken, rows = self._insert(cursor, target, staging, written, key, [handle["nonce"] for handle in some])
            if rows is None:
                rows = sum(handle["rows"] for handle in some)
            if taken != rows:
                reason = f"it took {taken} rows of {rows}: a rule or a trigger of the table drops some"
                raise StoreError("DATABASE_REFUSED", owner=NAME, table=self.described(), reason=reason)

    def _insert(
        self,
        cursor: Any,
        target: Target,
        staging: str,
        written: Sequence[str],
        key: Sequence[str],
        whose: Sequence[str],
        also: str = "",
    ) -> tuple[int, int | None]:
        """Insert staged rows; return how many rows the table took, and of how many; None for all that are staged."""
        names = [quoted(column) for column in written]
        columns, values = ", ".join(names), ", ".join(f"s.{name}" for name in names)
        source = (
            f"FROM {staging} AS s JOIN unnest(ARRAY[{', '.join(map(_literal, whose))}]) WITH ORDINALITY AS o (nonce, turn) "
            f"ON s.barrier_nonce = o.nonce{also}"
        )
        statement = f"INSERT INTO {target.name} ({columns}) "
        if not key:
            order = " ORDER BY o.turn, s.barrier_row" if target.shows_order(written) else ""  # half of the time
            cursor.execute(f"{statement}SELECT {values} {source}{order}")
            return cursor.rowcount, None
        keys = [quoted(name) for name in key]
        own = ", ".join(f"s.{name}" for name in keys)
        same = {quoted(column.name) for column in target.columns if column.name in key and column.one_form}
        update = [name for name in names if name not in same] or (keys if target.acts else [])
        change = ", ".join(f"{name} = EXCLUDED.{name}" for name in update)
        cursor.execute(
            f"{statement}SELECT DISTINCT ON ({own}) {values} {source} ORDER BY {own}, o.turn DESC, s.barrier_row DESC "
            f"ON CONFLICT ({', '.join(keys)}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}"
        )
        taken = cursor.rowcount
        if not target.acts:
            return taken, taken
        cursor.execute(f"SELECT count(*) FROM (SELECT DISTINCT {own} {source}) AS d")
        return taken, cursor.fetchone()[0]

    def unstage(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> None:
        """Delete staged rows; if there are no others, and no one writes there now, without leaving them to a vacuum."""
        import psycopg

        unable = psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege
        with suppress(*unable), self.database.connection().transaction():
            cursor.execute(f"LOCK TABLE {staging} IN ACCESS EXCLUSIVE MODE NOWAIT")
            others = cursor.execute(
                f"SELECT EXISTS (SELECT FROM {staging} WHERE barrier_nonce <> ALL (%s))", (list(nonces),)
            ).fetchone()[0]
            if not others:
                cursor.execute(f"TRUNCATE {staging}")
                return
        super().unstage(cursor, staging, nonces)

    def staged(self, cursor: Cursor, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return how many rows are staged."""
        if cursor.execute("SELECT to_regclass(%s)", (staging,)).fetchone()[0] is None:
            return {}
        return super().staged(cursor, staging, nonces)

    # -- tables -----------------------------------------------------------------------------------------------------

    _place: tuple[str, Sequence[Column], Sequence[str]]
    _indexed: Sequence[int]
    _long: bool

    def _target(self, cursor: Any) -> Any:
        return describe(cursor, self._table)

    def _fitting(self, cursor: Any, target: Target | None) -> list[Column]:
        if target is None:
            create_statement(self.schema, self._table, self._key)
            return []
        return fit_table(self.schema, target, self._key)

    def _staging_of(self, target: Target, written: Sequence[Column]) -> str:
        columns = [(column.name, column.type, column.not_null, column.collation) for column in written]
        about = self._prefix, target.oid, columns, target.checks_on(written)
        return f"{quoted(self._schema)}.{quoted(staging_name(target.name.partition('.')[2], *about))}"

    def _columns(self, cursor: Any, target: Target, staging: str, was: Mapping[str, str] | None) -> list[str]:
        """Return the columns of staged rows. In the target they have to be as they were: a value might change on its way."""
        if was is None:  # a handle of an earlier release
            source = describe(cursor, staging)
            assert source is not None
            was = {column.name: column.type for column in source.columns[len(OWN_COLUMNS) :]}
        now = {column.name: column.type for column in target.columns}
        changed = [
            f"{name} was {kind}, and " + (f"is {now[name]}" if name in now else "is gone")
            for name, kind in was.items()
            if now.get(name) != kind
        ]
        if changed:
            raise StoreError("TABLE_CHANGED", table=self.described(), columns="; ".join(changed))
        return list(was)

    def _statements(self) -> str:
        found = [f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}"]
        found += [f"CREATE TABLE IF NOT EXISTS {self.control_table(n)} ({text})" for n, text in CONTROL_TABLES.items()]
        with suppress(Exception), self.database.transaction() as cursor:
            target = self._target(cursor)
            if target is None:
                found.append(create_statement(self.schema, self._table, self._key))
            else:
                written = self._fitting(cursor, target)
                found.append(_staging_statement(self._staging_of(target, written), target, written))
        return ";\n".join(found) + ";"


def _literal(nonce: str) -> str:
    """Return a nonce, which is hexadecimal, as it stands in a statement."""
    if not nonce.isalnum():
        raise ValueError(nonce)
    return f"'{nonce}'"


def _widened(batch: pa.RecordBatch, written: Sequence[Column]) -> pa.RecordBatch:
    """Return a batch whose floats are doubles where the table has doubles: the text of 0.1 is another number there."""
    columns = [_doubles(column, target.base) for column, target in zip(batch.columns, written, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _doubles(column: pa.Array, base: str) -> pa.Array:
    kind = column.type
    if base == "float8" and pa.types.is_float32(kind):
        return column.cast(pa.float64())
    if base == "_float8" and pa.types.is_float32(kind.value_type):
        return column.cast(pa.large_list(pa.float64()) if pa.types.is_large_list(kind) else pa.list_(pa.float64()))
    return column


def _staging_statement(staging: str, target: Target, written: Sequence[Column]) -> str:
    """Return the statement that creates a staging table, which refuses what the target would refuse."""
    columns = [f"{name} {kind} NOT NULL" for name, kind in OWN_COLUMNS.items()]
    columns += [f"{quoted(c.name)} {c.staged}" for c in written]
    columns += target.checks_on(written)
    return (
        f"CREATE TABLE {staging} ({', '.join(columns)}) "
        "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000)"
    )
