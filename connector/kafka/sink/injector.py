"""Write barriers for a topic that no query writes to: every few seconds, a mark with the topic's end offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import Partition
from connector.kafka.marks.barrier_topic import BarrierTopic, newest_mark, stable_ends
from connector.kafka.marks.mark import Mark
from connector.kafka.sink.write_options import parse_write_options
from transactional.checkpoint import CheckpointMark
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import FencedError, OptionError, RetriableError, StoreError
from transactional.sink import Options

if TYPE_CHECKING:
    from confluent_kafka import Producer

PREFIX: Final = "barrier-inject."
"""The beginning of the injector's transactional id. The rest of the id is the barrier topic's name."""

FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})

SECONDS: Final = 30.0
"""The time limit for each of the injector's requests and writes."""

log = logging.getLogger(__name__)


class Injector:
    """A context manager that writes marks for a topic to a barrier topic.

    Each mark is a numbered barrier, with the topic's end offsets at that moment. The newest injector of a barrier topic
    fences all others.

    Parameters
    ----------
    config : ClientConfig
    topic : str
        The topic whose ends are marked.
    barrier_topic : str
        The topic that gets the marks.
    clock : Clock, optional
    """

    def __init__(self, config: ClientConfig, topic: str, barrier_topic: str, clock: Clock | None = None) -> None:
        self._config, self._topic, self._barrier_topic = config, topic, barrier_topic
        self._clock = clock or SystemClock()
        self._admin: KafkaAdmin | None = None
        self._producer: Producer | None = None
        self._newest: Mark | None = None
        self._origin = self._identity = ""
        self._next = 1

    def __enter__(self) -> Injector:
        """Check the topics, fence the previous injector, and read its last mark."""
        if self._topic == self._barrier_topic:
            expectation = "a topic different from the marked topic, because consumers would read the marks as rows"
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier inject",
                option="--barrier-topic",
                value=self._barrier_topic,
                expectation=expectation,
            )
        self._admin = KafkaAdmin(self._config, self._clock)
        try:
            topic = self._admin.topics([self._topic]).get(self._topic)
            if topic is None:
                raise OptionError("UNKNOWN_TOPIC", option="TOPIC", topic=self._topic)
            barriers = BarrierTopic(self._config, self._barrier_topic).ensure(self._admin)
            self._identity, self._origin = topic.topic_id, f"{self._topic}/{barriers.topic_id}"
            self._producer = self._fencing()
            self._newest = newest_mark(self._config.for_librdkafka(), self._barrier_topic)
            if self._newest is None:
                place = Partition(self._barrier_topic, 0)
                # No earlier barrier's number was above the barrier topic's end offset, because each took an offset.
                self._next = self._admin.end_offsets([place], {place.topic: barriers})[place][0] + 1
            else:
                there = self._newest.checkpoint
                if there.query != self._origin:
                    raise self._taken(there.query, self._origin)
                self._check(self._newest.ids)
                self._next = there.checkpoint + 1
        except BaseException:
            self.__exit__()
            raise
        return self

    def _fencing(self) -> Producer:
        from confluent_kafka import Producer

        name = f"{PREFIX}{self._barrier_topic}"
        producer = Producer({**self._config.for_librdkafka(), "transactional.id": name, "log_level": 0})
        with self._reaching():
            producer.init_transactions(SECONDS)
        return producer

    def inject(self) -> Mark | None:
        """Write a mark at the topic's current end, and return the mark; None if the topic has not grown since the last mark."""
        if self._admin is None or self._producer is None:
            raise ValueError("the injector was not entered: use it in a with statement")
        before = self._newest
        ids, ends = stable_ends(self._topic, self._admin, before, Deadline(SECONDS, self._clock))
        self._check(ids)
        if before is not None and before.ends == ends:
            return None
        number = self._next
        offsets = sum(ends.values()) - (sum(before.ends.values()) if before is not None else 0)
        barrier = CheckpointMark(
            query=self._origin,
            checkpoint=number,
            after=number - 1,
            lineage={self._origin: number},
            exact=True,
            rows=offsets,
            timestamp=int(self._clock.now() * 1000),
            restarted=False,
        )
        mark = Mark(barrier, ends, ids)
        with self._reaching():
            self._producer.begin_transaction()
            self._producer.produce(self._barrier_topic, mark.to_json(), mark.key, 0)
            self._producer.commit_transaction(SECONDS)
        self._newest, self._next = mark, number + 1
        return mark

    def _check(self, ids: Mapping[str, str]) -> None:
        """Check that the topic's id in a mark is still the id that was found at the start, or raise an error."""
        if ids.get(self._topic) != self._identity:
            other, now = (
                f"for the topic {self._topic} with the id {each}" for each in (ids.get(self._topic), self._identity)
            )
            raise self._taken(other, now)

    def _taken(self, other: str, query: str) -> StoreError:
        return StoreError("BARRIER_TOPIC_TAKEN", topic=self._barrier_topic, other=other, query=query)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Convert the Kafka client's errors inside the block into errors of this connector."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as problem:
            error = problem.args[0]
            if error.name() in FENCED:
                raise FencedError("INJECTOR_FENCED", topic=self._barrier_topic) from None
            if error.name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
                raise missing_right("WRITE", f"transactional id {PREFIX}{self._barrier_topic}") from None
            reason = f"{self._barrier_topic} could not be written: {self._config.scrub(error.str())}"
            raise RetriableError("KAFKA_TIMEOUT", reason=reason) from None

    def __exit__(self, *problem: object) -> None:
        """Drop the producer, and close the admin client."""
        self._producer = None
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def inject_barriers(
    topic: str,
    barrier_topic: str,
    options: Mapping[str, str],
    *,
    interval_seconds: float = 10.0,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Write marks for a topic that other programs fill, so that queries can follow the topic (source option ``alignOn``).

    Every `interval_seconds`, the function writes a mark with the topic's end offsets, until `stop` returns True. If the
    topic has no new rows since the last mark, the function writes no mark. After a temporary failure, it tries again at the
    next interval.

    Parameters
    ----------
    topic : str
        The topic whose ends are marked.
    barrier_topic : str
        The topic that gets the marks. If this topic does not exist, it is created.
    options : Mapping[str, str]
        ``kafka.bootstrap.servers`` and other ``kafka.*`` options, as for the sink ``2pc-kafka``.
    interval_seconds : float
        Seconds between two marks.
    stop : Callable[[], bool]
        Called several times a second; the function returns when the result is True.

    Returns
    -------
    int
        The number of marks that were written.

    Raises
    ------
    FencedError
        ``INJECTOR_FENCED``: another injector has taken over.
    OptionError
        Before the first mark: `topic` does not exist, or `barrier_topic` is not suitable.
    StoreError
        The brokers can't be used, the user lacks a right, or `barrier_topic` belongs to another topic or query.
    ValueError
        `interval_seconds` is not above 0.
    """
    if not interval_seconds > 0:
        raise ValueError("interval_seconds must be above 0")
    config = replace(parse_write_options(Options(options)).client, name="barrier inject")
    written, due = 0, 0.0
    with Injector(config, topic, barrier_topic) as injector:
        while not stop():
            if time.monotonic() < due:
                time.sleep(min(0.1, interval_seconds))
                continue
            due = time.monotonic() + interval_seconds
            try:
                mark = injector.inject()
            except RetriableError as problem:
                log.warning(
                    "No barrier was written to %s (%s); trying again at the next interval", barrier_topic, problem
                )
                continue
            if mark is not None:
                written += 1
                log.info(
                    "barrier %d of %s written: %d offsets since the last barrier",
                    mark.checkpoint.checkpoint,
                    topic,
                    mark.checkpoint.rows,
                )
    return written
