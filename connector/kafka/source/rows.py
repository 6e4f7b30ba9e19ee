"""Turns messages into Arrow record batches with the schema of Spark's own Kafka source.

Each column is made by one ``map`` of a C method over the messages, without a Python loop.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from connector.kafka.client.topics import Partition
from transactional.errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from confluent_kafka import Message
    from pyspark.sql.types import StructType

LATEST_MS: Final = (2**63 - 1) // 1000
"""The largest timestamp in milliseconds that Spark can hold: its timestamps are microseconds in 64 bits."""

UNREADABLE_HEADER: Final = (
    "a header whose key is not UTF-8, which the client can't read: leave out includeHeaders, or start after this row"
)


Runs: TypeAlias = "tuple[tuple[Partition, int], ...]"
"""The partitions of rows, in the rows' order: pairs of a partition and the number of consecutive rows from this partition."""

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source, in its order."""

HEADERS: Final = "headers"


def all_columns(include_headers: bool) -> tuple[str, ...]:
    """Return the names of all columns, with ``headers`` only if `include_headers`."""
    return (*COLUMNS, HEADERS) if include_headers else COLUMNS


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the Spark schema of these columns, with the types of Spark's Kafka source."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        HEADERS: ArrayType(header),
    }
    return StructType([StructField(name, types[name]) for name in columns])


@lru_cache(maxsize=8)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of these columns, as Spark expects it from a Python source."""
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        HEADERS: headers_type(),
    }
    return pa.schema([pa.field(name, types[name]) for name in columns])


def headers_type() -> pa.ListType:
    """Return the Arrow type of the column ``headers``."""
    import pyarrow as pa

    return pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def to_record_batch(messages: Sequence[Message], runs: Runs, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return confluent-kafka's messages as one Arrow record batch."""
    import numpy as np
    import pyarrow as pa
    from confluent_kafka import Message

    count = len(messages)
    offsets: np.ndarray[Any, Any] = np.fromiter(map(Message.offset, messages), np.int64, count)

    def times() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        stamps = list(map(Message.timestamp, messages))
        kinds = np.fromiter(map(itemgetter(0), stamps), np.int32, count)
        return np.fromiter(map(itemgetter(1), stamps), np.int64, count), kinds

    own = {
        "key": lambda: pa.array(list(map(Message.key, messages)), pa.binary()),
        "value": lambda: pa.array(list(map(Message.value, messages)), pa.binary()),
        HEADERS: lambda: _headers(messages, runs),
    }
    return assemble(runs, columns, offsets, times, own)


def assemble(
    runs: Runs,
    columns: tuple[str, ...],
    offsets: np.ndarray[Any, Any],
    times: Callable[[], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
    own: Mapping[str, Callable[[], pa.Array]],
) -> pa.RecordBatch:
    """Return rows as an Arrow record batch.

    The code uses no Arrow scalars and no type inference, because pyarrow would import pandas for them.

    Parameters
    ----------
    runs : Runs
        The rows' partitions.
    columns : tuple of str
    offsets : numpy.ndarray of int64
    times : Callable
        Returns the timestamps in milliseconds and their types.
    own : Mapping[str, Callable]
        For each of the columns key, value and headers, a function that makes the column.
    """
    import numpy as np
    import pyarrow as pa

    count = len(offsets)
    made = {name: make() for name, make in own.items() if name in columns}
    rows = [number for _, number in runs]
    if "topic" in columns:
        names = [at.topic.encode() for at, _ in runs]
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(np.repeat(np.array([len(name) for name in names], np.int32), rows), out=ends[1:])
        data = b"".join(name * number for name, number in zip(names, rows, strict=True))
        made["topic"] = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    if "partition" in columns:
        made["partition"] = _numbers(np.repeat(np.array([at.number for at, _ in runs], np.int32), rows))
    if "offset" in columns:
        made["offset"] = _numbers(offsets)
    if "timestamp" in columns or "timestampType" in columns:
        millis, kinds = times()
        made["timestamp"] = _timestamps(runs, offsets, millis, kinds)
        made["timestampType"] = _numbers(kinds - np.int32(1))  # Java and Spark number the types from -1
    return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=arrow_schema(columns))


def _timestamps(
    runs: Runs, offsets: np.ndarray[Any, Any], millis: np.ndarray[Any, Any], kinds: np.ndarray[Any, Any]
) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if abs(int(millis.max())) > LATEST_MS or abs(int(millis.min())) > LATEST_MS:
        # Spark's own source refuses such rows as well.
        row = int(np.flatnonzero((millis > LATEST_MS) | (millis < -LATEST_MS))[0])
        problem = (
            f"the timestamp {millis[row]}, in milliseconds since 1970, which Spark's timestamps can't hold: its producer used "
            "a different unit. Start after this row"
        )
        raise bad_record(runs, row, int(offsets[row]), problem)
    present = None if kinds.all() else pa.py_buffer(np.packbits(kinds != 0, bitorder="little"))
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(millis), [present, pa.py_buffer(millis * 1000)])


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return 32-bit or 64-bit integers as an Arrow column of the same type."""
    import pyarrow as pa

    kind = pa.int32() if values.itemsize == 4 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _header_lists(messages: Sequence[Message], runs: Runs) -> list[Any]:
    # On an error, the client sets the error but returns a value. Called directly, it would raise some steps later; this way it
    # raises here.
    read = operator.methodcaller("headers")
    found: list[Any] = []
    try:
        for message in messages:
            found.append(read(message))  # noqa: PERF401 - the length shows which one failed
    except (UnicodeDecodeError, SystemError):  # SystemError: the client returned a value although an error was set
        raise bad_record(runs, len(found), messages[len(found)].offset(), UNREADABLE_HEADER) from None
    return found


def _headers(messages: Sequence[Message], runs: Runs) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    kind = headers_type()
    lists = _header_lists(messages, runs)
    flat = list(chain.from_iterable(headers for headers in lists if headers))
    keys = [key for key, _ in flat]
    if None in keys:
        row = next(i for i, headers in enumerate(lists) if headers and any(key is None for key, _ in headers))
        problem = (
            "a header whose key is null, which Kafka does not allow: leave out includeHeaders, or start after this row"
        )
        raise bad_record(runs, row, messages[row].offset(), problem)
    ends = np.cumsum([len(headers) if headers else 0 for headers in lists], dtype=np.int32)
    starts = np.concatenate(([0], ends)).astype(np.int32)
    none = np.fromiter((headers is None for headers in lists), np.bool_, len(lists))
    values = pa.StructArray.from_arrays(
        [
            pa.array(keys, pa.string()),
            pa.array([value.encode() if isinstance(value, str) else value for _, value in flat], pa.binary()),
        ],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(starts), values, type=kind, mask=pa.array(none) if none.any() else None)


def bad_record(runs: Runs, row: int, offset: int | None, problem: str) -> StoreError:
    """Return the error for a row that can't be put into the columns. `row` is the index of the row."""
    ends = accumulate(number for _, number in runs)
    at = next(at for (at, _), end in zip(runs, ends, strict=True) if row < end)
    return StoreError(
        "BAD_RECORD",
        reason=f"the row of {at} at offset {offset} has {problem}",
        partition=str(at),
        offset=offset,
    )
