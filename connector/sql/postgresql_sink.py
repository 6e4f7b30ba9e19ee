"""The format ``2pc-postgresql``: tasks copy rows into a staging table, and one database transaction commits a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from connector.sql.binary_rows import as_binary
from connector.sql.connection_url import parse_url
from connector.sql.csv_rows import as_csv, numbers, repeated
from connector.sql.dialect import DELETES, OWN_COLUMNS, is_bytes, is_text
from connector.sql.postgresql_examination import examine_database
from connector.sql.postgresql_table import NAME, Column, Postgresql, Target
from connector.sql.staged_sink import StagedHandle, StagedTransaction
from connector.sql.table_sink import Staged, TableSink, literal
from connector.sql.write_options import POSTGRESQL_OPTIONS
from transactional import Finding, Options, TransactionContext

CONNECTION: Final[Mapping[str, str]] = {
    "application_name": NAME,
    "connect_timeout": "10",
    "target_session_attrs": "primary",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Default connection parameters, which the address can override. If the address has several hosts, the sink connects to the
primary. If a server disappears silently, the sink notices within a minute."""

AT_ONCE: Final = 64 << 20
"""The approximate number of bytes of rows that one COPY sends. A limit saves memory, because these rows are in memory
twice: as Arrow and encoded."""

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
"""Settings of each transaction, because a pooler does not keep a session's settings. `begin` adds the timeouts."""

DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
"""The statement that turns synchronous_commit on if it is off for a role or a database. Otherwise a crash could undo
confirmed commits."""

RAISED_BY: Final = frozenset({"ExecWithCheckOptions", "exec_stmt_raise"})
"""The functions in PostgreSQL's source code that raise an error if a policy or a trigger rejects a row. The error can
have any SQLSTATE."""

TRIED: Final = 1000
"""The number of rows that a task tries out, if the target may reject rows that its columns allow. In a trial, the task
inserts rows before the checkpoint is decided, and rolls back."""

LONG: Final = 1000
"""A row is tried out if its indexed columns have more bytes than this, because an index accepts at most a third of a
page."""

UNDECIDED: Final = frozenset({"23001", "23503", "40P01", "55P03", "57014"})
"""SQLSTATEs that a trial ignores. Before the commit, a missing parent row may be added, or a child row deleted. Two
trials may wait for each other."""

MOST: Final = 63
"""The maximum number of bytes in a name, without the quotation marks."""

ONE_CREATES: Final = "SELECT pg_advisory_xact_lock(hashtextextended('barrier-kafka', 0))"
"""The lock that makes queries create tables one after the other. With IF NOT EXISTS alone, two queries could collide in
the catalog."""

SERVER: Final = (
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()"
)

"""The query for the cluster's id and timeline. Every failover and every point-in-time recovery changes the timeline."""


EQUAL: Final = """
SELECT a.attname::text, coalesce(' COLLATE ' || quote_ident(ln.nspname) || '.' || quote_ident(l.collname), '')
       || format(' OPERATOR(%%I.%%s)', n.nspname, o.oprname)
FROM pg_index i CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS at (number)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[at.number]
JOIN pg_opclass c ON c.oid = i.indclass[at.number]
JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    AND m.amopstrategy = 3
JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
LEFT JOIN pg_collation l ON l.oid = i.indcollation[at.number] LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    AND (SELECT array_agg(name ORDER BY name COLLATE "C") FROM unnest(%s::text[]) AS given (name))
      = (SELECT array_agg(k.attname::text ORDER BY k.attname::text COLLATE "C") FROM pg_attribute k
         WHERE k.attrelid = i.indrelid AND k.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
"""
"""The query for the collation and the equality operator that a key's unique index uses for each column. With these, a
delete finds the same rows as an upsert."""


class PostgresqlSink(TableSink):
    """Appends rows to a PostgreSQL table, or replaces rows by key. A whole checkpoint becomes visible at one instant."""

    dialect_type = Postgresql
    dialect = Postgresql()
    table_of_options = POSTGRESQL_OPTIONS
    package: ClassVar[str] = "psycopg"
    dataset_server: ClassVar[tuple[str, int]] = ("postgres", 5432)
    drops: ClassVar[str] = ": a rule or a trigger of the table drops rows"
    _indexed: Sequence[int]
    """Positions of the indexed columns of variable length, whose values may be too long for the index."""

    _long: bool

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self.place = self.parsed["dbtable"]
        names = [(name, "dbtable") for name in re.findall(r'"(?:[^"]|"")*"|[^".]+', self.place)]
        for name, option in [*names, (self.parsed["stagingSchema"], "stagingSchema")]:
            if len(name.strip('"').replace('""', '"').encode()) > MOST:
                expectation = (
                    f"names of at most {MOST} bytes: PostgreSQL cuts longer names, so two names could become one"
                )
                raise POSTGRESQL_OPTIONS.invalid(option, self.parsed[option], expectation)
        self._address = parse_url(self.parsed["url"], NAME)
        self._address |= {name: self.parsed[name] for name in ("user", "password") if self.parsed[name] is not None}

    @classmethod
    def dataset(cls, table: str, database: str) -> str:
        """Return a table's name in OpenLineage: ``database.schema.table``."""
        plain = table.replace('"', "")
        return f"{database}.{plain if '.' in plain else f'public.{plain}'}"

    def table(self) -> str:
        """Return the target's name: the option ``dbtable``."""
        return self.place

    def described(self) -> str:
        """Return the target's name with the database, host and port."""
        address = self._address
        server = f"{address.get('host', 'localhost')}:{address.get('port', 5432)}"
        return f"{self.place} of {address.get('dbname', '')} at {server}"

    # -- sessions ---------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Connect, without prepared statements, because a pooler may use another server connection for each transaction."""
        from connector.sql.postgresql_session import Session

        given: dict[str, Any] = {**CONNECTION, **self._address}
        session = Session.connect(**given, prepare_threshold=None)
        session.commit_seconds = self.commit_seconds
        return session

    def begin(self, cursor: Any, seconds: float | None) -> None:
        """Set the isolation level, the settings and, from `seconds`, the timeouts of this database transaction."""
        limit = 0 if seconds is None else round(seconds * 1000)
        limits = ("statement_timeout", "idle_in_transaction_session_timeout")
        settings = {**SETTINGS, **dict.fromkeys(limits, str(limit))}
        calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
        cursor.execute(f"SELECT {calls}")
        cursor.execute(DURABLE)

    def sqlstate(self, problem: Exception) -> str:
        """Return psycopg's SQLSTATE. If a policy or a trigger rejected the row, return 22000 (a data error) instead."""
        raised_by = getattr(getattr(problem, "diag", None), "source_function", None)
        return "22000" if raised_by in RAISED_BY else super().sqlstate(problem)

    def server(self, cursor: Any) -> str:
        """Return the cluster's id and timeline; empty if the server does not show them to this user."""
        import psycopg

        try:
            with cursor.connection.transaction():
                return str(cursor.execute(SERVER).fetchone()[0])
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.FeatureNotSupported,
        ):
            return ""

    # -- driver -----------------------------------------------------------------------------------------------------

    def findings(self, cursor: Any, target: Any) -> Iterable[Finding]:
        """Return findings about the server, the target and this user's rights."""
        schema = self.parsed["stagingSchema"]
        deletes = self._deletes is not None
        return examine_database(cursor, self.described(), self.server(cursor), target, self._key, schema, deletes)

    def exclude(self, cursor: Any) -> None:
        """Wait for other queries that create tables, and make later ones wait until this database transaction ends."""
        cursor.execute(ONE_CREATES)

    def target(self, cursor: Any) -> str:
        """Return the target's object id (oid); empty if the target does not exist."""
        found = cursor.execute("SELECT to_regclass(%s)::oid::text", (self.place,)).fetchone()[0]
        return found or ""

    # -- executor ---------------------------------------------------------------------------------------------------

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Begin a database transaction, and find the indexed columns whose values may be too long for an index."""
        transaction = super().beginTransaction(context)
        target: Any = self.task.target
        self._indexed = [at for at, column in enumerate(self.task.staged) if column.name in target.indexed]
        self._long = False
        return transaction

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Copy the rows into the staging table, in binary form if `as_binary` can encode them, otherwise as CSV."""
        written, nonce, done = self.task.staged, transaction.context.nonce, transaction.rows
        self._long = self._long or sum(_longest(batch.column(at)) for at in self._indexed) > LONG
        names = ", ".join([*OWN_COLUMNS, *(self.dialect.quoted(column.name) for column in written)])
        portion = max(1, min(batch.num_rows, AT_ONCE * batch.num_rows // max(batch.nbytes, 1)))
        for rows in (batch.slice(at, portion) for at in range(0, batch.num_rows, portion)):
            whole = as_binary(rows.columns, [column.base for column in written], nonce, done)
            form = "csv" if whole is None else "binary"
            if whole is None:
                count = rows.num_rows
                whole = [as_csv(_widened(rows, written), repeated(nonce, count), numbers(done, count))]
            with transaction.cursor.copy(f"COPY {self.task.staging} ({names}) FROM STDIN (FORMAT {form})") as copy:
                for piece in whole:
                    copy.write(piece)
            done += rows.num_rows

    def preCommit(self, transaction: StagedTransaction) -> StagedHandle:
        """Try out the rows that the target may reject, then commit the staged rows."""
        with self.database.reaching():
            target: Any = self.look_up(transaction.cursor)
            if target is not None and transaction.rows:
                may_refuse = target.may_refuse(self.task.written, self.task.key)
                if may_refuse or self._long or self.task.deletes:
                    # One row shows whether the user may delete.
                    self._try(transaction, target, TRIED if may_refuse else int(self.task.deletes))
        return super().preCommit(transaction)

    def _try(self, transaction: StagedTransaction, target: Target, first: int) -> None:
        """Insert the first `first` rows, and all rows with long indexed values, into the target; then roll back.

        Without this trial, an error would stop the commit after the checkpoint is decided.
        """
        import psycopg

        task = self.task
        indexed = [self.dialect.quoted(task.staged[at].name) for at in self._indexed]
        sizes = [f"coalesce(pg_column_size(s.{name}), 0)" for name in indexed]
        long = f" OR {' + '.join(sizes)} > {LONG}" if sizes else ""
        cursor = transaction.cursor
        with cursor.connection.transaction() as trial:
            try:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
                more = f" AND (s.barrier_row < {first}{long})"
                names, nonces = [column.name for column in task.written], [transaction.context.nonce]
                self.insert(cursor, target, Staged(task.staging, names, task.key, nonces, task.deletes), more)
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except psycopg.Error as problem:
                if problem.sqlstate not in UNDECIDED and not (task.key and problem.sqlstate in ("23505", "23P01")):
                    raise
            raise psycopg.Rollback(trial)

    # -- commit -----------------------------------------------------------------------------------------------------

    def lock(self, cursor: Any) -> None:
        """Lock the table, if it exists, so that no one can alter, rename or drop it before this transaction ends.

        The caller reads the table's oid next.
        """
        if self.look_up(cursor) is not None:
            cursor.execute(f"LOCK TABLE {self.place} IN ROW EXCLUSIVE MODE")

    def _on_conflict(self, target: Any, names: Sequence[str], key: Sequence[str]) -> str:
        """Return the action of ``ON CONFLICT``: update all columns except those of the key whose values can't differ.

        If no column is left, do nothing. But if the table has triggers, rules or partitions, which may act on an
        update, update the key.
        """
        quoted = self.dialect.quoted
        same = {quoted(column.name) for column in target.columns if column.name in key and column.one_form}
        update = [name for name in names if name not in same] or ([quoted(name) for name in key] if target.acts else [])
        return f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in update)}" if update else "NOTHING"

    def insert(self, cursor: Any, target: Any, staged: Staged, more: str = "") -> tuple[int, int | None]:
        """Insert staged rows into the target. With a key, the last row of each key replaces, or deletes, the target's row."""
        staging, written, key, nonces, deletes = staged
        names = [self.dialect.quoted(column) for column in written]
        columns, values = ", ".join(names), ", ".join(f"s.{name}" for name in names)
        source = (
            f"FROM {staging} AS s JOIN unnest(ARRAY[{', '.join(map(literal, nonces))}]) WITH ORDINALITY AS o (nonce, turn) "
            f"ON s.barrier_nonce = o.nonce{more}"
        )
        statement = f"INSERT INTO {target.name} ({columns}) "
        if not key:
            order = " ORDER BY o.turn, s.barrier_row" if target.shows_order(written) else ""  # it doubles the time
            cursor.execute(f"{statement}SELECT {values} {source}{order}")
            return cursor.rowcount, None
        keys = [self.dialect.quoted(name) for name in key]
        own = ", ".join(f"s.{name}" for name in keys)
        values += f", s.{DELETES}" if deletes else ""
        last = f"SELECT DISTINCT ON ({own}) {values} {source} ORDER BY {own}, o.turn DESC, s.barrier_row DESC"
        if deletes:
            self._delete(cursor, target, key, f"(SELECT DISTINCT {own} {source} WHERE s.{DELETES}) AS s")
            last = f"SELECT {columns} FROM ({last}) AS s WHERE NOT s.{DELETES}"
        cursor.execute(f"{statement}{last} ON CONFLICT ({', '.join(keys)}) DO {self._on_conflict(target, names, key)}")
        taken = cursor.rowcount
        if not target.acts:
            return taken, taken
        cursor.execute(f"SELECT count(*) FROM ({last}) AS d")
        return taken, cursor.fetchone()[0]

    def _delete(self, cursor: Any, target: Any, key: Sequence[str], rows: str) -> None:
        """Delete the target's rows with the keys of `rows`. Raise if any of these rows still exists."""
        equal, quoted = dict(cursor.execute(EQUAL, (target.oid, list(key))).fetchall()), self.dialect.quoted
        blank = {column.name for column in target.columns if column.base == "bpchar" and not column.domain}
        ours = {name: f"s.{quoted(name)}" + ("::bpchar" if name in blank else "") for name in key}  # staged as text
        where = " AND ".join(f"t.{quoted(name)}{equal[name]} {ours[name]}" for name in key)
        own = target.name if target.partitioned else f"ONLY {target.name}"  # not rows of tables that inherit from it
        cursor.execute(f"DELETE FROM {own} AS t USING {rows} WHERE {where}")
        if target.acts:
            cursor.execute(f"SELECT count(*) FROM {own} AS t, {rows} WHERE {where}")
            kept = cursor.fetchone()[0]
            if kept:
                reason = "a rule or a trigger keeps them, or another session has written them"
                raise self.refusal(f"the table still has {kept} rows that the query deletes: {reason}")

    def unstage(self, cursor: Any, staging: str, nonces: Sequence[str]) -> None:
        """Delete staged rows.

        If the staging table has no other rows and is not in use, truncate it instead, so that it needs no vacuum.
        """
        import psycopg

        unable = psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege
        with suppress(*unable), cursor.connection.transaction():
            cursor.execute(f"LOCK TABLE {staging} IN ACCESS EXCLUSIVE MODE NOWAIT")
            others = cursor.execute(
                f"SELECT EXISTS (SELECT FROM {staging} WHERE barrier_nonce <> ALL (%s))", (list(nonces),)
            ).fetchone()[0]
            if not others:
                cursor.execute(f"TRUNCATE {staging}")
                return
        super().unstage(cursor, staging, nonces)


def _longest(values: pa.Array) -> int:
    """Return the approximate number of bytes of a column's longest value; for arrays, of the whole column."""
    if pa.types.is_nested(values.type) or not len(values):
        return int(values.nbytes)
    return int(pc.max(pc.binary_length(values)).as_py() or 0) if is_text(values.type) or is_bytes(values.type) else 32


def _widened(batch: pa.RecordBatch, written: Sequence[Column]) -> pa.RecordBatch:
    """Return a batch with floats as doubles where the table has doubles.

    Otherwise, the text of a float could be read as a slightly different double.
    """
    columns = [_doubles(column, target.base) for column, target in zip(batch.columns, written, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _doubles(column: pa.Array, base: str) -> pa.Array:
    kind = column.type
    if base == "float8" and pa.types.is_float32(kind):
        return column.cast(pa.float64())
    if base == "_float8" and pa.types.is_float32(kind.value_type):
        return column.cast(pa.large_list(pa.float64()) if pa.types.is_large_list(kind) else pa.list_(pa.float64()))
    return column
