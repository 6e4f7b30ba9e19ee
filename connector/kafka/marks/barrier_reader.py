"""Reads the records of a barrier topic, on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from connector.kafka.client.errors import missing_right
from transactional.clock import Deadline
from transactional.errors import RetriableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

SECONDS: Final = 30.0
"""Time limit, in seconds, for one read of the topic's records."""

READING: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # a transaction's marker can follow the last record
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",  # if retention removed marks, the marks themselves show it
    "queued.max.messages.kbytes": 4096,
    "log_level": 0,
}

Record = tuple[int, "bytes | None"]
"""The offset and the value of a record."""


class ReadsMarks(Protocol):
    """The methods of a barrier topic's reader that `Alignment` calls."""

    def begin(self, offset: int) -> None:
        """Set the offset at which `read_to` continues."""

    def read_to(self, end: int, most: int) -> Sequence[Record]:
        """Return the next records before offset `end`, at most `most` of them; an empty result if none are left."""

    def close(self) -> None:
        """Close the client."""


class BarrierReader:
    """Reads the records of a barrier topic from an offset on.

    Parameters
    ----------
    settings : Mapping[str, Any]
        librdkafka's settings, with ``group.id``.
    topic : str
    """

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._consumer: Consumer = Consumer({**settings, **READING})
        self._next = 0

    def range(self) -> tuple[int, int]:
        """Return the topic's first offset, and the offset after its last record."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            first, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=SECONDS)
        except KafkaException as problem:
            reason = f"{self._topic} could not be read: {problem.args[0].str()}"
            raise RetriableError("KAFKA_TIMEOUT", reason=reason) from None
        return first, end

    def begin(self, offset: int) -> None:
        """Set the offset at which `read_to` continues."""
        from confluent_kafka import TopicPartition

        self._next = offset
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])

    def read_to(self, end: int, most: int) -> Sequence[Record]:
        """Return the next records before offset `end`, at most `most` of them; an empty result if none are left."""
        found: list[Record] = []
        deadline = Deadline(SECONDS)
        while self._next < end and len(found) < most:
            first = self._consumer.poll(0.1)  # `consume` would wait until it has all the records it may return
            more = (
                self._consumer.consume(most - len(found) - 1, 0) if first is not None and most > len(found) + 1 else []
            )
            for message in [*([first] if first is not None else []), *more]:
                error, offset = message.error(), int(message.offset() or 0)
                if error is None:
                    found.append((offset, message.value()))
                    self._next = offset + 1
                elif error.name() == "_PARTITION_EOF":
                    self._next = max(self._next, offset)
                elif error.name() == "TOPIC_AUTHORIZATION_FAILED":
                    raise missing_right("READ", f"topic {self._topic}")
                # Other errors are temporary, or the next call of `range` reports them.
            if deadline.passed():
                reason = f"the marks in {self._topic} could be read only up to offset {self._next} of {end}"
                raise RetriableError("KAFKA_TIMEOUT", reason=reason)
        return found

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()
