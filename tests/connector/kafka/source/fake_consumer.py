"""A consumer of one partition, for tests without a broker: rows, gaps, refused offsets and errors in the client's order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from connector.kafka.client.topics import Partition
from connector.kafka.source.reading.records import Records
from transactional.testing import FakeClock

AT = Partition("t", 0)


def row(offset: int, value: bytes | None = None, **more: Any) -> Message:
    """One row of the partition; its value names its offset by default."""
    text = str(offset).encode() if value is None else value
    return Message(topic=AT.topic, partition=AT.number, offset=offset, value=text, timestamp=(1, 1000), **more)


def error(name: str, offset: int = -1001, reason: str = "as the client says") -> Message:
    """An error in place of a row, by its name in `KafkaError`."""
    problem = KafkaError(getattr(KafkaError, name), reason)
    return Message(topic=AT.topic, partition=AT.number, offset=offset, error=problem)


class FakeConsumer:
    """What `MessageConsumer` uses of `confluent_kafka.Consumer`.

    Like the client, it reports the partition's end once each time that it comes there (PARTITION_EOF), and an offset out of
    range once for each assignment, after which it stands still.

    Parameters
    ----------
    offsets : Iterable[int]
        Of the rows. What lies between them are markers or aborted rows.
    end : int, optional
        Where the readable part ends; behind the last row by default.
    clock : FakeClock, optional
        Moves when the consumer waits in vain.
    begin : int
        The first offset that the partition holds.

    Attributes
    ----------
    events : dict[int, deque[Message]]
        What comes before the row at this position, one a call.
    watermarks : deque
        Answers of `get_watermark_offsets` (or a KafkaError's name) before those that are true.
    starts : list[int]
        The offsets of the assignments.
    """

    def __init__(
        self, offsets: Iterable[int], end: int | None = None, clock: FakeClock | None = None, begin: int = 0
    ) -> None:
        self.rows = {offset: row(offset) for offset in offsets}
        self.begin = begin
        self.end = max(self.rows, default=-1) + 1 if end is None else end
        self.clock = clock or FakeClock()
        self.events: dict[int, deque[Message]] = {}
        self.watermarks: deque[tuple[int, int] | str | None] = deque()
        self.starts: list[int] = []
        self.asked: list[int] = []
        self.closed = False
        self.position = -1
        self._told_end = self._refused = False

    def script(self, at: int, *events: Message) -> FakeConsumer:
        """Let these come, one a call, when the position is `at`."""
        self.events.setdefault(at, deque()).extend(events)
        return self

    def expire(self, begin: int) -> None:
        """Retention: the partition begins here now."""
        self.begin = begin
        self.rows = {offset: message for offset, message in self.rows.items() if offset >= begin}

    def assign(self, partitions: Sequence[Any]) -> None:
        [at] = partitions
        assert (at.topic, at.partition) == AT
        self.position = at.offset
        self.starts.append(at.offset)
        self._told_end = self._refused = False

    def unassign(self) -> None:
        self.position = -1

    def close(self) -> None:
        self.closed = True

    def consume(self, number: int, timeout: float) -> list[Message]:
        self.asked.append(number)
        assert number > 0
        if self.position < 0 or self._refused:
            return self._nothing(timeout)
        waiting = self.events.get(self.position)
        if waiting:
            return [waiting.popleft()]
        if not self.begin <= self.position <= self.end:
            self._refused = True
            return [error("_AUTO_OFFSET_RESET", self.position)]
        found: list[Message] = []
        ahead = (offset for offset in sorted(self.rows) if self.position <= offset < self.end)
        for offset in ahead:
            if len(found) == number or (found and self.events.get(offset)):
                break
            found.append(self.rows[offset])
        if found:
            self.position = (found[-1].offset() or 0) + 1
            return found
        self.position = self.end
        if self._told_end:
            return self._nothing(timeout)
        self._told_end = True
        return [error("_PARTITION_EOF", self.end)]

    def get_watermark_offsets(self, partition: Any, timeout: float) -> Any:
        found = self.watermarks.popleft() if self.watermarks else (self.begin, self.end)
        if isinstance(found, str):
            raise KafkaException(KafkaError(getattr(KafkaError, found)))
        return found

    def _nothing(self, timeout: float) -> list[Message]:
        self.clock.advance(timeout)
        return []


def offsets_of(batches: Iterable[Records]) -> list[list[int]]:
    """The offsets of each batch."""
    return [batch.to_batch(("offset",)).column(0).to_pylist() for batch in batches]
