"""Rows as a client delivers them, and consumers of one partition: what `fetch` needs, and confluent-kafka's objects as one way.

The other way, without an object per row, is `connector.kafka.native.consumer`; this one is its reference and its fallback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from connector.kafka.client.topics import Partition
from connector.kafka.source.rows import to_record_batch
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Message

__all__ = ["MessageConsumer", "MessageRecords", "Notice", "RangeConsumer", "Records"]


class Records(Protocol):
    """Rows of one partition in the order of their offsets, at least one."""

    @property
    def last(self) -> int:
        """The last row's offset."""

    @property
    def size(self) -> int:
        """About how many bytes their keys and values have."""

    def __len__(self) -> int: ...

    def before(self, end: int) -> Records | None:
        """Return the rows before this offset, None if there is none."""

    def joined(self, others: Sequence[Any]) -> Records:
        """Return these rows and those of the others, which follow them."""

    def to_batch(self, at: Partition, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return them in the schema of `connector.kafka.source.rows.arrow_schema`."""


@dataclass(frozen=True)
class Notice:
    """What a client delivers in place of a row: an error, or that it has reached the end of what is readable.

    Parameters
    ----------
    error : KafkaError
    offset : int
        The position that it is about; negative if it is about none.
    """

    error: KafkaError
    offset: int


class RangeConsumer(Protocol):
    """A client that reads one partition at a time."""

    def begin(self, at: Partition, offset: int) -> None:
        """Deliver this partition's rows from this offset on, and nothing that was asked for before."""

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return what it has, in order, at most `most` rows; if it has none, wait up to `seconds` for the first."""

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the leader for the first offset that it holds, and the one after the last; None without an answer."""

    def rest(self) -> None:
        """Deliver nothing until the next `begin`."""

    def close(self) -> None:
        """Let go of its threads and connections."""


@dataclass(frozen=True)
class MessageRecords:
    """Rows as confluent-kafka's messages."""

    messages: list[Message]

    @property
    def last(self) -> int:
        """The last row's offset."""
        return _offset(self.messages[-1])

    @property
    def size(self) -> int:
        """About how many bytes their keys and values have, by a sample: rows of one partition are mostly alike."""
        step = 1 + len(self.messages) // 50
        sample = self.messages[::step]
        return sum(len(message.value() or b"") + len(message.key() or b"") for message in sample) * step

    def __len__(self) -> int:
        return len(self.messages)

    def before(self, end: int) -> MessageRecords | None:
        """Return the rows before this offset, None if there is none."""
        kept = self.messages if self.last < end else [message for message in self.messages if _offset(message) < end]
        return MessageRecords(kept) if kept else None

    def joined(self, others: Sequence[MessageRecords]) -> MessageRecords:
        """Return these rows and those of the others, which follow them."""
        return MessageRecords([*self.messages, *(message for other in others for message in other.messages)])

    def to_batch(self, at: Partition, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return them in the schema of `connector.kafka.source.rows.arrow_schema`."""
        return to_record_batch(self.messages, at, columns)


class MessageConsumer:
    """A consumer of confluent-kafka.

    Parameters
    ----------
    consumer : confluent_kafka.Consumer
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def begin(self, at: Partition, offset: int) -> None:
        """Deliver this partition's rows from this offset on."""
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(at.topic, at.number, offset)])

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return what it has, in order, at most `most` rows; if it has none, wait up to `seconds` for the first."""
        from confluent_kafka import Message

        messages = self._consumer.consume(most, 0) or self._consumer.consume(1, seconds)
        if not any(map(Message.error, messages)):
            return [MessageRecords(messages)] if messages else []
        taken: list[Records | Notice] = []
        rows: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                rows.append(message)
                continue
            if rows:
                taken.append(MessageRecords(rows))
                rows = []
            offset = message.offset()
            taken.append(Notice(error, -1 if offset is None else offset))
        return [*taken, MessageRecords(rows)] if rows else taken

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the leader for the first offset that it holds, and the one after the last; None without an answer."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            marks: Any = self._consumer.get_watermark_offsets(TopicPartition(at.topic, at.number), timeout=10)
        except KafkaException:
            return None
        return marks or None  # None when it has waited in vain

    def rest(self) -> None:
        """Deliver nothing until the next `begin`."""
        self._consumer.unassign()

    def close(self) -> None:
        """Let go of its threads and connections."""
        self._consumer.close()


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:  # The client's types allow it; a delivered row always has one.
        raise StoreError(
            "READ_FAILED",
            partition=f"{message.topic()}-{message.partition()}",
            offset="unknown",
            reason="the client delivered a row without an offset",
        )
    return offset
