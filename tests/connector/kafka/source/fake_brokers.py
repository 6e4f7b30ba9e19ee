"""Brokers that a source asks about topics and offsets, for tests without a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from connector.kafka.client.agreement import TopicView
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from transactional.clock import Clock


@dataclass
class Log:
    """What one partition holds: offsets from `first` to `last`, `last` excluded; `stable` under read_committed."""

    first: int = 0
    last: int = 0
    stable: int | None = None


@dataclass
class FakeBrokers:
    """What a reader uses of an `AdminClient`, and of each broker by itself."""

    topics: dict[str, dict[int, Log]]  # The truth.
    ids: dict[str, str] = field(default_factory=dict)  # The topics' ids; ``id-of-<topic>`` by default.
    # Called before each answer about topics or offsets, one an answer: what changes between two answers.
    lies: list[Callable[[], None]] = field(default_factory=list)
    # What each broker says when it is asked by itself; the truth, twice, by default.
    views: Sequence[Mapping[str, TopicView]] | None = None
    asked: list[str] = field(default_factory=list)  # Every question, by its kind.
    committed: list[dict[Partition, int]] = field(default_factory=list)  # Offsets of the group, as they were committed.
    refuses: str = ""
    group: dict[Partition, tuple[int, str]] = field(default_factory=dict)  # What the group has: offset and metadata.

    def identity(self, topic: str) -> str:
        return self.ids.get(topic, f"id-of-{topic}")

    # -- as the reader's two seams ----------------------------------------------------------------------------------

    def connect(self, config: ClientConfig) -> Any:
        """In place of `check_brokers`."""
        self.asked.append("connect")
        return self

    def ask_each(self, config: ClientConfig, names: Sequence[str], clock: Clock) -> Sequence[Mapping[str, TopicView]]:
        """In place of `ask_each_broker`."""
        self.asked.append("each")
        if self.views is not None:
            return self.views
        truth = {
            name: TopicView(self.identity(name), frozenset(self.topics[name])) if name in self.topics else TopicView()
            for name in names
        }
        return [truth, truth]

    # -- as an AdminClient ------------------------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._answer("list")
        return SimpleNamespace(topics=dict.fromkeys(self.topics))

    def describe_topics(self, names: Any, request_timeout: float = 0) -> dict[str, Future[Any]]:
        self._answer("topics")
        found: dict[str, Future[Any]] = {}
        for name in (each.topic if hasattr(each, "topic") else each for each in names.topic_names):
            logs = self.topics.get(name)
            if logs is None:
                found[name] = failed("UNKNOWN_TOPIC_OR_PART")
            else:
                partitions = [SimpleNamespace(id=number) for number in logs]
                found[name] = done(SimpleNamespace(topic_id=self.identity(name), partitions=partitions))
        return found

    def list_offsets(self, question: Mapping[Any, Any], isolation_level: Any, request_timeout: float) -> Any:
        self._answer("offsets")
        found = {}
        for at, spec in question.items():
            log = self.topics.get(at.topic, {}).get(at.partition)
            if log is None:
                found[at] = failed("UNKNOWN_TOPIC_OR_PART")
                continue
            committed = isolation_level.name == "READ_COMMITTED"
            last = log.stable if committed and log.stable is not None else log.last
            kind = type(spec).__name__
            offset = {"EarliestSpec": log.first, "LatestSpec": last}.get(kind, -1)
            found[at] = done(SimpleNamespace(offset=offset))
        return found

    def alter_consumer_group_offsets(self, requests: Sequence[Any]) -> dict[str, Future[Any]]:
        self._answer("group")
        [request] = requests
        wanted = request.topic_partitions
        self.group.update({Partition(at.topic, at.partition): (at.offset, at.metadata) for at in wanted})
        self.committed.append({Partition(at.topic, at.partition): at.offset for at in wanted})
        return {request.group_id: done(SimpleNamespace(topic_partitions=[SimpleNamespace(error=None)]))}

    def list_consumer_group_offsets(self, requests: Sequence[Any]) -> dict[str, Future[Any]]:
        self._answer("group")
        [request] = requests
        answer = [
            SimpleNamespace(topic=at.topic, partition=at.number, offset=offset, metadata=metadata)
            for at, (offset, metadata) in self.group.items()
        ]
        return {request.group_id: done(SimpleNamespace(topic_partitions=answer))}

    def _answer(self, kind: str) -> None:
        self.asked.append(kind)
        if self.refuses:
            raise KafkaException(KafkaError(getattr(KafkaError, self.refuses)))
        if self.lies:
            self.lies.pop(0)()


def done(value: Any) -> Future[Any]:
    """An answer that has come."""
    answer: Future[Any] = Future()
    answer.set_result(value)
    return answer


def failed(name: str) -> Future[Any]:
    """An error in place of an answer."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(getattr(KafkaError, name))))
    return answer
