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

from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message
    from pyspark.sql.types import StructType

__all__ = ["arrow_schema", "spark_schema", "to_record_batch"]

LATEST_MS: Final = (2**63 - 1) // 1000
"""Spark's timestamps are 64 bits of microseconds."""


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
    from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

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
    absent = kinds == 0
    _check_times(millis, messages, topic, partition)
    # librdkafka counts 0 none, 1 create, 2 append; Java and Spark -1, 0, 1.
    timestamps = pa.array(millis * 1000, pa.int64(), mask=absent if absent.any() else None)
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(offsets),
        timestamps.cast(pa.timestamp("us", "UTC")),
        pa.array(kinds - TIMESTAMP_CREATE_TIME),
    ]
    if include_headers:
        columns.append(_headers(messages, topic, partition))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers))


def _check_times(millis: Any, messages: Sequence[Message], topic: str, partition: int) -> None:
    """Refuse times that Spark's microseconds can't hold, as Spark's own source does: a producer has sent nanoseconds."""
    if abs(int(millis.max())) <= LATEST_MS and abs(int(millis.min())) <= LATEST_MS:
        return
    at = next(index for index, time in enumerate(millis.tolist()) if abs(time) > LATEST_MS)
    problem = (
        f"the timestamp {millis[at]}, in milliseconds since 1970, which Spark's timestamps can't hold: its producer used "
        "another unit. Start after it."
    )
    raise _bad_record(topic, partition, messages[at], problem)


def _headers(messages: Sequence[Message], topic: str, partition: int) -> Any:
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
        problem = "a header whose key is not UTF-8, and the client can't read it: leave out includeHeaders, or start after it."
        raise _bad_record(topic, partition, messages[len(lists)], problem) from None
    flat = list(chain.from_iterable(headers for headers in lists if headers))
    keys = [key for key, _ in flat]
    if None in keys:
        at = next(i for i, headers in enumerate(lists) if headers and any(key is None for key, _ in headers))
        problem = "a header whose key is null, which Kafka does not allow: leave out includeHeaders, or start after it."
        raise _bad_record(topic, partition, messages[at], problem)
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


def _bad_record(topic: str, partition: int, message: Message, problem: str) -> StoreError:
    return StoreError(
        "BAD_RECORD",
        reason=f"the row of {topic}-{partition} at offset {message.offset()} has {problem}",
        partition=f"{topic}-{partition}",
        offset=message.offset(),
    )
