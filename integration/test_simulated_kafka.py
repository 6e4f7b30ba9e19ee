"""The simulated brokers answer as a real one does: random sequences of requests, run on both."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import latest_request
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.partition_admin import _describe
from connector.kafka.client.topics import Partition, TopicInfo
from integration.broker import Cluster
from integration.driver_process import wait_until
from tests.simulation.kafka_client import SimulatedKafka
from tests.simulation.kafka_cluster import TOPIC
from tests.simulation.product import IN_KAFKA
from tests.simulation.world import World

PLACES = 3
IDS = 3
OPERATIONS = 60
PASSING = frozenset({14, 15, 16, 51})  # a coordinator that is not there yet, and markers that are not


class Brokers(Protocol):
    """One of the two."""

    topic: str

    def send(self, request: Any) -> Any:
        """Send a request to whoever has to answer it."""

    def produce(self, name: str, producer: int, epoch: int, place: int, row: int) -> int:
        """Write a row of a transaction; return the answer's code."""

    def add(self, name: str, producer: int, epoch: int, place: int) -> int:
        """Add a partition to a transaction; return the answer's code."""


class Simulated:
    """The simulated cluster, of which the broker that leads is asked."""

    def __init__(self, level: int) -> None:
        world = World([], IN_KAFKA)
        assert isinstance(world.store, SimulatedKafka)
        self.kafka, self.topic = world.store, TOPIC
        self.kafka.cluster.level = level
        self._world = world

    def send(self, request: Any) -> Any:
        cluster = self.kafka.cluster
        name = getattr(request, "transactional_id", None) or (getattr(request, "transactional_ids", None) or [None])[0]
        if name is not None:
            node = cluster.coordination_of(name).leader
        else:
            topic = request.topics[0]
            numbers = getattr(topic, "partition_indexes", None) or [part.partition_index for part in topic.partitions]
            node = cluster.rows[numbers[0]].leader
        self._world.scheduler.time += 1.0
        return self.kafka.ask(node, request)

    def add(self, name: str, producer: int, epoch: int, place: int) -> int:
        asked = SimpleNamespace(kind="AddPartition", name=name, producer=producer, epoch=epoch, place=place)
        code: int = self.kafka.ask(self.kafka.cluster.coordination_of(name).leader, asked).error_code
        return code

    def produce(self, name: str, producer: int, epoch: int, place: int, row: int) -> int:
        asked = SimpleNamespace(kind="Produce", producer=producer, epoch=epoch, place=place, rows=[row])
        code: int = self.kafka.ask(self.kafka.cluster.rows[place].leader, asked).error_code
        return code


class Real:
    """One real broker, asked with the same requests, and with those that librdkafka sends."""

    def __init__(self, kafka: Cluster) -> None:
        self.topic = f"twin-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self.topic, partitions=PLACES)
        self.admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": kafka.bootstrap_servers}))
        self.admin.coordinators([self.topic])  # the first question makes the broker create its transaction log
        self._sequences: dict[tuple[int, int, int], int] = {}

    def send(self, request: Any) -> Any:
        return self.admin.ask(lambda: request)

    def add(self, name: str, producer: int, epoch: int, place: int) -> int:
        from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

        answer = self.admin.ask(
            lambda: AddPartitionsToTxnRequest(
                version=3,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self.topic, partitions=[place])
                ],
            )
        )
        code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def produce(self, name: str, producer: int, epoch: int, place: int, row: int) -> int:
        from kafka.protocol.producer.produce import ProduceRequest
        from kafka.record.default_records import DefaultRecordBatchBuilder

        key = producer, epoch, place
        sequence = self._sequences.get(key, 0)
        batch = DefaultRecordBatchBuilder(2, 0, True, producer, epoch, sequence, 1 << 16)
        batch.append(0, None, None, str(row).encode(), [])
        topic = ProduceRequest.TopicProduceData
        part = topic.PartitionProduceData(index=place, records=bytes(batch.build()))
        answer = self.admin.ask(
            lambda: ProduceRequest(
                version=11,
                transactional_id=name,
                acks=-1,
                timeout_ms=5000,
                topic_data=[topic(name=self.topic, partition_data=[part])],
            )
        )
        code: int = answer.responses[0].partition_responses[0].error_code
        if code == 0:
            self._sequences[key] = sequence + 1
        return code


class Twin:
    """One of the two, and what was seen of it: producers by the order in which they came."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.producers: list[int] = []

    def number(self, producer: int) -> int:
        """Which of the producers that were seen."""
        if producer not in self.producers:
            self.producers.append(producer)
        return self.producers.index(producer)

    def until(self, ask: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Ask until the answer is none that passes."""
        found: list[Any] = []

        def settled() -> bool:
            found[:] = [ask()]
            return code_of(found[0]) not in PASSING

        wait_until(settled, "an answer", 60.0)
        return found[0]

    def initialise(self, name: str) -> tuple[int, int]:
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        answer = self.until(
            lambda: self.brokers.send(
                InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000, max_version=5)
            ),
            lambda answer: int(answer.error_code),
        )
        assert answer.error_code == 0
        return self.number(answer.producer_id), answer.producer_epoch

    def end(self, name: str, producer: int, epoch: int, commits: bool, version: int) -> int:
        from kafka.protocol.producer.transaction import EndTxnRequest

        answer = self.until(
            lambda: self.brokers.send(
                EndTxnRequest(
                    version=version,
                    transactional_id=name,
                    producer_id=self.producers[producer],
                    producer_epoch=epoch,
                    committed=commits,
                )
            ),
            lambda answer: int(answer.error_code),
        )
        code: int = answer.error_code
        return code

    def describe(self, name: str) -> tuple[Any, ...]:
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        def ask() -> Any:
            answer = self.brokers.send(DescribeTransactionsRequest(transactional_ids=[name]))
            return answer.transaction_states[0]

        found = self.until(
            ask, lambda each: 51 if each.error_code == 0 and "Prepare" in each.transaction_state else each.error_code
        )
        if found.error_code:
            return (found.error_code,)
        places = sorted(place for topic in found.topics for place in topic.partitions)
        began = found.transaction_start_time_ms > 0  # kept until the id is initialised again
        return found.transaction_state, self.number(found.producer_id), found.producer_epoch, places, began

    def partitions(self) -> list[tuple[Any, ...]]:
        """What leaders tell: producers with their transactions, the high watermark and the stable offset."""
        places = [Partition(self.brokers.topic, number) for number in range(PLACES)]
        info = {self.brokers.topic: TopicInfo("", dict.fromkeys(range(PLACES), 0), None)}
        seen = []
        for place in places:
            part = self.brokers.send(_describe([place])).topics[0].partitions[0]
            ends = [
                self.brokers.send(latest_request([place], info, committed=committed)).topics[0].partitions[0].offset
                for committed in (False, True)
            ]
            known = sorted(
                (self.number(each.producer_id), each.producer_epoch, each.current_txn_start_offset)
                for each in part.active_producers
            )
            seen.append((known, *ends))
        return seen


@pytest.fixture
def real(kafka: Cluster) -> Iterator[Real]:
    made = Real(kafka)
    yield made
    made.admin.close()


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(8))
def test_random_requests_are_answered_as_a_real_broker_answers_them(real: Real, seed: int) -> None:
    choose, prefix = random.Random(seed), uuid.uuid4().hex[:8]
    twins = Twin(real), Twin(Simulated(2))
    epochs: dict[str, tuple[int, int]] = {}
    done: list[str] = []
    for row in range(OPERATIONS):
        name = f"{prefix}.{choose.randrange(IDS)}"
        producer, epoch = epochs.get(name, (0, 0))
        epoch = max(0, epoch - choose.choice((0, 0, 0, 0, 1, 2)))
        place, commits = choose.randrange(PLACES), choose.random() < 0.6
        kind = (
            "initialise" if name not in epochs else choose.choice(("initialise", "add", *["write"] * 4, *["end"] * 3))
        )
        version = choose.choice((5, 5, 5, 1, 4))
        answers: list[Any] = []
        for twin in twins:
            if kind == "initialise":
                answers.append(twin.initialise(name))
            elif kind == "end":
                answers.append(twin.end(name, producer, epoch, commits, version))
            else:
                whose = name, twin.producers[producer], epoch, place
                added = twin.until(partial(twin.brokers.add, *whose), int)
                answers.append((added, twin.brokers.produce(*whose, row) if kind == "write" else None))
            answers[-1] = answers[-1], twin.describe(name), twin.partitions()
        done.append(f"{kind} {name[-1]} {producer} {epoch} {place} {commits} {version}: {answers[0]}")
        assert answers[0] == answers[1], "\n".join(done)
        state = answers[0][1]
        epochs[name] = (state[1], state[2])
