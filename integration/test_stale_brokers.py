"""One broker's word is not enough to give up rows: real brokers, one of which answers falsely (``failOnDataLoss=false``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.kafka.client.agreement import TopicView, ask_each_broker
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.rows import COLUMNS, spark_schema
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.topic_reader import TopicReader
from integration.broker import Cluster
from integration.proxy import FETCH, LIST_OFFSETS, METADATA, Change, KafkaProxy
from integration.test_kafka_source import rows_between, values
from integration.topic_jobs import produce

UNKNOWN_TOPIC = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(proxy=True) as found:
        yield found


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[KafkaProxy]:
    yield cluster.proxy
    cluster.proxy.clear()


def reader_of(proxy: KafkaProxy, topic: str, **more: str) -> BarrierKafkaStreamReader:
    """A query's run that sees the brokers through the proxy, and accepts loss."""
    options = {
        "kafka.bootstrap.servers": proxy.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "fetchOffset.retryIntervalMs": "200",
        "kafkaConsumer.pollTimeoutMs": "30000",
        **more,
    }
    return BarrierKafkaDataSource(options).streamReader(spark_schema(COLUMNS))


def lying(of: Any, lie: Callable[[Any], bool], times: int = 1) -> tuple[Change, list[bool]]:
    """A change of the first answers of a kind that `lie` has a use for; and what it has changed so far."""
    told: list[bool] = []

    def change(body: bytes, version: int) -> bytes:
        answer = of.decode(body, version=version, header=True)
        if len(told) >= times or not lie(answer):
            return body
        told.append(True)
        return bytes(answer.encode(header=True))

    return change, told


def without(topic: str) -> Callable[[Any], bool]:
    """Metadata of a broker that does not know the topic."""

    def lie(answer: Any) -> bool:
        found = [each for each in answer.topics if each.name == topic]
        for each in found:
            each.error_code, each.partitions = UNKNOWN_TOPIC, []
        return bool(found)

    return lie


def offset_instead(topic: str, true: int, false: int) -> Callable[[Any], bool]:
    """Offsets of a leader that knows no better."""

    def lie(answer: Any) -> bool:
        found = [
            part for each in answer.topics if each.name == topic for part in each.partitions if part.offset == true
        ]
        for part in found:
            part.offset = false
        return bool(found)

    return lie


def test_a_task_that_hears_nothing_for_a_while_gives_up_nothing_on_one_answer(
    cluster: Cluster, proxy: KafkaProxy, topic_name: str
) -> None:
    cluster.create_topic(topic_name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 1})
    for value in range(2000):
        producer.produce(topic_name, str(value).zfill(500).encode(), partition=0)
    assert producer.flush(30) == 0
    # A short queue: most of the range is at its broker still when the first rows are there.
    small = {"kafka.queued.min.messages": "1", "kafka.fetch.message.max.bytes": "20000"}
    reader = reader_of(proxy, topic_name, **small)
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = reader.read(partition)
    read = next(batches).column("offset").to_pylist()
    silence = proxy.hold_answer(FETCH, times=1 << 30)
    change, told = lying(MetadataResponse, without(topic_name))
    lie = proxy.change_answer(METADATA, change)

    def speak() -> None:
        while not told:
            lie.wait_until_hit(lie.hits + 1, timeout=60)
        silence.release()

    waiting = threading.Thread(target=speak)
    waiting.start()
    try:
        for batch in batches:
            read += batch.column("offset").to_pylist()
    finally:
        silence.release()
        lie.release()
        waiting.join()
    assert told
    assert read == list(range(2000))


@pytest.mark.matrix
def test_a_planning_gives_up_no_topic_that_one_broker_of_three_does_not_know(topic_name: str) -> None:
    with Cluster(3, proxy=True, jvm_options=("-Xms64m", "-Xmx256m")) as cluster:
        proxy = cluster.proxy
        cluster.create_topic(topic_name, replication=3)
        produce(cluster, topic_name, range(3), partitions=1)
        # Each retry asks a broker at random: the first three retries found the liar each time in 1 of 27 runs.
        reader = reader_of(proxy, topic_name, **{"fetchOffset.numRetries": "12"})
        begin = reader.initialOffset()
        start = reader.latestOffset(begin, ReadAllAvailable())
        assert values(rows_between(reader, begin, start)) == [0, 1, 2]
        produce(cluster, topic_name, range(3, 6), partitions=1)
        liars: list[int] = []
        for node in range(3):
            # Whichever broker is asked first is behind the others for good: the client would ask it again.
            def lie(answer: Any, node: int = node) -> bool:
                if not without(topic_name)(answer):
                    return False
                liars.append(node)
                return liars[0] == node

            change, _ = lying(MetadataResponse, lie, times=1 << 30)
            proxy.change_answer(METADATA, change, node=node)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert liars
        assert "lost" not in end
        assert end["topics"] == {topic_name: {"0": 6}}


def test_each_broker_is_asked_for_the_topics_that_it_knows(
    cluster: Cluster, proxy: KafkaProxy, topic_name: str
) -> None:
    cluster.create_topic(topic_name, partitions=3)
    config = ClientConfig("barrier-kafka", {"bootstrap.servers": proxy.bootstrap_servers})
    [answer] = ask_each_broker(config, [topic_name, "no-such-topic"])
    reader = TopicReader(check_brokers(config), config)
    reader.partitions(Subscription(topics=(topic_name,)))
    assert answer == {
        topic_name: TopicView(reader.ids[topic_name], frozenset({0, 1, 2})),
        "no-such-topic": TopicView(),
    }, "the two clients write a topic's id alike, or every topic would seem re-created"


@pytest.mark.parametrize(("true", "false", "enough"), [(0, 4, 2), (6, 1, 3)], ids=["expired", "truncated"])
def test_a_planning_gives_up_no_rows_on_a_leaders_first_answer(
    cluster: Cluster, proxy: KafkaProxy, topic_name: str, true: int, false: int, enough: int
) -> None:
    cluster.create_topic(topic_name)
    produce(cluster, topic_name, range(3), partitions=1)
    reader = reader_of(proxy, topic_name, **{"fetchOffset.numRetries": "0"})
    begin = reader.initialOffset()
    start = reader.latestOffset(begin, ReadAllAvailable())
    produce(cluster, topic_name, range(3, 6), partitions=1)
    for times in (1, enough):  # so many lies are the truth: only the leader can be asked
        change, told = lying(ListOffsetsResponse, offset_instead(topic_name, true, false), times)
        lie = proxy.change_answer(LIST_OFFSETS, change)
        end = reader.latestOffset(start, ReadAllAvailable())
        lie.release()
        assert len(told) == times
        assert ("lost" in end) == (times == enough)
    assert end["lost"][topic_name]["0"]["why"] == ("expired" if true == 0 else "truncated")
