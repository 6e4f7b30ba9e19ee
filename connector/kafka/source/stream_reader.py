"""The stream reader: what Spark asks of the source in the driver's source process, and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

from connector.kafka.client.agreement import AskEach, TopicView, ask_each_broker, stand_surely
from connector.kafka.client.config import ClientConfig, check_brokers
from connector.kafka.source.bounds import SHOWN, check_partitions
from connector.kafka.source.data_loss import (
    Standing,
    check_joint,
    lost_error,
    made_anew,
    narrow,
    resume,
    warn,
)
from connector.kafka.source.fetch import borrow_consumer, fetch
from connector.kafka.source.missed import MissedRanges
from connector.kafka.source.next_offset import next_offset
from connector.kafka.source.offsets import Loss, Partition, Positions, Reason, SourceOffset, positions_to_json
from connector.kafka.source.range_loss import LossTolerance
from connector.kafka.source.ranges import OffsetRange, ranges_between
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.rows import to_record_batch
from connector.kafka.source.subscription import Subscription, TopicReader
from transactional import faults
from transactional.barrier import CheckpointBarrier
from transactional.clock import Clock, SystemClock
from transactional.errors import StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

__all__ = ["BarrierKafkaStreamReader", "KafkaInputPartition", "read_range"]

EVERYTHING: Final = 1 << 62
"""A limit that is none."""

_log = logging.getLogger(__name__)


class KafkaInputPartition(InputPartition):
    """One reader task's range, and its topic's id. *Made on the driver, read on an executor*."""

    def __init__(self, wanted: OffsetRange, topic_id: str | None = None) -> None:
        super().__init__(wanted)
        self.range = wanted
        self.topic_id = topic_id


class BarrierKafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches, and puts checkpoint barriers between them as the schedule says.

    One object lives in the driver's source process for the whole query; copies of it go to the executors, where only
    `read` is called. It keeps no memory that matters but availableNow's target, when it was first asked with the
    last barrier behind it, when it last let a micro-batch have rows, the ranges that the last tasks read, and what of
    these could not be read and is not recorded yet: what it answers follows from these, its arguments, the clock and the
    brokers.

    Parameters
    ----------
    options : ReadOptions
    clock : Clock, optional
    brokers : Callable, optional
        Makes the client that asks the brokers.
    ask_each : AskEach, optional
        Asks several brokers for the same topics.

    Attributes
    ----------
    fail_on_data_loss : bool
        ``failOnDataLoss``.
    """

    def __init__(
        self,
        options: ReadOptions,
        clock: Clock | None = None,
        brokers: Callable[[ClientConfig], AdminClient] = check_brokers,
        ask_each: AskEach = ask_each_broker,
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._ask_each = ask_each
        self._config = options.config
        self._subscription = options.subscription
        self._schedule = options.schedule
        self.fail_on_data_loss = options.fail_on_data_loss
        self._clock = clock or SystemClock()
        self._triggered: int | None = None
        self._completed: tuple[CheckpointBarrier, int] | None = None
        self._target: Positions | None = None
        self._seen: Positions | None = None
        self._end: dict[str, Any] | None = None
        self._missed = MissedRanges()
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
        # A topic that is gone is judged by what the checkpoint says of it, in `latestOffset`.
        self._target = topics.latest(topics.partitions(self._subscription, self._subscription.names()))

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
            ``DATA_LOST``, ``TOPIC_RECREATED``, ``OFFSETS_WENT_BACK``, ``PARTITIONS_GONE``: rows that were to be read next are
            gone. With ``failOnDataLoss=false`` the micro-batch begins behind them, and says so (`SourceOffset.lost`).
        """
        faults.reach("source.latest")
        before, seen = SourceOffset.from_json(start), self._seen
        now = int(self._clock.now() * 1000)
        # Spark asks when the micro-batch before is committed, so the checkpoint of its barrier is completed.
        if before.barrier is not None and (self._completed is None or self._completed[0] != before.barrier):
            self._completed = (before.barrier, now)
        self._missed.recorded(before)
        end: SourceOffset | None
        if before.planned:
            end = before.next_planned()
            if not self.fail_on_data_loss:
                topics, standing, _ = self._look(before)
                self._look_back(topics, standing, before)
            if self.fail_on_data_loss:
                _, standing, ids = self._look(before)
                _check_standing(standing, made_anew(end.ids, ids), end)
        else:
            found = self._patiently_available(before)
            before, available, first = found.before, found.available, found.first
            held = not isinstance(limit, ReadAllAvailable) and self._hold_back(before, available, first, now)
            end = next_offset(
                before,
                before.topics if held else available,
                limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                self._schedule,
                now,
                completed=self._completed[1] if self._completed else None,
                ends=self._target is not None or isinstance(limit, ReadAllAvailable),
                first=first,
                lost=found.lost,
                missed=self._missed.offer(),
            )
            if end is not None:
                end = replace(end, may_miss=not self.fail_on_data_loss)
                if end.topics != end.start:
                    self._triggered = now
        if end is None:
            return start
        if not before.planned:
            warn(end.lost, seen)
        # What was planned once is a replay: `partitions` looks whether all of it is left.
        self._end = None if before.planned else end.to_json()
        return end.to_json()

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
            ``DATA_LOST``, ``TOPIC_RECREATED``, ``OFFSETS_WENT_BACK``, ``PARTITIONS_GONE``: a replay's rows are gone. With
            ``failOnDataLoss=false`` it has those that are left, in the same number of tasks.
        """
        before, after = SourceOffset.from_json(start), SourceOffset.from_json(end)
        if before.same_end(after):  # a planned no-data micro-batch repeats the end before it, and its start
            return []
        if before.barrier is not None:
            check_joint(before.topics, after)
        # Of the ranges that were recorded, whatever is left of them: a replay has the same tasks.
        ranges = self._options.splitting.split(ranges_between(after.start, after.topics))
        if end != self._end:
            ranges = self._what_is_left(after, ranges)
        self._missed.plan(ranges)
        return [KafkaInputPartition(wanted, after.ids.get(wanted.partition.topic)) for wanted in ranges]

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
            admin = self._admin or self._brokers(self._config)
            self._admin = admin
            answers = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, where)])
            for answer in answers.values():
                # The next micro-batch does not wait for it.
                answer.add_done_callback(partial(_log_problem, group))
        except (KafkaException, TwoPhaseCommitError, ValueError) as problem:
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
        wanted = cast("KafkaInputPartition", partition)
        return read_range(self._options, wanted.range, wanted.topic_id)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _patiently_available(self, before: SourceOffset) -> _Available:
        """`_available`, again where a topic was deleted or made anew while it was asked for."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

        def may_pass(problem: BaseException) -> bool:
            condition = problem.condition if isinstance(problem, StoreError) else None
            return condition == "TOPIC_CHANGED" or (condition == "UNKNOWN_TOPIC" and not self.fail_on_data_loss)

        retries = self._options.retries
        again = Retrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_attempt(1 + retries.number),
            wait=wait_fixed(retries.pause_seconds),
            sleep=self._clock.sleep,
            reraise=True,
        )
        return again(self._available_now, before)

    def _available_now(self, before: SourceOffset) -> _Available:
        try:
            return self._available(before)
        except StoreError:
            self._admin = None  # this client would ask the same broker again
            raise

    def _available(self, before: SourceOffset) -> _Available:
        """Where reading begins and could end now; under availableNow not behind its target."""
        topics, standing, ids = self._look(before)
        if self.fail_on_data_loss:
            _check_standing(standing, made_anew(before.ids, ids), before)
        if not self.fail_on_data_loss:
            self._look_back(topics, standing, before)
        latest = topics.latest([*standing.known, *standing.anew, *standing.new], standing.known)
        behind = [p for p, offset in standing.known.items() if latest[p] > offset]
        new = [partition for partition in standing.new if latest[partition] > 0]
        earliest = topics.surely_earliest([*behind, *standing.anew, *new], standing.known)
        # Rows may have expired since the ends were asked for.
        latest.update({p: max(latest[p], offset) for p, offset in earliest.items()})
        self._seen = latest
        begin, lost = resume(standing, earliest, latest)
        expired = {partition: loss for partition, loss in lost.items() if loss.reason is Reason.EXPIRED}
        if self.fail_on_data_loss and expired:
            raise lost_error(expired)
        if self.fail_on_data_loss:  # what is truncated, `next_offset` refuses
            begin, lost = dict(standing.known), {}
        first = {partition: earliest[partition] for partition in new}
        lost |= self._first_rows(first)
        after = replace(before, topics=begin, ids=ids, gone=standing.gone)
        if self._target is None:
            return _Available(after, latest, first, lost)
        target = self._target
        # A partition that came after the target is the next run's; one that is past its target already stays there.
        available = {
            partition: min(offset, max(target.get(partition, 0), begin.get(partition, 0)))
            for partition, offset in latest.items()
            if partition in target or partition in begin
        }
        first = {partition: min(offset, available.get(partition, 0)) for partition, offset in first.items()}
        return _Available(after, available, first, lost)

    def _first_rows(self, first: Positions) -> dict[Partition, Loss]:
        """Partitions that the checkpoint does not know begin here; rows before that went before they were seen."""
        lost = {partition: offset for partition, offset in first.items() if offset > 0}
        if not lost:
            return {}
        told = ", ".join(f"{p} begins at {offset}" for p, offset in sorted(lost.items())[:SHOWN])
        if self.fail_on_data_loss:
            raise StoreError(
                "DATA_LOST",
                f"barrier-kafka: partitions that are new to this query have lost their first rows: {told}. Where they were "
                "never meant to be read (an older topic was added), set failOnDataLoss to false for one run.",
                partitions=[str(partition) for partition in lost],
            )
        return {partition: Loss(0, offset, Reason.EXPIRED) for partition, offset in lost.items()}

    def _hold_back(self, before: SourceOffset, available: Positions, first: Positions, now: int) -> bool:
        """Whether rows wait for more (minOffsetsPerTrigger). A barrier that is due does not wait for them."""
        if self._target is not None:
            return False
        waiting = sum(offset - before.topics.get(p, first.get(p, 0)) for p, offset in available.items())
        return self._options.limits.hold_back(waiting, self._triggered, now)

    def _look(self, before: SourceOffset) -> tuple[TopicReader, Standing, Mapping[str, str]]:
        """Where the query stands in the partitions that exist now, and their topics' ids."""
        topics = self._topics()
        read_before = {partition.topic for partition in before.topics}
        standing = self._surely(topics, before, self._subscription, read_before | set(before.gone))
        return topics, standing, topics.ids

    def _surely(
        self, topics: TopicReader, at: SourceOffset, subscription: Subscription, may_miss: Collection[str]
    ) -> Standing:
        """Where a query stands; what is gone is so by the word of several brokers, a pause apart."""

        def ask_each(names: Sequence[str]) -> Sequence[Mapping[str, TopicView]]:
            self._clock.sleep(self._options.retries.pause_seconds)
            return self._ask_each(self._config, names, self._clock)

        return stand_surely(topics, at, subscription, may_miss, ask_each)

    def _look_back(self, topics: TopicReader, standing: Standing, before: SourceOffset) -> None:
        """See what retention has removed of the micro-batch before while its tasks read it."""
        ranges = [
            each
            for each in self._missed.to_look_at(before)
            if each.partition in standing.known
            and topics.ids.get(each.partition.topic) == before.ids.get(each.partition.topic)
        ]
        # In order: of a partition's ranges the first begins first.
        wanted = {each.partition: each.start for each in reversed(ranges)}
        self._missed.look(ranges, topics.surely_earliest([*wanted], wanted))

    def _what_is_left(self, after: SourceOffset, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """A replay's ranges: the topics may have changed since its offsets were picked."""
        wanted = sorted({each.partition for each in ranges})
        # What was recorded, whatever the options name now.
        names = tuple(sorted({partition.topic for partition in after.topics}))
        topics = self._topics()
        standing = self._surely(topics, after, Subscription(topics=names), names)
        if self.fail_on_data_loss and standing.lost:
            raise lost_error(standing.lost)
        there = [partition for partition in wanted if partition in standing.known]
        begin = {partition: after.start[partition] for partition in there}
        earliest, latest = topics.surely_earliest(there, begin), topics.latest(there, after.topics)
        lost = {partition: standing.lost[partition] for partition in wanted if partition in standing.lost}
        for partition in there:
            if earliest[partition] > begin[partition]:
                resumes = min(earliest[partition], after.topics[partition])
                lost[partition] = Loss(begin[partition], resumes, Reason.EXPIRED)
            elif latest[partition] < after.topics[partition]:
                lost[partition] = Loss(after.topics[partition], latest[partition], Reason.TRUNCATED)
        if not lost:
            return list(ranges)
        if self.fail_on_data_loss:
            raise lost_error(lost)
        left = narrow(ranges, standing.lost, earliest, latest)
        self._missed.narrow(ranges, left, lost)
        return left

    def _topics(self) -> TopicReader:
        if self._admin is None:
            self._admin = self._brokers(self._config)
        return TopicReader(self._admin, self._config, self._options.retries, clock=self._clock)


@dataclass(frozen=True)
class _Available:
    """What could be read: from `before`, whose positions are those where reading goes on, to `available`."""

    before: SourceOffset
    available: Positions
    first: Positions
    lost: Mapping[Partition, Loss]


def read_range(options: ReadOptions, wanted: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows, in order. *Executor, once per task*.

    Parameters
    ----------
    options : ReadOptions
    wanted : OffsetRange
        An empty one asks nobody.
    topic_id : str, optional
        Of the topic that was planned.

    Raises
    ------
    StoreError
        ``DATA_LOST``: rows of the range are gone; ``READ_FAILED``, ``READ_STALLED``.
    """
    if not len(wanted):
        return
    at = wanted.partition
    tolerance = None if options.fail_on_data_loss else LossTolerance(options.config, topic_id)
    with borrow_consumer(options.config, at.topic, topic_id) as consumer:
        for messages in fetch(consumer, wanted, stall_seconds=options.poll_seconds, tolerance=tolerance):
            yield to_record_batch(messages, at.topic, at.number, options.include_headers)


def _check_standing(standing: Standing, recreated: frozenset[str], at: SourceOffset) -> None:
    """Raise where topics are not those that were read before."""
    again = {p: Loss(offset, None, Reason.RECREATED) for p, offset in at.topics.items() if p.topic in recreated}
    if again or standing.lost:
        raise lost_error({**standing.lost, **again})


def _log_problem(group: str, answer: Any) -> None:
    problem = answer.exception()
    if problem is None:
        result = answer.result()
        problem = next((at.error for at in result.topic_partitions if at.error), None)
    if problem is not None:
        _log.warning("Offsets of group %s were not committed (monitoring only): %s", group, problem)
