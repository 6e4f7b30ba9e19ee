"""Messages as librdkafka lays them out, made by hand; and a program that compares the helper's columns with Python's.

``python -m tests.connector.kafka.native.synthetic LIBRARY SEED ROUNDS [CUT]``: exit status 0 if every round agrees. With `CUT`
the buffer of the values is that many bytes too short, which a sanitizer must see.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import numpy as np

from connector.kafka.native.columns import Columns
from connector.kafka.native.library import Message

Header = tuple[str, "bytes | None"]
Row = tuple["bytes | None", "bytes | None", int, "list[Header] | None"]

TIMESTAMP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
HEADERS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
HEADER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)
DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def random_rows(chance: random.Random) -> list[Row]:
    """Rows with nulls, empty and long values, and headers."""

    def value() -> bytes | None:
        kind = chance.random()
        size = 0 if kind < 0.2 else chance.randrange(20) if kind < 0.9 else chance.randrange(5000)
        return None if kind > 0.97 or kind < 0.1 else chance.randbytes(size)

    def headers() -> list[Header] | None:
        if chance.random() < 0.5:
            return None
        return [("n" * chance.randrange(4), value()) for _ in range(chance.randrange(4))]

    return [(value(), value(), chance.randrange(1 << 40), headers()) for _ in range(chance.randrange(200))]


class Messages:
    """Rows as the library's messages, and its functions that read them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.destroyed: list[int] = []
        self._kept = [self._buffers(row) for row in rows]
        self._made = [self._message(number) for number in range(len(rows))]
        self.pointers = np.array([ctypes.addressof(made) for made in self._made], np.uint64)
        self._number = {int(pointer): number for number, pointer in enumerate(self.pointers)}
        functions = (TIMESTAMP(self._time), HEADERS(self._headers), HEADER(self._header), DESTROY(self._destroy))
        self._functions = functions
        self.timestamp, self.headers, self.header, self.destroy = (
            ctypes.cast(function, ctypes.c_void_p).value for function in functions
        )

    @staticmethod
    def _buffers(row: Row) -> tuple[Any, Any]:
        # Each in memory of its own, without a byte to spare: what is read beyond its end, a sanitizer sees.
        key, value, _, _ = row
        return tuple(None if one is None else np.frombuffer(one, np.uint8).copy() for one in (key, value))  # type: ignore[return-value]

    def _message(self, number: int) -> Message:
        key, value = self._kept[number]
        made = Message()
        made.offset = number * 3
        for name, size, one in (("key", "key_len", key), ("payload", "len", value)):
            if one is not None:
                setattr(made, name, one.ctypes.data)
                setattr(made, size, len(one))
        return made

    def _time(self, message: int, kind: Any) -> int:
        kind[0] = self._number[message] % 3
        return self.rows[self._number[message]][2]

    def _headers(self, message: int, found: Any) -> int:
        if self.rows[self._number[message]][3] is None:
            return 1
        found[0] = message
        return 0

    def _header(self, message: int, at: int, name: Any, value: Any, size: Any) -> int:
        own = self.rows[self._number[message]][3] or []
        if at >= len(own):
            return 1
        text, data = own[at]
        self._last = (text.encode(), data)  # alive until the next call
        name[0] = self._last[0]
        value[0] = None if data is None else ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        size[0] = len(data or b"")
        return 0

    def _destroy(self, message: int) -> None:
        self.destroyed.append(self._number[message])


def values_of(ends: Any, data: Any, valid: Any) -> list[bytes | None]:
    """What a binary column holds."""
    there = np.unpackbits(valid, bitorder="little")
    return [
        data[start:end].tobytes() if there[number] else None
        for number, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    ]


def compare(columns: Columns, messages: Messages, cut: int = 0) -> None:
    """Fail unless the helper's columns are the rows; `cut` takes bytes from the end of the values' buffer."""
    rows, count, at = messages.rows, len(messages.rows), messages.pointers.ctypes.data
    errors, offsets = np.full(count, 9, np.int32), np.empty(count, np.int64)
    assert columns.scan(at, count, errors.ctypes.data, offsets.ctypes.data) == count
    assert not errors.any()
    assert offsets.tolist() == [3 * number for number in range(count)]
    sizes = np.zeros(2, np.int64)
    columns.sizes(at, count, sizes.ctypes.data, sizes.ctypes.data + 8)
    for which, expected in enumerate(([row[0] for row in rows], [row[1] for row in rows])):
        assert sizes[which] == sum(len(one or b"") for one in expected)
        data = np.empty(max(0, sizes[which] - (cut if which else 0)), np.uint8)
        ends, valid = np.empty(count + 1, np.int32), np.zeros((count + 7) // 8, np.uint8)
        nulls = columns.bytes(at, count, which, ends.ctypes.data, data.ctypes.data, valid.ctypes.data)
        assert nulls == expected.count(None)
        assert values_of(ends, data, valid) == expected
    millis, kinds = np.empty(count, np.int64), np.empty(count, np.int32)
    columns.times(at, count, messages.timestamp, millis.ctypes.data, kinds.ctypes.data)
    assert millis.tolist() == [row[2] for row in rows]
    assert kinds.tolist() == [number % 3 for number in range(count)]
    compare_headers(columns, messages)
    columns.destroy(at, count, messages.destroy)
    assert messages.destroyed == list(range(count))


def compare_headers(columns: Columns, messages: Messages) -> None:
    """Fail unless the helper's headers are those of the rows."""
    rows, count, at = messages.rows, len(messages.rows), messages.pointers.ctypes.data
    counts, sizes = np.empty(count, np.int32), np.zeros(2, np.int64)
    read = messages.headers, messages.header
    total = columns.header_sizes(at, count, *read, counts.ctypes.data, sizes.ctypes.data, sizes.ctypes.data + 8)
    assert counts.tolist() == [-1 if row[3] is None else len(row[3]) for row in rows]
    expected = [header for row in rows for header in row[3] or []]
    assert total == len(expected)
    names, values = np.empty(sizes[0], np.uint8), np.empty(sizes[1], np.uint8)
    name_ends, value_ends = np.empty(total + 1, np.int32), np.empty(total + 1, np.int32)
    valid = np.zeros((total + 7) // 8, np.uint8)
    arrays = (name_ends, names, value_ends, values, valid)
    nulls = columns.headers(at, count, *read, *(array.ctypes.data for array in arrays))
    assert nulls == sum(value is None for _, value in expected)
    everywhere = np.full_like(valid, 255)
    assert values_of(name_ends, names, everywhere) == [name.encode() for name, _ in expected]
    assert values_of(value_ends, values, valid) == [value for _, value in expected]


def main(library: str, seed: str, rounds: str, cut: str = "0") -> None:
    """Compare in that many rounds."""
    columns, chance = Columns(library), random.Random(int(seed))
    for _ in range(int(rounds)):
        compare(columns, Messages(random_rows(chance)), int(cut))


if __name__ == "__main__":
    main(*sys.argv[1:])
