"""What has a binary form, and what is left to text. That both mean the same, the server says in the integration tests."""

from __future__ import annotations

import datetime as dt
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connector.sql.binary_rows import EPOCH_MICROS, HEADER, TRAILER, as_binary


def fields(column: pa.Array, base: str) -> list[bytes | None] | None:
    """The bytes of a column's fields, taken apart as the server does."""
    found = as_binary([column], [base], "n", 5)
    if found is None:
        return None
    head, body, tail = (bytes(each) for each in found)
    assert (head, tail) == (HEADER, TRAILER)
    values: list[bytes | None] = []
    at = 0
    for number in range(len(column)):
        start = struct.pack(">hi", 3, 1) + b"n" + struct.pack(">iq", 8, 5 + number)
        assert body[at : at + len(start)] == start
        at += len(start)
        (length,) = struct.unpack_from(">i", body, at)
        at += 4
        values.append(None if length < 0 else body[at : at + length])
        at += max(length, 0)
    assert at == len(body)
    return values


@pytest.mark.parametrize(
    ("values", "kind", "base", "wanted"),
    [
        ([1, None, -2], pa.int32(), "int4", [b"\0\0\0\1", None, b"\xff\xff\xff\xfe"]),
        ([1, -1], pa.int8(), "int2", [b"\0\1", b"\xff\xff"]),
        ([7], pa.int64(), "int4", [b"\0\0\0\7"]),
        ([True, None, False], pa.bool_(), "bool", [b"\1", None, b"\0"]),
        ([0.5], pa.float32(), "float8", [struct.pack(">d", 0.5)]),
        (["", None, "ä"], pa.string(), "text", [b"", None, "ä".encode()]),
        (["x"], pa.large_string(), "varchar", [b"x"]),
        (["{}", None], pa.string(), "jsonb", [b"\1{}", None]),
        ([b"\0", None], pa.binary(), "bytea", [b"\0", None]),
        ([dt.date(2000, 1, 2)], pa.date32(), "date", [b"\0\0\0\1"]),
        ([EPOCH_MICROS + 1], pa.timestamp("us", "UTC"), "timestamptz", [struct.pack(">q", 1)]),
        ([EPOCH_MICROS - 1, None], pa.timestamp("us"), "timestamp", [struct.pack(">q", -1), None]),
        (
            [Decimal("-12345.67"), None],
            pa.decimal128(10, 2),
            "numeric",
            [struct.pack(">hhHH6h", 6, 4, 0x4000, 2, 0, 0, 0, 1, 2345, 6700), None],
        ),
        ([-(2**63)], pa.int64(), "numeric", [struct.pack(">hhHH5h", 5, 4, 0x4000, 0, 922, 3372, 368, 5477, 5808)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", [False, True])
def test_values_have_the_form_of_their_type(
    values: list[Any], kind: pa.DataType, base: str, wanted: list[bytes | None], cut: bool
) -> None:
    around = pa.array([None, *values, values[0]], kind).slice(1, len(values))  # its buffers begin before it
    assert fields(around if cut else pa.array(values, kind), base) == wanted


@pytest.mark.parametrize(
    ("values", "kind", "base"),
    [
        ([2**31], pa.int64(), "int4"),
        ([Decimal(1)], pa.decimal128(19, 0), "numeric"),
        ([Decimal("0.1")], pa.decimal128(18, 17), "numeric"),
        (["1"], pa.string(), "int4"),
        (["a"], pa.string(), "uuid"),
        ([["a"]], pa.list_(pa.string()), "_text"),
        ([0.1], pa.float64(), "float4"),
        ([-(2**63) + 1], pa.timestamp("us"), "timestamp"),
        ([dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)], pa.timestamp("us", "UTC"), "timestamp"),
        ([1], pa.int64(), "own_domain"),
    ],
    ids=str,
)
def test_what_has_none_is_left_to_text(values: list[Any], kind: pa.DataType, base: str) -> None:
    assert fields(pa.array(values, kind), base) is None


def test_a_null_hides_whatever_lies_under_it() -> None:
    values = pa.array([2**40, 1], pa.int64())
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\2"), values.buffers()[1]])
    assert fields(hidden, "int4") == [None, b"\0\0\0\1"]


def test_no_pandas_is_imported() -> None:
    program = """
import sys
import pyarrow as pa
from connector.sql.binary_rows import as_binary
column = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\\0"), pa.py_buffer(bytes(8))])
assert as_binary([column, column.cast(pa.string())], ["numeric", "text"], "n", 0)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
