"""A digest of rows that neither their order nor Arrow's cuts change.

Encoding version 1. Each value is hashed with XXH3-64: variable-width values over their bytes (text as UTF-8), nested
values over a canonical JSON text, fixed-width values by mixing their 64-bit pattern; null has a constant of its own.
A row's hash mixes its columns' hashes in order (SplitMix64's finaliser, Steele et al. 2014); the digest is the sum of
the rows' hashes modulo 2**64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["ENCODING_VERSION", "RowDigest", "digest_of_all"]

ENCODING_VERSION = 1
_MASK = (1 << 64) - 1
_NULL = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: any constant no value is likely to hash to
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64


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
    """

    rows: int = 0
    bytes: int = 0
    value: int = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add a batch's rows."""
        import numpy as np

        hashes = np.zeros(batch.num_rows, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for column in batch.columns:
                values, length = _hash_column(column)
                hashes = _mix(hashes * np.uint64(31) + values + np.uint64(_NULL))
                self.bytes += length
            self.rows += batch.num_rows
            self.value = (self.value + int(hashes.sum(dtype=np.uint64))) & _MASK

    def hexadecimal(self) -> str:
        """Return the digest with its encoding's version, as it stands in the journal."""
        return f"{ENCODING_VERSION}:{self.value:016x}"


def digest_of_all(digests: Iterable[str]) -> str:
    """Return the digest of the rows of several parts, whichever part a row is in; empty if a part's digest is unknown here."""
    total, prefix = 0, f"{ENCODING_VERSION}:"
    for digest in digests:
        if not digest.startswith(prefix):
            return ""
        total += int(digest.removeprefix(prefix), 16)
    return f"{prefix}{total & _MASK:016x}"


def _mix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    mixed: np.ndarray[Any, Any] = values ^ (values >> np.uint64(31))
    return mixed


def _hash_column(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    """Return one uint64 a row, and the number of bytes that the encoding takes."""
    import numpy as np
    import pyarrow as pa
    import xxhash

    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL, dtype=np.uint64), 0
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_instant(kind):
        return _hash_fixed(column)
    if pa.types.is_decimal128(kind):
        return _hash_decimal(column)
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        length = int(_byte_length(column))
        items = column.cast(pa.large_binary()).to_pylist()
    else:
        values = column.to_pylist()
        items = [None if v is None else json.dumps(v, sort_keys=True, default=_plain).encode() for v in values]
        length = sum(len(v) for v in items if v is not None)
    if column.null_count:
        hashes: Any = (_NULL if v is None else xxhash.xxh3_64_intdigest(v) for v in items)
    else:
        hashes = map(xxhash.xxh3_64_intdigest, items)
    return np.fromiter(hashes, np.uint64, len(items)), length


def _byte_length(column: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _is_instant(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def _hash_fixed(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    nulls = pc.is_null(column).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_uint64(kind):
        numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    else:
        if _is_instant(kind):
            column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).view(np.uint64)
    hashes = _mix(numbers.astype(np.uint64) + np.uint64(1))
    hashes[nulls] = np.uint64(_NULL)
    return hashes, len(column) * max(1, kind.bit_width // 8)


def _hash_decimal(column: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    """Hash the 128-bit unscaled value as two halves, mixed in turn."""
    import numpy as np
    import pyarrow.compute as pc

    nulls = pc.is_null(column).to_numpy(zero_copy_only=False)
    values = np.frombuffer(column.buffers()[1], dtype=np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    hashes = _mix(_mix(values[0::2] + np.uint64(1)) + values[1::2])
    hashes[nulls] = np.uint64(_NULL)
    return hashes, len(column) * 16


def _plain(value: Any) -> Any:
    """Return a value for which JSON has no form: bytes as hexadecimal, the rest (decimals, instants) as text."""
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)
