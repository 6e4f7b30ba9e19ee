"""Encode Arrow rows as the values of an INSERT statement for MySQL and MariaDB, without a Python object per value.

Text is in single quotation marks. Each quotation mark and each backslash in the text is doubled. That is correct because the
session's sql_mode does not contain NO_BACKSLASH_ESCAPES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.sql.csv_rows import constant, hexadecimal, is_utf8, joined, numbers, only_where
from connector.sql.dialect import is_bytes, is_text
from transactional import RowRefusedError


class ValueRows:
    """Rows as the text of an INSERT statement: ``(...),(...)``.

    Parameters
    ----------
    text : pyarrow.LargeStringArray
        The text of each row, which begins with a comma.
    """

    def __init__(self, text: pa.LargeStringArray) -> None:
        count = len(text)
        _, offsets, data = text.buffers()
        self._places = np.frombuffer(offsets, np.int64, count + 1, text.offset * 8) if count else np.zeros(1, np.int64)
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def largest(self) -> int:
        """Return the size of the largest row in bytes."""
        return int(np.diff(self._places).max(initial=0))

    def portions(self, limit: int) -> Iterator[bytes]:
        """Yield the rows in pieces of at most `limit` bytes. A larger row becomes a separate piece."""
        places, first = self._places, 0
        while first < len(places) - 1:
            fitting = int(np.searchsorted(places, places[first] + limit, "right")) - 1
            last = max(first + 1, fitting)
            yield bytes(self._data[places[first] + 1 : places[last]])
            first = last


def as_values(columns: Sequence[pa.Array], names: Sequence[str], nonce: str, begin: int) -> ValueRows:
    """Return the rows as SQL text. Each row begins with `nonce` and the row's number, counted from `begin`."""
    if not nonce.isalnum():
        raise ValueError(nonce)
    pieces: list[pa.Array | pa.Scalar] = [numbers(begin, len(columns[0])).cast(pa.large_string())]
    for column, name in zip(columns, names, strict=True):
        pieces += [constant(","), _literals(column, name)]
    return ValueRows(joined(constant(f",('{nonce}',"), *pieces, constant(")")))


def _literals(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        text = (column.cast(pa.int8()) if pa.types.is_boolean(kind) else column).cast(pa.large_string())
    elif is_bytes(kind):
        text = joined(constant("x'"), hexadecimal(column), constant("'"))
    else:
        if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            reason = f"the column {name} contains NaN or an infinite number, which the database can't store"
            raise RowRefusedError("ROW_REFUSED", owner="2pc-mysql", reason=reason)
        if is_text(kind) and not is_utf8(column):  # the server would store surrogates, which no client can read
            reason = f"the column {name} contains text that is not UTF-8"
            raise RowRefusedError("ROW_REFUSED", owner="2pc-mysql", reason=reason)
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp(kind.unit))  # so its text is in UTC, without the Z
        text = column.cast(pa.large_string())
        if is_text(kind):
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "''")
        text = joined(constant("'"), text, constant("'"))
    return pc.coalesce(only_where(column, text), constant("NULL"))
