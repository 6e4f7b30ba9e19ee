"""Asks the brokers which partitions a source has, and at which offsets the partitions begin and end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import TopicChangedError, UnknownTopicError, missing_right
from connector.kafka.client.topics import SHOWN, Partition
from connector.kafka.source.bounds import Bound, TimeBound, check_reach
from connector.kafka.source.offsets import Positions
from connector.kafka.source.option_values import EARLIEST, LATEST
from connector.kafka.source.subscription import Subscription
from transactional.clock import Clock, SystemClock
from transactional.errors import OptionError, RetriableError, StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

REQUEST_SECONDS: Final = 15.0
"""Maximum time to wait for one answer; a healthy broker needs milliseconds."""

PATIENCE_SECONDS: Final = 15.0
"""Maximum seconds for one attempt.

With Spark's three retries, the total is a minute: enough time to restart a broker or elect a new leader.
"""

PAUSE_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Retries:
    """The maximum number of retries of a request to the brokers, and the pause before each retry."""

    number: int = 3  # ``fetchOffset.numRetries``: the number of tries after the first one.
    pause_seconds: float = 1.0  # ``fetchOffset.retryIntervalMs``, in seconds.


class TopicReader:
    """Asks the brokers about partitions and offsets; repeats a request that fails or gets no answer in time."""

    def __init__(
        self,
        admin: AdminClient,
        config: ClientConfig,
        retries: Retries | None = None,
        patience: float = PATIENCE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._admin = admin
        self._config = config
        self._retries = retries or Retries()  # If missing, Spark's default values apply.
        # Maximum seconds of one try. During a try, the request is repeated after errors that may pass by themselves.
        self._patience = patience
        self._clock = clock or SystemClock()
        self._option = "subscribe"
        self.ids: dict[str, str] = {}
        """The id of each topic, from the last call of `partitions`."""

    def partitions(self, subscription: Subscription, may_miss: Collection[str] = ()) -> list[Partition]:
        """Return all partitions of a subscription that exist now, sorted. Topics in `may_miss` need not exist."""
        from confluent_kafka import KafkaException, TopicCollection

        self._option = subscription.option
        assigned = frozenset(subscription.assigned)

        def ask() -> list[Partition]:
            topics = subscription.names()
            if subscription.pattern is not None:
                there = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
                topics = sorted(topic for topic in there if subscription.matches(topic))
            self.ids = {}
            if not topics:
                return []
            answers = self._admin.describe_topics(TopicCollection(topics), request_timeout=REQUEST_SECONDS)
            partitions: list[Partition] = []
            for topic in topics:
                try:
                    description = answers[topic].result()
                except KafkaException as problem:
                    # A topic that matches a pattern may have been deleted after it was listed.
                    may = subscription.pattern is not None or topic in may_miss
                    if may and problem.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                        continue
                    raise
                self.ids[topic] = str(description.topic_id)
                partitions += [Partition(topic, info.id) for info in description.partitions]
            return sorted(partition for partition in partitions if not assigned or partition in assigned)

        return self._patiently(ask, "the partitions", subscription.words())

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset of the first row that still exists, per partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def surely_earliest(self, partitions: Sequence[Partition], wanted: Positions) -> dict[Partition, int]:
        """Return the result of `earliest`. If a partition's first row lies after the wanted offset, pause and ask once more."""
        return self._surely(self.earliest, partitions, lambda p, offset: offset > wanted.get(p, 0), min)

    def latest(self, partitions: Sequence[Partition], known: Positions | None = None) -> dict[Partition, int]:
        """Return the offset at which reading ends, per partition.

        With read_committed, this is the last stable offset; otherwise the high watermark. If a partition ends before its offset
        in `known`, ask for its high watermark, more than once with a pause between. If the high watermark has reached the known
        offset, return the known offset.
        """
        known = known or {}
        offsets = self._offsets(dict.fromkeys(partitions, LATEST))
        for again in range(max(1, self._retries.number) + 1):  # at least two answers, a pause apart
            behind = [partition for partition in partitions if offsets[partition] < known.get(partition, 0)]
            if not behind:
                break
            if again:
                self._clock.sleep(self._retries.pause_seconds)
            offsets.update({p: known[p] for p, offset in self._high(behind).items() if offset >= known[p]})
        return offsets

    def surely_latest(self, partitions: Sequence[Partition], wanted: Positions) -> dict[Partition, int]:
        """Return the result of `latest`. If a partition ends before the wanted offset, pause and ask once more."""
        return self._surely(self.latest, partitions, lambda p, offset: offset < wanted[p], max)

    def _surely(
        self,
        ask: Callable[[Sequence[Partition]], dict[Partition, int]],
        partitions: Sequence[Partition],
        is_doubtful: Callable[[Partition, int], bool],
        better: Callable[[int, int], int],
    ) -> dict[Partition, int]:
        offsets = ask(partitions)
        doubtful = [partition for partition in partitions if is_doubtful(partition, offsets[partition])]
        if doubtful:
            self._clock.sleep(self._retries.pause_seconds)
            offsets.update({p: better(offsets[p], offset) for p, offset in ask(doubtful).items()})
        return offsets

    def since(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return, per partition, the offset of the first row at or after a time; None if there is no such row.

        Times are in milliseconds since 1970.
        """
        offsets = self._offsets(times)
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

    def resolve(self, bound: Bound, partitions: Sequence[Partition], *, strict: bool = True) -> dict[Partition, int]:
        """Return the offset of a start or end (`bound`) in each partition. If `strict`, reject offsets that do not exist."""
        if isinstance(bound, TimeBound):
            return self._resolve_times(bound, partitions)
        if bound.at == "earliest":
            return self.earliest(partitions)
        if bound.at == "latest":
            return self.latest(partitions)
        wanted = {partition: bound.at[partition] for partition in partitions}
        earliest = self.earliest([partition for partition, offset in wanted.items() if offset == EARLIEST])
        latest = self.latest([partition for partition, offset in wanted.items() if offset == LATEST])
        named = {partition: offset for partition, offset in wanted.items() if offset >= 0}
        if strict and named:
            # Allow offsets up to the high watermark: an old query may have read past an open transaction.
            check_reach(bound, named, self.earliest([*named]), self._high([*named]))
        return {**wanted, **earliest, **latest}

    def _resolve_times(self, bound: TimeBound, partitions: Sequence[Partition]) -> dict[Partition, int]:
        times = {p: bound.at if isinstance(bound.at, int) else bound.at[p] for p in partitions}
        offsets = self.since(times)
        none = [partition for partition in partitions if offsets[partition] is None]
        if none and bound.otherwise == "error":
            shown = ", ".join(f"{partition} since {times[partition]}" for partition in none[:SHOWN])
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier-kafka",
                option=bound.option,
                value=shown,
                expectation="a time that is not after the partition's last row. With "
                "startingOffsetsByTimestampStrategy=latest, reading begins at the end of these partitions",
                partitions=[str(partition) for partition in none],
            )
        latest = self.latest(none)
        return {p: latest[p] if offset is None else offset for p, offset in offsets.items()}

    def _high(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return self._offsets(dict.fromkeys(partitions, LATEST), committed=False)

    def _offsets(self, wanted: Mapping[Partition, int], committed: bool | None = None) -> dict[Partition, int]:
        """Return an offset for each partition in `wanted`, which maps partitions to `EARLIEST`, `LATEST`, or a time.

        For a time, return the offset of the first row at or after that time, or -1. If `committed`, `LATEST` means the last
        stable offset; if not, the high watermark. By default, the query's isolation level decides.
        """
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if not wanted:
            return {}
        ends = {EARLIEST: OffsetSpec.earliest(), LATEST: OffsetSpec.latest()}
        if committed is None:
            committed = self._config.settings.get("isolation.level", "read_committed") == "read_committed"
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[Partition, int]:
            question = {
                TopicPartition(p.topic, p.number): ends.get(at) or OffsetSpec.for_timestamp(at)
                for p, at in wanted.items()
            }
            answers: Mapping[Any, Future[Any]] = self._admin.list_offsets(
                question, isolation_level=isolation, request_timeout=REQUEST_SECONDS
            )
            try:
                return {
                    Partition(at.topic, at.partition): int(answer.result().offset) for at, answer in answers.items()
                }
            except KafkaException as problem:
                if problem.args[0].name() in _OF_A_TOPIC:
                    self._check_same([*wanted])
                raise

        offsets = self._patiently(ask, "the offsets", sorted({partition.topic for partition in wanted}))
        return {partition: offsets[partition] for partition in wanted}

    def _check_same(self, partitions: Sequence[Partition]) -> None:
        """Raise if a topic of these partitions was deleted or re-created after the last call of `partitions`.

        In that case, a retry would not help.
        """
        from confluent_kafka import KafkaException, TopicCollection

        wanted = sorted({partition.topic for partition in partitions} & set(self.ids))
        if not wanted:
            return
        there: set[Partition] = set()
        for topic, answer in self._admin.describe_topics(
            TopicCollection(wanted), request_timeout=REQUEST_SECONDS
        ).items():
            with suppress(KafkaException):
                description = answer.result()
                if str(description.topic_id) == self.ids[topic]:
                    there |= {Partition(topic, info.id) for info in description.partitions}
        changed = sorted({p.topic for p in partitions if p.topic in wanted and p not in there})
        if changed:
            raise TopicChangedError("TOPIC_CHANGED", topics=changed)

    def _patiently(self, ask: Callable[[], T], what: str, topics: Sequence[str]) -> T:
        from confluent_kafka import KafkaException
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_fixed

        once = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(self._patience),
            wait=wait_fixed(PAUSE_SECONDS),
            before_sleep=lambda state: self._ask_for_leaders(state.outcome.exception() if state.outcome else None),
            reraise=True,
        )
        asking = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(1 + self._retries.number),
            wait=wait_fixed(self._retries.pause_seconds),
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            return asking(lambda: once(ask))
        except KafkaException as problem:
            raise self._error(problem, what, topics) from None

    def _ask_for_leaders(self, problem: BaseException | None) -> None:
        """If `problem` shows that a leader has changed, make the client ask again which brokers are leaders.

        Otherwise, the client would remember the old leader for minutes.
        """
        from confluent_kafka import KafkaException

        if isinstance(problem, KafkaException) and problem.args[0].name() in _OF_A_LEADER:
            with suppress(KafkaException):
                self._admin.list_topics(timeout=1.0)  # for all topics: a request for one topic could create it

    def _error(self, problem: Any, what: str, topics: Sequence[str]) -> TwoPhaseCommitError:
        error = problem.args[0]
        reason, names = self._config.scrub(error.str()), ", ".join(topics)
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            return UnknownTopicError("UNKNOWN_TOPIC", topic=names, option=self._option)
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return missing_right("DESCRIBE", f"topic {names}")
        brokers = self._config.bootstrap_servers
        message = f"{self._config.name}: the brokers at {brokers} did not return {what} of {names}: {reason}"
        if _may_pass(problem):
            return RetriableError("KAFKA_TIMEOUT", reason=message)
        return StoreError("KAFKA_REFUSED", reason=message)


_OF_A_LEADER: Final = frozenset(
    {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"}
    | {"_NOENT", "_UNKNOWN_PARTITION"}
)
"""Errors of a request to a broker that is no longer a partition's leader.

Two come from the client itself: `_NOENT` if it knows no leader of any partition, and `_UNKNOWN_PARTITION` if its metadata of
the topic is older than the partition.
"""

_OF_A_TOPIC: Final = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "_NOENT", "_UNKNOWN_PARTITION"}
)
"""Errors that may mean that a topic was deleted, or was created again with fewer partitions."""

_PASSING: Final = frozenset(
    # from the client itself, until the brokers are back
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_WAIT_COORD", "_RESOLVE", "_FAIL", "_INTR"}
    | {"_UNKNOWN_BROKER", "_DESTROY_BROKER"}
    # from a broker, while partitions are created or moved
    | _OF_A_LEADER
    | {"REPLICA_NOT_AVAILABLE", "BROKER_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"}
    | {"REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "THROTTLING_QUOTA_EXCEEDED", "UNKNOWN_TOPIC_ID"}
    # from a broker, without a reason
    | {"UNKNOWN"}
)
"""Temporary errors, after which a request is repeated.

The client itself marks only errors of a transactional producer as retriable.

UNKNOWN_TOPIC_OR_PART is not among them. Some brokers do not know a new topic for a moment, but waiting a minute for a wrong
name would be worse.
"""


def _may_pass(problem: BaseException) -> bool:
    from confluent_kafka import KafkaException

    return isinstance(problem, KafkaException) and problem.args[0].name() in _PASSING
