"""Reading one offset range: consumers that are reused, and a range's true end. *Executor*."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import Partition
from connector.kafka.source.range_loss import Holding, LossTolerance, ask_twice
from connector.kafka.source.ranges import OffsetRange
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.rows import to_record_batch
from connector.spark.collector import collector_patient
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

__all__ = ["KafkaInputPartition", "borrow_consumer", "fetch", "read_range"]

STALL_SECONDS: Final = 120.0
"""Rows of a range existed when it was planned. Spark's source waits as long for them (spark.network.timeout)."""

LOOK_SECONDS: Final = 3.0
"""How long to wait for a row before asking for the topic, if loss is allowed: a deleted one just falls silent."""

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""A batch ends at whichever comes first: its rows are in memory three times (client, Python, Arrow).

The content of one of the client's queues may come on top, because it is taken whole."""

FIRST_ROWS: Final = 500
"""Rows asked for until the size of this range's rows is known."""

WAIT_SECONDS: Final = 0.1

TUNED: Mapping[str, Any] = {
    # The rows of a range exist already: a fetch that finds nothing is at the end, and should return at once.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 50,
    # A full queue is asked again after this. With the client's own 1000 a task waits most of its time.
    "fetch.queue.backoff.ms": 2,
    # One task reads one partition; more than this is waste when the range ends.
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 100_000,
    "fetch.message.max.bytes": 4 << 20,
    # As in Java. With the client's own default, false, a row that a disk has damaged looks like any other.
    "check.crcs": True,
    # Between two batches the whole query runs.
    "max.poll.interval.ms": 86_400_000,
    # An idle consumer's lost connections do no harm; a busy one's reasons are in its errors.
    "log_level": 2,
}
"""Defaults, which the user's settings override."""

OURS: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Settings that override the user's; `SOURCE_FORBIDDEN` refuses them by name."""

_FATAL: Final = frozenset(
    {
        "_FATAL",
        "_AUTHENTICATION",
        "_SSL",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "_BAD_MSG",
        "_BAD_COMPRESSION",
    }
)

_OUT_OF_RANGE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})

_NO_TOPIC: Final = frozenset({"_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"})
"""Errors that mean that the topic is gone, or that a broker does not know it yet; `LossTolerance` asks which."""

# One idle consumer per worker process, and the ids of the topics that it has read. It knows addresses and rights, never a
# query's positions. The process id is part of the key: a client does not survive a fork.
_idle: dict[tuple[int, frozenset[tuple[str, Any]]], tuple[Consumer, dict[str, str | None]]] = {}

# The last complaint of a client of this process: for the text of an error only.
_complaints: deque[str] = deque(maxlen=1)


class KafkaInputPartition(InputPartition):
    """One reader task's range, and its topic's id. *Made on the driver, read on an executor*."""

    def __init__(self, wanted: OffsetRange, topic_id: str | None = None) -> None:
        super().__init__(wanted)
        self.range = wanted
        self.topic_id = topic_id


def read_range(options: ReadOptions, wanted: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows, in order. *Called on an executor, once per task*.

    Parameters
    ----------
    options : ReadOptions
    wanted : OffsetRange
        An empty one asks no broker.
    topic_id : str, optional
        The id of the topic that was planned.

    Raises
    ------
    StoreError
        ``DATA_LOST``: rows of the range are gone; ``READ_FAILED``, ``READ_STALLED``.
    """
    if not len(wanted):
        return
    at = wanted.partition
    tolerance = None if options.fail_on_data_loss else LossTolerance(options.config, topic_id)
    with collector_patient(), borrow_consumer(options.config, at.topic, topic_id) as consumer:
        for messages in fetch(consumer, wanted, stall_seconds=options.poll_seconds, tolerance=tolerance):
            yield to_record_batch(messages, at.topic, at.number, options.include_headers)


@contextmanager
def borrow_consumer(config: ClientConfig, topic: str = "", topic_id: str | None = None) -> Iterator[Consumer]:
    """Yield a consumer with these settings, the last one of this process if there is one. *Called on an executor*.

    One task uses it at a time. It is dropped after an error, and if it has read another topic of this name: the
    client remembers the leader's epoch, and waits for ever for a leader of a new topic, whose epochs begin at 0 again.

    Parameters
    ----------
    config : ClientConfig
    topic : str
        The topic to read.
    topic_id : str, optional
        Its id, if it is known.
    """
    from confluent_kafka import Consumer

    settings = {**TUNED, **config.for_librdkafka(), **OURS}
    key = (os.getpid(), frozenset(settings.items()))
    consumer, ids = _idle.pop(key, (None, {}))
    if consumer is not None and ids.get(topic, topic_id) != topic_id:
        consumer.close()
        consumer, ids = None, {}
    if consumer is None:
        consumer = Consumer({**settings, "error_cb": _note})
    yield consumer
    consumer.unassign()
    for other in list(_idle):
        if other[0] == os.getpid():
            _idle.pop(other)[0].close()
    _idle[key] = consumer, {**ids, topic: topic_id}


def fetch(
    consumer: Consumer,
    wanted: OffsetRange,
    clock: Clock | None = None,
    stall_seconds: float = STALL_SECONDS,
    tolerance: LossTolerance | None = None,
) -> Iterator[list[Message]]:
    """Yield all rows of a range, in order, in batches of up to 10,000.

    The range is complete when the consumer's position reaches its end: under read_committed its last offsets may be markers
    or aborted rows, which are never delivered, so the last row proves nothing. A row at or after the end does, or the
    client's notice that it has reached the end of what is readable (PARTITION_EOF).

    Parameters
    ----------
    consumer : Consumer
    wanted : OffsetRange
    clock : Clock, optional
    stall_seconds : float
        How long to wait for a row before it is an error.
    tolerance : LossTolerance, optional
        Lets the task continue after rows that retention has removed. Without it that is an error.

    Raises
    ------
    StoreError
        ``DATA_LOST``: rows of the range are gone from the topic; ``MISSING_RIGHT``, ``READ_FAILED``, ``READ_STALLED``.
    """
    from confluent_kafka import Message, TopicPartition

    partition, end = wanted.partition, wanted.end
    deadline, look = Deadline(stall_seconds, clock), Deadline(LOOK_SECONDS, clock)

    def begin_at(offset: int) -> None:
        consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def again(offset: int) -> None:
        (clock or SystemClock()).sleep(WAIT_SECONDS)
        begin_at(offset)

    def refused(position: int) -> int:
        """Return where to continue after the leader has refused the offset."""
        nonlocal deadline, look
        holding = ask_twice(lambda: _holding(consumer, partition), position, clock)
        if holding is None:
            again(position)
            return position
        if tolerance is None:
            raise _lost(wanted, position, holding)
        position = tolerance.pass_over(wanted, position, holding)
        begin_at(position)
        deadline, look = Deadline(stall_seconds, clock), Deadline(LOOK_SECONDS, clock)
        return position

    def wait(position: int) -> None:
        """Check the limits when no row has come."""
        nonlocal look
        if deadline.passed():
            if tolerance is not None:
                tolerance.check_topic(wanted, position)
            raise _stalled(wanted, position, stall_seconds)
        if tolerance is not None and look.passed():
            tolerance.check_topic(wanted, position)
            look = Deadline(LOOK_SECONDS, clock)

    begin_at(wanted.start)
    position, ask = wanted.start, FIRST_ROWS
    batch: list[Message] = []
    size = 0
    _complaints.clear()
    while position < end:
        # All rows that the client has, without waiting for the rest; if it has none, wait for one.
        messages = consumer.consume(ask - len(batch), 0) or consumer.consume(1, WAIT_SECONDS)
        if not messages:
            wait(position)
            continue
        if any(map(Message.error, messages)):
            rows = []
            for message in messages:
                error = message.error()
                if error is None:
                    rows.append(message)
                    position = max(position, _offset(message) + 1)
                elif error.name() == "_PARTITION_EOF":
                    position = max(position, _offset(message))
                else:
                    _note(error)
                    if error.name() in _OUT_OF_RANGE:
                        position = refused(position) if position < end else position
                        break  # the rows that follow are asked for again
                    if tolerance is not None and error.name() in _NO_TOPIC:
                        tolerance.check_topic(wanted, position)
                        again(position)
                        break
                    _judge(error, wanted, position)
            messages = rows
        if messages:
            position = max(position, _offset(messages[-1]) + 1)
            deadline, look = Deadline(stall_seconds, clock), Deadline(LOOK_SECONDS, clock)
            if position > end:
                messages = [message for message in messages if _offset(message) < end]
            batch += messages
            size += _bytes_of(messages)
        elif position < end:
            wait(position)
        if len(batch) >= ask or size >= BATCH_BYTES:
            yield batch
            ask = _rows_to_ask(batch)
            batch, size = [], 0
    if batch:
        yield batch


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:  # The client's types allow it; a delivered row always has one.
        raise StoreError("READ_FAILED", "barrier-kafka: the client delivered a row without an offset.")
    return offset


def _bytes_of(messages: Sequence[Message]) -> int:
    """Return about how many bytes they hold."""
    step = 1 + len(messages) // 16
    return sum(map(len, messages[::step])) * step


def _rows_to_ask(batch: list[Message]) -> int:
    # A sample: rows of one partition are mostly alike.
    sample = batch[:: max(1, len(batch) // 50)]
    size = sum(len(message.value() or b"") + len(message.key() or b"") for message in sample) / len(sample)
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // (size + 100))))


def _judge(error: Any, wanted: OffsetRange, position: int) -> None:
    """Raise errors that would come again; the client continues by itself after all others."""
    name, reason = error.name(), error.str()
    if name == "TOPIC_AUTHORIZATION_FAILED":
        raise missing_right("READ", f"topic {wanted.partition.topic}")
    if error.fatal() or name in _FATAL:
        raise StoreError(
            "READ_FAILED",
            f"barrier-kafka: {wanted} can't be read from offset {position} on: {reason}.",
            partition=str(wanted.partition),
            offset=position,
            reason=reason,
        )


def _lost(wanted: OffsetRange, position: int, holding: Holding) -> StoreError:
    first, last = holding.first, holding.last
    return StoreError(
        "DATA_LOST",
        f"barrier-kafka: rows of {wanted} are gone: offset {position} would have been next, and the partition now "
        f"holds [{first}, {last}). The topic's retention overtook the query, or the topic was deleted and created "
        "again. Once it is clear what was lost, set failOnDataLoss to false for one run (it continues at the first row that "
        "is left), or start the query on a new checkpoint location; and give the topic a longer retention than the "
        "query's longest stop.",
        partition=str(wanted.partition),
        offset=position,
        earliest=first,
        latest=last,
    )


def _holding(consumer: Consumer, partition: Partition) -> Holding | None:
    """Ask the partition's leader which offsets it holds; None without an answer."""
    from confluent_kafka import KafkaException, TopicPartition

    try:
        watermarks: Any = consumer.get_watermark_offsets(TopicPartition(partition.topic, partition.number), timeout=10)
    except KafkaException:
        return None
    # None when it has waited in vain; negative if nothing is known yet.
    return Holding(*watermarks) if watermarks and min(watermarks) >= 0 else None


def _note(error: Any) -> None:
    _complaints.append(error.str())


def _stalled(wanted: OffsetRange, position: int, seconds: float) -> StoreError:
    reason = _complaints[0] if _complaints else "no answer"
    return StoreError(
        "READ_STALLED",
        f"barrier-kafka: {wanted} returned nothing for {seconds:g} s (option kafkaConsumer.pollTimeoutMs) at offset "
        f"{position}; the client's last error: {reason}. Are the partition's brokers up? Does the topic "
        f"still reach offset {wanted.end}?",
        partition=str(wanted.partition),
        offset=position,
        end=wanted.end,
    )
