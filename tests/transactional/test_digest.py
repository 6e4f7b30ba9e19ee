"""The digest of rows: order and Arrow's cuts do not matter, any other change does."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactional.digest import RowDigest

TYPES: dict[pa.DataType, list[Any]] = {
    pa.string(): ["", "a", "ä", None],
    pa.large_string(): ["a", None],
    pa.binary(): [b"", b"\xff", None],
    pa.bool_(): [True, False, None],
    pa.int8(): [-1, 0, 1, None],
    pa.int64(): [-(2**63), 2**63 - 1, 0, None],
    pa.uint64(): [2**64 - 1, 0, None],
    pa.float32(): [0.5, -0.0, None],
    pa.float64(): [0.1, float("inf"), None],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(2026, 1, 1), None],
    pa.timestamp("us", "UTC"): [dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None],
    pa.decimal128(10, 2): [decimal.Decimal("1.10"), None],
    pa.list_(pa.int32()): [[], [1, 2], [2, 1], None],
    pa.struct([("a", pa.int32()), ("b", pa.binary())]): [{"a": 1, "b": b"x"}, None],
    pa.null(): [None],
}


def digest(*batches: pa.RecordBatch) -> tuple[int, int, str]:
    found = RowDigest()
    for batch in batches:
        found.update(batch)
    return found.rows, found.bytes, found.hexadecimal()


def column(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["v"])


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_neither_order_nor_cuts_change_it(kind: pa.DataType) -> None:
    values = TYPES[kind] * 5
    whole = digest(column(kind, values))
    random.Random(0).shuffle(values)
    shuffled = column(kind, values)
    assert digest(shuffled) == whole
    assert digest(shuffled.slice(0, 2), shuffled.slice(2, 0), shuffled.slice(2)) == whole


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != pa.null()], ids=str)
def test_every_value_has_a_hash_of_its_own(kind: pa.DataType) -> None:
    digests = {digest(column(kind, [value]))[2] for value in TYPES[kind]}
    assert len(digests) == len(TYPES[kind])


@given(st.lists(st.tuples(st.text(), st.none() | st.integers(-5, 5)), max_size=20), st.integers(0, 20))
def test_a_changed_value_changes_it(rows: list[tuple[str, int | None]], place: int) -> None:
    def of(rows: list[tuple[str, int | None]]) -> tuple[int, int, str]:
        texts, numbers = [r[0] for r in rows], [r[1] for r in rows]
        return digest(
            pa.RecordBatch.from_arrays([pa.array(texts, pa.string()), pa.array(numbers, pa.int64())], ["a", "b"])
        )

    changed = list(rows)
    if rows:
        text, number = rows[place % len(rows)]
        changed[place % len(rows)] = (text + "x", number)
        assert of(changed) != of(rows)
        changed[place % len(rows)] = (text, 6)
        assert of(changed) != of(rows)
    assert of([*rows, ("", None)]) != of(rows)


def test_columns_are_not_interchangeable_and_doubled_rows_do_not_cancel_out() -> None:
    def two(a: str, b: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": [a], "b": [b]})

    assert digest(two("x", "y")) != digest(two("y", "x"))
    assert digest(two("x", "y"), two("x", "y")) != digest()


def test_the_encoding_is_that_of_version_1() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [b"a", None], "v": ["x", "yz"], "n": [1, None]})
    assert digest(batch) == (2, 20, "1:190cf907bb79a2a1")


@pytest.mark.parametrize("power", [0, 1, 63, 64, 65, 126])
def test_each_bit_of_a_decimal_changes_it(power: int) -> None:
    kind = pa.decimal128(38, 0)
    numbers = [decimal.Decimal(7), decimal.Decimal(7 ^ (1 << power))]
    digests = set()
    for number in numbers:
        found = RowDigest()
        found.update(pa.RecordBatch.from_arrays([pa.array([number], kind)], ["d"]))
        digests.add(found.value)
    assert len(digests) == 2
