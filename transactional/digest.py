"""A digest of rows, which depends neither on the order of the rows nor on how they are split into Arrow batches.

Each value has a 64-bit hash. A row's hash mixes its columns' hashes in order (`transactional.spans.mix`). The digest is the sum
of the rows' hashes modulo 2**64. A value of fixed width is hashed by mixing its 64-bit pattern. Null has a fixed hash. Text
(as UTF-8) and binary values are hashed with `transactional.spans.hash_spans`. Nested values are first written as canonical
JSON, then hashed in the same way. Values with the same bytes have the same hash in all Arrow types: large types, views,
dictionaries, and binary of fixed size.

The digest detects a query that computes different rows when it runs again. Different rows have the same digest with a
probability of about 2**-64 (1 in 1.8e19), unless someone constructed them for that purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transactional.spans import GOLDEN, hash_spans, mix

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ENCODING_VERSION = 2
"""The number of the encoding that this module describes. Digests in different encodings can't be compared."""

_MASK = (1 << 64) - 1
_EMPTY = f"{0:016x}"
_NULL = GOLDEN  # the hash of null: any constant that is unlikely to be the hash of a value


@dataclass
class RowDigest:
    """The digest of all batches that `update` has added so far."""

    rows: int = 0  # The number of rows.
    # The size of the rows: the length of every variable-width value plus the width of every other value, in bytes.
    bytes: int = 0
    value: int = 0  # The digest, 0 <= value < 2**64.

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch to the digest."""
        import numpy as np

        hashes = np.zeros(batch.num_rows, dtype=np.uint64)
        for column in batch.columns:
            values, length = _hash_column(column)
            hashes *= np.uint64(31)
            hashes += values
            hashes += np.uint64(_NULL)
            mix(hashes)
            self.bytes += length
        self.rows += batch.num_rows
        self.value = (self.value + int(hashes.sum(dtype=np.uint64))) & _MASK

    def hexadecimal(self) -> str:
        """Return the digest as the journal stores it: the encoding, a colon, and 16 hexadecimal digits."""
        return f"{ENCODING_VERSION}:{self.value:016x}"


def digest_of_all(digests: Iterable[str]) -> str:
    """Return the digest of all rows of several parts, regardless of which part contains which row.

    Return an empty string if the digest of a part with rows is unknown or has another encoding.
    """
    parts = [digest.partition(":") for digest in digests]
    if any(encoding != str(ENCODING_VERSION) and value != _EMPTY for encoding, _, value in parts):
        return ""
    total = sum(int(value, 16) for _, _, value in parts)
    return f"{ENCODING_VERSION}:{total & _MASK:016x}"


def other_encodings(digests: Iterable[str]) -> set[str]:
    """Return the encodings of these digests, without this release's encoding.

    Digests of parts without rows are left out, because they are equal in all encodings.
    """
    parts = (digest.partition(":") for digest in digests)
    return {encoding for encoding, colon, value in parts if colon and value != _EMPTY} - {str(ENCODING_VERSION)}


def _hash_column(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    """Return a uint64 hash for each row, and the size of the column's values in bytes (see `RowDigest.bytes`)."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        if _is_fixed_width(kind.value_type):
            return _hash_fixed_width(column.dictionary_decode())
        hashes, lengths = _hash_dictionary(column)
    elif _is_fixed_width(kind):
        return _hash_fixed_width(column)
    else:
        hashes, lengths = _hash_binary(column)
    return hashes, int(lengths.sum())


def _hash_dictionary(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Do the same as `_hash_binary` for a dictionary-encoded column, but hash each dictionary value only once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    hashes, lengths = _hash_binary(column.dictionary)
    null = len(column.dictionary)
    places = pc.fill_null(column.indices.cast(pa.int64()), null).to_numpy(zero_copy_only=False)
    return np.append(hashes, np.uint64(_NULL))[places], np.append(lengths, 0)[places]


def _hash_binary(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the hash and the length in bytes of each value of a variable-width column. The length of null is 0."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_binary())
    elif not _is_text_or_binary(kind):
        column = pa.array(_texts(column), pa.large_binary())
    if not len(column):  # an empty column may have no buffers
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    offsets = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if not column.null_count:
        return hash_spans(data or b"", offsets[:-1], lengths), lengths
    nulls = _nulls(column)
    lengths[nulls] = 0  # there may be bytes in a null's place
    hashes = hash_spans(data or b"", offsets[:-1], lengths)
    hashes[nulls] = np.uint64(_NULL)
    return hashes, lengths


def _is_text_or_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_fixed_width(kind: pa.DataType) -> bool:
    """Return whether the values of an Arrow type are hashed as one or two 64-bit numbers."""
    import pyarrow as pa

    return bool(
        pa.types.is_null(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or _is_instant(kind)
    )


def _is_instant(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def _hash_fixed_width(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL, dtype=np.uint64), 0
    hashes = _hash_decimal(column) if pa.types.is_decimal128(kind) else _hash_number(column)
    if column.null_count:
        hashes[_nulls(column)] = np.uint64(_NULL)
    return hashes, len(column) * max(1, kind.bit_width // 8)


def _hash_number(column: pa.Array) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_uint64(kind):
        numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    else:
        if _is_instant(kind):
            column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).view(np.uint64)
    return mix(numbers + np.uint64(1))


def _hash_decimal(column: pa.Array) -> np.ndarray[Any, Any]:
    """Hash each 128-bit unscaled value as two 64-bit halves, mixed one after the other."""
    import numpy as np

    values = np.frombuffer(column.buffers()[1], dtype=np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    return mix(mix(values[0::2] + np.uint64(1)) + values[1::2])


def _nulls(column: pa.Array) -> np.ndarray[Any, Any]:
    import pyarrow.compute as pc

    nulls: np.ndarray[Any, Any] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return nulls


def _texts(column: pa.Array) -> list[bytes | None]:
    """Return the canonical JSON text of each value; None for null."""
    values = column.to_pylist()
    return [None if v is None else json.dumps(v, sort_keys=True, default=_plain).encode() for v in values]


def _plain(value: Any) -> Any:
    """Convert a value that JSON can't represent: bytes to hexadecimal digits, all others (decimals, dates, times) to text."""
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)
