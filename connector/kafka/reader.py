"""The stream reader: what Spark asks of the source in the driver's source process, and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from connector.kafka.bounds import SHOWN, check_partitions
from connector.kafka.config import check_brokers
from connector.kafka.fetch import borrow_consumer, fetch
from connector.kafka.offsets import Partition, Positions, SourceOffset, positions_to_json
from connector.kafka.ranges import OffsetRange, ranges_between
from connector.kafka.rate_limit import share_out
from connector.kafka.read_options import ReadOptions
from connector.kafka.rows import to_record_batch
from connector.kafka.subscription import TopicReader
from transactional import faults
from transactional.barrier import CheckpointBarrier
from transactional.clock import Clock, SystemClock
from transactional.errors import LocationError, StoreError
from transactional.schedule import Schedule

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

__all__ = ["BarrierKafkaStreamReader", "KafkaInputPartition", "next_offset", "read_range"]

EVERYTHING: Final = 1 << 62
"""A limit that is none."""

_log = logging.getLogger(__name__)


class KafkaInputPartition(InputPartition):
    """One reader task's range. *Made on the driver, read on an executor*."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.range = wanted


class BarrierKafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches, and puts checkpoint barriers between them as the schedule says.

    One object lives in the driver's source process for the whole query; copies of it go to the executors, where only
    `read` is called. It keeps no memory that matters but availableNow's target, when it was first asked with the
    last barrier behind it, and when it last let a micro-batch have rows: what it answers follows from these, its
    arguments, the clock and the brokers.

    Parameters
    ----------
    options : ReadOptions
    clock : Clock, optional

    Attributes
    ----------
    fail_on_data_loss : bool
        ``failOnDataLoss``.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._config = options.config
        self._subscription = options.subscription
        self._schedule = options.schedule
        self.fail_on_data_loss = options.fail_on_data_loss
        self._clock = clock or SystemClock()
        self._triggered: int | None = None
        self._completed: tuple[CheckpointBarrier, int] | None = None
        self._target: Positions | None = None
        self._seen: Positions | None = None
        self._ids: Mapping[str, str] = {}
        self._end: dict[str, Any] | None = None
        self._admin: AdminClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}

    # -- driver, source process -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. *Driver, several times in the first micro-batch, and again when it is replayed*.

        The answers may differ (``latest``). The one that counted is kept as ``start`` in the first end offset.
        """
        topics = self._topics()
        partitions = topics.partitions(self._subscription)
        self._subscription.check(partitions)
        starting = self._options.starting
        check_partitions(starting, partitions)
        begin = topics.resolve(starting, partitions, strict=self.fail_on_data_loss)
        return SourceOffset(
            topics=begin,
            start=begin,
            interval=self._schedule.interval_ms,
            ids=topics.ids,
            min_pause=self._schedule.min_pause_ms,
        ).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark hands to `latestOffset`. *Driver, once per micro-batch*.

        It can't say both limits at once, nor a delay: any but ReadAllAvailable stands for all that the options say. That one
        is left to ``trigger(once=True)``, for which Spark overrules the source's own limit.
        """
        limits = self._options.limits
        if limits.most is not None:
            return ReadMaxRows(limits.most)
        return ReadMinRows(limits.least) if limits.least is not None else ReadMaxRows(EVERYTHING)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends. *Driver, once, before its first micro-batch*."""
        topics = self._topics()
        self._target = topics.latest(topics.partitions(self._subscription))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Pick a micro-batch's end, and put a barrier there if one is due. *Driver, once per trigger*.

        Ends that a rewind has planned come first, as they are: no limit and no schedule changes them.

        Parameters
        ----------
        start : dict
            The end of the micro-batch before, or `initialOffset`.
        limit : ReadLimit
            `getDefaultReadLimit`; or ReadAllAvailable, which overrules the options and says that the query ends with
            this micro-batch.

        Returns
        -------
        dict
            An end offset; `start` itself where nothing is new and no barrier is due.

        Raises
        ------
        StoreError
            ``TOPIC_RECREATED``, ``OFFSETS_WENT_BACK``, ``PARTITIONS_GONE``: the topic is not the one that was read before.
        """
        faults.reach("source.latest")
        before = SourceOffset.from_json(start)
        now = int(self._clock.now() * 1000)
        # Spark asks when the micro-batch before is committed, so the checkpoint of its barrier is completed.
        if before.barrier is not None and (self._completed is None or self._completed[0] != before.barrier):
            self._completed = (before.barrier, now)
        end: SourceOffset | None
        if before.planned:
            end = before.next_planned()
            self._known_partitions(before)
            _check_ids(end.ids, self._ids)
        else:
            available, first = self._available(before)
            held = not isinstance(limit, ReadAllAvailable) and self._hold_back(before, available, first, now)
            end = next_offset(
                replace(before, ids=self._ids),
                before.topics if held else available,
                limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                self._schedule,
                now,
                completed=self._completed[1] if self._completed else None,
                ends=self._target is not None or isinstance(limit, ReadAllAvailable),
                first=first,
            )
            if end is not None and end.topics != end.start:
                self._triggered = now
        if end is None:
            return start
        self._end = end.to_json()
        return self._end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What the brokers had when `latestOffset` asked last, for Spark's progress. *Driver, once per trigger*."""
        return None if self._seen is None else positions_to_json(self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task per partition with rows to read, or several. *Driver, once per micro-batch, and when it is replayed*.

        The range begins at what `end` recorded: on a replay of the first micro-batch, `start` is a new answer of
        `initialOffset`, which may lie behind rows that were never read.

        Raises
        ------
        LocationError
            ``OFFSETS_DISAGREE``: the micro-batch before does not end where this one begins.
        StoreError
            ``TOPIC_RECREATED``.
        """
        before, after = SourceOffset.from_json(start), SourceOffset.from_json(end)
        if before.same_end(after):  # a planned no-data micro-batch repeats the end before it, and its start
            return []
        if end != self._end:  # a replay: the topics may have changed since these offsets were picked
            topics = self._topics()
            topics.partitions(self._subscription)
            _check_ids(after.ids, topics.ids)
        if before.barrier is not None:
            _check_joint(before.topics, after.start)
        ranges = self._options.splitting.split(ranges_between(after.start, after.topics))
        return [KafkaInputPartition(wanted) for wanted in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's offsets, for monitoring only. *Driver, when Spark has done with a micro-batch; may lag*.

        Never used to recover. Errors are logged: nothing of the query depends on it.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        done = SourceOffset.from_json(end)
        if done.barrier is None or done.barrier_rows:
            return
        group = self._config.settings["group.id"]
        where = [TopicPartition(p.topic, p.number, offset) for p, offset in done.topics.items()]
        try:
            admin = self._admin or check_brokers(self._config)
            self._admin = admin
            answers = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, where)])
            for answer in answers.values():
                # The next micro-batch does not wait for it.
                answer.add_done_callback(partial(_log_problem, group))
        except (KafkaException, StoreError, ValueError) as problem:
            _log.warning("Offsets of group %s were not committed (monitoring only): %s", group, problem)

    def stop(self) -> None:
        """Drop the client. *Driver, when the query ends; not always*."""
        self._admin = None

    # -- executor ---------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's rows. *Executor, once per task*.

        Raises
        ------
        StoreError
            ``DATA_LOST``: rows of the range are gone; ``READ_FAILED``, ``READ_STALLED``.
        """
        return read_range(self._options, cast("KafkaInputPartition", partition).range)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _available(self, before: SourceOffset) -> tuple[Positions, Positions]:
        """Where reading could end now (under availableNow not behind its target), and where new partitions begin."""
        topics, partitions = self._known_partitions(before)
        latest = topics.latest(partitions, before.topics)
        self._seen = latest
        first = self._first_rows(topics, [p for p in partitions if p not in before.topics and latest[p] > 0])
        if self._target is None:
            return latest, first
        target = self._target
        # A partition that came after the target is the next run's; one that is past its target already stays there.
        available = {
            partition: min(offset, max(target.get(partition, 0), before.topics.get(partition, 0)))
            for partition, offset in latest.items()
            if partition in target or partition in before.topics
        }
        return available, {partition: min(offset, available.get(partition, 0)) for partition, offset in first.items()}

    def _first_rows(self, topics: TopicReader, new: Sequence[Partition]) -> Positions:
        """Where partitions begin that the checkpoint does not know; rows before that went before they were seen."""
        first = topics.earliest(new)
        lost = {partition: offset for partition, offset in first.items() if offset > 0}
        if not lost:
            return first
        told = ", ".join(f"{p} begins at {offset}" for p, offset in sorted(lost.items())[:SHOWN])
        if self.fail_on_data_loss:
            raise StoreError(
                "DATA_LOST",
                f"barrier-kafka: partitions that are new to this query have lost their first rows: {told}. Where they were "
                "never meant to be read (an older topic was added), set failOnDataLoss to false for one run.",
                partitions=[str(partition) for partition in lost],
            )
        _log.warning("barrier-kafka: partitions that are new to this query have lost their first rows: %s", told)
        return first

    def _hold_back(self, before: SourceOffset, available: Positions, first: Positions, now: int) -> bool:
        """Whether rows wait for more (minOffsetsPerTrigger). A barrier that is due does not wait for them."""
        if self._target is not None:
            return False
        waiting = sum(offset - before.topics.get(p, first.get(p, 0)) for p, offset in available.items())
        return self._options.limits.hold_back(waiting, self._triggered, now)

    def _known_partitions(self, before: SourceOffset) -> tuple[TopicReader, list[Partition]]:
        """The partitions that exist now; an error where the topics are not those that were read before."""
        topics = self._topics()
        partitions = topics.partitions(self._subscription)
        _check_ids(before.ids, topics.ids)
        self._ids = topics.ids
        gone = sorted(set(before.topics) - set(partitions))
        if gone:
            raise StoreError(
                "PARTITIONS_GONE",
                f"barrier-kafka: {', '.join(map(str, gone[:10]))} can't be found any more; the checkpoint has been "
                "reading it. Was the topic deleted and created again, or does subscribe name other topics than before? "
                "Start the query on a new checkpoint location once it is clear what was lost.",
                partitions=[str(partition) for partition in gone],
            )
        return topics, partitions

    def _topics(self) -> TopicReader:
        if self._admin is None:
            self._admin = check_brokers(self._config)
        return TopicReader(self._admin, self._config, self._options.retries, clock=self._clock)


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows, in order. *Executor, once per task*.

    Raises
    ------
    StoreError
        ``DATA_LOST``: rows of the range are gone; ``READ_FAILED``, ``READ_STALLED``.
    """
    at = wanted.partition
    with borrow_consumer(options.config) as consumer:
        for messages in fetch(consumer, wanted, stall_seconds=options.poll_seconds):
            yield to_record_batch(messages, at.topic, at.number, options.include_headers)


def next_offset(
    before: SourceOffset,
    available: Positions,
    limit: int | None,
    schedule: Schedule,
    now: int,
    *,
    completed: int | None = None,
    ends: bool = False,
    first: Positions | None = None,
) -> SourceOffset | None:
    """The end of the next micro-batch, or None where there is none. Pure.

    Parameters
    ----------
    before : SourceOffset
        The end of the micro-batch before.
    available : Positions
        Where reading could end.
    limit : int or None
        At most so many offsets.
    schedule : Schedule
    now : int
        Milliseconds since the epoch.
    completed : int, optional
        When the checkpoint of the last barrier was first seen completed.
    ends : bool
        Whether the query ends where all of `available` is read.
    first : Positions, optional
        Where partitions begin that `before` does not have; 0 by default.

    Raises
    ------
    StoreError
        ``OFFSETS_WENT_BACK``, ``PARTITIONS_GONE``.
    """
    # Partitions that came while the query ran are read from their first row.
    known = {**(first or {}), **before.topics}
    begin = {partition: known.get(partition, 0) for partition in available}
    shares = {wanted.partition: len(wanted) for wanted in ranges_between(begin, available)}
    if limit is not None:
        # Where not all partitions can have a share, the sum of the offsets grows by the limit in each micro-batch.
        shares = share_out(shares, limit, turn=sum(begin.values()) // limit)
    end = {partition: offset + shares.get(partition, 0) for partition, offset in begin.items()}
    rows_now = end != begin
    last = before.barrier
    kind = schedule.due(
        last,
        now,
        rows_now=rows_now,
        rows_since=before.barrier_rows,
        empty=before.barrier_empty,
        completed=completed,
        at_target=ends and end == available,
    )
    if kind is None and not rows_now:
        return None
    picked = SourceOffset(
        topics=end,
        start=begin,
        barrier=last,
        barrier_rows=True,
        interval=schedule.interval_ms,
        ids=before.ids,
        barrier_empty=before.barrier_empty,
        min_pause=schedule.min_pause_ms,
    )
    if kind is None:
        return picked
    return replace(
        picked,
        barrier=CheckpointBarrier(last.number + 1 if last else 1, kind, now),
        barrier_rows=False,
        barrier_empty=0 if rows_now or before.barrier_rows else before.barrier_empty + 1,
    )


def _check_ids(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    again = sorted(topic for topic, identity in before.items() if now.get(topic, identity) != identity)
    if again:
        raise StoreError(
            "TOPIC_RECREATED",
            f"barrier-kafka: {', '.join(again)} was deleted and created again: the offsets in the checkpoint mean other rows "
            "now. Start the query on a new checkpoint location once it is clear what was lost.",
            topics=again,
        )


def _check_joint(before: Positions, start: Positions) -> None:
    apart: list[Partition] = [partition for partition in before if start.get(partition) != before[partition]]
    if apart:
        told = ", ".join(f"{p} (ended at {before[p]}, begins at {start.get(p)})" for p in sorted(apart)[:10])
        raise LocationError(
            "OFFSETS_DISAGREE",
            f"barrier-kafka: in the checkpoint's offset log, a micro-batch does not begin where the one before it "
            f"ended: {told}. Its files were edited, or mixed from two checkpoints: restore them, or "
            "start on a new location.",
            partitions=[str(partition) for partition in apart],
        )


def _log_problem(group: str, answer: Any) -> None:
    problem = answer.exception()
    if problem is None:
        result = answer.result()
        problem = next((at.error for at in result.topic_partitions if at.error), None)
    if problem is not None:
        _log.warning("Offsets of group %s were not committed (monitoring only): %s", group, problem)
