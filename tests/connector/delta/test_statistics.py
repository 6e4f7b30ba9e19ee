"""What a reader skips files by: never a bound that a value passes."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connector.delta.statistics import HIGHEST, Seen, file_statistics, without_floating

UTC = dt.timezone.utc


def statistics(*batches: pa.RecordBatch, columns: int = 32, groups: int = 2) -> dict[str, Any]:
    schema = batches[0].schema
    seen, file = Seen(schema), io.BytesIO()
    writer = pq.ParquetWriter(file, schema, write_statistics=without_floating(schema))
    for batch in batches:
        seen.add(batch)
        writer.write_batch(batch, row_group_size=groups)
    writer.close()
    found: dict[str, Any] = json.loads(file_statistics(writer.writer.metadata, schema, seen, columns))
    return found


def of(values: list[Any], type_: pa.DataType) -> tuple[Any, Any, Any]:
    """Least, most and nulls of one column."""
    found = statistics(pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["c"]))
    assert found["numRecords"] == len(values)
    return found["minValues"].get("c"), found["maxValues"].get("c"), found["nullCount"].get("c")


@pytest.mark.parametrize(
    ("values", "type_", "told"),
    [
        ([3, None, -1, 7], pa.int64(), (-1, 7, 1)),
        ([None, None, None], pa.int64(), (None, None, 3)),
        ([1.5, None, -2.5], pa.float64(), (-2.5, 1.5, 1)),
        ([1.5, float("nan"), -2.5], pa.float64(), (None, None, 0)),
        ([float("nan"), None, 1.0], pa.float32(), (None, None, 1)),
        ([float("inf"), 1.0], pa.float64(), (1.0, "Infinity", 0)),
        (["b", "a", None], pa.string(), ("a", "b", 1)),
        (["x" * 40], pa.string(), ("x" * 32, "x" * 32 + HIGHEST, 0)),
        (["x" * 31 + HIGHEST + "y"], pa.string(), ("x" * 31 + HIGHEST, "x" * 31 + HIGHEST * 2, 0)),
        ([True, False], pa.bool_(), (False, True, 0)),
        ([b"a"], pa.binary(), (None, None, 0)),
        ([dt.date(1969, 12, 31), dt.date(2024, 2, 29)], pa.date32(), ("1969-12-31", "2024-02-29", 0)),
        ([Decimal("1.25"), Decimal(-7)], pa.decimal128(9, 2), (-7.0, 1.25, 0)),
        (
            [Decimal("12345678901234567890.12")],
            pa.decimal128(38, 2),
            (12345678901234567890.12, 12345678901234567890.12, 0),
        ),
        (
            [dt.datetime(2020, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
            ("2020-01-01T00:00:00.001Z", "2020-01-01T00:00:00.002Z", 0),
        ),
        (
            [dt.datetime(1969, 12, 31, 23, 59, 59, 999_500)],  # noqa: DTZ001 - a local time has no zone
            pa.timestamp("us"),
            ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000", 0),
        ),
        ([[1], None, []], pa.list_(pa.int64()), (None, None, 1)),
    ],
)
def test_bounds_hold_every_value_or_are_left_out(
    values: list[Any], type_: pa.DataType, told: tuple[Any, Any, Any]
) -> None:
    assert of(values, type_) == told


def test_fields_of_structs_are_told_and_nan_below_them_is_not_risked() -> None:
    type_ = pa.struct([("x", pa.int64()), ("f", pa.float64())])
    assert of([{"x": 1, "f": 2.0}, {"x": None, "f": None}], type_) == ({"x": 1}, {"x": 1}, {"x": 1})


def test_only_the_first_columns_are_told_of() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    assert statistics(batch, columns=1)["minValues"] == {"a": 1}
    assert statistics(batch, columns=-1)["minValues"] == {"a": 1, "b": 2}
    assert statistics(batch, columns=0)["numRecords"] == 1


def test_a_column_with_a_dot_in_its_name_is_not_taken_for_a_field() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"a.b": [1, 2], "a": [{"b": 100}, {"b": 200}], "x.y": [1.5, 2.5], "x": [{"y": 9}] * 2}
    )
    found = statistics(batch)
    assert found["minValues"] == {"a.b": 1, "a": {"b": 100}, "x.y": 1.5}
    assert found["maxValues"] == {"a.b": 2, "a": {"b": 200}, "x.y": 2.5}


def test_what_python_cannot_hold_has_no_bounds() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    found = statistics(pa.RecordBatch.from_arrays([text, pa.array([5_000_000], pa.date32())], names=["t", "d"]))
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (1, {}, {})
