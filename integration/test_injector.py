"""Barriers for a topic that no query writes, on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from barrier_kafka.reader import complete_offsets
from connector.kafka.client.config import ClientConfig
from connector.kafka.marks.mark import Mark
from connector.kafka.sink.injector import Injector, inject_barriers
from integration.broker import Cluster
from integration.driver_process import wait_until
from transactional.errors import FencedError, OptionError, StoreError


class Topic:
    """A topic that a plain producer writes."""

    def __init__(self, kafka: Cluster, partitions: int = 2) -> None:
        self.name = f"plain-{uuid.uuid4().hex[:8]}"
        self.barriers = f"{self.name}-marks"
        self.servers = kafka.bootstrap_servers
        kafka.create_topic(self.name, partitions=partitions)
        self._partitions = partitions

    def write(self, *counts: int) -> None:
        """So many rows into each partition."""
        producer = Producer({"bootstrap.servers": self.servers})
        for number, count in enumerate(counts):
            for value in range(count):
                producer.produce(self.name, str(value), partition=number)
        assert producer.flush(30) == 0

    def injector(self) -> Injector:
        """One that is not entered yet."""
        config = ClientConfig("barrier inject", {"bootstrap.servers": self.servers})
        return Injector(config, self.name, self.barriers)

    def complete(self, admin: AdminClient | None = None) -> dict[int, int]:
        """Where the newest mark is."""
        with closing(Consumer({"bootstrap.servers": self.servers, "group.id": "reader"})) as consumer:
            return complete_offsets(consumer, self.barriers, admin=admin).get(self.name, {})


@pytest.fixture
def topic(kafka: Cluster) -> Topic:
    return Topic(kafka)


def numbers(mark: Mark | None) -> tuple[int, int, dict[int, int]]:
    """Number, the one before, ends."""
    assert mark is not None
    return mark.checkpoint.checkpoint, mark.checkpoint.after, {part.number: end for part, end in mark.ends.items()}


def test_each_mark_is_where_the_topic_ends(topic: Topic) -> None:
    topic.write(3, 1)
    with topic.injector() as injector:
        assert numbers(injector.inject()) == (1, 0, {0: 3, 1: 1})
        assert injector.inject() is None, "nothing was written"
        topic.write(0, 2)
        assert numbers(injector.inject()) == (2, 1, {0: 3, 1: 3})
        assert topic.complete() == {0: 3, 1: 3}
    with topic.injector() as injector:
        assert injector.inject() is None, "one that starts again goes on"
        topic.write(1, 0)
        assert numbers(injector.inject()) == (3, 2, {0: 4, 1: 3})


def test_numbers_go_on_where_retention_has_removed_all_marks(topic: Topic) -> None:
    """Who follows these barriers knows them by their numbers: none may mean two things."""
    topic.write(1, 1)
    with topic.injector() as injector:
        first = injector.inject()
    admin = AdminClient({"bootstrap.servers": topic.servers})
    place = TopicPartition(topic.barriers, 0, OFFSET_END)
    admin.delete_records([place])[place].result()
    topic.write(1, 1)
    with topic.injector() as injector:
        number, after, _ = numbers(second := injector.inject())
    assert number > 1
    assert after == number - 1
    assert first is not None
    assert second is not None
    assert first.checkpoint.lineage.keys() == second.checkpoint.lineage.keys()


def test_each_barrier_topic_is_an_origin_of_its_own(topic: Topic) -> None:
    topic.write(1, 1)
    with topic.injector() as injector:
        first = injector.inject()
    topic.barriers += "-2"
    with topic.injector() as injector:
        second = injector.inject()
    assert numbers(first) == numbers(second)
    assert first is not None
    assert second is not None
    assert first.checkpoint.lineage.keys().isdisjoint(second.checkpoint.lineage)


def test_an_open_transaction_is_behind_the_mark(topic: Topic) -> None:
    topic.write(2, 0)
    producer = Producer({"bootstrap.servers": topic.servers, "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, "open", partition=0)
    producer.flush()
    topic.write(3, 1)
    with topic.injector() as injector:
        assert numbers(injector.inject())[2] == {0: 2, 1: 1}
        producer.commit_transaction()
        wait_until(lambda: (mark := injector.inject()) is not None and numbers(mark)[2][0] > 5, "the marker")


def test_the_next_injector_fences_the_first(topic: Topic) -> None:
    topic.write(1, 0)
    with topic.injector() as first, topic.injector() as second:
        with pytest.raises(FencedError, match=rf"INJECTOR_FENCED.*{topic.barriers}"):
            first.inject()
        assert numbers(second.inject()) == (1, 0, {0: 1, 1: 0})


def test_a_topic_that_was_created_again_is_another_one(kafka: Cluster, topic: Topic) -> None:
    topic.write(1, 0)
    with topic.injector() as injector:
        injector.inject()
        admin = AdminClient({"bootstrap.servers": topic.servers})
        assert topic.complete(admin) == {0: 1, 1: 0}
        admin.delete_topics([topic.name])[topic.name].result()

        def create() -> bool:
            try:
                kafka.create_topic(topic.name, partitions=2)
            except KafkaException:  # its deletion is not over
                return False
            return True

        wait_until(create, "the topic is there again")
        with pytest.raises(ValueError, match="created again"):
            topic.complete()
        topic.write(2, 0)  # longer than the old one: its id alone shows that it is another
        with pytest.raises(ValueError, match="created again"):
            topic.complete(admin)
        with pytest.raises(StoreError, match="BARRIER_TOPIC_TAKEN"):
            injector.inject()
    with pytest.raises(StoreError, match=rf"BARRIER_TOPIC_TAKEN.*{topic.name} with the id"), topic.injector():
        pass


def test_a_topic_that_is_not_there_is_named(topic: Topic) -> None:
    topic.name = "nowhere"
    with pytest.raises(OptionError, match=r"UNKNOWN_TOPIC.*nowhere"), topic.injector():
        pass


def test_the_function_writes_until_it_is_stopped(topic: Topic) -> None:
    topic.write(1, 1)
    asked: Iterator[bool] = iter([False] * 4)
    options = {"kafka.bootstrap.servers": topic.servers}
    stop: Callable[[], bool] = lambda: next(asked, True)  # noqa: E731
    assert inject_barriers(topic.name, topic.barriers, options, interval_seconds=0.01, stop=stop) == 1
    wrong: dict[str, Any] = {"interval_seconds": 0}
    with pytest.raises(ValueError, match="above 0"):
        inject_barriers(topic.name, topic.barriers, options, **wrong)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_stopped_or_killed_goes_on_where_it_was(kafka: Cluster, topic: Topic, number: int) -> None:
    topic.write(1, 1)
    kafka.create_topic(topic.barriers, partitions=1)
    words = ["inject", topic.name, "--barrier-topic", topic.barriers, "--bootstrap-server", topic.servers]
    command = [sys.executable, "-m", "connector.cli", *words, "--interval", "0.05"]
    for rows in (1, 2):
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda rows=rows: topic.complete() == {0: rows, 1: 1}, "a mark")  # type: ignore[misc]
        finally:
            os.kill(running.pid, number)
            said, _ = running.communicate()
        assert (running.returncode, "marks of" in said) == ((0, True) if number == signal.SIGTERM else (-9, False))
        topic.write(1, 0)


def test_marks_are_not_written_into_the_topic_that_they_mark(topic: Topic) -> None:
    topic.barriers = topic.name
    topic.write(1, 1)
    with (
        pytest.raises(OptionError, match=r"INVALID_OPTION.*--barrier-topic.*a topic different from the marked topic"),
        topic.injector(),
    ):
        pass
