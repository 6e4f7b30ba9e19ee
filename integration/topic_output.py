"""What plain consumers see of an output topic, at any moment and all the time."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.transactional_ids import TransactionalId
from integration.driver_process import wait_until
from transactional.clock import Deadline

__all__ = ["COMMITTED", "LiveReader", "TopicOutput", "nothing_is_ending"]

SECONDS = 120.0
"""Limit of a question, and of a read to the end."""

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The coordinator has decided, and not all partitions have the markers."""

OPEN = ("Ongoing", *ENDING)


def quiet(**settings: Any) -> dict[str, Any]:
    """Client settings; librdkafka's own log is silent, because refused connections are normal here."""
    logger = logging.getLogger("integration.topic_output.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return {**{key.replace("_", "."): value for key, value in settings.items()}, "logger": logger}


def transactional_ids(servers: str, states: tuple[str, ...]) -> list[str]:
    """All of the cluster whose transaction is in one of these states."""
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": servers}))
    try:
        return list(admin.transactional_ids(states))
    finally:
        admin.close()


def nothing_is_ending(servers: str) -> bool:
    """Whether every end that a coordinator of the cluster has accepted has reached its partitions, so that readers see it.

    It proves quiet while other transactions stay open: what is read after it is what was committed before it.
    """
    return not transactional_ids(servers, ENDING)


class TopicOutput:
    """An output topic, whose rows have whole numbers as values. An `integration.driver_process.Output`."""

    def __init__(self, servers: str, topic: str, prefix: str) -> None:
        self.servers = servers
        self.topic = topic
        self.prefix = prefix  # Of the query's transactional ids.

    def rows(self) -> Counter[int]:
        """Every visible row's value, with how often it is there."""
        return self._read("read_committed")

    def all_rows(self) -> Counter[int]:
        """Those of aborted and open transactions too."""
        return self._read("read_uncommitted")

    def open_transactions(self) -> list[str]:
        """Names of our transactions that are open, or whose markers are being written."""
        names = transactional_ids(self.servers, OPEN)
        return [name for name in names if (parsed := TransactionalId.parse(name)) and parsed.prefix == self.prefix]

    def ends(self, isolation: IsolationLevel) -> dict[int, int]:
        """End of each partition, as that isolation level shows it."""
        admin = AdminClient(quiet(bootstrap_servers=self.servers))
        partitions = admin.list_topics(self.topic, timeout=SECONDS).topics[self.topic].partitions
        asked = {TopicPartition(self.topic, number): OffsetSpec.latest() for number in partitions}

        def answered() -> dict[int, int]:
            try:
                answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=SECONDS)
                return {place.partition: answer.result().offset for place, answer in answers.items()}
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise
                return {}  # a leader that has just become one

        return wait_until(answered, f"the ends of {self.topic}")

    def held_back(self) -> dict[int, tuple[int, int]]:
        """Partitions whose last stable offset is not the high watermark, with both."""
        stable, high = self.ends(COMMITTED), self.ends(UNCOMMITTED)
        return {number: (stable[number], high[number]) for number in high if stable[number] != high[number]}

    def lose(self, names: list[str]) -> None:
        """Abort these as far as they are open, as a stale run's sweep does that paused after it had listed."""
        admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": self.servers}))
        try:
            opened = {name: found for name, found in admin.describe(names).items() if found.state == "Ongoing"}
            ender = TransactionEnder(admin, admin.cluster_id())
            ender.abort_open(opened, admin.end_txn_version(), Deadline(SECONDS))
        finally:
            admin.close()

    def is_quiet(self) -> bool:
        """No transaction of ours is open, and no reader is held back."""
        return not self.open_transactions() and not self.held_back()

    def _read(self, isolation: str) -> Counter[int]:
        reader = LiveReader(self, isolation)
        try:
            return reader.finish(self.ends(COMMITTED if isolation == "read_committed" else UNCOMMITTED))
        finally:
            reader.close()


class LiveReader:
    """A plain consumer that reads a topic from its begin, in a thread, while things happen to it."""

    def __init__(self, output: TopicOutput, isolation: str = "read_committed") -> None:
        self._rows: Counter[int] = Counter()
        self._at: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._problem: Exception | None = None
        settings = quiet(
            bootstrap_servers=output.servers,
            group_id=f"reader-{output.topic}",
            isolation_level=isolation,
            enable_auto_commit=False,
            enable_partition_eof=True,
        )
        settings["reconnect.backoff.max.ms"] = 500
        self._consumer = Consumer(settings)
        partitions = self._consumer.list_topics(output.topic, timeout=SECONDS).topics[output.topic].partitions
        self._consumer.assign([TopicPartition(output.topic, number, 0) for number in partitions])
        self._thread = threading.Thread(target=self._run, name=f"reader of {output.topic}", daemon=True)
        self._thread.start()

    def rows(self) -> Counter[int]:
        """What it has seen so far."""
        with self._changed:
            return Counter(self._rows)

    def finish(self, ends: dict[int, int]) -> Counter[int]:
        """Wait until it has come to these ends, and return what it has seen."""

        def there() -> bool:
            return self._problem is not None or all(self._at.get(n, 0) >= end for n, end in ends.items())

        with self._changed:
            came = self._changed.wait_for(there, SECONDS)
            if self._problem is not None:
                raise self._problem
            assert came, f"the reader is at {self._at} of {ends}"
            return Counter(self._rows)

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self._thread.join(SECONDS)
        self._consumer.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take(self._consumer.consume(1000, 0.05))
        except Exception as problem:  # noqa: BLE001 - handed to who waits for the rows.
            with self._changed:
                self._problem = problem
                self._changed.notify_all()

    def _take(self, messages: list[Any]) -> None:
        with self._changed:
            for message in messages:
                error = message.error()
                if error is None:
                    self._rows[int(message.value())] += 1
                    self._at[message.partition()] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._at[message.partition()] = message.offset()
                elif not error.retriable() and error.code() not in _BROKER_AWAY:
                    raise AssertionError(f"the reader failed: {error}")
            self._changed.notify_all()


_BROKER_AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
