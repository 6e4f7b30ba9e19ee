"""Match a query's columns with a table's columns. This part of the matching is the same for all databases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from connector.sinks import warning
from connector.sql.dialect import DELETES, AnyColumn, Dialect, Index, Target, is_array
from transactional import Finding, OptionError, RowRefusedError


def _mismatch(dialect: Dialect[Any], reason: str, **parameters: Any) -> OptionError:
    return OptionError("COLUMNS_MISMATCH", owner=dialect.name, reason=reason, **parameters)


def flag_of(dialect: Dialect[Any], schema: pa.Schema, deletes: str | None) -> pa.Field | None:
    """Return the query's column that ``deleteColumn`` names; None if the option is not set.

    Raise unless exactly one column has this name, and its type is boolean.
    """
    if deletes is None:
        return None
    fields = [field for field in schema if field.name.lower() == deletes.lower()]
    if len(fields) != 1 or not pa.types.is_boolean(fields[0].type):
        known = f"the query's column {deletes} is {_shown(dialect, fields[0].type)}" if len(fields) == 1 else ""
        reason = known or f"the query has {len(fields) or 'no'} column{'s' * (len(fields) > 1)} with the name {deletes}"
        raise _mismatch(dialect, f"deleteColumn needs a boolean column, but {reason}", option="deleteColumn")
    return fields[0]


def fit(
    dialect: Dialect[AnyColumn],
    schema: pa.Schema,
    target: Target[AnyColumn],
    key: Sequence[str],
    deletes: str | None = None,
) -> list[AnyColumn]:
    """Return the table's column for each of the query's columns, in the query's order. Raise if a column does not fit.

    The column that `deletes` names (``deleteColumn``) gets `Dialect.flag`, because it is staged but not written.
    """
    flag = flag_of(dialect, schema, deletes)
    if len(schema) <= (flag is not None):
        raise _mismatch(dialect, "the query has no columns")
    found: list[AnyColumn] = []
    for field in schema:
        if flag is not None and field.name == flag.name:
            found.append(dialect.flag)
            continue
        column = target.column(field.name)
        if column is None:
            raise _mismatch(dialect, f"{target.name} has no column {field.name}", column=field.name)
        if column.computed:
            reason = f"the database computes the column {column.name} of {target.name}, so rows can't set it"
            raise _mismatch(dialect, reason, column=field.name)
        if column in found:
            raise _mismatch(dialect, f"two columns of the query match the column {column.name}", column=field.name)
        reason = dialect.why_not(field.type, column)
        if reason:
            reason = f"the column {field.name} is {_shown(dialect, field.type)}, and {reason}"
            raise _mismatch(dialect, reason, column=field.name)
        found.append(column)
    for column in target.columns:
        if column not in found and column.not_null and not (column.filled or column.computed):
            raise _mismatch(dialect, f"{column.name} of {target.name} is NOT NULL, but the query has no such column")
    if key:
        _check_key(dialect, found, target, key)
    if flag is not None:
        _check_deletes(dialect, target, flag, key, [each.name for each in found if each != dialect.flag])
    return found


def _check_deletes(
    dialect: Dialect[AnyColumn], target: Target[AnyColumn], flag: pa.Field, key: Sequence[str], written: Collection[str]
) -> None:
    """Check that rows can be deleted by `key`, and that the table has no column with the name of `flag`."""
    reason = dialect.why_no_deletes(target, [column.name for name in key if (column := target.column(name))])
    own = [column.name for column in target.columns if column.name.lower() == flag.name.lower()]
    if own:
        reason = f"deleteColumn is not written, but {target.name} has the column {own[0]}: rename the query's column"
    if DELETES in written:
        reason = f"the query has the column {DELETES}, which the sink itself needs: rename it"
    if reason:
        raise _mismatch(dialect, reason, option="deleteColumn")


def _check_key(
    dialect: Dialect[AnyColumn], written: Sequence[AnyColumn], target: Target[AnyColumn], key: Sequence[str]
) -> None:
    """Check that the query has all columns of `upsertKey`, that they have a unique index, and that all are NOT NULL."""
    columns = [column for name in key if (column := target.column(name)) is not None]
    names = [column.name for column in columns if column in written]
    nullable = ", ".join(column.name for column in columns if not column.not_null)
    if len(names) < len(key):
        reason = f"upsertKey names {', '.join(key)}, but the query does not have all of these columns"
    else:
        reason = dialect.why_no_key(target, [column.name for column in written], names) or (
            f"{nullable} of {target.name} is in upsertKey, but allows null" if nullable else ""
        )
    if reason:
        raise _mismatch(dialect, reason, option="upsertKey")


def create_statement(
    dialect: Dialect[Any], schema: pa.Schema, table: str, key: Sequence[str], deletes: str | None = None
) -> str:
    """Return the statement that creates a table for these columns, except for the one that `deletes` names."""
    flag = flag_of(dialect, schema, deletes)
    schema = schema if flag is None else schema.remove(schema.get_field_index(flag.name))
    by_lower: Mapping[str, str] = {name.lower(): name for name in schema.names}
    keys = [by_lower.get(name.lower()) for name in key]
    missing = [name for name, found in zip(key, keys, strict=True) if found is None]
    if missing:
        reason = f"upsertKey names {', '.join(missing)}, but the query does not have this column"
        raise _mismatch(dialect, reason, option="upsertKey")
    columns = []
    for field in schema:
        name = dialect.type_for(field.type, field.name in keys)
        if not name:
            reason = (
                f"the column {field.name} is {_shown(dialect, field.type)}, a type that {dialect.database} does not have: "
                "convert it, for example with to_json"
            )
            raise _mismatch(dialect, reason, column=field.name)
        columns.append(f"{dialect.quoted(field.name)} {name}")
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(dialect.quoted(name) for name in keys if name)})")
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}){dialect.table_options}"


def _shown(dialect: Dialect[Any], kind: pa.DataType) -> str:
    """Return the name of an Arrow type for a message."""
    if pa.types.is_struct(kind):
        return "a struct"
    if pa.types.is_map(kind):
        return "a map"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return dialect.type_for(kind) or ("an array" if is_array(kind) else str(kind))


def in_micros(owner: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with times of day in microseconds, as databases store them; Spark passes nanoseconds.

    Raise if a time has a fraction of a microsecond.
    """
    micros, nanos = pa.time64("us"), pa.time64("ns")
    other = {nanos: micros, pa.list_(nanos): pa.list_(micros), pa.large_list(nanos): pa.large_list(micros)}
    columns = list(batch.columns)
    for at, name in enumerate(batch.schema.names):
        kind = next((wanted for had, wanted in other.items() if columns[at].type.equals(had)), None)
        try:
            columns[at] = columns[at] if kind is None else columns[at].cast(kind)
        except pa.ArrowInvalid:
            reason = (
                f"the column {name} contains a time with a fraction of a microsecond, which the database would round"
            )
            raise RowRefusedError("ROW_REFUSED", owner=owner, reason=reason) from None
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def staging_name(table: str, *about: object) -> str:
    """Return a staging table's name, which is different for each combination of the values `about` (prefix, ...)."""
    mark = hashlib.sha256(repr(about).encode()).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9_]", "", table)[:40]
    return f"staged_{plain}_{mark}"


def unique_warnings(target: Target[Any], indexes: Iterable[Index]) -> Iterator[Finding]:
    """Yield a warning for each of these unique indexes: a value that occurs twice would stop a commit."""
    for index in indexes:
        text = ", ".join(sorted(index.columns))
        yield warning(
            "database",
            f"{target.name} has a unique index on {text}: if a row's value already exists, the commit fails.",
            f"Set upsertKey to {text}, or drop the index, unless the rows can never repeat a value.",
        )
