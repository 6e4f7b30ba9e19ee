"""Reads ranges of offsets in batches, and stops exactly at the end of each range. Runs on executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Reason
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.reading.consumers import borrow_consumer, complaints, note_complaint
from connector.kafka.source.reading.range_loss import Holding, LossTolerance, ask_twice, check_planned_topics
from connector.kafka.source.reading.records import Notice, RangeConsumer, Records
from connector.spark.collector import collector_patient
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

STALL_SECONDS: Final = 120.0
"""Maximum seconds to wait for the next row of a planned range; as in Spark's own source (``spark.network.timeout``)."""

LOOK_SECONDS: Final = 3.0
"""If data loss is allowed, and no row arrives for this many seconds, ask whether the topic still exists.

Reading from a deleted topic raises no error.
"""

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""A batch ends at BATCH_ROWS or BATCH_BYTES, because its rows are in memory three times (client, Python, Arrow).

A batch can be larger by as much as one of the client's queues holds, because only rows that were taken from the queue
are counted."""

FIRST_ROWS: Final = 500
"""Number of rows to ask for in a task's first batch, before the size of the task's rows is known."""

AHEAD_ROWS: Final = 20_000
"""If fewer offsets than this are left to read, the client also fetches the next ranges.

So a task with many short ranges does not wait at the start of each range, and long ranges do not fill the memory."""

AHEAD_RANGES: Final = 12
"""The maximum number of ranges that the client fetches ahead.

The client fills a queue of up to 5 MiB for each range (`consumers.TUNED`), also with rows after the range's end."""

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
    """The ranges of one reader task, and the ids of their topics. The driver makes it, and an executor uses it."""

    def __init__(self, ranges: Sequence[OffsetRange], ids: Mapping[str, str]) -> None:
        topics = sorted({wanted.partition.topic for wanted in ranges})
        super().__init__(ranges)
        self.ranges = tuple(ranges)
        self.topic_ids = {topic: ids[topic] for topic in topics if topic in ids}


def read_ranges(
    options: ReadOptions, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, one range after the other. Runs on an executor, once per task."""
    ranges = [wanted for wanted in ranges if len(wanted)]
    if not ranges:
        return
    tolerance = None if options.fail_on_data_loss else LossTolerance(options.config, topic_ids)
    with collector_patient(), borrow_consumer(options.config, topic_ids) as consumer:
        check_planned_topics(options.config, topic_ids)  # also before reading: Spark may take only the first rows
        for records in fetch(consumer, ranges, stall_seconds=options.poll_seconds, tolerance=tolerance):
            yield records.to_batch(options.columns)
        check_planned_topics(options.config, topic_ids)


def fetch(
    consumer: RangeConsumer,
    ranges: Sequence[OffsetRange],
    clock: Clock | None = None,
    stall_seconds: float = STALL_SECONDS,
    tolerance: LossTolerance | None = None,
) -> Iterator[Records]:
    """Yield all rows of the ranges, one range after the other, in batches of up to 10,000 rows.

    A batch can have rows of several ranges.

    A range is complete when the consumer's position reaches its end. Under read_committed, the last offsets may be markers
    or aborted rows, which are never delivered, so the last row does not show the end. The position has reached the end when
    a row at or after the end arrives, or when the client reports the end of the readable rows (PARTITION_EOF).

    The order of the rows is the same each time, although the client fetches several ranges at the same time. So two sinks
    that write the same micro-batch, or one sink that writes it twice, see the same row last for each key.
    """
    clock = clock or SystemClock()
    complaints.clear()
    ahead = _Ahead(consumer, ranges)
    aside: list[Notice] = []
    batch = _Batch()
    for wanted in ranges:
        consumer.begin(wanted.partition, wanted.start)
        reading = _Reading(consumer, wanted, clock, stall_seconds, tolerance, aside)
        while reading.left:
            ahead.prepare(wanted, reading.left)
            batch.add(reading.take(batch.room))
            if batch.is_full:
                yield batch.drain()
                reading.wait_anew()  # the query may have taken long
    if batch.rows:
        yield batch.drain()


class _Batch:
    """Collects the rows that `fetch` yields as one record batch."""

    def __init__(self) -> None:
        self._ask = FIRST_ROWS
        self._clear()

    def _clear(self) -> None:
        self._items: list[Records] = []
        self.rows = self._size = 0

    @property
    def room(self) -> int:
        """The maximum number of further rows to ask for."""
        return self._ask - self.rows

    @property
    def is_full(self) -> bool:
        return self.rows > 0 and (self.rows >= self._ask or self._size >= BATCH_BYTES)

    def add(self, items: Sequence[Records]) -> None:
        self._items += items
        self.rows += sum(map(len, items))
        self._size += sum(item.size for item in items)

    def drain(self) -> Records:
        """Return the batch's rows, and begin the next batch."""
        first, *others = self._items
        self._ask = int(min(BATCH_ROWS, max(1, BATCH_BYTES // (self._size / self.rows + 100))))
        self._clear()
        return first.joined(others)


class _Ahead:
    """Lets the client fetch the next ranges while a task reads one."""

    def __init__(self, consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> None:
        self._consumer = consumer
        self._waiting = deque(ranges)
        self._prepared: deque[OffsetRange] = deque()

    def prepare(self, current: OffsetRange, left: int) -> None:
        """Let the client fetch the ranges after `current`, if few offsets of `current` are left to read.

        `left` is the number of offsets of `current` that are not read yet.
        """
        for queue in (self._waiting, self._prepared):
            if queue and queue[0] == current:
                queue.popleft()
        if not self._waiting or left >= AHEAD_ROWS or 2 * len(self._prepared) > AHEAD_RANGES:
            return
        left += sum(map(len, self._prepared))
        starts = {}
        while self._waiting and left < AHEAD_ROWS and len(self._prepared) < AHEAD_RANGES:
            following = self._waiting.popleft()
            self._prepared.append(following)
            starts[following.partition] = following.start
            left += len(following)
        if starts:
            self._consumer.prepare(starts)


class _Reading:
    """The state of reading one range: the next offset, and the time limits for the next row."""

    def __init__(
        self,
        consumer: RangeConsumer,
        wanted: OffsetRange,
        clock: Clock,
        stall_seconds: float,
        tolerance: LossTolerance | None,
        aside: list[Notice],
    ) -> None:
        self._consumer, self._wanted, self._clock = consumer, wanted, clock
        self._stall_seconds, self._tolerance = stall_seconds, tolerance
        self._aside = aside  # Notices that are about other ranges of the task.
        self._position = wanted.start
        self.wait_anew()

    @property
    def left(self) -> int:
        """The number of the range's offsets that are not read yet."""
        return max(0, self._wanted.end - self._position)

    def take(self, most: int) -> list[Records]:
        """Return at most `most` newly arrived rows of the range. Raise if no row has arrived for too long."""
        taken = self._take(most)
        if taken:
            self.wait_anew()
        elif self.left:
            self._check_wait()
        return taken

    def _take(self, most: int) -> list[Records]:
        taken: list[Records] = []
        for item in [*self._notices_kept(), *self._consumer.take(most, WAIT_SECONDS)]:
            if not isinstance(item, Notice):
                if item.first < self._position:
                    raise _repeated(self._wanted, self._position, item.first)
                taken.append(item)
                self._position = item.last + 1
            elif not item.concerns(self._wanted.partition):
                self._aside.append(item)
            elif item.error.name() == "_PARTITION_EOF":
                self._position = max(self._position, item.offset)
            elif self._begins_again(item.error):
                break  # the consumer will deliver the following rows again
        if self._position <= self._wanted.end:
            return taken
        return [kept for kept in (item.before(self._wanted.end) for item in taken) if kept is not None]

    def _notices_kept(self) -> list[Notice]:
        """Return the client's notices about this range that arrived while the task was reading another range."""
        kept = [notice for notice in self._aside if notice.concerns(self._wanted.partition)]
        for notice in kept:
            self._aside.remove(notice)
        return kept

    def _begins_again(self, error: Any) -> bool:
        """Handle an error of the Kafka client. Return whether the consumer was restarted. If a retry would not help, raise."""
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
        """After the leader has rejected an offset, continue at the first existing row, if data loss is allowed.

        If data loss is not allowed, raise. If the leader turns out to have the offset, or does not answer, read from
        the same offset again.
        """
        at, position = self._wanted.partition, self._position
        holding = ask_twice(lambda: _holding(self._consumer, at), position, self._clock)
        if holding is None:
            self._begin_again()
            return
        if self._tolerance is None:
            raise _lost(self._wanted, position, holding)
        self._position = self._tolerance.pass_over(self._wanted, position, holding)
        self._consumer.begin(at, self._position)
        self.wait_anew()

    def _begin_again(self) -> None:
        self._clock.sleep(WAIT_SECONDS)
        self._consumer.begin(self._wanted.partition, self._position)

    def wait_anew(self) -> None:
        """Restart the time limits for the next row."""
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
    """Raise if a retry would not help after `error`. After any other error, the client continues by itself."""
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


def _repeated(wanted: OffsetRange, position: int, first: int) -> StoreError:
    return StoreError(
        "READ_FAILED",
        partition=str(wanted.partition),
        offset=position,
        reason=f"the client delivered the row at offset {first} again",
    )


def _lost(wanted: OffsetRange, position: int, holding: Holding) -> StoreError:
    first, last = holding.first, holding.last
    return StoreError(
        "DATA_LOST",
        reason=f"the query must read offset {position} of {wanted} next, but the partition now has only [{first}, {last}). "
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
    """Ask the partition's leader which offsets it holds. Return None if the leader does not answer."""
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
