"""Finds the addresses and lengths of the values in Arrow's buffers, for a library that copies the bytes from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

MESSAGE: Final = np.dtype(
    {
        "names": ["err", "topic", "partition", "payload", "len", "key", "key_len", "offset", "private"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""The numpy type of an array of `library.Message`."""

_NOTHING: Final = np.zeros(8, np.uint8)
"""A buffer that gives empty values an address, because the address 0 would mean null."""


def spans(column: pa.Array) -> tuple[Array, Array, pa.Array]:
    """Return the address and the length of each row's bytes (both 0 for null), and the array that owns these bytes."""
    import pyarrow as pa

    count = len(column)
    if column.null_count == count:
        return np.zeros(count, np.uint64), np.zeros(count, np.uint64), column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # A cast from string to binary only changes the type: nothing is copied.
    large = column.type in (pa.large_string(), pa.large_binary())
    owner = column.cast(pa.large_binary() if large else pa.binary())
    validity, offsets, data = owner.buffers()
    ends: Array = np.frombuffer(offsets, np.int64 if large else np.int32)[owner.offset : owner.offset + count + 1]
    first = data.address if data is not None and data.size else _NOTHING.ctypes.data
    addresses = np.uint64(first) + ends[:-1].astype(np.uint64)
    lengths = np.diff(ends).astype(np.uint64)
    if owner.null_count:
        null = ~_bits(validity, owner.offset, count)
        addresses[null] = 0
        lengths[null] = 0
    return addresses, lengths, owner


def integers(column: pa.Array) -> tuple[Array, Array]:
    """Return a column of whole numbers as int64, and a mask of its nulls. The number in a null row is arbitrary."""
    import pyarrow as pa

    count = len(column)
    wide = column.cast(pa.int64())
    validity, numbers = wide.buffers()
    null = np.zeros(count, bool) if validity is None else ~_bits(validity, wide.offset, count)
    return np.frombuffer(numbers, np.int64)[wide.offset : wide.offset + count], null


def grouped(column: pa.Array) -> list[tuple[str, Array]]:
    """Return each distinct string of a column without nulls, with the indexes of its rows in ascending order."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not len(column):
        return []
    encoded = column.cast(pa.string()).dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32)[encoded.indices.offset :][: len(column)]
    if len(texts) == 1:
        return [(texts[0], np.arange(len(column)))]
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(texts)))[:-1])
    return list(zip(texts, parts, strict=True))


def _bits(buffer: pa.Buffer, offset: int, count: int) -> Array:
    """Return `count` bits of a bitmap, from the bit `offset` on, as booleans."""
    first = offset // 8
    some = np.frombuffer(buffer, np.uint8)[first : (offset + count + 7) // 8]
    return np.unpackbits(some, bitorder="little")[offset - first * 8 :][:count].astype(bool)
