"""A producer that takes rows where they lie in Arrow's buffers, with the methods of confluent-kafka's that the sink uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.native.library import INVALID_ARGUMENT, REPORT, Library, Message, failure

if TYPE_CHECKING:
    import numpy as np
    from confluent_kafka import KafkaError

__all__ = ["UNASSIGNED", "ArrowProducer", "Report"]

Report = Callable[["KafkaError", "str | None", int, int], None]
"""Takes the error of a row that was not delivered, its topic and partition (-1: none was chosen), and its size in bytes."""

PRODUCER: Final = 0
COPY, BY_ROW = 0x2, 0x8
"""Flags of a batch: copy the bytes before the call returns; each message has a partition of its own."""
PURGE_QUEUE, PURGE_IN_FLIGHT, PURGE_NO_WAIT = 0x1, 0x2, 0x4
TOPIC_SECONDS: Final = 30.0
"""How long rows wait for a topic that no broker knows: librdkafka's ``topic.metadata.propagation.max.ms``."""

PAUSE_SECONDS: Final = 0.1

PASSING: Final = frozenset({3, 5, 9})
"""Errors of a topic that pass: it is not known there yet, or its leader is not (UNKNOWN_TOPIC_OR_PART, LEADER_NOT_AVAILABLE,
REPLICA_NOT_AVAILABLE)."""

UNASSIGNED: Final = -1
"""A row's partition that the partitioner chooses."""


class ArrowProducer:
    """A client of librdkafka's own, made through its C interface with the configuration that the object path has.

    It is never closed: like a `confluent_kafka.Producer` that is dropped it leaves its transaction open.

    Parameters
    ----------
    library : Library
    settings : Mapping[str, Any]
        librdkafka's; without Python callbacks.
    report : Report
        Called by `poll` and `flush` for each row that was not delivered.

    Raises
    ------
    confluent_kafka.KafkaException
        From here and from every method: what the library says.
    """

    def __init__(self, library: Library, settings: Mapping[str, Any], report: Report) -> None:
        self._library = library
        self._topics: dict[str, int] = {}
        self._known: set[str] = set()
        self._client = 0
        self._process = os.getpid()
        # The library keeps a bare pointer to it: it lives as long as the client. It knows no `self`: that would be a cycle, and
        # a client that is dropped would live on until the collector looks.
        self._callback = _reporter(library, report)
        configuration = library.configuration(settings)
        library.conf_set_dr_msg_cb(configuration, self._callback)
        self._client = library.client(PRODUCER, configuration)

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        client, self._client = self._client, 0
        if client and process() == self._process:  # a forked copy has none of its threads
            for topic in self._topics.values():
                self._library.topic_destroy(topic)
            self._library.destroy(client)

    def __len__(self) -> int:
        """Return the number of rows, and other requests, that wait for an answer."""
        return int(self._library.outq_len(self._client))

    def error(self, code: int) -> KafkaError:
        """Return the client's error of this code."""
        return _error(self._library, code)

    # -- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float) -> None:
        """Initialise the transactional id, within `timeout` seconds."""
        self._library.check(self._library.init_transactions(self._client, _milliseconds(timeout)))

    def begin_transaction(self) -> None:
        """Begin a transaction; no broker is asked."""
        self._library.check(self._library.begin_transaction(self._client))

    def abort_transaction(self, timeout: float) -> None:
        """Abort the transaction, within `timeout` seconds."""
        self._library.check(self._library.abort_transaction(self._client, _milliseconds(timeout)))

    # -- rows -------------------------------------------------------------------------------------------------------

    def produce(self, topic: str, rows: np.ndarray[Any, Any], by_row: bool = False) -> int:
        """Queue rows; returns how many were taken. In `rows` the others have their reason in ``err``."""
        topic_object = self._topic(topic)
        if by_row:
            self._await_partitions(topic)
        taken: int = self._library.produce_batch(
            topic_object, UNASSIGNED, COPY | (BY_ROW if by_row else 0), rows.ctypes.data, len(rows)
        )
        return taken

    def poll(self, timeout: float) -> int:
        """Report rows that were not delivered, after waiting for them for up to `timeout` seconds."""
        served: int = self._library.poll(self._client, _milliseconds(timeout))
        self._library.check_alive(self._client)
        return served

    def flush(self, timeout: float) -> int:
        """Wait up to `timeout` seconds until no row waits for its delivery; return how many do."""
        self._library.flush(self._client, _milliseconds(timeout))
        self._library.check_alive(self._client)
        return len(self)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop rows that are not delivered."""
        flags = (PURGE_QUEUE if in_queue else 0) | (PURGE_IN_FLIGHT if in_flight else 0)
        self._library.purge(self._client, flags | (0 if blocking else PURGE_NO_WAIT))

    def list_topics(self, topic: str, timeout: float) -> None:
        """Ask a broker for a topic, so that the connection to it is there."""
        code, _ = self._library.ask_topic(self._client, self._topic(topic), _milliseconds(timeout))
        self._library.check_code(code)

    def _await_partitions(self, topic: str) -> None:
        """Wait until the client knows a topic's partitions.

        librdkafka (2.16) adds a partition that it does not know yet to the transaction as number -1 if the batch call names
        it: the transaction fails, or waits for ever. Without partitions in the call it waits by itself.
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
                raise failure(INVALID_ARGUMENT, f"{name!r} can't be a topic's name")
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
