"""Consumers that tasks use again, and what they are set to. *Executor*."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from connector.kafka.client.config import ClientConfig
from connector.kafka.native.columns import native_columns
from connector.kafka.native.library import native_library
from connector.kafka.source.reading.records import MessageConsumer, RangeConsumer

__all__ = ["OURS", "TUNED", "borrow_consumer", "complaints", "note_complaint"]

TUNED: Mapping[str, Any] = {
    # The rows of a range exist already: a fetch that finds nothing is at the end, and should return at once.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 50,
    # A full queue is asked again after this. With the client's own 1000 a task waits most of its time.
    "fetch.queue.backoff.ms": 2,
    # One task reads one partition; more than this is waste when the range ends. With 100,000 rows, and fetches of 4 MB instead
    # of 1 as in Java, each worker held 35 MB more, and was no faster where brokers are near.
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 20_000,
    # As in Java. With the client's own default, false, a row that a disk has damaged looks like any other.
    "check.crcs": True,
    # Between two batches the whole query runs.
    "max.poll.interval.ms": 86_400_000,
    # An idle consumer's lost connections do no harm; a busy one's reasons are in its errors.
    "log_level": 2,
}
"""Defaults, which the user's settings override."""

OURS: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Settings that override the user's; `SOURCE_FORBIDDEN` refuses them by name."""

# One idle consumer per worker process, and the ids of the topics that it has read. It knows addresses and rights, never a
# query's positions. The process id is part of the key: a client does not survive a fork.
_idle: dict[tuple[int, frozenset[tuple[str, Any]]], tuple[RangeConsumer, dict[str, str | None]]] = {}

complaints: deque[str] = deque(maxlen=1)
"""The last complaint of a client of this process: for the text of an error only."""


@contextmanager
def borrow_consumer(config: ClientConfig, topic: str = "", topic_id: str | None = None) -> Iterator[RangeConsumer]:
    """Yield a consumer with these settings, the last one of this process if there is one. *Called on an executor*.

    One task uses it at a time. It is dropped after an error, and if it has read another topic of this name: the
    client remembers the leader's epoch, and waits for ever for a leader of a new topic, whose epochs begin at 0 again.
    """
    settings = {**TUNED, **config.for_librdkafka(), **OURS}
    key = (os.getpid(), frozenset(settings.items()))
    consumer, ids = _idle.pop(key, (None, {}))
    if consumer is not None and ids.get(topic, topic_id) != topic_id:
        consumer.close()
        consumer, ids = None, {}
    if consumer is None:
        consumer = _make(settings)
    yield consumer
    consumer.rest()
    for other in list(_idle):
        if other[0] == os.getpid():
            _idle.pop(other)[0].close()
    _idle[key] = consumer, {**ids, topic: topic_id}


def note_complaint(error: Any) -> None:
    """Keep what a client says of its brokers, until the next complaint."""
    complaints.append(error.str())


def _make(settings: Mapping[str, Any]) -> RangeConsumer:
    library, columns = native_library(), native_columns()
    if library is not None and columns is not None and not any(map(callable, settings.values())):
        from connector.kafka.source.reading.native_records import NativeConsumer

        return NativeConsumer(library, columns, settings, note_complaint)
    from confluent_kafka import Consumer

    return MessageConsumer(Consumer({**settings, "error_cb": note_complaint}))
