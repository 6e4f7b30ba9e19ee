"""Queue rows in librdkafka directly from Arrow's buffers, without a Python object for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from connector.kafka.native.producer import UNASSIGNED
from connector.kafka.native.rows import MESSAGE, grouped, integers, spans
from connector.kafka.sink.deliveries import (
    Deliveries,
    no_topic,
    not_queued,
    raise_cause,
    serve,
    write_error,
    wrong_partition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from connector.kafka.native.producer import ArrowProducer

LARGEST_PARTITION: Final = 2**31 - 1


def queue_rows(
    producer: ArrowProducer,
    chunk: pa.RecordBatch,
    topic: str | None,
    deliveries: Deliveries,
    check_topic: Callable[[str], None] = lambda _: None,
) -> None:
    """Queue a chunk's rows in a producer. Rows of the same topic keep their order.

    If `topic` is None, the column ``topic`` names each row's topic. Each of these names is passed to `check_topic`
    before the first row for that topic is queued.
    """
    rows = np.zeros(chunk.num_rows, MESSAGE)
    names = chunk.schema.names
    rows["payload"], rows["len"], values = spans(chunk.column("value"))
    keys = None
    if "key" in names:
        rows["key"], rows["key_len"], keys = spans(chunk.column("key"))
    by_row = "partition" in names and chunk.column("partition").null_count < chunk.num_rows
    if by_row:
        rows["partition"] = _partitions(chunk.column("partition"), topic)
    for name, part in _by_topic(chunk, rows, topic):
        if topic is None:
            check_topic(name)
        _queue(producer, name, part, by_row, deliveries)
    del values, keys  # these arrays own the bytes that librdkafka has copied, so they must exist until here


def _queue(
    producer: ArrowProducer, topic: str, rows: np.ndarray[Any, Any], by_row: bool, deliveries: Deliveries
) -> None:
    from confluent_kafka import KafkaException

    try:
        taken = producer.produce(topic, rows, by_row)
    except KafkaException as problem:
        raise_cause(problem.args[0], producer, deliveries)
        raise write_error(problem.args[0], topic, None, 0) from None
    if taken == len(rows):
        return
    # A producer that has failed permanently accepts no rows.
    serve(lambda: producer.poll(0), deliveries)
    deliveries.check()
    refused = rows[np.flatnonzero(rows["err"])[:1]]
    if not len(refused):
        raise not_queued(len(rows) - taken, topic)
    row = refused[0]
    error = producer.error(int(row["err"]))
    raise_cause(error, producer, deliveries)
    partition = int(row["partition"]) if by_row and row["partition"] >= 0 else None
    raise write_error(error, topic, partition, int(row["len"] + row["key_len"]))


def _partitions(column: pa.Array, topic: str | None) -> np.ndarray[Any, Any]:
    """Return each row's partition number. For a null, return -1, so that the partitioner chooses. Reject invalid numbers."""
    numbers, null = integers(column)
    wrong = numbers[~null & ((numbers < 0) | (numbers > LARGEST_PARTITION))]
    if len(wrong):
        raise wrong_partition(int(wrong[0]), topic)
    return np.where(null, UNASSIGNED, numbers).astype(np.int32)


def _by_topic(
    chunk: pa.RecordBatch, rows: np.ndarray[Any, Any], topic: str | None
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if topic is not None:
        yield topic, rows
        return
    column = chunk.column("topic")
    groups = [] if column.null_count else grouped(column)
    if not groups or any(not name for name, _ in groups):
        raise no_topic()
    for name, numbers in groups:
        yield name, rows[numbers]
