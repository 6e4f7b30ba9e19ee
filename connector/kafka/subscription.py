"""Which partitions a source reads, and what the brokers say of their offsets. *All of it on the driver*."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from connector.kafka.config import ClientConfig
from connector.kafka.connection import missing_right
from connector.kafka.offsets import Partition
from connector.kafka.read_options import EARLIEST, LATEST, StartingOffsets
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["Subscription", "TopicReader"]

T = TypeVar("T")

REQUEST_SECONDS: Final = 15.0
"""One answer; a healthy broker needs milliseconds."""

PATIENCE_SECONDS: Final = 60.0
"""A broker that restarts, or a partition that changes its leader, is back within this; then the query fails."""

PAUSE_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Subscription:
    """What the user wants to read.

    Parameters
    ----------
    topics : tuple[str, ...]
        From ``subscribe``.
    """

    topics: tuple[str, ...]

    def check_starting_offsets(self, starting: StartingOffsets, partitions: Iterable[Partition]) -> None:
        """Refuse starting offsets of partitions that are not there, and partitions without any.

        Raises
        ------
        OptionError
            ``INVALID_OPTION``, naming the partitions.
        """
        if isinstance(starting, str):
            return
        known = set(partitions)
        strange, silent = sorted(set(starting) - known), sorted(known - set(starting))
        if strange:
            told = f"names {_listed(strange)}, which the topics of subscribe do not have"
        elif silent:
            told = f"says nothing of {_listed(silent)}: name every partition, with -2 for earliest and -1 for latest"
        else:
            return
        raise OptionError(
            "INVALID_OPTION",
            f"barrier-kafka: the option startingOffsets {told}.",
            option="startingOffsets",
            partitions=[str(partition) for partition in strange or silent],
        )


class TopicReader:
    """Asks the brokers about partitions and offsets, again where an answer is late.

    Parameters
    ----------
    admin : AdminClient
    config : ClientConfig
    patience : float
        Seconds until an error that may pass is an error.
    """

    def __init__(self, admin: AdminClient, config: ClientConfig, patience: float = PATIENCE_SECONDS) -> None:
        self._admin = admin
        self._config = config
        self._patience = patience
        self.ids: dict[str, str] = {}
        """The topics' ids, as `partitions` has met them last."""

    def partitions(self, subscription: Subscription) -> list[Partition]:
        """All partitions that exist now, in order.

        Raises
        ------
        StoreError
            ``UNKNOWN_TOPIC``, ``MISSING_RIGHT``, ``KAFKA_REFUSED``.
        """
        from confluent_kafka import TopicCollection

        def ask() -> list[Partition]:
            topics = list(subscription.topics)
            answers = self._admin.describe_topics(TopicCollection(topics), request_timeout=REQUEST_SECONDS)
            found = {topic: answers[topic].result() for topic in topics}
            self.ids = {topic: str(description.topic_id) for topic, description in found.items()}
            return sorted(Partition(topic, each.id) for topic in topics for each in found[topic].partitions)

        return self._patiently(ask, "the partitions", subscription.topics)

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset of the first row that is still there, per partition."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets({partition: OffsetSpec.earliest() for partition in partitions})

    def latest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Where reading ends, per partition: the last stable offset under read_committed, else the high watermark."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets({partition: OffsetSpec.latest() for partition in partitions})

    def resolve(self, starting: StartingOffsets, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Make offsets of ``earliest``, ``latest`` or what the user wrote for each partition."""
        if starting == "earliest":
            return self.earliest(partitions)
        if starting == "latest":
            return self.latest(partitions)
        wanted = {partition: starting[partition] for partition in partitions}
        earliest = self.earliest([partition for partition, offset in wanted.items() if offset == EARLIEST])
        latest = self.latest([partition for partition, offset in wanted.items() if offset == LATEST])
        return {**wanted, **earliest, **latest}

    def _offsets(self, specs: Mapping[Partition, Any]) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not specs:
            return {}
        committed = self._config.settings.get("isolation.level", "read_committed") == "read_committed"
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[Partition, int]:
            question = {TopicPartition(p.topic, p.number): spec for p, spec in specs.items()}
            answers: Mapping[Any, Future[Any]] = self._admin.list_offsets(
                question, isolation_level=isolation, request_timeout=REQUEST_SECONDS
            )
            return {Partition(at.topic, at.partition): int(answer.result().offset) for at, answer in answers.items()}

        found = self._patiently(ask, "the offsets", sorted({partition.topic for partition in specs}))
        return {partition: found[partition] for partition in specs}

    def _patiently(self, ask: Callable[[], T], what: str, topics: Sequence[str]) -> T:
        from confluent_kafka import KafkaException
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

        asking = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(self._patience),
            wait=wait_fixed(PAUSE_SECONDS),
            reraise=True,
        )
        try:
            return asking(ask)
        except KafkaException as problem:
            raise self._error(problem, what, topics) from None

    def _error(self, problem: Any, what: str, topics: Sequence[str]) -> StoreError:
        error = problem.args[0]
        reason, told = self._config.scrub(error.str()), ", ".join(topics)
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            return StoreError(
                "UNKNOWN_TOPIC",
                f"{self._config.name}: the brokers at {self._config.bootstrap_servers} do not know {what} of {told} "
                f"(option subscribe): {reason}. Check the name and that you may describe "
                "the topic; it is not created by reading it.",
                option="subscribe",
                reason=reason,
            )
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return missing_right("DESCRIBE", f"topic {told}")
        return StoreError(
            "KAFKA_REFUSED",
            f"{self._config.name}: the brokers at {self._config.bootstrap_servers} did not tell {what} of {told}: {reason}.",
            reason=reason,
        )


_PASSING: Final = frozenset({"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_WAIT_COORD", "_RESOLVE"})
"""Errors of the client itself that the brokers' return heals."""


def _may_pass(problem: BaseException) -> bool:
    from confluent_kafka import KafkaException

    if not isinstance(problem, KafkaException):
        return False
    error: Any = problem.args[0]
    # A topic that was just created is unknown to some brokers for a moment; to wait a minute for a wrong name is worse.
    return error.name() in _PASSING or (error.retriable() and error.name() != "UNKNOWN_TOPIC_OR_PART")


def _listed(partitions: Sequence[Partition]) -> str:
    return ", ".join(str(partition) for partition in partitions[:10]) + (", ..." if len(partitions) > 10 else "")
