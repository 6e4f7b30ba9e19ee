"""Ask several brokers about the same topics, because one broker may have outdated metadata. Only the driver asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.cluster_admin import NONE, TOPIC_DENIED, UNKNOWN_TOPIC
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import KafkaConnection
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import short_id
from transactional.clock import Clock
from transactional.errors import RetriableError

ENOUGH: Final = 2
"""The number of brokers that must answer before a topic counts as deleted or created again. If the cluster has only one
broker, one answer is enough."""

ASKED_AT_MOST: Final = 5
"""The maximum number of brokers that are asked."""


@dataclass(frozen=True)
class TopicView:
    """One broker's answer about one topic."""

    # The topic's id in base64, as the source's offsets store it; empty if the broker does not know the topic.
    identity: str = ""
    partitions: frozenset[int] = frozenset()  # The numbers of the topic's partitions.


AskEach = Callable[[ClientConfig, Sequence[str], Clock], Sequence[Mapping[str, TopicView]]]
"""The type of `ask_each_broker`, and of functions that replace it."""


def ask_each_broker(
    config: ClientConfig, topics: Sequence[str], clock: Clock | None = None
) -> list[dict[str, TopicView]]:
    """Ask several brokers about these topics, each over its own connection, and return each broker's answer.

    librdkafka's admin client chooses the broker itself, and keeps asking the same broker. So each request here names its
    broker.
    """
    connection = KafkaConnection(config, clock)
    try:
        return connection.until(lambda: _answers(connection, topics), f"two brokers' answers about {', '.join(topics)}")
    except RetriableError as problem:
        raise RetriableError(
            "KAFKA_TIMEOUT",
            reason=f"one broker reports that {', '.join(topics)} is not the topic that the query has read, but no second "
            "broker answered",
            topics=list(topics),
        ) from problem
    finally:
        connection.close()


def _answers(connection: KafkaConnection, topics: Sequence[str]) -> list[dict[str, TopicView]] | None:
    """Ask several brokers about the topics, once. Return their answers; None if too few brokers gave a clear answer."""
    nodes = sorted({broker.node_id for broker in connection.ask(lambda: _request(())).brokers})[:ASKED_AT_MOST]
    answers = []
    for answer in connection.send_all([(node, _request(topics)) for node in nodes]):
        if isinstance(answer, Exception):
            connection.pass_over(answer)
            continue
        views = {topic.name: _view(topic) for topic in answer.topics}
        clear = {name: view for name, view in views.items() if view is not None}
        if set(clear) == set(topics):
            answers.append(clear)
    return answers if len(answers) >= max(1, min(ENOUGH, len(nodes))) else None


def _request(topics: Sequence[str]) -> Any:
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        min_version=10,  # earlier versions do not return the topics' ids
    )


def _view(topic: Any) -> TopicView | None:
    """Convert one topic of a broker's answer to a `TopicView`; None if the broker does not know the topic's state yet."""
    if topic.error_code == TOPIC_DENIED:
        raise missing_right("DESCRIBE", f"topic {topic.name}")
    if topic.error_code == UNKNOWN_TOPIC:
        return TopicView()
    if topic.error_code != NONE:
        return None
    return TopicView(short_id(topic.topic_id), frozenset(part.partition_index for part in topic.partitions))
