"""How a query's columns fit those of a table, whatever the database is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from transactional.errors import OptionError, RowRefusedError

__all__ = ["TargetColumn", "check_key", "definitions", "fit", "in_micros", "mismatch", "staging_name"]


class TargetColumn(Protocol):
    """A column of a table."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def not_null(self) -> bool:
        """Whether it refuses nulls."""

    @property
    def computed(self) -> bool:
        """Whether only the database gives it values."""

    @property
    def filled(self) -> bool:
        """Whether the database gives it a value where a row has none."""


AnyColumn = TypeVar("AnyColumn", bound=TargetColumn)
AnyColumn_co = TypeVar("AnyColumn_co", bound=TargetColumn, covariant=True)


class TargetTable(Protocol[AnyColumn_co]):
    """A table."""

    @property
    def name(self) -> str:
        """Its name, as a statement has it."""

    @property
    def columns(self) -> Sequence[AnyColumn_co]:
        """Its columns."""

    def column(self, name: str) -> AnyColumn_co | None:
        """Return the column of this name."""


def mismatch(owner: str, reason: str, **parameters: Any) -> OptionError:
    """Make the error of columns that do not fit."""
    return OptionError("COLUMNS_MISMATCH", owner=owner, reason=reason, **parameters)


def fit(
    owner: str,
    schema: pa.Schema,
    target: TargetTable[AnyColumn],
    why_not: Callable[[pa.DataType, AnyColumn], str],
    shown: Callable[[pa.DataType], str],
) -> list[AnyColumn]:
    """Return the columns of the table that the query's columns go into, in their order."""
    if not len(schema):
        raise mismatch(owner, "the query has no columns")
    found: list[AnyColumn] = []
    for field in schema:
        column = target.column(field.name)
        if column is None:
            raise mismatch(owner, f"{target.name} has no column {field.name}", column=field.name)
        if column.computed:
            reason = f"the database computes the column {column.name} of {target.name}"
            raise mismatch(owner, reason, column=field.name)
        if column in found:
            raise mismatch(owner, f"two columns go into {column.name}", column=field.name)
        reason = why_not(field.type, column)
        if reason:
            reason = f"the column {field.name} is {shown(field.type)}, and {reason}"
            raise mismatch(owner, reason, column=field.name)
        found.append(column)
    for column in target.columns:
        if column not in found and column.not_null and not (column.filled or column.computed):
            raise mismatch(owner, f"{column.name} of {target.name} is NOT NULL, and the query has no such column")
    return found


def check_key(
    owner: str,
    written: Sequence[TargetColumn],
    target: TargetTable[AnyColumn],
    key: Sequence[str],
    why_not: Callable[[Sequence[str]], str],
) -> None:
    """Check the columns of `upsertKey`: all are written, a unique index is of them, and none may be null."""
    columns = [column for name in key if (column := target.column(name)) is not None]
    names = [column.name for column in columns if column in written]
    nullable = ", ".join(column.name for column in columns if not column.not_null)
    if len(names) < len(key):
        reason = f"upsertKey names {', '.join(key)}, and the query does not have all of them"
    else:
        reason = why_not(names) or (
            f"{nullable} of {target.name} is in upsertKey, and not NOT NULL" if nullable else ""
        )
    if reason:
        raise mismatch(owner, reason, option="upsertKey")


def definitions(
    owner: str,
    schema: pa.Schema,
    key: Sequence[str],
    type_for: Callable[[pa.DataType, bool], str],
    quoted: Callable[[str], str],
    database: str,
) -> str:
    """Return the columns of a new table, as its statement names them."""
    by_lower: Mapping[str, str] = {name.lower(): name for name in schema.names}
    keys = [by_lower.get(name.lower()) for name in key]
    missing = [name for name, found in zip(key, keys, strict=True) if found is None]
    if missing:
        reason = f"upsertKey names {', '.join(missing)}, which the query does not have"
        raise mismatch(owner, reason, option="upsertKey")
    columns = []
    for field in schema:
        name = type_for(field.type, field.name in keys)
        if not name:
            raise mismatch(
                owner,
                f"the column {field.name} is {_shown(field.type)}, which {database} does not have: convert it, with to_json "
                "for example",
                column=field.name,
            )
        columns.append(f"{quoted(field.name)} {name}")
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in keys if name)})")
    return ", ".join(columns)


def in_micros(owner: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose times of day count microseconds, as databases do. Spark's come in nanoseconds."""
    micros, nanos = pa.time64("us"), pa.time64("ns")
    other = {nanos: micros, pa.list_(nanos): pa.list_(micros), pa.large_list(nanos): pa.large_list(micros)}
    columns = list(batch.columns)
    for at, name in enumerate(batch.schema.names):
        kind = next((wanted for had, wanted in other.items() if columns[at].type.equals(had)), None)
        try:
            columns[at] = columns[at] if kind is None else columns[at].cast(kind)
        except pa.ArrowInvalid:
            reason = f"the column {name} has a time with a part of a microsecond, which the database would round"
            raise RowRefusedError("ROW_REFUSED", owner=owner, reason=reason) from None
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _shown(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "a struct"
    return "a map" if pa.types.is_map(kind) else str(kind)


def staging_name(table: str, *about: object) -> str:
    """Return the name of a staging table: other columns, or another prefix, have another."""
    mark = hashlib.sha256(repr(about).encode()).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9_]", "", table)[:40]
    return f"staged_{plain}_{mark}"
