"""What each of several brokers says of topics: one of them may be behind the others. *Driver*."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import KafkaConnection, missing_right
from connector.kafka.client.topic_ids import from_kafka_python
from connector.kafka.source.data_loss import Standing, stand
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.subscription import Subscription, TopicReader
from transactional.clock import Clock
from transactional.errors import RetriableError, StoreError

__all__ = ["AskEach", "TopicView", "ask_each_broker", "stand_surely"]

ENOUGH: Final = 2
"""Brokers that have to agree before anything is given up; the only one, if the cluster has no other."""

ASKED_AT_MOST: Final = 5
"""Brokers that are asked, of a large cluster."""

NONE, UNKNOWN_TOPIC, TOPIC_DENIED = 0, 3, 29


@dataclass(frozen=True)
class TopicView:
    """One broker's word on one topic.

    Parameters
    ----------
    identity : str
        The topic's id, as a source's offsets have it; empty if the broker does not know the topic.
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

    The admin client of librdkafka asks a broker of its own choice, and the same one again. So each request here names its
    broker.

    Parameters
    ----------
    config : ClientConfig
    topics : Sequence[str]
        At least one.
    clock : Clock, optional

    Returns
    -------
    list[dict[str, TopicView]]
        The answer of each broker, with every topic: at least two, or one from a cluster with a single broker.

    Raises
    ------
    StoreError
        ``BROKERS_UNREACHABLE``, ``MISSING_RIGHT``.
    RetriableError
        ``KAFKA_TIMEOUT``: too few brokers gave a clear answer.
    """
    connection = KafkaConnection(config.for_kafka_python(), clock)
    try:
        return connection.until(lambda: _answers(connection, topics), f"two brokers' word on {', '.join(topics)}")
    except RetriableError as problem:
        raise RetriableError(
            "KAFKA_TIMEOUT",
            f"{config.name}: one broker says that {', '.join(topics)} is not what the query has read, and no second broker "
            "could be asked. Nothing is given up. Are all brokers up? When they are, start the query again.",
            topics=list(topics),
        ) from problem
    finally:
        connection.close()


def _answers(connection: KafkaConnection, topics: Sequence[str]) -> list[dict[str, TopicView]] | None:
    """What the brokers say now; None if too few of them gave a clear answer."""
    nodes = sorted({broker.node_id for broker in connection.ask(lambda: _request(())).brokers})[:ASKED_AT_MOST]
    found = []
    for answer in connection.send_all([(node, _request(topics)) for node in nodes]):
        if isinstance(answer, Exception):
            connection.pass_over(answer)
            continue
        views = {topic.name: _view(topic) for topic in answer.topics}
        clear = {name: view for name, view in views.items() if view is not None}
        if set(clear) == set(topics):
            found.append(clear)
    return found if len(found) >= max(1, min(ENOUGH, len(nodes))) else None


def _request(topics: Sequence[str]) -> Any:
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        min_version=10,  # since which the answer has the topics' ids
    )


def _view(topic: Any) -> TopicView | None:
    """One topic of an answer; None if the broker can't say yet."""
    if topic.error_code == TOPIC_DENIED:
        raise missing_right("DESCRIBE", f"topic {topic.name}")
    if topic.error_code == UNKNOWN_TOPIC:
        return TopicView()
    if topic.error_code != NONE:
        return None
    return TopicView(from_kafka_python(topic.topic_id), frozenset(part.partition_index for part in topic.partitions))


def stand_surely(
    topics: TopicReader,
    at: SourceOffset,
    subscription: Subscription,
    may_miss: Collection[str],
    ask_each: Callable[[Sequence[str]], Sequence[Mapping[str, TopicView]]],
) -> Standing:
    """Where a query stands. What is gone or re-created is so only if all brokers that are asked say it.

    Any broker answers the first question, and one may be behind the others: it does not know a new partition yet, or knows
    the former topic still. To take that for another topic would read this one again from its first row.

    Parameters
    ----------
    topics : TopicReader
        Asks any broker; its `ids` stay those of this answer.
    at : SourceOffset
    subscription : Subscription
    may_miss : Collection[str]
        See `TopicReader.partitions`.
    ask_each : Callable
        Asks several brokers for these topics, a pause later.

    Raises
    ------
    StoreError
        ``TOPIC_CHANGED``: they do not agree.
    """
    partitions = topics.partitions(subscription, may_miss)
    found = stand(at, partitions, topics.ids)
    # A topic that the options do not name any more is given up by the user, whatever the brokers have.
    doubtful = sorted({partition.topic for partition in found.lost if subscription.means(partition.topic)})
    if not doubtful:
        return found
    answers = ask_each(doubtful)
    apart = []
    for topic in doubtful:
        said = TopicView(topics.ids.get(topic, ""), frozenset(p.number for p in partitions if p.topic == topic))
        if any(_meant(topic, answer[topic], subscription) != said for answer in answers):
            apart.append(topic)
    if apart:
        raise StoreError(
            "TOPIC_CHANGED",
            f"barrier-kafka: the brokers do not agree on whether {', '.join(apart)} is there and is what the query has read: "
            "try again.",
            topics=apart,
        )
    return found


def _meant(topic: str, view: TopicView, subscription: Subscription) -> TopicView:
    """The view without partitions that the user did not assign."""
    if not subscription.assigned:
        return view
    return replace(view, partitions=view.partitions & {p.number for p in subscription.assigned if p.topic == topic})
