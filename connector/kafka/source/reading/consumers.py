"""Consumers that an executor's tasks reuse, and the settings of these consumers."""

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

TUNED: Mapping[str, Any] = {
    # The rows of a range exist already: a fetch that finds nothing is at the end, and should return at once.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 50,
    # Pause before a full queue is filled again. With the client's own default, 1000, a task waits most of its time.
    "fetch.queue.backoff.ms": 2,
    # For each partition that is fetched, wherever its range ends; see `AHEAD_RANGES`. With 100,000 rows, and fetches of 4 MB
    # instead of 1 MB as in Java, each process used 35 MB more, and was no faster if the brokers are near.
    "queued.max.messages.kbytes": 4096,
    "queued.min.messages": 20_000,
    # As in Java. With the client's own default, false, a row that a disk has damaged would be delivered.
    "check.crcs": True,
    # Between two batches, the rest of the query runs.
    "max.poll.interval.ms": 86_400_000,
    # Lost connections of an idle consumer do no harm. A busy consumer reports them in its errors.
    "log_level": 2,
}
"""Our default settings for consumers. The user's settings override them."""

OURS: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Settings that users can't change; `SOURCE_FORBIDDEN` rejects them by name."""

# One idle consumer per process, and the ids of the topics that it has read. It knows addresses and rights, but never a
# query's positions. The process id is part of the key, because a client does not survive a fork.
_idle: dict[tuple[int, frozenset[tuple[str, Any]]], tuple[RangeConsumer, dict[str, str]]] = {}

complaints: deque[str] = deque(maxlen=1)
"""The last error that a client in this process reported about its brokers. Used only in error texts."""


@contextmanager
def borrow_consumer(config: ClientConfig, topic_ids: Mapping[str, str] | None = None) -> Iterator[RangeConsumer]:
    """Yield a consumer with these settings: the idle consumer of this process, or a new one. Runs on an executor.

    One task uses a consumer at a time. A consumer is dropped after an error, or if it has read an older topic with the
    same name: the client remembers the old leader's epoch, and would wait forever, because the new topic's epochs begin
    at 0.
    """
    wanted = topic_ids or {}
    settings = {**TUNED, **config.for_librdkafka(), **OURS}
    key = (os.getpid(), frozenset(settings.items()))
    consumer, ids = _idle.pop(key, (None, {}))
    if consumer is not None and any(ids.get(topic, identity) != identity for topic, identity in wanted.items()):
        consumer.close()
        consumer, ids = None, {}
    if consumer is None:
        consumer = _make(settings)
    yield consumer
    consumer.rest()
    for other in list(_idle):
        if other[0] == os.getpid():
            _idle.pop(other)[0].close()
    _idle[key] = consumer, {**ids, **wanted}


def note_complaint(error: Any) -> None:
    """Remember the last error that a client reported about its brokers."""
    complaints.append(error.str())


def _make(settings: Mapping[str, Any]) -> RangeConsumer:
    library, columns = native_library(), native_columns()
    if library is not None and columns is not None and not any(map(callable, settings.values())):
        from connector.kafka.source.reading.native_records import NativeConsumer

        return NativeConsumer(library, columns, settings, note_complaint)
    from confluent_kafka import Consumer

    return MessageConsumer(Consumer({**settings, "error_cb": note_complaint}))
