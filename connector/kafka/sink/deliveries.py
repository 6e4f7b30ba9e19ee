"""Track whether queued rows have reached the brokers, and create the errors for rows that have not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import TOPIC_FORM
from transactional.clock import Deadline
from transactional.errors import RetriableError, RowRefusedError, StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from connector.kafka.native.producer import ArrowProducer

FLUSH_SECONDS: Final = 0.05
"""The length of the first wait for deliveries, after a task's last row. It is long enough for a small micro-batch."""

PUSH_SECONDS: Final = 0.002
"""The length of the short flush after each delivery: long enough for librdkafka's threads to notice the flush."""

LONG_PUSH_SECONDS: Final = 0.01
"""The length of the flush if nothing has been delivered for a while. If the machine is busy, librdkafka's threads may
not have noticed the shorter flush."""

STEP_SECONDS: Final = 0.002
LONGEST_STEP_SECONDS: Final = 0.064
"""The longest interval between two checks whether rows were delivered. The interval starts at `STEP_SECONDS`, and
doubles after each check."""

TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
CONSEQUENCES: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE", "_FATAL"})
"""Names of librdkafka's errors that only follow from an earlier error, and do not name the reason."""


class Deliveries:
    """Collects a producer's reports of undelivered rows, and keeps the original error, not its consequences."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._partition: tuple[str | None, int | None] = (None, None)
        self._size = 0

    def report_message(self, error: KafkaError | None, message: Message) -> None:
        """Record the error in a delivery report, if any. confluent-kafka calls this inside `poll` and `flush`."""
        if error is not None:
            size = len(message.value() or b"") + len(message.key() or b"")
            self.report(error, message.topic(), message.partition(), size)

    def report(self, error: KafkaError, topic: str | None, partition: int | None, size: int) -> None:
        """Record that a row of `size` bytes was not delivered. A producer calls this inside `poll` and `flush`."""
        # If a batch is refused, each of its rows is reported. The largest row is the likely cause.
        larger = self._error is not None and error.code() == self._error.code() and size > self._size
        if self._error is None or larger or self._error.name() in CONSEQUENCES:
            self._error, self._partition, self._size = error, (topic, partition), size

    def check(self) -> None:
        """Raise an error if any row was not delivered."""
        if self._error is not None:
            raise write_error(self._error, *self._partition, self._size)


def write_error(error: KafkaError, topic: str | None, partition: int | None, size: int) -> TwoPhaseCommitError:
    """Convert librdkafka's error, about a rejected row or a failed call, into an error of this connector."""
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
    return RetriableError("WRITE_FAILED", reason=f"{at}: {reason}", **parameters)


def wrong_partition(partition: int, topic: str | None) -> RowRefusedError:
    """Return the error for a row whose partition number is not valid."""
    reason = f"its partition is {partition}, but must be 0 or more, or null"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, topic=topic)


def no_topic() -> RowRefusedError:
    """Return the error for a row that names no topic."""
    reason = "its column topic is null, and the option topic is not set"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, column="topic")


def no_topic_name(name: str) -> RowRefusedError:
    """Return the error for a row whose topic name is not valid."""
    reason = f"its column topic is {name[:300]!r}; a topic's name has {TOPIC_FORM}"
    return RowRefusedError("ROW_REFUSED", owner="2pc-kafka", reason=reason, column="topic")


def not_queued(count: int, topic: str) -> RetriableError:
    """Return the error to raise if the Kafka client did not queue some rows, and gave no reason."""
    return RetriableError(
        "WRITE_FAILED", reason=f"{count} rows for {topic} were not queued, and the Kafka client gave no reason"
    )


def serve(call: Callable[[], int], deliveries: Deliveries) -> int:
    """Call a producer's poll or flush, and convert a fatal error into an error of this connector.

    If confluent-kafka meets a fatal error while it reports deliveries, the call raises a SystemError. The fatal error
    may be attached to the SystemError as its cause. If it is not, the delivery reports give the reason.
    """
    from confluent_kafka import KafkaException

    try:
        return call()
    except (KafkaException, SystemError) as problem:
        cause = problem if isinstance(problem, KafkaException) else problem.__cause__
        if isinstance(cause, KafkaException):
            raise write_error(cause.args[0], None, None, 0) from None
        with contextlib.suppress(KafkaException, SystemError):
            call()  # Get the reports that the first call did not reach.
        deliveries.check()
        raise RetriableError(
            "WRITE_FAILED", reason=f"the task's producer failed permanently, and the client lost the reason ({problem})"
        ) from problem


def deliver(producer: Producer | ArrowProducer, deliveries: Deliveries, deadline: Deadline | None = None) -> int:
    """Wait until all queued rows are delivered, and return 0. If the deadline passes first, return how many remain."""
    serve(lambda: producer.flush(FLUSH_SECONDS), deliveries)
    deliveries.check()
    return wait_for(producer, deliveries, lambda waiting: not waiting, deadline)


def wait_for(
    producer: Producer | ArrowProducer,
    deliveries: Deliveries,
    enough: Callable[[int], bool],
    deadline: Deadline | None = None,
) -> int:
    """Wait until enough rows are delivered, or the deadline passes. Return how many rows are not delivered.

    The function waits in short steps. If a row is rejected, librdkafka sends no more rows of the transaction. A single
    long wait would then last until the unsent rows time out.

    After each delivery, a short flush makes librdkafka send the next rows. One long flush would send them as well, but
    librdkafka's threads (2.16) do not sleep during a flush. While a partition's request is unanswered and more of its
    rows wait, the threads poll the socket continuously.

    Parameters
    ----------
    producer : confluent_kafka.Producer or ArrowProducer
    deliveries : Deliveries
    enough : Callable
        Takes the number of undelivered rows, and returns True if the wait can end.
    deadline : Deadline, optional
    """
    waiting, steps = len(producer), _steps(producer)
    while not enough(waiting) and not (deadline is not None and deadline.passed()):
        before = waiting
        serve(next(steps), deliveries)
        deliveries.check()
        waiting = len(producer)
        if waiting < before:
            steps = _steps(producer)
    return waiting


def _steps(producer: Producer | ArrowProducer) -> Iterator[Callable[[], int]]:
    """Yield calls of `flush` and `poll`, to be made one after the other until the next row is delivered."""
    yield partial(producer.flush, PUSH_SECONDS)
    seconds = STEP_SECONDS
    while True:
        yield partial(producer.poll, seconds)
        if seconds < LONGEST_STEP_SECONDS:
            seconds *= 2
        else:
            yield partial(producer.flush, LONG_PUSH_SECONDS)


def raise_cause(error: KafkaError, producer: Producer | ArrowProducer, deliveries: Deliveries) -> None:
    """If an error only results from an earlier error, raise the earlier error, which is in the delivery reports."""
    if error.name() in CONSEQUENCES:
        serve(lambda: producer.poll(0), deliveries)
        deliveries.check()
