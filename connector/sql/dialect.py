"""`Dialect`: how a database quotes names, describes its tables and maps types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa

OWN_COLUMNS = ("barrier_nonce", "barrier_row")
"""The first columns of a staging table: the nonce of the row's transaction, and the row's number in the transaction."""

DELETES: Final = "barrier_deletes"
"""The staging table's column that marks deletions: if it is true, the row deletes the target's row with the same key. A
staging table has this column only if the option ``deleteColumn`` is set."""


class Kind(NamedTuple):
    """A row of a database's type table: how the database stores the Arrow types for which `has` returns true.

    In a new table, the column gets the type `new`; if `new` is empty, no column can be created. In an existing table, the
    column's base type must be in `into`. Such a column stores each value unchanged, or rejects it.
    """

    has: Callable[[pa.DataType], bool]
    new: str
    into: Sequence[str]


def is_text(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is binary."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_array(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is ``list`` or ``large_list``."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_moment(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is a timestamp with a time zone."""
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: str  # The type as a statement names it, with its modifiers: ``decimal(10,2)``.
    base: str  # The type without its modifiers: ``decimal``.
    not_null: bool
    computed: bool  # Whether only the database can set the column's values.
    filled: bool  # Whether the database sets a value if a row has none (a default, a sequence).

    @property
    def whole(self) -> str:
        """The column's type, with everything else that must not change between prepare and commit."""
        return self.type


AnyColumn = TypeVar("AnyColumn", bound=Column)


@dataclass(frozen=True)
class Index:
    """A unique index."""

    name: str
    columns: frozenset[str]
    # Whether the index is on whole columns: not on an expression, and not only on a column's first characters.
    whole: bool = True


@dataclass(frozen=True)
class Target(Generic[AnyColumn]):
    """A table, as the database describes it."""

    name: str  # The table's name, qualified and quoted.
    plain: str  # The last part of the name, without the schema.
    mark: object  # A value that no other table has. The name of the staging table depends on it.
    columns: Sequence[AnyColumn]
    keys: Sequence[Index]  # The unique indexes: all of them (MySQL), or only those that an upsert can use (PostgreSQL).
    checks: Sequence[tuple[str, frozenset[str]]]  # The check constraints, each with the names of the columns in it.
    refers_to_itself: bool = field(default=False, kw_only=True)  # Whether it has a foreign key to itself.

    def column(self, name: str) -> AnyColumn | None:
        """Return the column with this name. Without an exact match, ignore case. None if no column matches, or several."""
        exact = [column for column in self.columns if column.name == name]
        near = exact or [column for column in self.columns if column.name.lower() == name.lower()]
        return near[0] if len(near) == 1 else None

    def checks_on(self, columns: Sequence[AnyColumn]) -> list[str]:
        """Return the check constraints that use only these columns."""
        names = {column.name for column in columns}
        return [text for text, used in self.checks if used and used <= names]


class Dialect(ABC, Generic[AnyColumn]):
    """The SQL dialect of a database: how it quotes names, describes tables and maps types."""

    name: ClassVar[str]
    """The name of the sink's format, for example ``2pc-mysql``."""

    database: ClassVar[str]
    """The database's name in messages, for example ``MySQL``."""

    quote: ClassVar[str] = '"'
    kinds: ClassVar[Sequence[Kind]]
    schema_kind: ClassVar[str] = "SCHEMA"
    """The keyword after ``CREATE`` that creates `stagingSchema`: ``SCHEMA`` or ``DATABASE``."""

    table_options: str = ""
    """The text at the end of every ``CREATE TABLE`` statement."""

    @classmethod
    def quoted(cls, name: str) -> str:
        """Return an identifier in the dialect's quotation marks, for a statement."""
        return cls.quote + name.replace(cls.quote, 2 * cls.quote) + cls.quote

    @abstractmethod
    def has_schema(self, cursor: Any, schema: str) -> bool:
        """Return whether a schema exists."""

    @abstractmethod
    def is_there(self, cursor: Any, table: str) -> bool:
        """Return whether a table exists. `table` is the table's name, quoted for an SQL statement."""

    @abstractmethod
    def describe(self, cursor: Any, table: str) -> Target[AnyColumn] | None:
        """Return a table's description; None if it does not exist. `table` is its name, quoted for an SQL statement."""

    @abstractmethod
    def why_not(self, kind: pa.DataType, column: AnyColumn) -> str:
        """Return the reason why a column can't store values of an Arrow type unchanged; empty if it can.

        A type is accepted here if the database itself would reject a wrong value (a number that is too large, text that
        is not a date). A type is rejected if the database would silently change a value.
        """

    @abstractmethod
    def why_no_key(self, target: Target[AnyColumn], written: Sequence[str], names: Sequence[str]) -> str:
        """Return the reason why `names` can't be the key of an upsert that writes the columns `written`; empty if they can."""

    @property
    @abstractmethod
    def flag(self) -> AnyColumn:
        """The staging table's column `DELETES`, which contains the query's column that ``deleteColumn`` names."""

    def why_no_deletes(self, target: Target[AnyColumn], key: Sequence[str]) -> str:
        """Return the reason why rows of the target can't be deleted by the columns `key`; empty if they can."""
        reason = f"{target.name} has a foreign key to itself: a delete could fail, or delete rows that others upsert"
        return reason if target.refers_to_itself else ""

    def type_for(self, kind: pa.DataType, key: bool = False) -> str:
        """Return a new column's type for an Arrow type; empty if there is none. `key` is True for a column of the key."""
        found = self.kind(kind)
        return found.new if found is not None else ""

    def kind(self, kind: pa.DataType) -> Kind | None:
        """Return the row of the type table for an Arrow type; None if there is none."""
        return next((each for each in self.kinds if each.has(kind)), None)

    @abstractmethod
    def definition(self, column: AnyColumn, optional: bool = False) -> str:
        """Return a staging column's definition, which must reject values that the target would reject or change.

        If `optional` is true, the definition allows null, even if the target's column does not.
        """

    def form(self, column: AnyColumn) -> object:
        """Return a value that depends on the column's definition. If the value changes, the rows need a new staging table."""
        return self.definition(column)

    @abstractmethod
    def staging_statements(
        self,
        staging: str,
        target: Target[AnyColumn],
        written: Sequence[AnyColumn],
        optional: Collection[str] | None = None,
    ) -> list[str]:
        """Return the statements that create a staging table.

        If `optional` is not None, a row may be a deletion. A deletion may violate the target's checks, and may be null
        in the columns `optional`, which are NOT NULL in the target.
        """
