"""The output topic as any plain consumer with ``isolation.level=read_committed`` sees it."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from integration.demo.flights import Row

__all__ = ["OutputError", "OutputTopic", "RowCounter"]

READ_SECONDS = 60.0
"""Reading all of it takes 2 s."""

CHUNK = 10_000  # rows fetched at once


class OutputError(RuntimeError):
    """A reader does not reach the end of the topic: a transaction in it is still open."""


class OutputTopic:
    """A topic to read."""

    def __init__(self, servers: str, name: str, partitions: int) -> None:
        self.servers = servers
        self.name = name
        self.partitions = partitions

    def consumer(self, isolation: str = "read_committed") -> Consumer:
        """Return a new consumer that stands at the beginning of all partitions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "demo-reader",
                "enable.auto.commit": False,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(self.partitions)])
        return consumer

    def read_all(self) -> list[Row]:
        """Read every committed row, up to the end of the log.

        Raises
        ------
        OutputError
            The end that committed readers see stays before the end of the log.
        """
        ends = self._ends()
        consumer = self.consumer()
        rows: list[Row] = []
        deadline = time.monotonic() + READ_SECONDS
        try:
            while not self._reached(consumer, ends):
                if time.monotonic() > deadline:
                    raise OutputError(f"a reader of {self.name} is held back: a transaction in it is still open")
                rows += _take(consumer)
        finally:
            consumer.close()
        return rows

    def _ends(self) -> list[int]:
        # What is uncommitted counts here: nothing may be left that a committed reader can't get past.
        consumer = self.consumer("read_uncommitted")
        try:
            places = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
            return [consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
        finally:
            consumer.close()

    def _reached(self, consumer: Consumer, ends: list[int]) -> bool:
        # The position, not the last row's offset: the log ends with commit markers.
        places = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        at = {place.partition: place.offset for place in consumer.position(places)}
        return all(end == 0 or at[partition] >= end for partition, end in enumerate(ends))


class RowCounter(threading.Thread):
    """Counts committed rows while they come. A context manager."""

    def __init__(self, topic: OutputTopic) -> None:
        super().__init__(daemon=True)
        self._consumer = topic.consumer()
        self._ended = threading.Event()
        self.rows = 0

    def run(self) -> None:
        """Read until the ``with`` block ends."""
        while not self._ended.is_set():
            self.rows += len(_take(self._consumer))

    def __enter__(self) -> RowCounter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._consumer.close()


def _take(consumer: Consumer) -> list[Row]:
    rows: list[Row] = []
    for message in consumer.consume(CHUNK, 0.1):
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        key, value = message.key(), message.value()
        rows.append((_bytes(key), _bytes(value)))
    return rows


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
