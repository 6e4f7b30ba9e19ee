"""Rows as values of an INSERT: that a server reads them as they were is tested in integration/test_mysql_sink.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.sql.mysql_rows import as_values
from transactional.errors import RowRefusedError


def text_of(columns: list[pa.Array], limit: int = 1 << 20, begin: int = 0) -> list[str]:
    rows = as_values(columns, [f"c{number}" for number in range(len(columns))], "ab12", begin)
    return [piece.decode() for piece in rows.portions(limit)]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), -5, "-5"),
        (pa.bool_(), True, "1"),
        (pa.float64(), 0.1, "'0.1'"),
        (pa.float64(), 1e300, "'1e+300'"),
        (pa.decimal128(10, 2), 5, "'5.00'"),
        (pa.string(), "it's \\ ok", "'it''s \\\\ ok'"),
        (pa.large_string(), "", "''"),
        (pa.binary(), b"\x00'", "x'0027'"),
        (pa.date32(), 0, "'1970-01-01'"),
        (pa.timestamp("us", "UTC"), 1, "'1970-01-01 00:00:00.000001'"),
        (pa.timestamp("us"), 0, "'1970-01-01 00:00:00.000000'"),
        (pa.string(), None, "NULL"),
        (pa.int32(), None, "NULL"),
    ],
)
def test_each_type_has_its_text(kind: pa.DataType, value: Any, text: str) -> None:
    assert text_of([pa.array([value], kind)], begin=7) == [f"('ab12',7,{text})"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_no_database_has_is_refused_by_its_column(value: float) -> None:
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*c0 contains NaN"):
        text_of([pa.array([value, None], pa.float64())])


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=0, max_size=40), st.integers(1, 200), st.integers(0, 5))
def test_pieces_have_all_rows_in_order_and_are_no_larger_than_need_be(sizes: list[int], limit: int, begin: int) -> None:
    whole = pa.array(["x" * size for size in [*range(begin), *sizes]], pa.string())
    column = whole.slice(begin)
    pieces = text_of([column], limit)
    rows = [f"('ab12',{number},'{'x' * size}')" for number, size in enumerate(sizes)]
    assert ",".join(pieces) == ",".join(rows)
    assert all(len(piece) < limit or piece in rows for piece in pieces)
