"""Statistics of a data file, for data skipping ("per-file statistics" in Delta's protocol).

Most of the statistics are taken from Parquet's footer.

Readers use the bounds to skip files, so a wrong bound would lose rows. A bound that can't be exact is made wider or
left out.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TEXT_PREFIX: Final = 32
"""The maximum number of characters in the lower bound of a string. Spark has the same limit."""

HIGHEST: Final = "\U0010ffff"
"""The character that sorts after all other characters in UTF-8."""


class Seen:
    """Statistics of a file that are not taken from its footer.

    These are the null counts of lists and maps, and the null counts and bounds of strings and floating-point numbers.
    For a string column, the footer has no bounds if a row group contains a string over 4,096 bytes.

    For Spark, NaN is the greatest number. pyarrow leaves NaN out of the footer's bounds, so Spark would skip row groups that
    contain NaN. Therefore floating-point columns get no bounds in the footer (`without_floating`). A column that contains NaN
    gets no bounds here either.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._repeated = [f.name for f in schema if pa.types.is_map(f.type) or pa.types.is_list(f.type)]
        self._floating = [f.name for f in schema if pa.types.is_floating(f.type)]
        self._texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        self.nulls = dict.fromkeys([*self._repeated, *self._floating, *self._texts], 0)
        self.bounds: dict[str, tuple[Any, Any]] = {}
        self._no_text: set[str] = set()
        self._with_nan: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch to the statistics."""
        for name in self.nulls:
            self.nulls[name] += batch.column(name).null_count
        for name in self._floating:
            self._bound(name, batch.column(name))
        for name in self._texts:
            self._bound_text(name, batch.column(name))

    def _bound_text(self, name: str, column: pa.Array) -> None:
        if name in self._no_text or column.null_count == len(column):
            return
        try:
            found = pc.min_max(column).as_py()
        except ValueError:  # text that is not UTF-8
            self._no_text.add(name)
            self.bounds.pop(name, None)
            return
        self._widen(name, found["min"], found["max"])

    def _widen(self, name: str, least: Any, most: Any) -> None:
        low, high = self.bounds.get(name, (least, most))
        self.bounds[name] = (min(low, least), max(high, most))

    def _bound(self, name: str, column: pa.Array) -> None:
        if name in self._with_nan or column.null_count == len(column):
            return
        if pc.any(pc.is_nan(column)).as_py():
            self._with_nan.add(name)
            self.bounds.pop(name, None)
            return
        found = pc.min_max(column).as_py()
        self._widen(name, found["min"], found["max"])


def without_floating(schema: pa.Schema) -> list[str]:
    """Return the paths of the Parquet columns that are not floating-point. Only these columns get bounds in the footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    found = [columns.column(index) for index in range(len(columns.names))]
    floating = {column.path for column in found if column.physical_type in ("FLOAT", "DOUBLE")}
    return [column.path for column in found if column.path not in floating]


def file_statistics(footer: pq.FileMetaData, schema: pa.Schema, seen: Seen, columns: int) -> str:
    """Return a file's statistics as JSON text for Delta's log.

    Only the first `columns` leaf columns get statistics; if `columns` is negative, all do.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    for number, (path, type_, index) in enumerate(leaves(schema)):
        if 0 <= columns <= number:
            break
        if path[0] in seen.nulls:
            missing[path[0]] = seen.nulls[path[0]]
            low, high = seen.bounds.get(path[0], (None, None))
        else:
            low, high = bounds_of(footer, index, path, missing)
        if low is not None and (least_of := lower(low, type_)) is not None:
            put(least, path, least_of)
        if high is not None and (most_of := upper(high, type_)) is not None:
            put(most, path, most_of)
    values = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": missing}
    return as_json(values)


def as_json(value: Any) -> str:
    """Return a value as JSON text. A decimal becomes a number with all of its digits; a float would lose some."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{as_json(value[key])}" for key in value) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def bounds_of(footer: pq.FileMetaData, index: int, path: tuple[str, ...], missing: dict[str, Any]) -> tuple[Any, Any]:
    """Return a leaf column's bounds from the footer; two Nones if they are unknown. Put the null count into `missing`.

    `index` is the column's position in the file.
    """
    groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if any(group is None for group in groups):
        return None, None
    if all(group.has_null_count for group in groups):
        put(missing, path, sum(group.null_count for group in groups))
    bounds = [group for group in groups if group.has_min_max]
    # a group without bounds may contain values; it has no effect only if all of its values are null
    if not bounds or any(not group.has_min_max and group.num_values for group in groups):
        return None, None
    try:
        return min(group.min for group in bounds), max(group.max for group in bounds)
    except (ValueError, OverflowError):  # text that is not UTF-8, dates that Python does not have
        return None, None


def leaves(
    schema: Iterable[pa.Field], above: tuple[str, ...] = (), index: int = 0
) -> Iterable[tuple[tuple[str, ...], pa.DataType, int]]:
    """Yield the path, the type and the position in the file of each leaf column, in order. A list or map is one leaf.

    Lists and maps inside a struct are left out. Use the position to find a leaf in the footer, because names are
    ambiguous: ``a.b`` can be a column, or the field ``b`` of ``a``.
    """
    for field in schema:
        nested = pa.types.is_map(field.type) or pa.types.is_list(field.type)
        if pa.types.is_struct(field.type):
            yield from leaves(field.type, (*above, field.name), index)
        elif not above or not nested:
            yield (*above, field.name), field.type, index
        index += width(field.type)


def width(type_: pa.DataType) -> int:
    """Return how many columns of a Parquet file a type needs."""
    if pa.types.is_struct(type_):
        return sum(width(field.type) for field in type_)
    if pa.types.is_map(type_):
        return width(type_.key_type) + width(type_.item_type)
    return width(type_.value_type) if pa.types.is_list(type_) else 1


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at a path in nested mappings."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def lower(value: Any, type_: pa.DataType) -> Any:
    """Return a lower bound that JSON can represent: the value, or a smaller one. None if there is no such bound."""
    if isinstance(value, str):
        return value[:TEXT_PREFIX]
    if isinstance(value, dt.datetime):
        return instant(value, type_, up=False)
    return exact(value)


def upper(value: Any, type_: pa.DataType) -> Any:
    """Return an upper bound that JSON can represent: the value, or a greater one. None if there is no such bound."""
    if isinstance(value, str):
        if len(value) <= TEXT_PREFIX:
            return value
        rest = value[TEXT_PREFIX:]
        cut = len(value) - len(rest.lstrip(HIGHEST))
        return value if cut == len(value) else value[:cut] + HIGHEST
    if isinstance(value, dt.datetime):
        return instant(value, type_, up=True)
    return exact(value)


def exact(value: Any) -> Any:
    """Return a number or a date without rounding; None for a type that JSON or data skipping does not support."""
    if isinstance(value, (int, Decimal)):
        return value
    if isinstance(value, float):  # infinities as Spark writes them
        return value if math.isfinite(value) else repr(value).replace("inf", "Infinity")
    if isinstance(value, dt.date):
        return value.isoformat()
    return None


def instant(value: dt.datetime, type_: pa.DataType, up: bool) -> str | None:
    """Return a time in ISO 8601, rounded down or up to milliseconds; None if its year is below 1000 or out of range."""
    rest = value.microsecond % 1000
    try:
        rounded = value - dt.timedelta(microseconds=rest) + dt.timedelta(milliseconds=1 if up and rest else 0)
    except OverflowError:
        return None
    if rounded.year < 1000:  # Spark's parser and ours differ on short years
        return None
    zone = "" if type_.tz is None else "Z"
    return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
