"""A producer that reads rows directly from Arrow's buffers. The sink calls it in the same way as confluent-kafka's producer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.native.library import INVALID_ARGUMENT, REPORT, Library, Message, failure

if TYPE_CHECKING:
    import numpy as np
    from confluent_kafka import KafkaError

Report = Callable[["KafkaError", "str | None", int, int], None]
"""A callback for a row that was not delivered. Arguments: the error, the row's topic, its partition (-1 if none was chosen),
and its size in bytes."""

PRODUCER: Final = 0
COPY, BY_ROW = 0x2, 0x8
"""Flags of a batch call: `COPY` copies the bytes before the call returns; `BY_ROW` lets each row name its partition."""
PURGE_QUEUE, PURGE_IN_FLIGHT, PURGE_NO_WAIT = 0x1, 0x2, 0x4
TOPIC_SECONDS: Final = 30.0
"""The time for which rows wait for a topic that no broker knows: the default of librdkafka's
``topic.metadata.propagation.max.ms``."""

PAUSE_SECONDS: Final = 0.1

PASSING: Final = frozenset({3, 5, 9})
"""Temporary errors: the broker does not know the topic or its leader yet (UNKNOWN_TOPIC_OR_PART, LEADER_NOT_AVAILABLE,
REPLICA_NOT_AVAILABLE)."""

UNASSIGNED: Final = -1
"""A row's partition number if the partitioner has to choose the partition."""


class ArrowProducer:
    """A librdkafka producer, made through the C interface with the same configuration as confluent-kafka's producer.

    There is no method to close the producer. If you drop it, its transaction stays open, as with a `confluent_kafka.Producer`.

    Parameters
    ----------
    library : Library
    settings : Mapping[str, Any]
        librdkafka's settings, without Python callbacks.
    report : Report
        Called by `poll` and `flush` for each row that was not delivered.

    Raises
    ------
    confluent_kafka.KafkaException
        The constructor and every method raise librdkafka's errors.
    """

    def __init__(self, library: Library, settings: Mapping[str, Any], report: Report) -> None:
        self._library = library
        self._topics: dict[str, int] = {}
        self._known: set[str] = set()
        self._client = 0
        self._process = os.getpid()
        # librdkafka keeps a bare pointer to the callback, so the callback must live as long as the client. It has no reference
        # to `self`: that would be a cycle, and a dropped client would stay until the garbage collector runs.
        self._callback = _reporter(library, report)
        configuration = library.configuration(settings)
        library.conf_set_dr_msg_cb(configuration, self._callback)
        self._client = library.client(PRODUCER, configuration)

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        client, self._client = self._client, 0
        if client and process() == self._process:  # a forked process has none of the client's threads
            for topic in self._topics.values():
                self._library.topic_destroy(topic)
            self._library.destroy(client)

    def __len__(self) -> int:
        """Return the number of rows and other requests that wait for an answer."""
        return int(self._library.outq_len(self._client))

    def error(self, code: int) -> KafkaError:
        """Return the `KafkaError` for an error code."""
        return _error(self._library, code)

    # -- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float) -> None:
        """Initialize the transactional id, within `timeout` seconds."""
        self._library.check(self._library.init_transactions(self._client, _milliseconds(timeout)))

    def begin_transaction(self) -> None:
        """Begin a transaction, without a request to a broker."""
        self._library.check(self._library.begin_transaction(self._client))

    def abort_transaction(self, timeout: float) -> None:
        """Abort the transaction, within `timeout` seconds."""
        self._library.check(self._library.abort_transaction(self._client, _milliseconds(timeout)))

    # -- rows -------------------------------------------------------------------------------------------------------

    def produce(self, topic: str, rows: np.ndarray[Any, Any], by_row: bool = False) -> int:
        """Queue rows, and return how many were accepted. Rejected rows have an error code in the field ``err``.

        With `by_row`, each row names its own partition.
        """
        topic_object = self._topic(topic)
        if by_row:
            self._await_partitions(topic)
        taken: int = self._library.produce_batch(
            topic_object, UNASSIGNED, COPY | (BY_ROW if by_row else 0), rows.ctypes.data, len(rows)
        )
        return taken

    def poll(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for delivery reports, and call `report` for rows that were not delivered.

        Return the number of events that were handled.
        """
        served: int = self._library.poll(self._client, _milliseconds(timeout))
        self._library.check_alive(self._client)
        return served

    def flush(self, timeout: float) -> int:
        """Wait up to `timeout` seconds until all rows are delivered, and return how many are not delivered yet."""
        self._library.flush(self._client, _milliseconds(timeout))
        self._library.check_alive(self._client)
        return len(self)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop undelivered rows: those still in the queue (`in_queue`), and those already sent (`in_flight`).

        If `blocking`, wait until the queues are purged.
        """
        flags = (PURGE_QUEUE if in_queue else 0) | (PURGE_IN_FLIGHT if in_flight else 0)
        self._library.purge(self._client, flags | (0 if blocking else PURGE_NO_WAIT))

    def list_topics(self, topic: str, timeout: float) -> None:
        """Ask a broker about a topic, in order to open the connection to that broker."""
        code, _ = self._library.ask_topic(self._client, self._topic(topic), _milliseconds(timeout))
        self._library.check_code(code)

    def _await_partitions(self, topic: str) -> None:
        """Wait until the client knows a topic's partitions.

        If the batch call names a partition that librdkafka (2.16) does not know yet, librdkafka adds partition -1 to the
        transaction. The transaction then fails, or waits forever. If the call names no partitions, librdkafka waits by itself.
        """
        deadline = time.monotonic() + TOPIC_SECONDS
        while topic not in self._known:
            asking, code = self._library.ask_topic(self._client, self._topic(topic), _milliseconds(TOPIC_SECONDS / 3))
            if not asking and not code:
                self._known.add(topic)
            elif (code and code not in PASSING) or time.monotonic() > deadline:
                self._library.check_code(asking or code)
            else:
                time.sleep(PAUSE_SECONDS)

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            made = self._library.topic_new(self._client, name.encode(), None)
            if not made:
                self._library.check_alive(self._client)
                raise failure(INVALID_ARGUMENT, f"{name!r} is not a valid topic name")
            self._topics[name] = made
        return self._topics[name]


def _reporter(library: Library, report: Report) -> Any:
    def on_delivery(client: int, message: int, opaque: int) -> None:
        row = Message.from_address(message)
        if row.err:
            topic = library.topic_name(row.topic).decode() if row.topic else None
            report(_error(library, row.err), topic, row.partition, row.len + row.key_len)

    return REPORT(on_delivery)


def _error(library: Library, code: int) -> KafkaError:
    from confluent_kafka import KafkaError

    return KafkaError(code, library.text(code))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
