"""The interfaces for rows and consumers that `fetch` needs, and their implementation with confluent-kafka's objects.

`native_records` implements these interfaces without a Python object per row. The implementation in this module is the
reference and the fallback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from connector.kafka.client.topics import Partition
from connector.kafka.source.rows import Runs, to_record_batch
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Message

WHOLE_TOPIC: Final = -1
"""The partition number in a client's error if the error is about a whole topic."""


class Records(Protocol):
    """One or more rows, in the order in which they were read. Rows of the same partition are next to each other."""

    @property
    def first(self) -> int:
        """The first row's offset."""

    @property
    def last(self) -> int:
        """The last row's offset."""

    @property
    def size(self) -> int:
        """The approximate number of bytes in the rows' keys and values."""

    def __len__(self) -> int: ...

    def before(self, end: int) -> Records | None:
        """Return the rows before an offset; None if there are none."""

    def joined(self, others: Sequence[Any]) -> Records:
        """Return these rows, followed by the rows of `others`."""

    def to_batch(self, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the rows as a record batch with the schema of `connector.kafka.source.rows.arrow_schema`."""


@dataclass(frozen=True)
class Notice:
    """A notice that a client delivers in place of a row: an error, or a message that no more rows can be read now."""

    error: KafkaError
    offset: int  # The offset that the notice is about; negative if it is about none.
    # The partition that the notice is about; its number is negative if it is about a whole topic. None if it is about the
    # client, or about the partition that is being read.
    at: Partition | None = None

    def concerns(self, partition: Partition) -> bool:
        """Return whether the notice is about this partition, its topic, or the client."""
        return self.at is None or (
            self.at.topic == partition.topic and self.at.number in (partition.number, WHOLE_TOPIC)
        )


class RangeConsumer(Protocol):
    """A client that reads one partition at a time."""

    def begin(self, at: Partition, offset: int) -> None:
        """Start delivering this partition's rows from this offset on. Drop rows that remain from an earlier `begin`."""

    def prepare(self, starts: Mapping[Partition, int]) -> None:
        """Start fetching rows from these offsets on, before `begin` asks for them. An implementation may do nothing."""

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return up to `most` rows and notices that have arrived, in order. If there are none, wait up to `seconds`."""

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the partition's leader for the first offset and the end offset. Return None if there is no answer."""

    def rest(self) -> None:
        """Stop delivering rows until the next `begin`."""

    def close(self) -> None:
        """Release the client's threads and connections."""


@dataclass(frozen=True)
class MessageRecords:
    """Rows that are held as confluent-kafka's message objects."""

    messages: list[Message]
    runs: Runs

    @property
    def first(self) -> int:
        """The first row's offset."""
        return _offset(self.messages[0])

    @property
    def last(self) -> int:
        """The last row's offset."""
        return _offset(self.messages[-1])

    @property
    def size(self) -> int:
        """The approximate number of bytes in the rows' keys and values, estimated from a sample of rows."""
        step = 1 + len(self.messages) // 50
        sample = self.messages[::step]
        return sum(len(message.value() or b"") + len(message.key() or b"") for message in sample) * step

    def __len__(self) -> int:
        return len(self.messages)

    def before(self, end: int) -> MessageRecords | None:
        """Return the rows before an offset; None if there are none."""
        kept = self.messages if self.last < end else [message for message in self.messages if _offset(message) < end]
        return MessageRecords(kept, ((self.runs[0][0], len(kept)),)) if kept else None

    def joined(self, others: Sequence[MessageRecords]) -> MessageRecords:
        """Return these rows, followed by the rows of `others`."""
        all_of = [self, *others]
        messages = [message for one in all_of for message in one.messages]
        return MessageRecords(messages, tuple(run for one in all_of for run in one.runs))

    def to_batch(self, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the rows as a record batch with the schema of `connector.kafka.source.rows.arrow_schema`."""
        return to_record_batch(self.messages, self.runs, columns)


class MessageConsumer:
    """A consumer that uses confluent-kafka's ``Consumer``."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._at = Partition("", 0)

    def begin(self, at: Partition, offset: int) -> None:
        """Start delivering this partition's rows from this offset on."""
        from confluent_kafka import TopicPartition

        self._at = at
        self._consumer.assign([TopicPartition(at.topic, at.number, offset)])

    def prepare(self, starts: Mapping[Partition, int]) -> None:
        """Do nothing, because the rows of several partitions would be mixed in one queue."""

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        """Return up to `most` rows and notices that have arrived, in order. If there are none, wait up to `seconds`."""
        from confluent_kafka import Message

        messages = self._consumer.consume(most, 0) or self._consumer.consume(1, seconds)
        if not any(map(Message.error, messages)):
            return [self._of(messages)] if messages else []
        taken: list[Records | Notice] = []
        rows: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                rows.append(message)
                continue
            if rows:
                taken.append(self._of(rows))
                rows = []
            offset = message.offset()
            taken.append(Notice(error, -1 if offset is None else offset))
        return [*taken, self._of(rows)] if rows else taken

    def _of(self, messages: list[Message]) -> MessageRecords:
        return MessageRecords(messages, ((self._at, len(messages)),))

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        """Ask the partition's leader for the first offset and the end offset. Return None if there is no answer."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            marks: Any = self._consumer.get_watermark_offsets(TopicPartition(at.topic, at.number), timeout=10)
        except KafkaException:
            return None
        return marks or None  # None after a timeout

    def rest(self) -> None:
        """Stop delivering rows until the next `begin`."""
        self._consumer.unassign()

    def close(self) -> None:
        """Release the client's threads and connections."""
        self._consumer.close()


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:  # The client's types allow None, but a delivered row always has an offset.
        raise StoreError(
            "READ_FAILED",
            partition=f"{message.topic()}-{message.partition()}",
            offset="unknown",
            reason="the client delivered a row without an offset",
        )
    return offset
