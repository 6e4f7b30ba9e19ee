"""Rows of a planned range that can't be read, as its task finds it. *Executor*.

A task executes its plan and decides next to nothing. It goes on behind rows only if retention has removed them
(``failOnDataLoss=false``): the leader has refused the offset, and two of its answers, a pause apart, say that the
partition begins later. The next planning sees the same and records it (`SourceOffset.missed`). If anything else is wrong,
the task fails: the topic is deleted or re-created, or the log ends too early. All of that may be one broker's error, and
the planning of a replay, on the driver, asks several brokers before it gives up anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connector.kafka.client.config import ClientConfig, check_brokers
from connector.kafka.source.offsets import Partition
from connector.kafka.source.ranges import OffsetRange
from connector.kafka.source.subscription import Subscription, TopicReader
from transactional.clock import Clock, SystemClock
from transactional.errors import StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["Holding", "LossTolerance", "ask_twice"]

_log = logging.getLogger("connector.kafka.data_loss")

PAUSE_SECONDS: Final = 1.0
"""Between two questions: a leader that was just elected knows by then what it holds."""


@dataclass(frozen=True)
class Holding:
    """What a partition holds.

    Parameters
    ----------
    first, last : int
        `last` excluded.
    """

    first: int
    last: int

    def has(self, offset: int) -> bool:
        """Whether a row may be there, or come there next."""
        return self.first <= offset <= self.last


def ask_twice(
    ask: Callable[[], Holding | None], position: int, clock: Clock | None = None, pause: float = PAUSE_SECONDS
) -> Holding | None:
    """Ask what a partition holds, again a pause later if the first answer says that `position` is not in it.

    Returns
    -------
    Holding or None
        All that one of the two answers has; None if there is no answer, or `position` is in one of them.
    """
    first = ask()
    if first is None or first.has(position):
        return None
    (clock or SystemClock()).sleep(pause)
    second = ask()
    if second is None:
        return None
    found = Holding(min(first.first, second.first), max(first.last, second.last))
    return None if found.has(position) else found


@dataclass(frozen=True)
class LossTolerance:
    """What ``failOnDataLoss=false`` lets a task do.

    Parameters
    ----------
    config : ClientConfig
    topic_id : str or None
        Of the topic that was planned.
    clock : Clock, optional
    brokers : Callable[[ClientConfig], AdminClient]
        Makes the client that asks for the topic.
    """

    config: ClientConfig
    topic_id: str | None = None
    clock: Clock | None = None
    brokers: Callable[[ClientConfig], AdminClient] = check_brokers

    def pass_over(self, wanted: OffsetRange, position: int, holding: Holding) -> int:
        """Return the offset to read next behind rows that retention has removed.

        Parameters
        ----------
        wanted : OffsetRange
        position : int
            What was to be read next; the leader has refused it.
        holding : Holding
            What the partition holds, by two answers.

        Raises
        ------
        StoreError
            ``READ_FAILED``: the partition ends before `position`, or the topic is not the one that was planned.
        """
        if holding.last < position:
            raise self._unreadable(wanted, position, f"the partition ends at offset {holding.last} now")
        if not self._is_there(wanted.partition):
            raise self._unreadable(wanted, position, "the topic was deleted, or re-created")
        on = min(holding.first, wanted.end)
        _log.warning(
            "barrier-kafka: data loss while %s was read, and failOnDataLoss is false: up to %d rows are lost, offsets "
            "[%d, %d): the partition begins at %d now.",
            wanted,
            on - position,
            position,
            on,
            holding.first,
        )
        return on

    def check_topic(self, wanted: OffsetRange, position: int) -> None:
        """Raise if two answers say that the topic is not the one that was planned. Brokers that are away may come back.

        Raises
        ------
        StoreError
            ``READ_FAILED``.
        """
        try:
            if self._is_there(wanted.partition):
                return
            (self.clock or SystemClock()).sleep(PAUSE_SECONDS)
            if self._is_there(wanted.partition):
                return
        except TwoPhaseCommitError as problem:
            _log.debug("the topic of %s can't be looked at: %s", wanted, problem)
            return
        raise self._unreadable(wanted, position, "the topic was deleted, or re-created")

    @staticmethod
    def _unreadable(wanted: OffsetRange, position: int, why: str) -> StoreError:
        return StoreError(
            "READ_FAILED",
            f"barrier-kafka: {wanted} can't be read on from offset {position}: {why}. The task gives up nothing. Start the "
            "query again: failOnDataLoss is false, so its planning asks the brokers, goes on without what is gone, and "
            "records that.",
            partition=str(wanted.partition),
            offset=position,
            reason=why,
        )

    def _is_there(self, partition: Partition) -> bool:
        topics = TopicReader(self.brokers(self.config), self.config, clock=self.clock)
        there = topics.partitions(Subscription(topics=(partition.topic,)), may_miss=(partition.topic,))
        return partition in there and self.topic_id in (None, topics.ids[partition.topic])
