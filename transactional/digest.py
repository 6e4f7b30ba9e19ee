"""A digest of rows that neither their order nor Arrow's cuts change.

Each value has a 64-bit hash. A row's hash mixes its columns' hashes in order (`transactional.spans.mix`); the digest is the sum
of the rows' hashes modulo 2**64. Fixed-width values are hashed by mixing their 64-bit pattern; null has a constant of its own.
The encodings differ in the values of variable width:

- Encoding 2: text (as UTF-8) and binary values by `transactional.spans.hash_spans`; nested values likewise, over a
  canonical JSON text. Values of the same bytes have the same hash in all of Arrow's types: large ones, views, dictionaries,
  those of a fixed size.
- Encoding 1, of earlier releases: XXH3-64 takes the place of `hash_spans`; views, dictionaries and binary values of a fixed
  size count as nested. It makes a Python object of each value.

Rows are compared under the encoding of the digest that was recorded: the plan of a micro-batch names it to the tasks.

The digest detects a query that computes other rows when it runs again. Different rows have the same digest with a
probability of about 2**-64 (1 in 1.8e19), unless someone has made them for that purpose.
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

__all__ = ["ENCODING_VERSION", "RowDigest", "digest_of_all", "encoding_of", "encodings_of"]

ENCODING_VERSION = 2
"""Of new records; all up to it can be computed."""

_MASK = (1 << 64) - 1
_EMPTY = f"{0:016x}"
_NULL = GOLDEN  # any constant no value is likely to hash to


@dataclass
class RowDigest:
    """Running digest of the batches given to `update`.

    Attributes
    ----------
    rows : int
    bytes : int
        Length of the canonical encoding: bytes of variable-width values, widths of the others.
    value : int
        The digest, 0 <= value < 2**64.
    encoding : int
        From 1 to `ENCODING_VERSION`.
    """

    rows: int = 0
    bytes: int = 0
    value: int = 0
    encoding: int = ENCODING_VERSION

    def update(self, batch: pa.RecordBatch) -> None:
        """Add a batch's rows."""
        import numpy as np

        hash_column = {1: _hash_column_1, 2: _hash_column}[self.encoding]
        hashes = np.zeros(batch.num_rows, dtype=np.uint64)
        for column in batch.columns:
            values, length = hash_column(column)
            hashes *= np.uint64(31)
            hashes += values
            hashes += np.uint64(_NULL)
            mix(hashes)
            self.bytes += length
        self.rows += batch.num_rows
        self.value = (self.value + int(hashes.sum(dtype=np.uint64))) & _MASK

    def hexadecimal(self) -> str:
        """Return the digest with its encoding, as it stands in the journal."""
        return f"{self.encoding}:{self.value:016x}"


def encoding_of(digest: str) -> int | None:
    """Return the encoding of a recorded digest; None if this release does not know it."""
    return next((known for known in range(1, ENCODING_VERSION + 1) if digest.startswith(f"{known}:")), None)


def digest_of_all(digests: Iterable[str]) -> str:
    """Return the digest of the rows of several parts, whichever part a row is in.

    Empty if a part's encoding is unknown here, or if parts with rows have different ones.
    """
    found = list(digests)
    encodings = encodings_of(found) or {ENCODING_VERSION}
    if len(encodings) > 1 or None in encodings:
        return ""
    total = sum(int(digest.partition(":")[2], 16) for digest in found)
    return f"{encodings.pop()}:{total & _MASK:016x}"


def encodings_of(digests: Iterable[str]) -> set[int | None]:
    """Return the encodings of parts with rows, None for an unknown one: a part without any is the same in all known ones."""
    known = {digest: encoding_of(digest) for digest in digests}
    return {found for digest, found in known.items() if found is None or digest.partition(":")[2] != _EMPTY}


def _hash_column(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    """Return one uint64 a row, and the number of bytes that the encoding takes."""
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
    """Do what `_hash_binary` does, and hash each value of the dictionary once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    hashes, lengths = _hash_binary(column.dictionary)
    null = len(column.dictionary)
    places = pc.fill_null(column.indices.cast(pa.int64()), null).to_numpy(zero_copy_only=False)
    return np.append(hashes, np.uint64(_NULL))[places], np.append(lengths, 0)[places]


def _hash_binary(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the hashes of values of variable width, and the length of each in bytes; a null has none."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_binary())
    elif not _is_text_or_binary(kind):
        column = pa.array(_texts(column), pa.large_binary())
    if not len(column):  # it may have no buffers
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


def _hash_column_1(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    """Do what `_hash_column` does, under encoding 1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import xxhash

    if _is_fixed_width(column.type):
        return _hash_fixed_width(column)
    if _is_text_or_binary(column.type):
        length = int(pc.sum(pc.binary_length(column)).as_py() or 0)
        items = column.cast(pa.large_binary()).to_pylist()
    else:
        items = _texts(column)
        length = sum(len(text) for text in items if text is not None)
    hashes = (_NULL if item is None else xxhash.xxh3_64_intdigest(item) for item in items)
    return np.fromiter(hashes, np.uint64, len(items)), length


def _is_text_or_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_fixed_width(kind: pa.DataType) -> bool:
    """Return whether a value is a number, or is hashed as one or two."""
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
    """Hash the 128-bit unscaled value as two halves, mixed in turn."""
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
    """Return a value for which JSON has no form: bytes as hexadecimal, the rest (decimals, instants) as text."""
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)
