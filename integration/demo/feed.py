"""Brings events into a topic, each of them once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from integration.demo.flights import Row

__all__ = ["FeedError", "feed"]

CHUNK = 10_000  # rows handed over at once

MOST_WAITING = 90_000
"""Rows in the producer's queue, which takes 100,000."""

FLUSH_SECONDS = 60.0


class FeedError(RuntimeError):
    """The input topic does not hold exactly what was fed."""


def feed(servers: str, topic: str, rows: Sequence[Row], partitions: int) -> None:
    """Write all rows, partitioned by key as Java's producers do, and check that the topic holds as many.

    Raises
    ------
    FeedError
        Rows were refused, lost or doubled on the way: whatever the query does, its output would be wrong.
    """
    # Idempotent: a retry that doubles a row here would be blamed on the query.
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 20},
        logger=_silent(),
    )
    for begin in range(0, len(rows), CHUNK):
        chunk = [{"key": key, "value": value} for key, value in rows[begin : begin + CHUNK]]
        taken = producer.produce_batch(topic, chunk)
        if taken != len(chunk):
            raise FeedError(f"the producer took {taken} of {len(chunk)} rows of the input")
        while len(producer) > MOST_WAITING - CHUNK:
            producer.poll(0.01)
    waiting = producer.flush(FLUSH_SECONDS)
    held = _rows_in(servers, topic, partitions)
    if waiting or held != len(rows):
        raise FeedError(f"{len(rows)} rows were fed to {topic}, it holds {held}, and {waiting} still wait")


def _silent() -> logging.Logger:
    # A broker that has just started is not ready for idempotent producers: librdkafka tries again, and says so on stderr.
    logger = logging.getLogger("integration.demo.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _rows_in(servers: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "demo-feed"})
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends = [consumer.get_watermark_offsets(place, timeout=10) for place in places]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()
