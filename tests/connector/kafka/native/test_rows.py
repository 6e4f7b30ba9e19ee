"""Addresses of Arrow's rows, against what Arrow itself says of them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.kafka.native.library import Message
from connector.kafka.native.rows import MESSAGE, grouped, integers, spans

TEXT = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
DICTIONARIES = [pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary())]

quick = settings(deadline=None)  # the first call imports

texts = st.lists(st.one_of(st.none(), st.text("aé€😀", max_size=20)), max_size=50)
cuts = st.tuples(st.integers(0, 60), st.integers(0, 60))


def sliced(column: pa.Array, cut: tuple[int, int]) -> pa.Array:
    return column.slice(min(cut[0], len(column)), cut[1])


def read(column: pa.Array) -> list[bytes | None]:
    """What lies at the addresses."""
    addresses, lengths, _owner = spans(column)
    assert (addresses.dtype, lengths.dtype) == (np.uint64, np.uint64)
    return [
        ctypes.string_at(int(address), int(length)) if address else None
        for address, length in zip(addresses, lengths, strict=True)
    ]


def as_bytes(column: pa.Array) -> list[bytes | None]:
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


@quick
@given(texts, st.sampled_from([*TEXT, *BYTES]), cuts)
def test_every_row_lies_where_it_is_said_to(values: list[str | None], kind: pa.DataType, cut: tuple[int, int]) -> None:
    raw = [value.encode() if value is not None and kind in BYTES else value for value in values]
    column = sliced(pa.array(raw, kind), cut)
    assert read(column) == as_bytes(column)


@quick
@given(texts, st.sampled_from(DICTIONARIES), cuts)
def test_so_do_rows_of_a_dictionary(values: list[str | None], kind: pa.DataType, cut: tuple[int, int]) -> None:
    raw = [value.encode() if value is not None and kind.value_type == pa.binary() else value for value in values]
    column = sliced(pa.array(raw, kind.value_type).dictionary_encode().cast(kind), cut)
    assert read(column) == as_bytes(column)


def test_null_lies_nowhere_and_an_empty_value_somewhere() -> None:
    for column in (pa.array(["", None]), pa.array([b"", None], pa.large_binary()), pa.array(["", None]).slice(0)):
        addresses, lengths, _ = spans(column)
        assert addresses[0] != 0
        assert (addresses[1], *lengths) == (0, 0, 0)
    assert read(pa.nulls(3)) == [None] * 3
    assert read(pa.array([], pa.string())) == []


@quick
@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=50),
    st.sampled_from([pa.int32(), pa.int64()]),
    cuts,
)
def test_whole_numbers(values: list[int | None], kind: pa.DataType, cut: tuple[int, int]) -> None:
    column = sliced(pa.array(values, kind), cut)
    numbers, null = integers(column)
    found = [None if gone else int(number) for number, gone in zip(numbers, null, strict=True)]
    assert found == column.to_pylist()


def test_a_whole_number_that_is_too_large_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        integers(pa.array([2**63], pa.uint64()))


@quick
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=50), st.sampled_from([*TEXT, *BYTES, *DICTIONARIES]), cuts)
def test_rows_of_one_text_are_grouped_in_their_order(
    values: list[str], kind: pa.DataType, cut: tuple[int, int]
) -> None:
    raw: list[Any] = [value.encode() if kind in BYTES else value for value in values]
    if pa.types.is_dictionary(kind):
        whole = pa.array(values).cast(kind.value_type).dictionary_encode().cast(kind)
    else:
        whole = pa.array(raw, kind)
    column = sliced(whole, cut)
    expected: dict[str, list[int]] = {}
    for number, value in enumerate(as_bytes(column)):
        assert value is not None
        expected.setdefault(value.decode(), []).append(number)
    assert {text: rows.tolist() for text, rows in grouped(column)} == expected


def test_an_array_of_messages_has_the_library_s_layout() -> None:
    assert ctypes.sizeof(Message) == MESSAGE.itemsize
    fields = MESSAGE.fields
    assert fields is not None
    for name in fields:
        field = getattr(Message, name)
        assert (field.offset, field.size) == (fields[name][1], fields[name][0].itemsize), name
    assert len(fields) == len(Message._fields_)
