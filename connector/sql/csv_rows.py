"""Encode Arrow rows as CSV text, without a Python object per value. Databases read CSV faster than parameters.

A null is an empty field without quotation marks. Text and bytes are in quotation marks, even if they are empty. Nothing here
infers a type from a Python object, because pyarrow imports pandas for that.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from connector.sql.dialect import is_array, is_bytes, is_text
from transactional import RowRefusedError

ROWS: Final = 10_000
"""The number of rows that pyarrow encodes at a time. More rows would need more memory for their text."""

FIRST_DAY: Final = -719_162
END_DAY: Final = 2_932_897
"""The first day that CSV text can store, 0001-01-01, and the day after the last one, 10000-01-01, as days since
1970-01-01."""

PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def as_csv(batch: pa.RecordBatch, *first: pa.Array) -> memoryview:
    """Return a batch's rows as CSV without a header. The columns `first` come before the batch's columns."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _must_have_text(column, name)
    columns = [*first, *(as_text(column) for column in batch.columns)]
    rows = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
    stream = BytesIO()
    csv.write_csv(rows, stream, csv.WriteOptions(include_header=False, batch_size=ROWS))
    return stream.getbuffer()


def numbers(begin: int, count: int) -> pa.Array:
    """Return a column of `count` integers that counts up from `begin`."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(begin, begin + count))])


def repeated(text: str, count: int) -> pa.Array:
    """Return a column that repeats a string `count` times."""
    return pa.repeat(constant(text), count)


def as_text(column: pa.Array) -> pa.Array:
    """Return a column in a form that CSV can store: bytes as PostgreSQL's hexadecimal text, arrays as array literals."""
    kind = column.type
    if is_bytes(kind):
        return joined(constant("\\x"), hexadecimal(column))
    if is_array(kind):
        return _literals(column)
    return column


def hexadecimal(column: pa.Array) -> pa.Array:
    r"""Return bytes as hexadecimal text: ``b"\x01\xff"`` -> ``01ff``."""
    plain = column.cast(pa.large_binary())
    _, offsets, data = plain.buffers()
    count = len(plain)
    places = np.frombuffer(offsets, np.int64, count + 1, plain.offset * 8) if count else np.zeros(1, np.int64)
    begin, end = int(places[0]), int(places[-1])
    text = bytes(memoryview(data)[begin:end]).hex().encode() if data is not None else b""
    doubled = pa.LargeStringArray.from_buffers(count, pa.py_buffer((places - begin) * 2), pa.py_buffer(text))
    return only_where(column, doubled)


def _must_have_text(column: pa.Array, name: str) -> None:
    """Reject dates that CSV can't represent (years outside 1 to 9999), and text that is not UTF-8 or contains NUL."""
    kind = column.type
    while is_array(kind):
        column = column.flatten()
        kind = column.type
    if is_text(kind) and (not is_utf8(column) or pc.any(pc.match_substring(column, "\0")).as_py()):
        reason = f"the column {name} contains text that is not UTF-8, or a NUL character"
        raise RowRefusedError("ROW_REFUSED", owner="2pc-postgresql", reason=reason)
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return
    ticks = 1 if pa.types.is_date32(kind) else 86_400 * PER_SECOND[kind.unit if pa.types.is_timestamp(kind) else "ms"]
    values = column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    found = pc.min_max(values)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is not None and not FIRST_DAY * ticks <= least <= most < END_DAY * ticks:
        reason = f"the column {name} contains a year before 1 or after 9999, which the sink can't copy as text"
        raise RowRefusedError("ROW_REFUSED", owner="2pc-postgresql", reason=reason)


def is_utf8(column: pa.Array) -> bool:
    """Return whether a column's text is valid UTF-8. Spark's strings can contain any bytes."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _literals(column: pa.Array) -> pa.Array:
    """Return arrays as PostgreSQL's array literals: ``["a", None]`` -> ``{"a",NULL}``."""
    values = column.flatten()  # without the values of null arrays
    kind = values.type
    if is_array(kind):
        text = _literals(values)
    else:
        text = as_text(values).cast(pa.large_string())
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
            text = joined(constant('"'), text, constant('"'))
    text = pc.coalesce(text, constant("NULL"))
    lengths = pc.coalesce(pc.list_value_length(column).cast(pa.int64()), numbers(0, 1)[0])
    counts = np.frombuffer(lengths.buffers()[1], np.int64, len(lengths), lengths.offset * 8)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    places = pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)])
    lists = pa.LargeListArray.from_arrays(places, text)
    return only_where(column, joined(constant("{"), pc.binary_join(lists, constant(",")), constant("}")))


def constant(text: str) -> pa.Scalar:
    """Return a string as an Arrow scalar, without importing pandas."""
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("=qq", 0, len(data)))
    return pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))[0]


def joined(*texts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate these strings row by row. The result is null in each row where one of them is null."""
    return pc.binary_join_element_wise(*texts, constant(""))


def only_where(column: pa.Array, text: pa.Array) -> pa.Array:
    """Return `text`, with null in every row where `column` is null."""
    return pc.if_else(column.is_valid(), text, pa.nulls(1, pa.large_string())[0]) if column.null_count else text
