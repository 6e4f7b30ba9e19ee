"""The stream reader: Spark calls it in the driver's source process and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from connector.kafka.client.agreement import AskEach, ask_each_broker
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.marks.barrier_reader import BarrierReader, ReadsMarks
from connector.kafka.source.alignment.alignment import Alignment
from connector.kafka.source.bounds import OffsetBound
from connector.kafka.source.offsets import SourceOffset, positions_to_json
from connector.kafka.source.planning.backlog import Backlog
from connector.kafka.source.planning.data_loss import check_joint, warn
from connector.kafka.source.planning.micro_batch import Timing, next_offset
from connector.kafka.source.planning.ranges import ranges_between
from connector.kafka.source.planning.tasks import divide
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.reading.fetch import KafkaInputPartition, read_ranges
from transactional import faults
from transactional.barrier import CheckpointBarrier
from transactional.clock import Clock, SystemClock
from transactional.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

EVERYTHING: Final = 1 << 62
"""The value for "no limit": more rows than any micro-batch can have."""

SIGNATURE: Final = "barrier-kafka"
"""The metadata of the offsets that this source commits to its consumer group.

Offsets with other metadata were committed by another application.
"""

_log = logging.getLogger(__name__)


class BarrierKafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches, and puts checkpoint barriers between them when they are due.

    One object lives in the driver's source process for the whole query. Copies of the object go to the executors, where
    only `read` is called. The object keeps a few values in memory, such as the target of availableNow and the time of the
    last micro-batch with rows. If the process dies, a new object can continue without these values.

    Parameters
    ----------
    options : ReadOptions
    clock : Clock, optional
    brokers : Callable, optional
        Makes the client that asks the brokers.
    ask_each : AskEach, optional
        Asks several brokers about the same topics.
    open_marks : Callable, optional
        Opens a reader for a barrier topic.
    """

    def __init__(
        self,
        options: ReadOptions,
        clock: Clock | None = None,
        brokers: Callable[[ClientConfig], AdminClient] = check_brokers,
        ask_each: AskEach = ask_each_broker,
        open_marks: Callable[[Mapping[str, Any], str], ReadsMarks] = BarrierReader,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._backlog = Backlog(options, self._clock, brokers, ask_each)
        align = options.align
        self._alignment = Alignment(options, align, self._clock, open_marks) if align is not None else None
        self._triggered: int | None = None
        self._own_group: bool | None = None
        self._completed: tuple[CheckpointBarrier, int] | None = None
        self._end: dict[str, Any] | None = None

    # -- driver, source process -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.

        Spark calls this on the driver, several times in the first micro-batch, and again when it replays that
        micro-batch. With ``latest``, each call may return different offsets. The answer that counts is recorded as
        ``start`` in the first micro-batch's end offset.
        """
        start, starting = self._backlog.start(), self._options.starting
        if self._alignment is not None and isinstance(starting, OffsetBound) and starting.at == "latest":
            newest = self._alignment.start(self._backlog.admin(), start.ids, start.topics)
            if newest is not None:  # begin at the newest complete cut, not at the end of the topics
                ends, cut = newest
                begin = {partition: ends.get(partition, 0) for partition in start.topics}
                start = replace(start, topics=begin, start=begin, cut=cut)
        if self._alignment is not None and self._alignment.is_together and start.cut is None:
            start = replace(start, cut=self._alignment.no_cut())
        return start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`. Spark calls this on the driver, once per micro-batch.

        A ReadLimit can't express both a minimum and a maximum, or a delay. So any limit except ReadAllAvailable stands
        for all limits in the options. For ``trigger(once=True)``, Spark ignores this answer, and passes
        ReadAllAvailable.
        """
        limits = self._options.limits
        if limits.most is not None:
            return ReadMaxRows(limits.most)
        return ReadMinRows(limits.least) if limits.least is not None else ReadMaxRows(EVERYTHING)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the offsets at which this run ends. Spark calls this before the first micro-batch."""
        self._backlog.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Pick a micro-batch's end, and put a barrier there if one is due. Spark calls this once per trigger.

        If a rewind has planned the ends of the next micro-batches, return the first of these ends unchanged, without limits
        or barriers of the schedule.
        """
        faults.reach("source.latest")
        before = SourceOffset.from_json(start)
        now = int(self._clock.now() * 1000)
        # Spark asks after it has committed the previous micro-batch, so the checkpoint of that barrier is completed.
        if before.barrier is not None and (self._completed is None or self._completed[0] != before.barrier):
            self._completed = (before.barrier, now)
        if before.planned:
            end = before.next_planned()
            self._backlog.check_planned(before, end)
            self._end = None  # a replay: `partitions` checks whether all of its rows still exist
            return end.to_json()
        picked = self._pick(before, limit, now)
        if picked is None:
            return start
        self._end = picked.to_json()
        return picked.to_json()

    def _pick(self, before: SourceOffset, limit: ReadLimit, now: int) -> SourceOffset | None:
        options, seen = self._options, self._backlog.seen
        available = self._backlog.available(before)
        target, at_once = self._backlog.target, isinstance(limit, ReadAllAvailable)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends, aim = target is not None or at_once, None
        if self._alignment is not None:
            aim = self._alignment.aim(available, self._backlog.admin(), most, ends=ends, at_once=at_once)
            # With availableNow, another source of the query may have seen a newer cut.
            if self._alignment.is_together and self._backlog.raise_target(aim.targets):
                available = self._backlog.available(before)
                aim = self._alignment.aim(available, self._backlog.admin(), most, ends=ends, at_once=at_once)
            available, ends = replace(available, ends=aim.ends), ends and aim.is_last
        # A barrier that is due does not wait for minOffsetsPerTrigger.
        held = not at_once and target is None and options.limits.hold_back(available.waiting, self._triggered, now)
        if held:
            available = replace(available, ends=available.before.topics)
        timing = Timing(options.schedule, now, self._completed[1] if self._completed else None, ends)
        end = next_offset(available, most, timing, aim)
        if end is None:
            return None
        if end.topics != end.start:
            self._triggered = now
        warn(end.lost, seen)
        offsets = sum(end.topics.values()) - sum(end.start.values())
        return replace(end, reordered=options.tasks.splits, tasks=options.tasks.with_slots(options.slots, offsets))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the partitions' ends that the brokers last reported. Spark shows them in the query's progress."""
        seen = self._backlog.seen
        return None if seen is None else positions_to_json(seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the micro-batch's tasks, as `end` records them.

        Spark calls this on the driver, once per micro-batch, and again when it replays the micro-batch. The ranges
        begin at the start that `end` has recorded, not at `start`. On a replay of the first micro-batch, `start` is a
        new answer of `initialOffset`, which may lie after rows that were never read.
        """
        before, after = SourceOffset.from_json(start), SourceOffset.from_json(end)
        if before.same_end(after):  # a planned micro-batch without data has the same end and start as the one before it
            return []
        if before.barrier is not None:
            check_joint(before.topics, after)
        # The recorded ranges and limits, even if some of the rows no longer exist, so that a replay has the same tasks.
        limits = replace(self._options.tasks, most=None) if after.tasks is None else after.tasks
        tasks = divide(ranges_between(after.start, after.topics), limits)
        if end != self._end:
            left = iter(self._backlog.left_of(after, list(chain.from_iterable(tasks))))
            tasks = [tuple(islice(left, len(task))) for task in tasks]
        return [KafkaInputPartition(task, after.ids) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the consumer group's offsets, for monitoring only.

        Spark calls this on the driver, when it has finished a micro-batch, or later. No recovery uses these offsets,
        so an error is only logged.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        done = SourceOffset.from_json(end)
        if done.barrier is None or done.barrier_rows:
            return
        group = self._options.config.settings["group.id"]
        positions = [TopicPartition(p.topic, p.number, offset, SIGNATURE) for p, offset in done.topics.items()]
        try:
            if self._options.names_group and not self._owns_group(group, positions):
                return
            request = [ConsumerGroupTopicPartitions(group, positions)]
            for answer in self._backlog.admin().alter_consumer_group_offsets(request).values():
                # The next micro-batch does not wait for the answer.
                answer.add_done_callback(partial(_log_problem, group))
        except (KafkaException, TwoPhaseCommitError, ValueError) as problem:
            _log.warning(
                "The offsets of consumer group %s (for monitoring only) were not committed: %s", group, problem
            )

    def _owns_group(self, group: str, positions: Sequence[Any]) -> bool:
        """Return whether no other application has committed offsets of these partitions to the consumer group."""
        if self._own_group is None:
            from confluent_kafka import ConsumerGroupTopicPartitions

            # Ask for all offsets of the group: with a list of partitions, confluent-kafka 2.16 crashes.
            answer = self._backlog.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            ours = {(at.topic, at.partition) for at in positions}
            others = [
                at
                for at in answer[group].result().topic_partitions
                if (at.topic, at.partition) in ours and at.offset >= 0 and at.metadata != SIGNATURE
            ]
            self._own_group = not others
            if others:
                _log.warning(
                    "barrier-kafka: kafka.group.id is %s, and another application (or an older release of this one) has "
                    "committed offsets of %s-%d to that group. This query does not change them, and commits none (they are for "
                    "monitoring only). Name a different group, or delete these offsets if no other application uses the group.",
                    group,
                    others[0].topic,
                    others[0].partition,
                )
        return self._own_group

    def stop(self) -> None:
        """Release the clients. When a query ends, Spark usually calls this on the driver, but does not guarantee it."""
        self._backlog.drop_client()
        if self._alignment is not None:
            self._alignment.close()

    # -- executor ---------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows. Spark calls this on an executor, once per task."""
        task = cast("KafkaInputPartition", partition)
        return read_ranges(self._options, task.ranges, task.topic_ids)


def _log_problem(group: str, answer: Any) -> None:
    problem = answer.exception()
    if problem is None:
        result = answer.result()
        problem = next((at.error for at in result.topic_partitions if at.error), None)
    if problem is not None:
        _log.warning("The offsets of consumer group %s (for monitoring only) were not committed: %s", group, problem)
