"""Finds the rows that a stream can read now, and the rows that were lost before it read them. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connector.kafka.client.agreement import AskEach, TopicView
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import TopicChangedError, UnknownTopicError
from connector.kafka.client.topics import SHOWN, Partition
from connector.kafka.source.bounds import check_partitions
from connector.kafka.source.offsets import Loss, Positions, Reason, SourceOffset
from connector.kafka.source.planning.available import Available
from connector.kafka.source.planning.data_loss import log, lost_error
from connector.kafka.source.planning.ranges import OffsetRange, narrow
from connector.kafka.source.planning.standing import Standing, recreated_topics, resume, stand_surely
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.topic_reader import TopicReader
from transactional.clock import Clock
from transactional.errors import StoreError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class Backlog:
    """Compares a query's positions with the offsets on the brokers. If data loss is allowed, it skips lost rows."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Clock,
        brokers: Callable[[ClientConfig], AdminClient],
        ask_each: AskEach,
    ) -> None:
        self._options = options
        self._clock = clock
        self._brokers = brokers  # Makes the client that asks the brokers.
        self._ask_each = ask_each  # Asks several brokers about the same topics.
        self._admin: AdminClient | None = None
        # The offsets at which this run ends (availableNow); None if it does not end by itself.
        self.target: Positions | None = None
        # The partitions' ends when the brokers were last asked; None before the first request.
        self.seen: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}

    def admin(self) -> AdminClient:
        """Return the client for requests to the brokers. Create it if there is none."""
        if self._admin is None:
            self._admin = self._brokers(self._options.config)
        return self._admin

    def drop_client(self) -> None:
        """Drop the client. The next request creates another client, which may ask another broker."""
        self._admin = None

    def start(self) -> SourceOffset:
        """Return the offset at which a new query begins, according to its options."""
        options, topics = self._options, self._topics()
        partitions = topics.partitions(options.subscription)
        options.subscription.check(partitions)
        check_partitions(options.starting, partitions)
        begin = topics.resolve(options.starting, partitions, strict=options.fail_on_data_loss)
        return SourceOffset(
            topics=begin,
            start=begin,
            interval=options.schedule.interval_ms,
            ids=topics.ids,
            min_pause=options.schedule.min_pause_ms,
        )

    def fix_target(self) -> None:
        """Make this run (availableNow) end at the offsets that can be read now."""
        topics, subscription = self._topics(), self._options.subscription
        # Topics may be missing here: `available` compares them with the checkpoint.
        self.target = topics.latest(topics.partitions(subscription, subscription.names()))

    def raise_target(self, ends: Positions) -> bool:
        """Make this run (availableNow) read at least up to these offsets. Return whether this changes where the run ends."""
        if self.target is None or all(end <= self.target.get(partition, 0) for partition, end in ends.items()):
            return False
        self.target = {p: max(self.target.get(p, 0), ends.get(p, 0)) for p in {**self.target, **ends}}
        return True

    def available(self, before: SourceOffset) -> Available:
        """Return the offsets that can be read now. Ask again if a topic was deleted or re-created meanwhile."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

        def may_pass(problem: BaseException) -> bool:
            unknown = isinstance(problem, UnknownTopicError) and not self._options.fail_on_data_loss
            return unknown or isinstance(problem, TopicChangedError)

        def ask() -> Available:
            try:
                return self._available(before)
            except StoreError:
                self.drop_client()  # the same client would ask the same broker again
                raise

        retries = self._options.retries
        return Retrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_attempt(1 + retries.number),
            wait=wait_fixed(retries.pause_seconds),
            sleep=self._clock.sleep,
            reraise=True,
        )(ask)

    def check_planned(self, before: SourceOffset, end: SourceOffset) -> None:
        """Raise if a topic was deleted or re-created after a rewind had planned the end offset `end`.

        If data loss is allowed, check nothing, because `left_of` then leaves out the lost rows.
        """
        if self._options.fail_on_data_loss:  # if failOnDataLoss=false, `left_of` leaves out the lost rows
            topics, standing = self._stand(before)
            _refuse_loss(standing, recreated_topics(end.ids, topics.ids), end)

    def left_of(self, after: SourceOffset, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges of a micro-batch that runs again, without rows that were lost since its first planning.

        If rows were lost, raise unless data loss is allowed.
        """
        wanted = sorted({part.partition for part in ranges})
        # The topics in the recorded offsets, even if the options now name other topics.
        names = tuple(sorted({partition.topic for partition in after.topics}))
        topics = self._topics()
        standing = self._surely(topics, after, Subscription(topics=names), names)
        if self._options.fail_on_data_loss and standing.lost:
            raise lost_error(standing.lost)
        known = [partition for partition in wanted if partition in standing.known]
        begin = {partition: after.start[partition] for partition in known}
        earliest, latest = topics.surely_earliest(known, begin), topics.latest(known, after.topics)
        lost = {partition: standing.lost[partition] for partition in wanted if partition in standing.lost}
        for partition in known:
            if earliest[partition] > begin[partition]:
                resumes = min(earliest[partition], after.topics[partition])
                lost[partition] = Loss(begin[partition], resumes, Reason.EXPIRED)
            elif latest[partition] < after.topics[partition]:
                lost[partition] = Loss(after.topics[partition], latest[partition], Reason.TRUNCATED)
        if not lost:
            return list(ranges)
        if self._options.fail_on_data_loss:
            raise lost_error(lost)
        left = narrow(ranges, standing.lost, earliest, latest)
        _warn_unread(ranges, left, lost)
        return left

    def _available(self, before: SourceOffset) -> Available:
        strict = self._options.fail_on_data_loss
        topics, standing = self._stand(before)
        ids = topics.ids
        if strict:
            _refuse_loss(standing, recreated_topics(before.ids, ids), before)
        latest = topics.latest([*standing.known, *standing.recreated, *standing.new], standing.known)
        behind = [p for p, offset in standing.known.items() if latest[p] > offset]
        new = [partition for partition in standing.new if latest[partition] > 0]
        earliest = topics.surely_earliest([*behind, *standing.recreated, *new], standing.known)
        # Rows may have expired after the brokers were asked for the ends.
        latest.update({p: max(latest[p], offset) for p, offset in earliest.items()})
        self.seen = latest
        begin, lost = resume(standing, earliest, latest)
        expired = {partition: loss for partition, loss in lost.items() if loss.reason is Reason.EXPIRED}
        if strict and expired:
            raise lost_error(expired)
        if strict:  # `next_offset` refuses a partition that ends too early
            begin, lost = dict(standing.known), {}
        first = {partition: earliest[partition] for partition in new}
        lost |= self._first_rows(first)
        after = replace(before, topics=begin, ids=ids, gone=standing.gone)
        if self.target is None:
            return Available(after, latest, first, lost)
        ends = _up_to(self.target, latest, begin)
        first = {partition: min(offset, ends.get(partition, 0)) for partition, offset in first.items()}
        return Available(after, ends, first, lost)

    def _first_rows(self, first: Positions) -> dict[Partition, Loss]:
        """Return, for partitions that are new to the query, which rows were removed before the query could read them.

        If there are any, raise unless data loss is allowed.
        """
        lost = {partition: offset for partition, offset in first.items() if offset > 0}
        if lost and self._options.fail_on_data_loss:
            shown = ", ".join(f"{p} begins at {offset}" for p, offset in sorted(lost.items())[:SHOWN])
            raise StoreError(
                "DATA_LOST",
                reason=f"partitions that are new to this query have already lost their first rows: {shown}",
                effect="then begins at the first remaining row, which is right if you added an older topic",
                kind=Reason.EXPIRED.value,
                partitions=[str(partition) for partition in lost],
            )
        return {partition: Loss(0, offset, Reason.EXPIRED) for partition, offset in lost.items()}

    def _stand(self, before: SourceOffset) -> tuple[TopicReader, Standing]:
        """Ask the brokers for the existing partitions. Return the `TopicReader`, and the query's position in each partition."""
        topics = self._topics()
        read_before = {partition.topic for partition in before.topics}
        return topics, self._surely(topics, before, self._options.subscription, read_before | set(before.gone))

    def _surely(
        self, topics: TopicReader, at: SourceOffset, subscription: Subscription, may_miss: Collection[str]
    ) -> Standing:
        """Return the query's position in each existing partition. A loss counts only if all asked brokers confirm it."""

        def ask_each(names: Sequence[str]) -> Sequence[Mapping[str, TopicView]]:
            self._clock.sleep(self._options.retries.pause_seconds)
            return self._ask_each(self._options.config, names, self._clock)

        return stand_surely(topics, at, subscription, may_miss, ask_each)

    def _topics(self) -> TopicReader:
        return TopicReader(self.admin(), self._options.config, self._options.retries, clock=self._clock)


def _refuse_loss(standing: Standing, recreated: frozenset[str], at: SourceOffset) -> None:
    """Raise if a topic that the query read before is gone or was re-created."""
    again = {p: Loss(offset, None, Reason.RECREATED) for p, offset in at.topics.items() if p.topic in recreated}
    if again or standing.lost:
        raise lost_error({**standing.lost, **again})


def _warn_unread(ranges: Sequence[OffsetRange], left: Sequence[OffsetRange], lost: Mapping[Partition, Loss]) -> None:
    """Log the rows that a replay does not read because they were removed after the micro-batch was planned."""
    for whole, part in zip(ranges, left, strict=True):
        if len(part) < len(whole):
            log.warning(
                "barrier-kafka: data loss (%s), and failOnDataLoss is false: up to %d rows of %s were removed after the "
                "micro-batch was planned. The query now runs this micro-batch again, and reads %s.",
                lost[whole.partition].reason.value,
                len(whole) - len(part),
                whole,
                part if len(part) else "none of them",
            )


def _up_to(
    target: Mapping[Partition, int], latest: Mapping[Partition, int], begin: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Limit the ends `latest` to the target. If the query has already read past the target, its position is the end.

    Partitions that were created after the target was set are left to the next run.
    """
    return {
        partition: min(offset, max(target.get(partition, 0), begin.get(partition, 0)))
        for partition, offset in latest.items()
        if partition in target or partition in begin
    }
