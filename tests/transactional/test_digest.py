"""The digest of rows: order and Arrow's cuts do not matter, any other change does."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import sys
from typing import Any

import numpy as np
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
    pa.string_view(): ["", "a", "a" * 40, None],
    pa.binary_view(): [b"", b"a", b"a" * 40, None],
    pa.binary(2): [b"ab", b"\0\0", None],
    pa.dictionary(pa.int8(), pa.string()): ["", "a", None],
    pa.dictionary(pa.int32(), pa.int64()): [1, -1, None],
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
    cuts = shuffled.slice(0, 2), shuffled.slice(2, 0), shuffled.slice(2)
    assert digest(*cuts) == whole


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != pa.null()], ids=str)
def test_every_value_has_a_hash_of_its_own(kind: pa.DataType) -> None:
    digests = {digest(column(kind, [value]))[2] for value in TYPES[kind]}
    assert len(digests) == len(TYPES[kind])


BYTES = st.none() | st.binary(max_size=30) | st.binary(min_size=500, max_size=530)
ROWS = st.lists(st.tuples(BYTES, BYTES), max_size=12)
Rows = list[tuple[bytes | None, bytes | None]]


def two_columns(rows: Rows, kind: pa.DataType | None = None) -> pa.RecordBatch:
    kinds = [kind or pa.binary()] * 2
    arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(arrays, ["key", "value"])


@given(ROWS, st.data())
def test_rows_in_any_order_and_any_cuts_have_one_digest(rows: Rows, data: st.DataObject) -> None:
    whole = digest(two_columns(rows))
    shuffled = two_columns(data.draw(st.permutations(rows)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    slices = [shuffled.slice(begin, end - begin) for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert digest(*slices) == whole


@given(ROWS)
def test_all_types_of_the_same_bytes_have_one_digest(rows: Rows) -> None:
    whole = digest(two_columns(rows))
    for kind in (pa.large_binary(), pa.binary_view()):
        assert digest(two_columns(rows, kind)) == whole
    plain = two_columns(rows)
    encoded = pa.RecordBatch.from_arrays([array.dictionary_encode() for array in plain.columns], plain.schema.names)
    assert digest(encoded) == digest(encoded.slice(0, 1), encoded.slice(1)) == whole


@given(st.lists(st.none() | st.text(max_size=20), max_size=12))
def test_text_has_the_digest_of_its_bytes_in_all_types(values: list[str | None]) -> None:
    encoded = [None if value is None else value.encode() for value in values]
    whole = digest(column(pa.binary(), encoded))
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert digest(column(kind, values)) == whole


def test_values_of_a_fixed_size_have_the_digest_of_their_bytes() -> None:
    values = [b"abc", b"\0\0\0", None]
    assert digest(column(pa.binary(3), values)) == digest(column(pa.binary(), values))


def test_a_dictionary_s_own_nulls_and_unused_values_do_not_matter() -> None:
    indices = pa.array([0, 1, None, 0], pa.int32())
    used = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None, "unused"]))
    nothing = pa.DictionaryArray.from_arrays(pa.array([None], pa.int32()), pa.array([], pa.string()))
    plain = pa.array(["a", None, None, "a", None])
    batches = [pa.RecordBatch.from_arrays([array], ["v"]) for array in (used, nothing, plain)]
    assert digest(*batches[:2]) == digest(batches[2])


def test_bytes_in_the_place_of_a_null_do_not_matter() -> None:
    offsets, data = pa.py_buffer(np.array([0, 1, 4, 6], np.int32)), pa.py_buffer(b"axyzbc")
    array = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\5"), offsets, data])
    assert array.to_pylist() == [b"a", None, b"bc"]
    assert digest(pa.RecordBatch.from_arrays([array], ["v"])) == digest(column(pa.binary(), [b"a", None, b"bc"]))


def test_values_without_a_byte_have_a_digest() -> None:
    array = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(bytes(12)), pa.py_buffer(b"")])
    assert digest(pa.RecordBatch.from_arrays([array], ["v"])) == digest(column(pa.binary(), [b"", b""]))
    assert digest(column(pa.binary(), [])) == digest(column(pa.binary_view(), [])) == digest()


@given(ROWS.filter(bool), st.data())
def test_whatever_changes_in_a_row_changes_the_digest(rows: Rows, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    key, value = rows[at]
    text = value or b""
    others: set[tuple[bytes | None, bytes | None]] = {
        (value, key), (key, text + b"\0"), (key, b"\0" + text), (key, text[:-1]), (key, None), (key, b""),
        ((key or b"") + text, b""), (b"", (key or b"") + text), (text[:1], text[1:]), (text, text),
    }  # fmt: skip
    if text:
        place = data.draw(st.integers(0, len(text) - 1))
        others.add((key, text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]))
    whole = digest(two_columns(rows))
    for other in others - {(key, value)}:
        changed = [*rows[:at], other, *rows[at + 1 :]]
        assert digest(two_columns(changed))[2] != whole[2]
    assert digest(two_columns(rows[:at] + rows[at + 1 :]))[2] != whole[2]
    assert digest(two_columns([*rows, rows[at]]))[2] != whole[2]


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


GOLDEN = pa.record_batch(
    {
        "text": pa.array(["", "a", "ä" * 100, None]),
        "bytes": pa.array([b"\0", None, b"", bytes(range(256)) * 3]),
        "number": pa.array([1, -1, None, 2**40]),
        "real": pa.array([0.5, -0.0, None, 1e300]),
        "flag": pa.array([True, False, None, True]),
        "at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None] * 2, pa.timestamp("us", "UTC")),
        "price": pa.array([*map(decimal.Decimal, ("1.10", "-2", "0")), None], pa.decimal128(20, 2)),
        "list": pa.array([[1, 2], [], None, [None]], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "view": pa.array(["p", "q" * 40, None, ""], pa.string_view()),
        "fixed": pa.array([b"abc", b"abd", None, b"\0\0\0"], pa.binary(3)),
    }
)
"""Journals hold digests: the values below never change."""


def test_all_types_have_the_digests_that_releases_have_recorded() -> None:
    assert digest(GOLDEN) == (4, 1226, "2:642ccbb7100572f5")


def test_keys_and_values_have_the_digests_that_releases_have_recorded() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [b"a", None], "v": ["x", "yz"], "n": [1, None]})
    assert digest(batch) == (2, 20, "2:b463c40b55605755")


def test_short_values_are_hashed_without_an_object_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    short = column(pa.string(), ["x" * 512, "", None])
    digest(short)
    with pytest.raises(ImportError):
        digest(column(pa.string(), ["x" * 513]))


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
