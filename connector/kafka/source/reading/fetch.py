"""Reads one range of offsets in batches, exactly up to its end. *Executor*."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Reason
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.reading.consumers import borrow_consumer, complaints, note_complaint
from connector.kafka.source.reading.range_loss import Holding, LossTolerance, ask_twice, check_planned_topic
from connector.kafka.source.reading.records import Notice, RangeConsumer, Records
from connector.spark.collector import collector_patient
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaInputPartition", "fetch", "read_range"]

STALL_SECONDS: Final = 120.0
"""Maximum wait for the next row of a planned range, as in Spark's own source (spark.network.timeout)."""

LOOK_SECONDS: Final = 3.0
"""If loss is allowed, ask after this wait whether the topic still exists: reading a deleted topic raises no error."""

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""A batch ends at BATCH_ROWS or BATCH_BYTES, because its rows are in memory three times (client, Python, Arrow).

A batch can be larger than that by one of the client's queues, because a queue is always taken as a whole."""

FIRST_ROWS: Final = 500
"""Number of rows to ask for until the size of this range's rows is known."""

WAIT_SECONDS: Final = 0.1

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
"""Errors that mean that the topic is gone, or that a broker does not know it yet. `LossTolerance` finds out which."""


class KafkaInputPartition(InputPartition):
    """The range of one reader task, and the id of its topic. *Made on the driver, read on an executor*."""

    def __init__(self, wanted: OffsetRange, topic_id: str | None = None) -> None:
        super().__init__(wanted)
        self.range = wanted
        self.topic_id = topic_id


def read_range(options: ReadOptions, wanted: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows, in order. *Called on an executor, once per task*."""
    if not len(wanted):
        return
    at = wanted.partition
    tolerance = None if options.fail_on_data_loss else LossTolerance(options.config, topic_id)
    with collector_patient(), borrow_consumer(options.config, at.topic, topic_id) as consumer:
        if topic_id is not None:  # also before reading: Spark may take only the first rows
            check_planned_topic(options.config, at.topic, topic_id)
        for records in fetch(consumer, wanted, stall_seconds=options.poll_seconds, tolerance=tolerance):
            yield records.to_batch(at, options.columns)
        if topic_id is not None:
            check_planned_topic(options.config, at.topic, topic_id)


def fetch(
    consumer: RangeConsumer,
    wanted: OffsetRange,
    clock: Clock | None = None,
    stall_seconds: float = STALL_SECONDS,
    tolerance: LossTolerance | None = None,
) -> Iterator[Records]:
    """Yield all rows of a range, in order, in batches of up to 10,000.

    The range is complete when the consumer's position reaches its end. Under read_committed, the last offsets may be markers
    or aborted rows, which are never delivered, so the last row does not show the end. The position has reached the end when a
    row at or after the end arrives, or when the client reports that no more rows can be read now (PARTITION_EOF).
    """
    return _Reading(consumer, wanted, clock or SystemClock(), stall_seconds, tolerance).batches()


class _Reading:
    """The state of reading one range: the next offset, and the time limits for the next row."""

    def __init__(
        self,
        consumer: RangeConsumer,
        wanted: OffsetRange,
        clock: Clock,
        stall_seconds: float,
        tolerance: LossTolerance | None,
    ) -> None:
        self._consumer, self._wanted, self._clock = consumer, wanted, clock
        self._stall_seconds, self._tolerance = stall_seconds, tolerance
        self._position = wanted.start
        self._wait_anew()

    def batches(self) -> Iterator[Records]:
        """Yield the range's rows in batches; see `fetch`."""
        self._consumer.begin(self._wanted.partition, self._position)
        complaints.clear()
        batch: list[Records] = []
        ask, rows, size = FIRST_ROWS, 0, 0
        while self._position < self._wanted.end:
            taken = self._take(ask - rows)
            if taken:
                self._wait_anew()
                batch += taken
                rows += sum(map(len, taken))
                size += sum(item.size for item in taken)
            elif self._position < self._wanted.end:
                self._check_wait()
            if batch and (rows >= ask or size >= BATCH_BYTES):
                yield batch[0].joined(batch[1:])
                ask = int(min(BATCH_ROWS, max(1, BATCH_BYTES // (size / rows + 100))))
                batch, rows, size = [], 0, 0
        if batch:
            yield batch[0].joined(batch[1:])

    def _take(self, most: int) -> list[Records]:
        """Return the rows that have arrived, without rows at or after the range's end, and move the position after them."""
        taken: list[Records] = []
        for item in self._consumer.take(most, WAIT_SECONDS):
            if not isinstance(item, Notice):
                taken.append(item)
                self._position = max(self._position, item.last + 1)
            elif item.error.name() == "_PARTITION_EOF":
                self._position = max(self._position, item.offset)
            elif self._begins_again(item.error):
                break  # the consumer will deliver the following rows again
        if self._position <= self._wanted.end:
            return taken
        return [kept for kept in (item.before(self._wanted.end) for item in taken) if kept is not None]

    def _begins_again(self, error: Any) -> bool:
        """Handle a client's error. Return whether the consumer was restarted. Raise the error if a retry would not help."""
        note_complaint(error)
        if error.name() in _OUT_OF_RANGE:
            if self._position < self._wanted.end:
                self._continue_after_refusal()
            return True
        if self._tolerance is not None and error.name() in _NO_TOPIC:
            self._tolerance.check_topic(self._wanted, self._position)
            self._begin_again()
            return True
        _judge(error, self._wanted, self._position)
        return False

    def _continue_after_refusal(self) -> None:
        """Continue at the first row that still exists, after the leader has refused an offset. Raise if loss is not allowed."""
        at, position = self._wanted.partition, self._position
        holding = ask_twice(lambda: _holding(self._consumer, at), position, self._clock)
        if holding is None:
            self._begin_again()
            return
        if self._tolerance is None:
            raise _lost(self._wanted, position, holding)
        self._position = self._tolerance.pass_over(self._wanted, position, holding)
        self._consumer.begin(at, self._position)
        self._wait_anew()

    def _begin_again(self) -> None:
        self._clock.sleep(WAIT_SECONDS)
        self._consumer.begin(self._wanted.partition, self._position)

    def _wait_anew(self) -> None:
        self._deadline = Deadline(self._stall_seconds, self._clock)
        self._look = Deadline(LOOK_SECONDS, self._clock)

    def _check_wait(self) -> None:
        """After a wait without a row, raise if the time limit has passed, or if the topic no longer exists."""
        if self._deadline.passed():
            if self._tolerance is not None:
                self._tolerance.check_topic(self._wanted, self._position)
            raise _stalled(self._wanted, self._position, self._stall_seconds)
        if self._tolerance is not None and self._look.passed():
            self._tolerance.check_topic(self._wanted, self._position)
            self._look = Deadline(LOOK_SECONDS, self._clock)


def _judge(error: Any, wanted: OffsetRange, position: int) -> None:
    """Raise an error if a retry would not help. After any other error, the client continues by itself."""
    name, reason = error.name(), error.str()
    if name == "TOPIC_AUTHORIZATION_FAILED":
        raise missing_right("READ", f"topic {wanted.partition.topic}")
    if name == "_BAD_COMPRESSION":
        reason += (
            ": the batch is damaged, or it is too large for the client after decompression. If it is too large, set "
            "kafka.receive.message.max.bytes (by default 100000000) to over three times the size of the batch's rows"
        )
    if error.fatal() or name in _FATAL:
        raise StoreError("READ_FAILED", partition=str(wanted.partition), offset=position, reason=reason)


def _lost(wanted: OffsetRange, position: int, holding: Holding) -> StoreError:
    first, last = holding.first, holding.last
    return StoreError(
        "DATA_LOST",
        reason=f"offset {position} of {wanted} has to be read next, but the partition now holds only [{first}, {last}). "
        "Either the topic's retention is too short (make it longer than the query's longest stop), or the topic was created "
        "again",
        effect="then continues at the first remaining row",
        kind=Reason.EXPIRED.value,
        partition=str(wanted.partition),
        offset=position,
        earliest=first,
        latest=last,
    )


def _holding(consumer: RangeConsumer, partition: Partition) -> Holding | None:
    """Ask the partition's leader which offsets it holds. Return None if it does not answer."""
    marks = consumer.watermarks(partition)
    # The offsets are negative if the client does not know them yet.
    return Holding(*marks) if marks is not None and min(marks) >= 0 else None


def _stalled(wanted: OffsetRange, position: int, seconds: float) -> StoreError:
    reason = complaints[0] if complaints else "no answer"
    return StoreError(
        "KAFKA_TIMEOUT",
        reason=f"{wanted} returned nothing for {seconds:g} s (option kafkaConsumer.pollTimeoutMs) at offset "
        f"{position}, but the micro-batch ends at offset {wanted.end}. The client's last error: {reason}",
        partition=str(wanted.partition),
        offset=position,
        end=wanted.end,
    )
