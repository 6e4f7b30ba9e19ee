"""Arrow's rows as the values of an INSERT statement, for MySQL and MariaDB: no Python object per value.

Text stands in quotation marks, with each of its own, and each backslash, doubled: the session's sql_mode does not have
NO_BACKSLASH_ESCAPES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.sql.csv_rows import constant, hexadecimal, is_utf8, joined, numbers, only_where
from connector.sql.dialect import is_bytes, is_text
from transactional import RowRefusedError

__all__ = ["ValueRows", "as_values"]


class ValueRows:
    """Rows as ``(...),(...)``, one after the other.

    Parameters
    ----------
    text : pyarrow.LargeStringArray
        Each with a comma before it.
    """

    def __init__(self, text: pa.LargeStringArray) -> None:
        count = len(text)
        _, offsets, data = text.buffers()
        self._places = np.frombuffer(offsets, np.int64, count + 1, text.offset * 8) if count else np.zeros(1, np.int64)
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def largest(self) -> int:
        """Return the bytes of the largest row."""
        return int(np.diff(self._places).max(initial=0))

    def portions(self, limit: int) -> Iterator[bytes]:
        """Return the rows in pieces of about `limit` bytes, at least one row each."""
        places, first = self._places, 0
        while first < len(places) - 1:
            fitting = int(np.searchsorted(places, places[first] + limit, "right")) - 1
            last = max(first + 1, fitting)
            yield bytes(self._data[places[first] + 1 : places[last]])
            first = last


def as_values(columns: Sequence[pa.Array], names: Sequence[str], nonce: str, begin: int) -> ValueRows:
    """Return rows that begin with their transaction's nonce and their number."""
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
            reason = f"the column {name} has NaN or an infinite number, which the database does not have"
            raise RowRefusedError("ROW_REFUSED", owner="2pc-mysql", reason=reason)
        if is_text(kind) and not is_utf8(column):  # the server keeps surrogates, which no client can read
            reason = f"the column {name} has a text that is no UTF-8"
            raise RowRefusedError("ROW_REFUSED", owner="2pc-mysql", reason=reason)
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp(kind.unit))  # its text in UTC, without the Z
        text = column.cast(pa.large_string())
        if is_text(kind):
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "''")
        text = joined(constant("'"), text, constant("'"))
    return pc.coalesce(only_where(column, text), constant("NULL"))
