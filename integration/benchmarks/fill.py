"""Input for benchmarks, and whether all of it came out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from integration.broker import Cluster

__all__ = ["check_output", "fill", "fill_folder"]

QUEUED = 64 << 20
"""Bytes that wait in the client at most."""

CHUNK = 10_000
DIGITS = 10
"""Of a row's number, with which its value begins."""

SETTLED_SECONDS = 20.0
"""A commit is answered before its markers are written: a reader waits this long for the next row."""


def _rows(begin: int, end: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    padding = b"x" * (size - DIGITS)
    return ((b"%08d" % number, b"%010d" % number + padding) for number in range(begin, end))


def fill(cluster: Cluster, topic: str, rows: int, size: int) -> None:
    """Write rows into a topic: keys of 8 bytes, each another one, so that the partitions get equal shares.

    Parameters
    ----------
    cluster : Cluster
    topic : str
    rows : int
    size : int
        Bytes of a row's value.
    """
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "queue.buffering.max.messages": 2_000_000,
        "linger.ms": 20,
    }
    producer = Producer(settings)
    most, step = max(100, QUEUED // size), max(1, min(CHUNK, QUEUED // size))
    for begin in range(0, rows, step):
        chunk = _rows(begin, min(begin + step, rows), size)
        producer.produce_batch(topic, [{"key": key, "value": value} for key, value in chunk])
        producer.poll(0)
        while len(producer) > most:
            producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the input was not delivered")


def fill_folder(folder: Path, rows: int, size: int, files: int) -> None:
    """Write the rows of `fill` as Parquet files of equal size, uncompressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number in range(files):
        keys, values = zip(*_rows(rows * number // files, rows * (number + 1) // files, size), strict=True)
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        pq.write_table(table, folder / f"{number:04d}.parquet", compression="none", use_dictionary=False)


def check_output(cluster: Cluster, topic: str, partitions: int, rows: int) -> None:
    """Check that a ``read_committed`` reader sees each row of `fill` once.

    Raises
    ------
    RuntimeError
        If rows are missing, there twice, or not of the input.
    """
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": topic,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    reader = Consumer(settings)
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    times_seen, count, ended = bytearray(rows), 0, set[int]()
    deadline = time.monotonic() + SETTLED_SECONDS
    # Until all rows are there and every partition has ended behind them: a doubled row would come last.
    while (count < rows or len(ended) < partitions) and time.monotonic() < deadline:
        for message in reader.consume(CHUNK, 0.2):
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise RuntimeError(f"the output can't be read: {problem}")
                ended.add(message.partition() or 0)
                continue
            ended.discard(message.partition() or 0)
            number = int((message.value() or b"")[:DIGITS])
            times_seen[number] = min(times_seen[number] + 1, 2)
            count += 1
            deadline = time.monotonic() + SETTLED_SECONDS
    reader.close()
    if count != rows or times_seen.count(1) != rows:
        missing, doubled = times_seen.count(0), times_seen.count(2)
        raise RuntimeError(
            f"{topic} has {count:,} of {rows:,} rows: {missing:,} are missing, {doubled:,} are there twice"
        )
