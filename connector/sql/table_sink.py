"""`TableSink`: the base class of this package's sinks for PostgreSQL and MySQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import groupby
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from connector.sinks import HOST_OPTIONS, OptionTable
from connector.sql.control_tables import CONTROL_TABLES, portions
from connector.sql.dialect import DELETES, Dialect, Target
from connector.sql.fitting import create_statement, fit, flag_of, staging_name
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from transactional import (
    Examines,
    Finding,
    NamesDatasets,
    OptionError,
    Options,
    RowRefusedError,
    StoreError,
    TransactionContext,
    TwoPhaseCommitError,
    WarmsUp,
)


class Task(NamedTuple):
    """A task's staging table and target.

    `staged` are the staging table's columns, in the order of the rows' columns.
    """

    staging: str
    target: Target[Any]
    staged: Sequence[Any]
    key: list[str]
    deletes: bool = False  # Whether one of the staged columns is `DELETES`: its value says that the row deletes.

    @property
    def written(self) -> list[Any]:
        """The target's columns that the task writes."""
        return [column for column in self.staged if not (self.deletes and column.name == DELETES)]


class Staged(NamedTuple):
    """The staged rows that one statement moves into the target.

    `names` are the rows' columns. `nonces` are their transactions, in the order in which the rows are moved.
    If the sink's `at_once` is 1, there is only one transaction.
    """

    staging: str
    names: Sequence[str]
    key: Sequence[str]
    nonces: Sequence[str]
    deletes: bool = False  # Whether a row in which the column `DELETES` is true deletes the row with its key.


class TableSink(Examines, WarmsUp, NamesDatasets, StagedSqlSink):
    """Appends rows to a table, or replaces rows by key. A whole checkpoint becomes visible at one instant.

    For each database, a subclass implements the hooks of `StagedSqlSink` and of this class, and names a `Dialect`.

    Parameters
    ----------
    options : Options
        See `connector.sql.write_options`.
    schema : pyarrow.Schema
        The rows' schema. Columns are matched by name.

    Raises
    ------
    OptionError
        An option is unknown, missing or wrong, or the database's client is not installed. (The sink does not connect yet.)
    """

    marker: ClassVar[str] = "%s"
    dialect_type: ClassVar[type[Dialect[Any]]]
    dialect: Dialect[Any]
    """The dialect of the server. A subclass may set this attribute when it connects."""

    table_of_options: ClassVar[OptionTable]
    package: ClassVar[str]
    """The Python package of the database's client."""

    dataset_server: ClassVar[tuple[str, int]]
    """The URL scheme in OpenLineage's names, and the database's default port."""

    drops: ClassVar[str] = ""
    """A possible reason why the table stored fewer rows than the sink inserted. The error message ends with this
    text."""

    place: str
    """The target's name, as SQL writes it."""

    task: Task
    """The staging table and the target of the current task. Set only on an executor."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        if find_spec(self.package) is None:
            package = f"barrier-kafka[{self.name().removeprefix('2pc-')}]"
            raise OptionError("MISSING_PACKAGE", owner=self.name(), package=package, option="format")
        self.parsed = self.table_of_options.parse(options, also=HOST_OPTIONS)
        if self.parsed["deliveryGuarantee"] != "exactly-once":
            expectation = "exactly-once, because this sink always commits whole checkpoints"
            raise self.table_of_options.invalid("deliveryGuarantee", self.parsed["deliveryGuarantee"], expectation)
        self._key: Sequence[str] = self.parsed["upsertKey"]
        self._deletes: str | None = self.parsed["deleteColumn"]
        if self._deletes is not None and not self._key:
            expectation = "not set, because it needs upsertKey: a row deletes the row with the same key"
            raise self.table_of_options.invalid("deleteColumn", self._deletes, expectation)
        self.replacesRows = bool(self._key)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.dialect_type.name

    def control_table(self, name: str) -> str:
        """Return the name of a control table in `stagingSchema`."""
        return f"{self.dialect_type.quoted(self.parsed['stagingSchema'])}.{name}"

    # -- hooks for each database ------------------------------------------------------------------------------------

    def exclude(self, cursor: Any) -> None:
        """Make other queries that create tables wait until this transaction ends. Default: do nothing."""

    def look_up_whole(self, cursor: Any) -> Target[Any] | None:
        """Return the target's description with all indexes. Default: the same as `look_up`."""
        return self.look_up(cursor)

    def look_up(self, cursor: Any) -> Target[Any] | None:
        """Return the target's description; None if the target does not exist."""
        return self.dialect.describe(cursor, self.place)

    @abstractmethod
    def insert(self, cursor: Any, target: Any, staged: Staged, more: str = "") -> tuple[int, int | None]:
        """Insert staged rows into the target, in order. With a key, each row replaces or deletes the row with the same key.

        Parameters
        ----------
        target : Target
            The target's description.
        staged : Staged
            The rows to insert.
        more : str
            A further SQL condition for the staged rows, whose alias is ``s``: `` AND ...``.

        Returns
        -------
        tuple[int, int or None]
            The number of rows that the target stored, and the number that it should have stored (None: all staged rows).
        """

    @abstractmethod
    def findings(self, cursor: Any, target: Target[Any] | None) -> Iterable[Finding]:
        """Return findings about the server, the target and the user's rights."""

    @classmethod
    @abstractmethod
    def dataset(cls, table: str, database: str) -> str:
        """Return a table's name in OpenLineage."""

    def refusal(self, reason: str) -> StoreError:
        """Return the error for a target that can't be used, with the reason."""
        return StoreError("DATABASE_REFUSED", owner=self.name(), table=self.described(), reason=reason)

    # -- driver -----------------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Check that the target can store the rows. If the target does not exist, check that it could be created."""
        with self.database.transaction() as cursor:
            target = self.look_up_whole(cursor)
            if self.schema.names:  # otherwise the columns are unknown
                self._target_statement() if target is None else self._fitting(target)

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Return findings about the server, the target and this user's rights."""
        with self.database.transaction() as cursor:
            return list(self.findings(cursor, self.look_up(cursor)))

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the target's name in OpenLineage; empty if the options hide the address."""
        where, (scheme, port) = urlsplit(options.get("url", "").removeprefix("jdbc:")), cls.dataset_server
        if where.hostname is None:
            return []
        name = cls.dataset(options["dbtable"], where.path.lstrip("/"))
        return [(f"{scheme}://{where.hostname}:{where.port or port}", name)]

    def identify(self) -> dict[str, str]:
        """Create the staging schema, its tables and the target, unless they exist. Return their identity."""
        try:
            try:
                return super().identify()
            except RowRefusedError as problem:
                if self._state_of(problem) != "23505":
                    raise
                return super().identify()  # another query created the same objects
        except StoreError as problem:
            if self._state_of(problem) != "42501":
                raise
            reason, statements = str(problem.__cause__).splitlines()[0], self._statements()
            raise StoreError("MISSING_DDL", owner=self.name(), reason=reason, statements=statements) from None

    def _state_of(self, problem: TwoPhaseCommitError) -> str:
        return self.sqlstate(problem.__cause__) if isinstance(problem.__cause__, Exception) else ""

    def create_control_tables(self) -> None:
        """Create missing control tables. If all of them exist, the user needs no right to create tables."""
        with self.database.transaction() as cursor:
            self.exclude(cursor)
            if not self.dialect.has_schema(cursor, self.parsed["stagingSchema"]):
                cursor.execute(self._schema_statement())
            for name, columns in CONTROL_TABLES.items():
                if not self.has(cursor, name):
                    cursor.execute(self._control_statement(name, columns))

    def create(self, cursor: Any) -> None:
        """Create the target and the staging table, unless they exist."""
        self.exclude(cursor)
        target = self.look_up_whole(cursor)
        if target is None:
            cursor.execute(self._target_statement())
            target = self._must_be_there(self.look_up_whole(cursor))
        staged = self._fitting(target)
        staging = self._staging_of(target, staged)
        if not self.dialect.is_there(cursor, staging):
            for statement in self._staging_statements(staging, target, staged):
                cursor.execute(statement)

    def has(self, cursor: Any, name: str) -> bool:
        """Return whether a control table with this name exists."""
        return self.dialect.is_there(cursor, self.control_table(name))

    def has_target(self, cursor: Any) -> bool:
        """Return whether the target exists."""
        return self.dialect.is_there(cursor, self.place)

    # -- executor ---------------------------------------------------------------------------------------------------

    def warmUp(self, context: TransactionContext) -> None:
        """Connect to the database."""
        self.database.connection()

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Begin a database transaction, and match the query's columns with the target's."""
        transaction = super().beginTransaction(context)
        with self.database.reaching():
            target = self._must_be_there(self.look_up(transaction.cursor))
            staged = self._fitting(target)
            key, deletes = self._key_of(target), self._deletes is not None
            self.task = Task(self._staging_of(target, staged), target, staged, key, deletes)
        return transaction

    def write(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Write the batch to the staging table. Raise if the column that ``deleteColumn`` names contains null."""
        flag = flag_of(self.dialect, self.schema, self._deletes)
        if flag is not None and batch.column(flag.name).null_count:
            reason = f"the column {flag.name} (option deleteColumn) is null, but must be true or false"
            raise RowRefusedError("ROW_REFUSED", owner=self.name(), reason=f"{self.described()}: {reason}")
        super().write(transaction, batch)

    def staging(self, cursor: Any) -> str:
        """Return the name of the staging table for this prefix, this target and the current columns."""
        return self.task.staging

    def more(self) -> dict[str, Any]:
        """Return the staged columns with their types, the columns of the key, and whether rows may be deletions.

        If rows may be deletions, the columns include `DELETES`. An older version of this package, which does not
        support deletions, then rejects the handle, because the target has no such column.
        """
        columns = {column.name: column.whole for column in self.task.staged}
        return {"columns": columns, "key": self.task.key, **({"deletes": True} if self.task.deletes else {})}

    # -- commit -----------------------------------------------------------------------------------------------------

    def publish(self, cursor: Any, handles: Sequence[StagedHandle]) -> None:
        """Insert the staged rows into the target, in order. With a key, each row replaces or deletes the row with its key."""
        target = self._must_be_there(self.look_up(cursor))
        size = len(handles) if self.at_once > 1 else 1
        # Handles with the same staging table agree on whether rows may delete: the table's name depends on its columns.
        for (staging, key), group in groupby(handles, lambda handle: (handle["staging"], handle["more"]["key"])):
            for some in portions(list(group), size):
                nonces, deletes = [handle["nonce"] for handle in some], is_deleting(some[0]["more"])
                staged = Staged(staging, self._unchanged(cursor, target, some[0]), key, nonces, deletes)
                taken, wanted = self.insert(cursor, target, staged)
                wanted = sum(handle["rows"] for handle in some) if wanted is None else wanted
                if taken != wanted:
                    raise self.refusal(f"the table stored {taken} of {wanted} rows{self.drops}")

    def _unchanged(self, cursor: Any, target: Target[Any], handle: StagedHandle) -> list[str]:
        """Return the names of the target's columns that a handle's staged rows have.

        Raise if the target's key, or one of these columns, has changed since the rows were staged. Otherwise, the move
        into the target could change values, or replace rows that have a different key.
        """
        was: Mapping[str, str] = handle["more"]["columns"]
        names = names_of(handle["more"])
        now = {column.name: column.whole for column in target.columns}
        changed = [
            f"{name} was {kind}, and " + (f"is {now[name]}" if name in now else "is gone")
            for name, kind in was.items()
            if name in names and now.get(name) != kind
        ]
        key = handle["more"]["key"]
        if key and (reason := self.dialect.why_no_key(target, names, key)):
            changed.append(reason)
        if is_deleting(handle["more"]) and (reason := self.dialect.why_no_deletes(target, key)):
            changed.append(reason)
        if changed:
            raise StoreError("TABLE_CHANGED", table=self.described(), columns="; ".join(changed))
        return names

    def staged(self, cursor: Any, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return the number of staged rows of each transaction, by nonce; empty if the staging table does not exist."""
        return super().staged(cursor, staging, nonces) if self.dialect.is_there(cursor, staging) else {}

    # -- statements that create -------------------------------------------------------------------------------------

    def _must_be_there(self, table: Target[Any] | None) -> Target[Any]:
        if table is None:
            raise self.refusal("the table no longer exists")
        return table

    def _fitting(self, target: Target[Any]) -> list[Any]:
        return fit(self.dialect, self.schema, target, self._key, self._deletes)

    def _key_of(self, target: Target[Any]) -> list[str]:
        return [column.name for name in self._key if (column := target.column(name)) is not None]

    def _staging_of(self, target: Target[Any], staged: Sequence[Any]) -> str:
        columns = [self.dialect.form(column) for column in staged]
        # If rows may delete, which columns may be null depends on the key.
        key = [self._key_of(target)] if self._deletes is not None else []
        name = staging_name(target.plain, self._prefix, target.mark, columns, target.checks_on(staged), *key)
        return self.control_table(self.dialect.quoted(name))

    def _staging_statements(self, staging: str, target: Target[Any], staged: Sequence[Any]) -> list[str]:
        given = {*self._key_of(target), DELETES}
        optional = [each.name for each in staged if each.not_null and each.name not in given]
        return self.dialect.staging_statements(staging, target, staged, optional if self._deletes is not None else None)

    def _schema_statement(self) -> str:
        return f"CREATE {self.dialect.schema_kind} IF NOT EXISTS {self.dialect.quoted(self.parsed['stagingSchema'])}"

    def _control_statement(self, name: str, columns: str) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns}){self.dialect.table_options}"

    def _target_statement(self) -> str:
        return create_statement(self.dialect, self.schema, self.place, self._key, self._deletes)

    def _statements(self) -> str:
        found = [self._schema_statement(), *(self._control_statement(*each) for each in CONTROL_TABLES.items())]
        with suppress(Exception), self.database.transaction() as cursor:
            target = self.look_up(cursor)
            if target is None:
                found.append(self._target_statement())
            else:
                staged = self._fitting(target)
                found += self._staging_statements(self._staging_of(target, staged), target, staged)
        return ";\n".join(found) + ";"


def is_deleting(more: Mapping[str, Any]) -> bool:
    """Return whether rows of a handle may be deletions. `more` is the handle's field ``more``; see `TableSink.more`."""
    return bool(more.get("deletes", False))


def names_of(more: Mapping[str, Any]) -> list[str]:
    """Return the names of the target's columns that a handle's rows have. `more` is the handle's field ``more``."""
    return [name for name in more["columns"] if not (is_deleting(more) and name == DELETES)]


def literal(nonce: str) -> str:
    """Return a nonce as an SQL string literal. A nonce is hexadecimal, so it needs no escapes."""
    if not nonce.isalnum():
        raise ValueError(nonce)
    return f"'{nonce}'"
