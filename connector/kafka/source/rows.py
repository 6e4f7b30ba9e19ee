"""Messages to Arrow record batches, in the schema of Spark's own Kafka source.

No Python loop over fields: each column is one ``map`` of a C method over the messages.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.topics import Partition
from transactional.errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from confluent_kafka import Message
    from pyspark.sql.types import StructType

__all__ = ["UNREADABLE_HEADER", "arrow_schema", "assemble", "bad_record", "spark_schema", "to_record_batch"]

LATEST_MS: Final = (2**63 - 1) // 1000
"""Spark's timestamps are 64 bits of microseconds."""

UNREADABLE_HEADER: Final = (
    "a header whose key is not UTF-8, and the client can't read it: leave out includeHeaders, or start after it."
)


def spark_schema(include_headers: bool) -> StructType:
    """Return the rows' schema, which is that of Spark's Kafka source."""
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

    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    return StructType(fields)


@lru_cache(maxsize=2)
def arrow_schema(include_headers: bool) -> pa.Schema:
    """Return the same schema in Arrow's types, as Spark wants it from a Python source."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pa.field("element", header))))
    return pa.schema(fields)


def to_record_batch(messages: Sequence[Message], topic: str, partition: int, include_headers: bool) -> pa.RecordBatch:
    """Make one batch of messages of one partition.

    Parameters
    ----------
    messages : Sequence[Message]
        At least one, without errors, in the order of their offsets.
    topic, partition
        The partition that all of them come from.
    include_headers : bool

    Returns
    -------
    pyarrow.RecordBatch
        With `arrow_schema`. A message without a timestamp has null there; so has one without headers, as in Spark.

    Raises
    ------
    StoreError
        ``BAD_RECORD``: a timestamp or a header that no column can hold.
    """
    import numpy as np
    import pyarrow as pa
    from confluent_kafka import Message

    count = len(messages)
    first, last = messages[0].offset(), messages[-1].offset()
    if first is not None and last is not None and last - first == count - 1:
        # Offsets rise strictly: without a gap the two ends determine them all.
        offsets = np.arange(first, last + 1, dtype=np.int64)
    else:
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
    stamps = list(map(Message.timestamp, messages))
    millis = np.fromiter(map(itemgetter(1), stamps), np.int64, count)
    kinds = np.fromiter(map(itemgetter(0), stamps), np.int32, count)
    at = Partition(topic, partition)
    keys = pa.array(list(map(Message.key, messages)), pa.binary())
    values = pa.array(list(map(Message.value, messages)), pa.binary())
    return assemble(at, keys, values, offsets, millis, kinds, _headers(messages, at) if include_headers else None)


def assemble(
    at: Partition,
    keys: pa.Array,
    values: pa.Array,
    offsets: np.ndarray[Any, Any],
    millis: np.ndarray[Any, Any],
    kinds: np.ndarray[Any, Any],
    headers: pa.Array | None,
) -> pa.RecordBatch:
    """Make a batch of one partition's columns. It makes no scalar and infers no type, because pyarrow imports pandas for that.

    Parameters
    ----------
    at : Partition
    keys, values : pyarrow.BinaryArray
    offsets : numpy.ndarray of int64
    millis : numpy.ndarray of int64
        Timestamps in milliseconds since 1970.
    kinds : numpy.ndarray of int32
        The timestamps' kinds, as librdkafka counts them: 0 none, 1 set by the producer, 2 set by the broker.
    headers : pyarrow.ListArray, optional

    Raises
    ------
    StoreError
        ``BAD_RECORD``: a timestamp that Spark's can't hold.
    """
    import numpy as np
    import pyarrow as pa

    count = len(offsets)
    if abs(int(millis.max())) > LATEST_MS or abs(int(millis.min())) > LATEST_MS:
        # Spark's own source refuses them, too.
        row = int(np.flatnonzero((millis > LATEST_MS) | (millis < -LATEST_MS))[0])
        problem = (
            f"the timestamp {millis[row]}, in milliseconds since 1970, which Spark's timestamps can't hold: its producer used "
            "another unit. Start after it."
        )
        raise bad_record(at, int(offsets[row]), problem)
    present = None if kinds.all() else pa.py_buffer(np.packbits(kinds != 0, bitorder="little"))
    name = at.topic.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(name))
    columns = [
        keys,
        values,
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(name * count)]),
        _numbers(np.full(count, at.number, np.int32)),
        _numbers(offsets),
        pa.Array.from_buffers(pa.timestamp("us", "UTC"), count, [present, pa.py_buffer(millis * 1000)]),
        _numbers(kinds - np.int32(1)),  # Java and Spark count from -1
    ]
    if headers is not None:
        columns.append(headers)
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(headers is not None))


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return whole numbers of 32 or 64 bits as a column of the same type."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.int32() if values.itemsize == 4 else pa.int64(), len(values), [None, pa.py_buffer(values)]
    )


def _headers(messages: Sequence[Message], at: Partition) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    kind = arrow_schema(True).field("headers").type
    # This way its result is checked: the client returns with the error set, and a direct call raises it some steps later.
    read = operator.methodcaller("headers")
    lists: list[Any] = []
    try:
        for message in messages:
            lists.append(read(message))  # noqa: PERF401 - the length shows which one failed
    except (UnicodeDecodeError, SystemError):  # the client returns with the error set
        raise bad_record(at, messages[len(lists)].offset(), UNREADABLE_HEADER) from None
    flat = list(chain.from_iterable(headers for headers in lists if headers))
    keys = [key for key, _ in flat]
    if None in keys:
        row = next(i for i, headers in enumerate(lists) if headers and any(key is None for key, _ in headers))
        problem = "a header whose key is null, which Kafka does not allow: leave out includeHeaders, or start after it."
        raise bad_record(at, messages[row].offset(), problem)
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


def bad_record(at: Partition, offset: int | None, problem: str) -> StoreError:
    """Return the error of a row that no column can hold."""
    return StoreError(
        "BAD_RECORD",
        f"barrier-kafka: the row of {at} at offset {offset} has {problem}",
        partition=str(at),
        offset=offset,
    )
