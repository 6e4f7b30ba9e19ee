"""Match a query's rows with a table: columns, types, constraints and features.

A table can require something of its writers. The sink meets each requirement, or rejects the table with an error that
names the requirement. `check_protocol` and `fit_columns` run on the driver before the first task; `Columns.arrange`
runs on every batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional import OptionError, RowRefusedError, StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable

HONOURED: Final = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "deletionVectors", "v2Checkpoint"}
)
"""Writer features that require nothing of a writer that only adds files, or that `Columns` handles."""

ONLY_IF_USED: Final = frozenset({"checkConstraints", "generatedColumns", "columnMapping", "identityColumns"})
"""Writer features that a table may list without using them. The table's properties and columns show which of these
features it uses."""


REFUSED: Final = frozenset(" ,;{}()\n\t=")
"""The characters that Delta's writers reject in column names (Spark's ``DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES``)."""


# -- the table ------------------------------------------------------------------------------------------------------


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the table's columns as an Arrow schema."""
    return pa.schema(table.schema().to_arrow())


def columns_digest(table: DeltaTable) -> str:
    """Return a digest of the table's columns and partition columns. If it changes, the columns have changed."""
    text = json.dumps([table.schema().to_json(), table.metadata().partition_columns])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_protocol(table: DeltaTable) -> None:
    """Raise if the table requires more of its writers than this sink can do, such as CHECK constraints."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    features = set(protocol.writer_features or ())
    wanted = sorted(features - HONOURED - ONLY_IF_USED)
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        wanted.append("columnMapping")
    if configuration.get("delta.enableRowTracking", "false").lower() == "true":
        wanted.append("rowTracking")
    wanted += [f"CHECK constraint {key[18:]}" for key in configuration if key.startswith("delta.constraints.")]
    for field in json.loads(table.schema().to_json())["fields"]:
        metadata = field["metadata"]
        for key, what in (
            ("delta.generationExpression", "generated"),
            ("delta.identity.start", "identity"),
            ("delta.invariants", "with an invariant"),
            ("__CHAR_VARCHAR_TYPE_STRING", "CHAR or VARCHAR"),
        ):
            if key in metadata:
                wanted.append(f"column {field['name']} ({what})")
        if field["type"] == "binary" and field["name"] in table.metadata().partition_columns:
            wanted.append(f"column {field['name']} (binary partition column)")
    if wanted:
        raise StoreError("TABLE_NEEDS_FEATURES", table=table.table_uri, features=sorted(set(wanted)))


def check_creatable(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise if a table can't be created with these columns, partitioned by `partition_by`."""
    check_columns(schema)
    check_names(schema)
    for name in partition_by:
        type_ = schema.field(column_of(schema, name)).type
        if pa.types.is_nested(type_) or is_bytes(type_):
            raise _mismatch(f"a table can't be partitioned by {name}, which is {type_}", option="partitionBy")
    if partition_by and len(partition_by) == len(schema):
        raise _mismatch("partitionBy names every column, but at least one has to be in the files", option="partitionBy")


def check_columns(schema: pa.Schema) -> None:
    """Reject types that Delta does not have, and columns whose names differ only in case, which Delta ignores."""
    for field in schema:
        check_type(field.name, field.type)
    check_distinct(schema)


def check_distinct(fields: Iterable[pa.Field], within: str = "") -> None:
    """Reject names that are equal or differ only in case, also inside nested columns."""
    known: dict[str, str] = {}
    for field in fields:
        other = known.get(field.name.lower())
        if other is not None:
            names = [within + other, within + field.name]
            reason = f"Delta ignores case, so {' and '.join(names)} are the same name: rename one of them"
            raise _mismatch(reason, columns=names)
        known[field.name.lower()] = field.name
        check_distinct(inner_fields(field.type), f"{within}{field.name}.")


def check_names(fields: Iterable[pa.Field], within: str = "") -> None:
    """Reject new columns whose names Delta's own writers reject. Otherwise, only this sink could write to the table."""
    for field in fields:
        wrong = sorted(REFUSED & set(field.name))
        if wrong:
            column = f"{within}{field.name}"
            reason = f"Delta's writers reject the column {column!r}: its name contains {' '.join(map(repr, wrong))}. Rename it"
            raise _mismatch(reason, column=column)
        check_names(inner_fields(field.type), f"{within}{field.name}.")


def inner_fields(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a nested type, with the names that Delta gives them; empty for other types."""
    if pa.types.is_struct(type_):
        return list(type_)
    if pa.types.is_map(type_):
        return [pa.field("key", type_.key_type), pa.field("value", type_.item_type)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [pa.field("element", type_.value_type)]
    return []


def column_of(schema: pa.Schema, name: str) -> int:
    """Return the index of the column that the option ``partitionBy`` names, ignoring case.

    Raise unless exactly one matches.
    """
    found = [index for index, field in enumerate(schema) if field.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    reason = f"partitionBy names {name}, but the query's columns are {', '.join(schema.names)}"
    raise _mismatch(reason, option="partitionBy")


def _mismatch(reason: str, **parameters: Any) -> OptionError:
    return OptionError("COLUMNS_MISMATCH", owner="2pc-delta", reason=reason, **parameters)


def check_type(column: str, type_: pa.DataType) -> None:
    """Raise if Delta does not have this type, or a type nested in it."""
    for field in inner_fields(type_):
        check_type(f"{column}.{field.name}", field.type)
    if (
        not pa.types.is_nested(type_)
        and not any(
            has(type_)
            for has in (
                pa.types.is_signed_integer,
                pa.types.is_float32,
                pa.types.is_float64,
                pa.types.is_decimal128,
                pa.types.is_boolean,
                pa.types.is_string,
                pa.types.is_large_string,
                pa.types.is_binary,
                pa.types.is_large_binary,
                pa.types.is_date32,
            )
        )
        and not (pa.types.is_timestamp(type_) and type_.unit == "us")
    ):
        raise _mismatch(f"the column {column} has the type {type_}, which Delta does not have", column=column)


# -- rows into the table's columns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """A mapping of a query's columns to a table's columns."""

    target: pa.Schema  # The table's schema, with its partition columns.
    # For each of the table's columns, the index of the query's column. None if the query has no such column, so that the
    # table's column gets nulls.
    source: Sequence[int | None]
    # The partition columns. For these columns, Delta's log stores an empty string as null.
    partition_by: Sequence[str] = ()

    @cached_property
    def written(self) -> pa.Schema:
        """Return the schema of the files.

        All columns are nullable, because Arrow can't write null for a struct that has a NOT NULL field.
        """
        return pa.schema([nullable(field) for field in self.target])

    def arrange(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the table's columns, order and types. Reject nulls in NOT NULL columns."""
        arrays = []
        written = self.written
        for field, as_written, index in zip(self.target, written, self.source, strict=True):
            array = pa.nulls(batch.num_rows, as_written.type) if index is None else batch.column(index)
            if array.type != as_written.type:
                array = array.cast(as_written.type)
            check_nulls(field.name, field, array)
            if not field.nullable and field.name in self.partition_by and is_text(field.type):
                check_nulls(field.name, field, pc.if_else(pc.equal(array, ""), None, array))
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=written)


def fit_columns(rows: pa.Schema, table: pa.Schema) -> Columns:
    """Match the rows' columns with the table's columns by name, ignoring case. Raise if a column does not fit."""
    unknown = new_columns(rows, table)
    if unknown:
        names = [field.name for field in unknown]
        reason = f"the table has no column {', '.join(names)}. To add new columns, set mergeSchema=true"
        raise _mismatch(reason, columns=names)
    by_name = {name.lower(): index for index, name in enumerate(rows.names)}
    source = []
    for field in table:
        index = by_name.get(field.name.lower())
        if index is None and not field.nullable:
            reason = f"the table's column {field.name} is NOT NULL, but the query has no such column"
            raise _mismatch(reason, column=field.name)
        if index is not None:
            check_fit(field.name, rows.field(index).type, field.type)
        source.append(index)
    return Columns(table, source)


def new_columns(rows: pa.Schema, table: pa.Schema) -> list[pa.Field]:
    """Return the rows' columns that the table does not have."""
    known = {name.lower() for name in table.names}
    return [field for field in rows if field.name.lower() not in known]


def check_fit(column: str, found: pa.DataType, wanted: pa.DataType) -> None:
    """Reject a type that can't be converted to the table's without loss."""
    if fits(found, wanted):
        return
    raise _mismatch(f"the column {column} is {found} in the query and {wanted} in the table", column=column)


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of the type `found` fits into the type `wanted`."""
    for nested in (pa.types.is_struct, pa.types.is_map, pa.types.is_list):
        if nested(wanted):
            return bool(nested(found)) and _fit_inside(inner_fields(found), inner_fields(wanted))
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= found.precision - found.scale
        return bool(whole and wanted.scale >= found.scale)
    for sized in (pa.types.is_integer, pa.types.is_floating):
        if sized(found) and sized(wanted):
            return bool(found.bit_width <= wanted.bit_width)
    return bool(found == wanted) or any(same(found) and same(wanted) for same in (is_text, is_bytes))


def _fit_inside(found: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> bool:
    same_names = [field.name for field in found] == [field.name for field in wanted]
    return same_names and all(fits(f.type, w.type) for f, w in zip(found, wanted, strict=True))


def is_text(type_: pa.DataType) -> bool:
    """Return whether the Arrow type is text (``string`` or ``large_string``)."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return whether the Arrow type is binary (``binary`` or ``large_binary``)."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def check_nulls(column: str, field: pa.Field, array: pa.Array) -> None:
    """Reject a null in a NOT NULL column, or in a NOT NULL field inside a column."""
    if not field.nullable and array.null_count:
        reason = f"{array.null_count} rows have null in {column}, which is NOT NULL in the table"
        raise RowRefusedError("ROW_REFUSED", owner="2pc-delta", reason=reason, column=column)
    if not strict_inside(field.type):
        return
    if pa.types.is_struct(field.type):
        present = array.filter(array.is_valid()) if array.null_count else array
        for index, inner in enumerate(field.type):
            check_nulls(f"{column}.{inner.name}", inner, present.field(index))
    elif pa.types.is_map(field.type):
        check_nulls(f"{column}.value", field.type.item_field, pc.drop_null(array).items)
    elif pa.types.is_list(field.type):
        check_nulls(f"{column}.element", field.type.value_field, array.flatten())


def strict_inside(type_: pa.DataType) -> bool:
    """Return whether a nested type contains a NOT NULL field. A map's keys, which are always NOT NULL, do not count."""
    if pa.types.is_struct(type_):
        inner = list(type_)
    elif pa.types.is_map(type_):
        inner = [type_.item_field]
    elif pa.types.is_list(type_):
        inner = [type_.value_field]
    else:
        return False
    return any(not field.nullable or strict_inside(field.type) for field in inner)


def nullable(field: pa.Field) -> pa.Field:
    """Return the column with nulls allowed, also in nested fields.

    Spark does the same, because the nullability of an expression is unreliable.
    """
    return pa.field(field.name, nullable_inside(field.type), nullable=True)


def nullable_inside(type_: pa.DataType) -> pa.DataType:
    """Return the type with nulls allowed in all nested fields."""
    if pa.types.is_struct(type_):
        return pa.struct([nullable(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(nullable_inside(type_.key_type), nullable(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(nullable(type_.value_field))
    return type_
