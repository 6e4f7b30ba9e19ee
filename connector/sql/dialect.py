"""`Dialect`: how a database names things and describes its tables, and which types it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pyarrow as pa

__all__ = ["OWN_COLUMNS", "AnyColumn", "Column", "Dialect", "Index", "Kind", "Target"]
__all__ += ["is_array", "is_bytes", "is_moment", "is_text"]

OWN_COLUMNS = ("barrier_nonce", "barrier_row")
"""The first columns of a staging table: whose row it is, and which of its rows."""


class Kind(NamedTuple):
    """A line of a database's table of types.

    Such rows get a column of the type `new` in a new table, or none if it is empty. Columns whose type is in `into` hold each
    of their values as it is, or refuse it.
    """

    has: Callable[[pa.DataType], bool]
    new: str
    into: Sequence[str]


def is_text(kind: pa.DataType) -> bool:
    """Return whether it is a text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether it is bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_array(kind: pa.DataType) -> bool:
    """Return whether it is an array."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_moment(kind: pa.DataType) -> bool:
    """Return whether it is a time with a zone."""
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
    type : str
        As a statement names it, with its modifiers: ``decimal(10,2)``.
    base : str
        ``decimal``.
    not_null : bool
    computed : bool
        Whether only the database gives it values.
    filled : bool
        Whether the database gives it a value where a row has none.
    """

    name: str
    type: str
    base: str
    not_null: bool
    computed: bool
    filled: bool

    @property
    def whole(self) -> str:
        """Its type, and all else that may not change between prepare and commit."""
        return self.type


AnyColumn = TypeVar("AnyColumn", bound=Column)


@dataclass(frozen=True)
class Index:
    """A unique index.

    Parameters
    ----------
    name : str
    columns : frozenset[str]
    whole : bool
        Whether it is of columns as they are: of no expression, and of no column's first characters only.
    """

    name: str
    columns: frozenset[str]
    whole: bool = True


@dataclass(frozen=True)
class Target(Generic[AnyColumn]):
    """A table.

    Parameters
    ----------
    name : str
        Qualified and quoted.
    plain : str
        Its last part.
    mark : object
        What distinguishes it from others, in the name of a staging table.
    columns : Sequence[AnyColumn]
    keys : Sequence[Index]
        Unique ones: all, or those that an upsert can use.
    checks : Sequence[tuple[str, frozenset[str]]]
        Check constraints, and the columns in them.
    """

    name: str
    plain: str
    mark: object
    columns: Sequence[AnyColumn]
    keys: Sequence[Index]
    checks: Sequence[tuple[str, frozenset[str]]]

    def column(self, name: str) -> AnyColumn | None:
        """Return the column of this name; in another case only if no other has that."""
        exact = [column for column in self.columns if column.name == name]
        near = exact or [column for column in self.columns if column.name.lower() == name.lower()]
        return near[0] if len(near) == 1 else None

    def checks_on(self, columns: Sequence[AnyColumn]) -> list[str]:
        """Return the check constraints that name only these columns."""
        names = {column.name for column in columns}
        return [text for text, used in self.checks if used and used <= names]


class Dialect(ABC, Generic[AnyColumn]):
    """The language of a server."""

    name: ClassVar[str]
    """The format's."""

    database: ClassVar[str]
    """As people call it."""

    quote: ClassVar[str] = '"'
    kinds: ClassVar[Sequence[Kind]]
    schema_kind: ClassVar[str] = "SCHEMA"
    """What ``CREATE`` calls the option ``stagingSchema``."""

    table_options: str = ""
    """The end of a statement that creates a table."""

    @classmethod
    def quoted(cls, name: str) -> str:
        """Return an identifier as it stands in a statement."""
        return cls.quote + name.replace(cls.quote, 2 * cls.quote) + cls.quote

    @abstractmethod
    def has_schema(self, cursor: Any, schema: str) -> bool:
        """Return whether a schema is there."""

    @abstractmethod
    def is_there(self, cursor: Any, table: str) -> bool:
        """Return whether a table is there that stands so in a statement."""

    @abstractmethod
    def describe(self, cursor: Any, table: str) -> Target[AnyColumn] | None:
        """Return a table that stands so in a statement; None if it is not there."""

    @abstractmethod
    def why_not(self, kind: pa.DataType, column: AnyColumn) -> str:
        """Return why values of a type can't go into a column as they are; empty if they can.

        What the database would refuse by value (a number that is too large, text that is no date) is not refused here. What
        it would change without a word is.
        """

    @abstractmethod
    def why_no_key(self, target: Target[AnyColumn], written: Sequence[str], names: Sequence[str]) -> str:
        """Return why columns do not make a key of upserts; empty if they do."""

    def type_for(self, kind: pa.DataType, key: bool = False) -> str:
        """Return the type of a column of a new table, which may be one of its key; empty if there is none."""
        found = self.kind(kind)
        return found.new if found is not None else ""

    def kind(self, kind: pa.DataType) -> Kind | None:
        """Return the line of the table of types; None if it has none."""
        return next((each for each in self.kinds if each.has(kind)), None)

    @abstractmethod
    def definition(self, column: AnyColumn) -> str:
        """Return a column's definition in a staging table, which refuses what the target would refuse, or change."""

    def form(self, column: AnyColumn) -> object:
        """Return what distinguishes a column's definition: another one is in another staging table."""
        return self.definition(column)

    @abstractmethod
    def staging_statements(self, staging: str, target: Target[AnyColumn], written: Sequence[AnyColumn]) -> list[str]:
        """Return the statements that create a staging table."""
