"""Several brokers, each asked for the same topics: one of them may be behind the others. *Driver*."""

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

__all__ = ["AskEach", "TopicView", "ask_each_broker"]

ENOUGH: Final = 2
"""Brokers that have to agree before anything is given up; one, if the cluster has no other."""

ASKED_AT_MOST: Final = 5
"""How many brokers of a large cluster are asked."""


@dataclass(frozen=True)
class TopicView:
    """One broker's answer about one topic.

    Parameters
    ----------
    identity : str
        The topic's id, as a source's offsets keep it; empty if the broker does not know the topic.
    partitions : frozenset[int]
        Its partitions' numbers.
    """

    identity: str = ""
    partitions: frozenset[int] = frozenset()


AskEach = Callable[[ClientConfig, Sequence[str], Clock], Sequence[Mapping[str, TopicView]]]
"""How several brokers are asked for the same topics: `ask_each_broker`."""


def ask_each_broker(
    config: ClientConfig, topics: Sequence[str], clock: Clock | None = None
) -> list[dict[str, TopicView]]:
    """Ask several brokers, each over its own connection, for these topics.

    librdkafka's admin client asks a broker of its own choice, and the same one again. So each request here names its broker.
    """
    connection = KafkaConnection(config, clock)
    try:
        return connection.until(lambda: _answers(connection, topics), f"two brokers' answers about {', '.join(topics)}")
    except RetriableError as problem:
        raise RetriableError(
            "KAFKA_TIMEOUT",
            reason=f"one broker says that {', '.join(topics)} is not the topic that the query has read, and no second broker "
            "answered",
            topics=list(topics),
        ) from problem
    finally:
        connection.close()


def _answers(connection: KafkaConnection, topics: Sequence[str]) -> list[dict[str, TopicView]] | None:
    """Return what the brokers answer now; None if too few of them gave a clear answer."""
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
        min_version=10,  # since which the answer has the topics' ids
    )


def _view(topic: Any) -> TopicView | None:
    """Return one topic of an answer; None if the broker does not know yet."""
    if topic.error_code == TOPIC_DENIED:
        raise missing_right("DESCRIBE", f"topic {topic.name}")
    if topic.error_code == UNKNOWN_TOPIC:
        return TopicView()
    if topic.error_code != NONE:
        return None
    return TopicView(short_id(topic.topic_id), frozenset(part.partition_index for part in topic.partitions))
