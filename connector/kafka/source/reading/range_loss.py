"""Handles the rows of a planned range that a task can't read. Runs on executors.

With ``failOnDataLoss=false``, a task skips missing rows, but only if retention has removed them. The proof: the leader
has rejected the offset, and two answers, with a pause between them, show that the partition begins later. If anything
else is wrong (the topic was deleted or re-created, or the log ends too early), the task fails, because one broker may
be wrong. The driver then plans the replay, and asks several brokers before it counts any row as lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.kafka.client.agreement import ask_each_broker
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import TopicChangedError
from connector.kafka.client.topics import Partition
from connector.kafka.source.planning.data_loss import log
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.topic_reader import TopicReader
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PAUSE_SECONDS: Final = 1.0
"""Pause between two requests, long enough for a newly elected leader to learn its offsets."""


@dataclass(frozen=True)
class Holding:
    """The offsets that a partition holds."""

    # The first offset, and the offset after the last one.
    first: int
    last: int

    def has(self, offset: int) -> bool:
        """Return whether reading can begin at this offset: it exists, or the next new row will have it."""
        return self.first <= offset <= self.last


def ask_twice(
    ask: Callable[[], Holding | None], position: int, clock: Clock | None = None, pause: float = PAUSE_SECONDS
) -> Holding | None:
    """Ask which offsets a partition holds; if `position` is not among them, pause and ask again.

    Return one range that covers both answers. Return None if the range contains `position`, or if the leader does not answer.
    """
    first = ask()
    if first is None or first.has(position):
        return None
    (clock or SystemClock()).sleep(pause)
    second = ask()
    if second is None:
        return None
    holding = Holding(min(first.first, second.first), max(first.last, second.last))
    return None if holding.has(position) else holding


ASKER_SECONDS: Final = 60.0
"""The time, in seconds, for which a process uses one client to ask about topics.

After that, the process makes a new client, because addresses and login tokens change.
"""

# One client per process, and the time limit of its use. A new client costs threads, connections and a login, and each
# task asks twice. The process id is part of the key, because a client does not survive a fork.
_askers: dict[tuple[int, frozenset[tuple[str, str]]], tuple[AdminClient, Deadline]] = {}


def _asker(config: ClientConfig) -> AdminClient:
    key = os.getpid(), frozenset(config.settings.items())
    kept = _askers.get(key)
    if kept is None or kept[1].passed():
        kept = check_brokers(config), Deadline(ASKER_SECONDS)
        _askers.clear()
        _askers[key] = kept
    return kept[0]


def check_planned_topics(
    config: ClientConfig,
    topic_ids: Mapping[str, str],
    clock: Clock | None = None,
    brokers: Callable[[ClientConfig], AdminClient] = _asker,
) -> None:
    """Check that these are still the topics that were planned: a re-created topic has other rows at the same offsets.

    Topic ids are never used again. So if the check passes after a task has read its rows, the rows are from the planned
    topics.
    """
    if not topic_ids:
        return
    names = tuple(sorted(topic_ids))
    asked = TopicReader(brokers(config), config, clock=clock)
    asked.partitions(Subscription(topics=names), names)
    doubtful = [topic for topic in names if asked.ids.get(topic) != topic_ids[topic]]
    if not doubtful:
        return
    answers = ask_each_broker(config, doubtful, clock)  # one broker's metadata may be old
    changed = [
        topic
        for topic in doubtful
        if 2 * sum(answer[topic].identity == topic_ids[topic] for answer in answers) <= len(answers)
    ]
    if changed:
        raise TopicChangedError("TOPIC_CHANGED", topics=changed)


@dataclass(frozen=True)
class LossTolerance:
    """Skips removed rows in a task, as ``failOnDataLoss=false`` allows."""

    config: ClientConfig
    # The ids of the topics that were planned, as far as they are known.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    clock: Clock | None = None
    # Makes the client that asks the brokers about the topic.
    brokers: Callable[[ClientConfig], AdminClient] = check_brokers

    def pass_over(self, wanted: OffsetRange, position: int, holding: Holding) -> int:
        """Skip rows that retention has removed, and return the offset to read next.

        Raise if the rows are missing for another reason.
        """
        if holding.last < position:
            raise self._unreadable(wanted, position, f"the partition now ends at offset {holding.last}")
        if not self._is_there(wanted.partition):
            raise self._unreadable(wanted, position, "the topic was deleted, or re-created")
        on = min(holding.first, wanted.end)
        log.warning(
            "barrier-kafka: data loss while a task read %s, and failOnDataLoss is false: up to %d rows are lost (offsets "
            "[%d, %d)). The partition now begins at %d.",
            wanted,
            on - position,
            position,
            on,
            holding.first,
        )
        return on

    def check_topic(self, wanted: OffsetRange, position: int) -> None:
        """Raise if two answers show that the planned topic does not exist. If the brokers do not answer, do not raise."""
        try:
            if self._is_there(wanted.partition):
                return
            (self.clock or SystemClock()).sleep(PAUSE_SECONDS)
            if self._is_there(wanted.partition):
                return
        except TwoPhaseCommitError as problem:
            log.debug("the topic of %s can't be checked: %s", wanted, problem)
            return
        raise self._unreadable(wanted, position, "the topic was deleted, or re-created")

    @staticmethod
    def _unreadable(wanted: OffsetRange, position: int, why: str) -> StoreError:
        return StoreError("READ_FAILED", partition=str(wanted.partition), offset=position, reason=why)

    def _is_there(self, partition: Partition) -> bool:
        topics = TopicReader(self.brokers(self.config), self.config, clock=self.clock)
        there = topics.partitions(Subscription(topics=(partition.topic,)), may_miss=(partition.topic,))
        planned = self.topic_ids.get(partition.topic)
        return partition in there and planned in (None, topics.ids[partition.topic])
