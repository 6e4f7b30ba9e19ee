"""Administrative requests about a cluster: topics, offsets, settings, features; and the error codes in brokers' answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import ENOUGH, KafkaConnection
from connector.kafka.client.errors import error_name, missing_right
from connector.kafka.client.topics import Partition, TopicInfo
from transactional.clock import Clock
from transactional.errors import RetriableError, StoreError

__all__ = ["BROKER", "MOVING", "NONE", "TOPIC", "ClusterAdmin", "latest_request", "metadata_request"]

NONE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND = 0, 16, 51, 105
UNKNOWN_TOPIC, INVALID_TRANSACTION_TIMEOUT, CLUSTER_DENIED, TOPIC_DENIED, ID_DENIED = 3, 50, 31, 29, 53
TOPIC, BROKER = 2, 4
"""Codes of the resource types in a DescribeConfigs request."""

MOVING = frozenset({7, 14, 15, 16, 5, 6, 9, 13, 74, 75, 78, 19, 20, 8, 56, 89, -1})
"""Error codes after which the same request is sent again: time-outs, loading or moving coordinators, missing or new leaders,
failed disks, throttling, and unknown server errors."""


class ClusterAdmin(KafkaConnection):
    """Sends requests about topics and settings to a cluster, and repeats each request while leaders move."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        super().__init__(config, clock)
        self._longest_ms: tuple[int | None] | None = None
        self._cluster_id = ""
        self._end_version = 0

    def cluster_id(self) -> str:
        """Return the cluster's id. Only the first call asks a broker."""
        if not self._cluster_id:
            self._cluster_id = str(self.metadata(()).cluster_id)
        return self._cluster_id

    def topics(self, names: Iterable[str], awaited: Collection[Partition] | None = None) -> dict[str, TopicInfo]:
        """Return descriptions of these topics. Topics that do not exist are omitted.

        This asks two brokers, because a broker that was paused may still name an old leader. For each partition, the leader
        with the newer epoch counts. The method waits until every partition has a leader or, if `awaited` is given, only
        until those partitions have leaders.
        """
        wanted = sorted(set(names))

        def attempt() -> dict[str, TopicInfo] | None:
            answers = self.ask_several(lambda: metadata_request(wanted))
            if answers is None:
                return None
            if len(answers) < min(ENOUGH, max(len(answer.brokers) for answer in answers)):
                self.look_for_brokers()  # the cluster has more brokers than this client knew
                return None
            infos: dict[str, TopicInfo] = {}
            for name in wanted:
                seen = _descriptions(answers, name)
                if any(topic.error_code != NONE for topic in seen) or len({topic.topic_id for topic in seen}) > 1:
                    return None
                if seen:
                    infos[name] = _newest(seen)
            leaders = {
                Partition(name, number): info.leaders[number] for name, info in infos.items() for number in info.leaders
            }
            needed = leaders if awaited is None else leaders.keys() & awaited
            return None if any(leaders[partition] < 0 for partition in needed) else infos

        return self.until(attempt, f"the leaders of {', '.join(wanted)}") if wanted else {}

    def metadata(self, topics: Iterable[str]) -> Any:
        """Return one broker's view of the cluster and of these topics."""
        return self.ask(lambda: metadata_request(topics))

    def end_offsets(
        self, partitions: Iterable[Partition], topics: Mapping[str, TopicInfo], *, committed: bool = False
    ) -> dict[Partition, tuple[int, int]]:
        """Return the end offset of each partition, and its leader's epoch.

        The end offset is the high watermark or, with `committed`, the last stable offset. Each request carries the leader's
        epoch, so that a replaced leader rejects the request instead of answering from an outdated log.
        """
        left = set(partitions)
        known = dict(topics)
        ends: dict[Partition, tuple[int, int]] = {}

        def attempt() -> dict[Partition, tuple[int, int]] | None:
            by_leader: dict[int, list[Partition]] = {}
            for partition in sorted(left):
                by_leader.setdefault(known[partition.topic].leaders[partition.number], []).append(partition)
            requests = [(node, latest_request(asked, known, committed=committed)) for node, asked in by_leader.items()]
            for answer in self.send_all(requests):
                if isinstance(answer, Exception):
                    self.pass_over(answer)
                    continue
                for topic in answer.topics:
                    for part in topic.partitions:
                        partition = Partition(topic.name, part.partition_index)
                        if part.error_code == NONE:
                            ends[partition] = part.offset, part.leader_epoch
                            left.discard(partition)
                        elif part.error_code not in (*MOVING, UNKNOWN_TOPIC):
                            raise StoreError(
                                "KAFKA_REFUSED", reason=f"ListOffsets of {partition}: {error_name(part.error_code)}"
                            )
            if not left:
                return ends
            found = self.topics({partition.topic for partition in left}, left)
            gone = sorted(place for place in left if place.number not in _leaders_of(found, place, known))
            if gone:
                raise RetriableError("TOPIC_CHANGED", topics=sorted({place.topic for place in gone}))
            known.update(found)
            return None

        return self.until(attempt, "the end offsets of partitions")

    def end_txn_version(self) -> int:
        """Return the EndTxn version to use: 5 if the cluster's finalized transaction.version is 2 or more, else at most 4.

        Only the first call asks a broker.
        """
        from kafka.protocol.producer.transaction import EndTxnRequest

        if not self._end_version:
            levels, _ = self.feature_levels()
            highest = 5 if levels.get("transaction.version", 0) >= 2 else 4
            self._end_version = self.version_of(EndTxnRequest, highest)
        return self._end_version

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' ``transaction.max.timeout.ms``; None if this user is not allowed to read it.

        Only the first call asks a broker.
        """
        if self._longest_ms is None:
            name = "transaction.max.timeout.ms"
            value = (self.settings_of(BROKER, str(self.any_node()), [name]) or {}).get(name)
            self._longest_ms = (None if value is None else int(value),)
        return self._longest_ms[0]

    def settings_of(self, kind: int, name: str, keys: Sequence[str]) -> dict[str, str] | None:
        """Return settings of a broker or a topic, without values that the brokers hide; None if this user lacks the right."""
        from kafka.protocol.admin import DescribeConfigsRequest

        node = int(name) if kind == BROKER else self.any_node()
        answer = self.ask(lambda: DescribeConfigsRequest(resources=[(kind, name, list(keys))]), lambda: node)
        (result,) = answer.results
        if result.error_code != NONE:
            return None
        return {config.name: config.value for config in result.configs if config.value is not None}

    def feature_levels(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return, by feature name, the levels in effect, and the highest levels that the answering broker supports."""
        from kafka.protocol.metadata import ApiVersionsRequest

        answer = self.ask(
            lambda: ApiVersionsRequest(client_software_name="barrier-kafka", client_software_version="0", min_version=3)
        )
        return (
            {feature.name: feature.max_version_level for feature in answer.finalized_features or ()},
            {feature.name: feature.max_version for feature in answer.supported_features or ()},
        )


def metadata_request(topics: Iterable[str]) -> Any:
    """Return a metadata request for topics. It does not make brokers create topics."""
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )


def _descriptions(answers: Iterable[Any], name: str) -> list[Any]:
    """Return the brokers' descriptions of one topic, without those of brokers that do not know the topic."""
    seen = [topic for answer in answers for topic in answer.topics if topic.name == name]
    if any(topic.error_code == TOPIC_DENIED for topic in seen):
        raise missing_right("DESCRIBE", f"topic {name}")
    return [topic for topic in seen if topic.error_code != UNKNOWN_TOPIC]


def _newest(seen: Sequence[Any]) -> TopicInfo:
    """Merge several brokers' descriptions of one topic: for each partition, the newest leader epoch counts."""
    parts: dict[int, Any] = {}
    for part in (part for topic in seen for part in topic.partitions):
        other = parts.setdefault(part.partition_index, part)
        if part.leader_epoch > other.leader_epoch:
            parts[part.partition_index] = part
    return TopicInfo(
        str(seen[0].topic_id),
        {number: part.leader_id for number, part in parts.items()},
        frozenset(seen[0].authorized_operations or ()) or None,
        {number: (len(part.replica_nodes), len(part.isr_nodes)) for number, part in parts.items()},
        {number: part.leader_epoch for number, part in parts.items()},
    )


def _leaders_of(found: Mapping[str, TopicInfo], place: Partition, known: Mapping[str, TopicInfo]) -> Mapping[int, int]:
    """Return the leaders of a partition's topic; an empty mapping if the topic was deleted or created again."""
    info = found.get(place.topic)
    return {} if info is None or info.topic_id != known[place.topic].topic_id else info.leaders


def latest_request(partitions: Iterable[Partition], topics: Mapping[str, TopicInfo], *, committed: bool = False) -> Any:
    """Return a request for the end offsets of partitions: high watermarks or, with `committed`, last stable offsets."""
    from kafka.protocol.consumer import ListOffsetsRequest

    kind = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, number in partitions:
        asked = kind.ListOffsetsPartition(
            partition_index=number, current_leader_epoch=topics[topic].epoch(number), timestamp=-1
        )
        by_topic.setdefault(topic, []).append(asked)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[kind(name=topic, partitions=asked) for topic, asked in by_topic.items()],
        max_version=7,
    )
