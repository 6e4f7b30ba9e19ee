"""A cluster as a sink's admin and producers see it, for tests without a broker: ids, states, topics, epochs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from connector.kafka.client.admin import Description, Initialised
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.protocol import EXACTLY_ONCE
from connector.kafka.client.topics import Partition, TopicInfo
from tests.connector.kafka.sink.fake_producer import FakeProducer
from transactional.testing import FakeClock


class End(int):
    """The end of a partition; also with its leader's epoch, for who takes it apart."""

    def __iter__(self) -> Iterator[int]:
        return iter((int(self), 0))


class FakeCluster:
    """What `KafkaSink` asks a cluster, through admins and producers that it makes."""

    intact = False
    """So that no admin of a test is kept for the next."""

    def __init__(self, *topics: str) -> None:
        self.states: dict[str, Description] = {}  # What the coordinators know of transactional ids.
        self.topic_infos = {topic: self.topic(topic) for topic in topics}
        self.producers: list[FakeProducer] = []  # All that were made; `next_producer` is the one that comes next.
        self.next_producer: FakeProducer | None = None
        self.longest: int | None = 900_000
        self.open_admins = 0
        self.described = 0
        self.unanswered = 0
        self.then: dict[int, Any] = {}  # What changes in all states after so many calls of `describe`.
        self.limit: Any = None
        self.clock = FakeClock()
        self.versions = {each.key: (0, each.version) for each in EXACTLY_ONCE}

    @staticmethod
    def topic(name: str, operations: Iterable[int] | None = None) -> TopicInfo:
        told = None if operations is None else frozenset(operations)
        return TopicInfo(str(uuid.uuid5(uuid.NAMESPACE_URL, name)), {0: 1, 1: 1}, told)

    def plug_in(self, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
        """Let sinks of this test make their admins and producers here."""
        monkeypatch.setattr("connector.kafka.sink.kafka_sink.borrow_admin", self._admin)
        monkeypatch.setattr("connector.kafka.sink.kafka_sink.check_brokers", lambda config: None)
        monkeypatch.setattr("confluent_kafka.Producer", self._producer)
        monkeypatch.setattr("connector.kafka.sink.transaction.native_library", lambda: None)
        return self

    def state(self, name: str, state: str, *, epoch: int = 0, parts: Sequence[tuple[str, int]] = ()) -> None:
        """Say what the coordinator of an id knows."""
        self.states[name] = Description(state, 7, epoch, 60_000, 1, tuple(Partition(*part) for part in parts))

    # -- an admin ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.open_admins -= 1

    def cluster_id(self) -> str:
        return "cluster"

    def supported_versions(self) -> dict[int, tuple[int, int]]:
        return self.versions

    def end_txn_version(self) -> int:
        return 5

    def longest_timeout_ms(self) -> int | None:
        return self.longest

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        self.described += 1
        change = self.then.pop(self.described, None)
        if change is not None:
            change()
        return {name: self.states[name] for name in ids if name in self.states}

    def topics(self, names: Iterable[str], *_: Any) -> dict[str, Any]:
        return {name: self.topic_infos[name] for name in names if name in self.topic_infos}

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], topics: Mapping[str, Any]
    ) -> dict[tuple[str, int], End]:
        assert all(topic in topics for topic, _ in partitions)
        return {(topic, number): End(100 + number) for topic, number in partitions}

    def forget_coordinator(self, name: str) -> None:
        """The next question finds it anew."""

    def forget_coordinators(self) -> None:
        """The next question finds all of them anew."""

    def init_producer_id(self, name: str, timeout_ms: int) -> Initialised:
        before = self.states.get(name)
        self.state(name, "Empty", epoch=before.producer_epoch + 1 if before else 0)
        return Initialised(7, self.states[name].producer_epoch, self.unanswered)

    def transactional_ids(self, states: Sequence[str]) -> list[str]:
        return sorted(name for name, found in self.states.items() if found.state in states)

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        """Of requests that are built by hand, leaders answer where partitions end: nothing holds their readers back."""
        return [self._ends(request) or ConnectionError("no broker") for _, request in requests]

    def _ends(self, request: Any) -> Any:
        if type(request).__name__ != "ListOffsetsRequest":
            return None
        asked = [part.partition_index for part in request.topics[0].partitions]
        parts = [SimpleNamespace(partition_index=number, error_code=0, offset=100 + number) for number in asked]
        return SimpleNamespace(topics=[SimpleNamespace(partitions=parts)])

    def until(self, attempt: Callable[[], Any], what: str) -> Any:
        """They answer at once."""
        found = attempt()
        assert found is not None, what
        return found

    # -- what a sink makes --------------------------------------------------------------------------------------------

    def _admin(self, config: ClientConfig, clock: Any = None) -> FakeCluster:
        assert config.bootstrap_servers
        self.open_admins += 1
        return self

    def _producer(self, settings: dict[str, Any]) -> FakeProducer:
        producer = FakeProducer() if self.next_producer is None else self.next_producer
        self.next_producer = None
        producer.settings, producer.on_delivery = settings, settings["on_delivery"]
        self.producers.append(producer)
        if "transactional.id" in settings:
            name = settings["transactional.id"]

            def init(timeout: float) -> None:
                producer.calls.append("init")
                producer._fail()
                self.init_producer_id(name, 0)

            producer.init_transactions = init  # type: ignore[method-assign]
        return producer
