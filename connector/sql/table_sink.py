"""`TableSink`: rows go into a staging table of a relational database, and a checkpoint is one database transaction."""

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
from connector.sql.dialect import OWN_COLUMNS, Dialect, Target
from connector.sql.fitting import create_statement, fit, staging_name
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

__all__ = ["Staged", "TableSink", "Task", "literal"]


class Task(NamedTuple):
    """For which table a task writes: `written` are columns of it, in the order of the rows' columns."""

    staging: str
    target: Target[Any]
    written: Sequence[Any]
    key: list[str]


class Staged(NamedTuple):
    """Rows to be moved: `names` are their columns; of one transaction, if the sink's `at_once` is 1, else of some in order."""

    staging: str
    names: Sequence[str]
    key: Sequence[str]
    nonces: Sequence[str]


class TableSink(Examines, WarmsUp, NamesDatasets, StagedSqlSink):
    """Appends rows to a table, or replaces those of the same key, a whole checkpoint at one instant.

    What a database has of its own is in a subclass, by the hooks of `StagedSqlSink` and of this class, and in its `Dialect`.

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
    dialect_type: ClassVar[type[Dialect[Any]]]
    dialect: Dialect[Any]
    """Known when it is connected."""

    table_of_options: ClassVar[OptionTable]
    package: ClassVar[str]
    """The client's."""

    dataset_server: ClassVar[tuple[str, int]]
    """Scheme in OpenLineage's names, and port."""

    drops: ClassVar[str] = ""
    """Why a table may take fewer rows than it is given."""

    place: str
    """The target, as it stands in a statement."""

    task: Task
    """Of an executor."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        if find_spec(self.package) is None:
            package = f"barrier-kafka[{self.name().removeprefix('2pc-')}]"
            raise OptionError("MISSING_PACKAGE", owner=self.name(), package=package, option="format")
        self.parsed = self.table_of_options.parse(options, also=HOST_OPTIONS)
        if self.parsed["deliveryGuarantee"] != "exactly-once":
            expectation = "exactly-once, as its commits are whole checkpoints either way"
            raise self.table_of_options.invalid("deliveryGuarantee", self.parsed["deliveryGuarantee"], expectation)
        self._key: Sequence[str] = self.parsed["upsertKey"]
        self.replacesRows = bool(self._key)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.dialect_type.name

    def control_table(self, name: str) -> str:
        """Return the table in `stagingSchema`."""
        return f"{self.dialect_type.quoted(self.parsed['stagingSchema'])}.{name}"

    # -- what a database has of its own -----------------------------------------------------------------------------

    def exclude(self, cursor: Any) -> None:
        """Let others that create wait until the end of the transaction. Default: the database does so itself."""

    def look_up_whole(self, cursor: Any) -> Target[Any] | None:
        """Return the target with all of its indexes. Default: any user can see them."""
        return self.look_up(cursor)

    def look_up(self, cursor: Any) -> Target[Any] | None:
        """Return the target; None if it is not there."""
        return self.dialect.describe(cursor, self.place)

    @abstractmethod
    def insert(self, cursor: Any, target: Any, staged: Staged, more: str = "") -> tuple[int, int | None]:
        """Insert staged rows, in order; with a key each replaces the one of its key.

        Parameters
        ----------
        target : Target
        staged : Staged
        more : str
            Goes to where the statement says which rows.

        Returns
        -------
        tuple[int, int or None]
            How many rows the table took, and of how many; None for all that are staged.
        """

    @abstractmethod
    def findings(self, cursor: Any, target: Target[Any] | None) -> Iterable[Finding]:
        """Look for what may hurt later."""

    @classmethod
    @abstractmethod
    def dataset(cls, table: str, database: str) -> str:
        """Return the name that OpenLineage has for a table."""

    def refusal(self, reason: str) -> StoreError:
        """Make the error of a table that can't be used."""
        return StoreError("DATABASE_REFUSED", owner=self.name(), table=self.described(), reason=reason)

    # -- driver -----------------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Check that the table, if there is one, can take the rows, or could be created."""
        with self.database.transaction() as cursor:
            target = self.look_up_whole(cursor)
            if self.schema.names:  # else they are not known
                self._target_statement() if target is None else self._fitting(target)

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterable[Finding]:
        """Look at the server, the table and this user's rights."""
        with self.database.transaction() as cursor:
            return list(self.findings(cursor, self.look_up(cursor)))

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the table."""
        where, (scheme, port) = urlsplit(options.get("url", "").removeprefix("jdbc:")), cls.dataset_server
        if where.hostname is None:
            return []
        name = cls.dataset(options["dbtable"], where.path.lstrip("/"))
        return [(f"{scheme}://{where.hostname}:{where.port or port}", name)]

    def identify(self) -> dict[str, str]:
        """Create what is missing: the schema and its tables, and the target."""
        try:
            try:
                return super().identify()
            except RowRefusedError as problem:
                if self._state_of(problem) != "23505":
                    raise
                return super().identify()  # another query has created the same
        except StoreError as problem:
            if self._state_of(problem) != "42501":
                raise
            reason, statements = str(problem.__cause__).splitlines()[0], self._statements()
            raise StoreError("MISSING_DDL", owner=self.name(), reason=reason, statements=statements) from None

    def _state_of(self, problem: TwoPhaseCommitError) -> str:
        return self.sqlstate(problem.__cause__) if isinstance(problem.__cause__, Exception) else ""

    def create_control_tables(self) -> None:
        """Create the control tables unless they are there: a query without the right to create may use them."""
        with self.database.transaction() as cursor:
            self.exclude(cursor)
            if not self.dialect.has_schema(cursor, self.parsed["stagingSchema"]):
                cursor.execute(self._schema_statement())
            for name, columns in CONTROL_TABLES.items():
                if not self.has(cursor, name):
                    cursor.execute(self._control_statement(name, columns))

    def create(self, cursor: Any) -> None:
        """Create the target, if it is not there, and the staging table."""
        self.exclude(cursor)
        target = self.look_up_whole(cursor)
        if target is None:
            cursor.execute(self._target_statement())
            target = self._must_be_there(self.look_up_whole(cursor))
        written = self._fitting(target)
        staging = self._staging_of(target, written)
        if not self.dialect.is_there(cursor, staging):
            for statement in self.dialect.staging_statements(staging, target, written):
                cursor.execute(statement)

    def has(self, cursor: Any, name: str) -> bool:
        """Return whether there is a control table of this name."""
        return self.dialect.is_there(cursor, self.control_table(name))

    def has_target(self, cursor: Any) -> bool:
        """Return whether the table is there."""
        return self.dialect.is_there(cursor, self.place)

    # -- executor ---------------------------------------------------------------------------------------------------

    def warmUp(self, context: TransactionContext) -> None:
        """Connect."""
        self.database.connection()

    def beginTransaction(self, context: TransactionContext) -> StagedTransaction:
        """Look at the table, and begin."""
        transaction = super().beginTransaction(context)
        with self.database.reaching():
            target = self._must_be_there(self.look_up(transaction.cursor))
            written = self._fitting(target)
            key = [column.name for name in self._key if (column := target.column(name)) is not None]
            self.task = Task(self._staging_of(target, written), target, written, key)
        return transaction

    def staging(self, cursor: Any) -> str:
        """Return the staging table of this prefix, this target and its columns as they are."""
        return self.task.staging

    def more(self) -> dict[str, Any]:
        """Return the columns, with their types, and those of the key."""
        return {"columns": {column.name: column.whole for column in self.task.written}, "key": self.task.key}

    # -- commit -----------------------------------------------------------------------------------------------------

    def publish(self, cursor: Any, handles: Sequence[StagedHandle]) -> None:
        """Insert the rows, in order; with a key each replaces the one of its key."""
        target = self._must_be_there(self.look_up(cursor))
        size = len(handles) if self.at_once > 1 else 1
        for (staging, key), group in groupby(handles, lambda handle: (handle["staging"], handle["more"]["key"])):
            for some in portions(list(group), size):
                nonces = [handle["nonce"] for handle in some]
                staged = Staged(staging, self._unchanged(cursor, target, some[0]), key, nonces)
                taken, wanted = self.insert(cursor, target, staged)
                wanted = sum(handle["rows"] for handle in some) if wanted is None else wanted
                if taken != wanted:
                    raise self.refusal(f"it took {taken} rows of {wanted}{self.drops}")

    def _unchanged(self, cursor: Any, target: Target[Any], handle: StagedHandle) -> list[str]:
        """Return the columns of staged rows.

        In the target they, and the key, have to be as they were: a value might change on its way, or replace another key's row.
        """
        was: Mapping[str, str] | None = handle["more"].get("columns")
        if was is None:  # a handle of an earlier release
            source = self._must_be_there(self.dialect.describe(cursor, handle["staging"]))
            was = {column.name: column.whole for column in source.columns[len(OWN_COLUMNS) :]}
        now = {column.name: column.whole for column in target.columns}
        changed = [
            f"{name} was {kind}, and " + (f"is {now[name]}" if name in now else "is gone")
            for name, kind in was.items()
            if now.get(name) != kind
        ]
        key = handle["more"]["key"]
        if key and (reason := self.dialect.why_no_key(target, list(was), key)):
            changed.append(reason)
        if changed:
            raise StoreError("TABLE_CHANGED", table=self.described(), columns="; ".join(changed))
        return list(was)

    def staged(self, cursor: Any, staging: str, nonces: Sequence[str]) -> Mapping[str, int]:
        """Return how many rows are staged."""
        return super().staged(cursor, staging, nonces) if self.dialect.is_there(cursor, staging) else {}

    # -- statements that create -------------------------------------------------------------------------------------

    def _must_be_there(self, table: Target[Any] | None) -> Target[Any]:
        if table is None:
            raise self.refusal("the table is not there any more")
        return table

    def _fitting(self, target: Target[Any]) -> list[Any]:
        return fit(self.dialect, self.schema, target, self._key)

    def _staging_of(self, target: Target[Any], written: Sequence[Any]) -> str:
        columns = [self.dialect.form(column) for column in written]
        name = staging_name(target.plain, self._prefix, target.mark, columns, target.checks_on(written))
        return self.control_table(self.dialect.quoted(name))

    def _schema_statement(self) -> str:
        return f"CREATE {self.dialect.schema_kind} IF NOT EXISTS {self.dialect.quoted(self.parsed['stagingSchema'])}"

    def _control_statement(self, name: str, columns: str) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.control_table(name)} ({columns}){self.dialect.table_options}"

    def _target_statement(self) -> str:
        return create_statement(self.dialect, self.schema, self.place, self._key)

    def _statements(self) -> str:
        found = [self._schema_statement(), *(self._control_statement(*each) for each in CONTROL_TABLES.items())]
        with suppress(Exception), self.database.transaction() as cursor:
            target = self.look_up(cursor)
            if target is None:
                found.append(self._target_statement())
            else:
                written = self._fitting(target)
                found += self.dialect.staging_statements(self._staging_of(target, written), target, written)
        return ";\n".join(found) + ";"


def literal(nonce: str) -> str:
    """Return a nonce, which is hexadecimal, as it stands in a statement."""
    if not nonce.isalnum():
        raise ValueError(nonce)
    return f"'{nonce}'"
