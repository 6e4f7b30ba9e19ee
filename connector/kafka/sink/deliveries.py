"""Deliveries: which queued rows reached the brokers, and the error of those that did not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import TOPIC_FORM
from transactional.clock import Deadline
from transactional.errors import RetriableError, RowRefusedError, StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from connector.kafka.native.producer import ArrowProducer

__all__ = [
    "Deliveries",
    "deliver",
    "no_topic",
    "no_topic_name",
    "not_queued",
    "raise_cause",
    "serve",
    "write_error",
    "wrong_partition",
]

FLUSH_SECONDS: Final = 0.25
"""Interval at which refused rows are looked for while the queue empties."""

TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
CONSEQUENCES: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE", "_FATAL"})
"""Errors that follow an earlier one and don't give the reason."""


class Deliveries:
    """Rows that were not delivered, as the producer's callbacks report them; the first cause counts."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._partition: tuple[str | None, int | None] = (None, None)
        self._size = 0

    def report_message(self, error: KafkaError | None, message: Message) -> None:
        """Note a delivery report of confluent-kafka's. *Called inside poll and flush*."""
        if error is not None:
            size = len(message.value() or b"") + len(message.key() or b"")
            self.report(error, message.topic(), message.partition(), size)

    def report(self, error: KafkaError, topic: str | None, partition: int | None, size: int) -> None:
        """Note that a row of `size` bytes was not delivered. *Called inside poll and flush*."""
        # A refused batch reports each of its rows: the largest is the likely cause.
        larger = self._error is not None and error.code() == self._error.code() and size > self._size
        if self._error is None or larger or self._error.name() in CONSEQUENCES:
            self._error, self._partition, self._size = error, (topic, partition), size

    def check(self) -> None:
        """Raise if any row was not delivered."""
        if self._error is not None:
            raise write_error(self._error, *self._partition, self._size)


def write_error(error: KafkaError, topic: str | None, partition: int | None, size: int) -> TwoPhaseCommitError:
    """Return the error of a row, or of a producer's call, that librdkafka refused."""
    name, at = error.name(), f"{topic} [{'partition not chosen yet' if partition in (None, -1) else partition}]"
    reason = f"{name}, {error.str()}"
    parameters: dict[str, Any] = {"error": name, "topic": topic, "partition": partition, "size": size, "target": at}
    if name in TOO_LARGE:
        return RowRefusedError("ROW_TOO_LARGE", **parameters)
    if name in ("_UNKNOWN_PARTITION", "INVALID_RECORD"):
        return RowRefusedError(
            "ROW_REFUSED", owner="2pc-kafka", reason=f"{size} bytes for {at}: {reason}", **parameters
        )
    if name in FENCED:
        return RetriableError("PRODUCER_FENCED", reason=reason, **parameters)
    if name in ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"):
        return StoreError("UNKNOWN_TOPIC", option="topic", **parameters)
    if name == "TOPIC_AUTHORIZATION_FAILED":
        return missing_right("WRITE", f"topic {topic}")
    if name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return missing_right("WRITE", "the transactional ids of the prefix")
    return RetriableError("WRITE_FAILED", reason=f"to {at}: {reason}", **parameters)


def wrong_partition(partition: int, topic: str | None) -> RowRefusedError:
    """Return the error of a row whose partition no topic can have."""
    reason = f"its partition is {partition}; it must be 0 or more, or null"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, topic=topic)


def no_topic() -> RowRefusedError:
    """Return the error of a row that names no topic."""
    reason = "its column topic is null, and the option topic is not set"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, column="topic")


def no_topic_name(name: str) -> RowRefusedError:
    """Return the error of a row whose topic no broker can have."""
    reason = f"its column topic is {name[:300]!r}; a topic's name has {TOPIC_FORM}"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, column="topic")


def not_queued(count: int, topic: str) -> RetriableError:
    """Return the error of rows that the client did not take, and did not say why."""
    return RetriableError("WRITE_FAILED", reason=f"{count} rows for {topic} were not queued")


def serve(call: Callable[[], int], deliveries: Deliveries) -> int:
    """Call poll or flush of a producer, and turn a fatal error into one of this connector.

    confluent-kafka raises a fatal error in the middle of the rows' reports. These fail with SystemError around it, or lose
    it, and leave a SystemError without a cause; then the reports give the reason.
    """
    from confluent_kafka import KafkaException

    try:
        return call()
    except (KafkaException, SystemError) as problem:
        cause = problem if isinstance(problem, KafkaException) else problem.__cause__
        if isinstance(cause, KafkaException):
            raise write_error(cause.args[0], None, None, 0) from None
        with contextlib.suppress(KafkaException, SystemError):
            call()  # The reports that the first call did not reach.
        deliveries.check()
        raise RetriableError(
            "WRITE_FAILED", reason=f"the task's producer failed for good, and its client lost the reason ({problem})"
        ) from problem


def deliver(producer: Producer | ArrowProducer, deliveries: Deliveries, deadline: Deadline | None = None) -> int:
    """Wait until every queued row is delivered; return how many are not when the deadline has passed.

    It waits in steps, because librdkafka sends nothing more of a transaction once a row of it was refused: rows queued
    after that one would be waited for until their own timeout.
    """
    while True:
        waiting = serve(lambda: producer.flush(FLUSH_SECONDS), deliveries)
        deliveries.check()
        if not waiting or (deadline is not None and deadline.passed()):
            return waiting


def raise_cause(error: KafkaError, producer: Producer | ArrowProducer, deliveries: Deliveries) -> None:
    """Raise why a producer has failed for good: the reports of its earlier rows give the reason, the refused call does not."""
    if error.name() in CONSEQUENCES:
        serve(lambda: producer.poll(0), deliveries)
        deliveries.check()
