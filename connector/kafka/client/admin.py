"""Questions of an administrator: topics, offsets, coordinators, transactions, the brokers' limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import KafkaConnection
from connector.kafka.client.errors import error_name, missing_right
from connector.kafka.client.topics import Partition, TopicInfo
from transactional.clock import Clock
from transactional.errors import OptionError, RetriableError, StoreError

__all__ = ["BROKER", "TOPIC", "Description", "KafkaAdmin", "latest_request"]

DESCRIBE_BATCH = 1000
"""Transactional ids in one DescribeTransactions; 200 take 13 ms."""

TRANSACTION_LOG = "__transaction_state"

NONE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND = 0, 16, 51, 105
UNKNOWN_TOPIC, INVALID_TRANSACTION_TIMEOUT, CLUSTER_DENIED, TOPIC_DENIED, ID_DENIED = 3, 50, 31, 29, 53
TOPIC, BROKER = 2, 4
"""Kinds of resources whose settings are asked for."""

NO_PRODUCER = (1 << 63) - 1
"""A producer id that no broker assigns: they count up from 0, in blocks of 1000."""

MOVING = frozenset({7, 14, 15, 16, 5, 6, 9, 13, 74, 75, 78, 19, 20, 8, 56, 89, -1})
"""Codes after which the same question is asked again: time-outs, loading or moving coordinators, absent or new leaders; a
broker whose disk failed, that throttles, or that answers with an unknown error."""


@dataclass(frozen=True)
class Description:
    """A transactional id's state, as its coordinator describes it."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[Partition, ...]


class KafkaAdmin(KafkaConnection):
    """Questions to a cluster, each repeated while leaders and coordinators move.

    Parameters
    ----------
    config : ClientConfig
    clock : Clock, optional
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        super().__init__(config, clock)
        self._coordinators: dict[str, int] = {}
        self._longest_ms: tuple[int | None] | None = None

    # -- cluster and topics -----------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return str(self._metadata(()).cluster_id)

    def topics(self, names: Iterable[str], awaited: Collection[Partition] | None = None) -> dict[str, TopicInfo]:
        """Describe these topics; those that do not exist are not in the answer.

        Wait until each partition has a leader; if `awaited` is given, only until each of those has one.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        """
        wanted = sorted(set(names))

        def attempt() -> dict[str, TopicInfo] | None:
            infos: dict[str, TopicInfo] = {}
            for topic in self._metadata(wanted).topics:
                if topic.error_code == TOPIC_DENIED:
                    raise missing_right("DESCRIBE", f"topic {topic.name}")
                if topic.error_code == UNKNOWN_TOPIC:
                    continue
                needed = [
                    part
                    for part in topic.partitions
                    if awaited is None or Partition(topic.name, part.partition_index) in awaited
                ]
                if topic.error_code != NONE or any(part.leader_id < 0 for part in needed):
                    return None
                leaders = {part.partition_index: part.leader_id for part in topic.partitions}
                operations = frozenset(topic.authorized_operations or ()) or None
                replicas = {
                    part.partition_index: (len(part.replica_nodes), len(part.isr_nodes)) for part in topic.partitions
                }
                infos[topic.name] = TopicInfo(str(topic.topic_id), leaders, operations, replicas)
            return infos

        return self.until(attempt, f"leaders for topics {', '.join(wanted)}") if wanted else {}

    def _metadata(self, topics: Iterable[str]) -> Any:
        from kafka.protocol.metadata import MetadataRequest

        return self.ask(
            lambda: MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
            )
        )

    def end_offsets(
        self, partitions: Iterable[Partition], topics: Mapping[str, TopicInfo], *, committed: bool = False
    ) -> dict[Partition, tuple[int, int]]:
        """Return the high watermarks of partitions, or with `committed` their last stable offsets, and the leaders' epochs."""
        by_leader: dict[int, list[Partition]] = {}
        for partition in partitions:
            by_leader.setdefault(topics[partition.topic].leaders[partition.number], []).append(partition)
        ends: dict[Partition, tuple[int, int]] = {}
        for answer in self.send_all(
            [(leader, latest_request(of_it, committed=committed)) for leader, of_it in by_leader.items()]
        ):
            if isinstance(answer, Exception):
                raise RetriableError(
                    "KAFKA_TIMEOUT", reason=f"a partition's leader did not answer: {answer}"
                ) from answer
            for topic in answer.topics:
                for part in topic.partitions:
                    partition = Partition(topic.name, part.partition_index)
                    if part.error_code != NONE:
                        raise RetriableError("KAFKA_TIMEOUT", reason=f"{partition}: {error_name(part.error_code)}")
                    ends[partition] = part.offset, part.leader_epoch
        return ends

    def end_txn_version(self) -> int:
        """Return the version of EndTxn to use: 5 if the cluster's finalized transaction.version is 2 or more, else up to 4."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        levels, _ = self.feature_levels()
        highest = 5 if levels.get("transaction.version", 0) >= 2 else 4
        return self.version_of(EndTxnRequest, highest)

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' ``transaction.max.timeout.ms``, or None if this user may not read it; asked once."""
        if self._longest_ms is None:
            name = "transaction.max.timeout.ms"
            value = (self.settings_of(BROKER, str(self.any_node()), [name]) or {}).get(name)
            self._longest_ms = (None if value is None else int(value),)
        return self._longest_ms[0]

    def settings_of(self, kind: int, name: str, keys: Sequence[str]) -> dict[str, str] | None:
        """Return settings of a broker or a topic, without those that it hides; None if this user may not read them.

        Parameters
        ----------
        kind : int
            `BROKER`, of which each is asked itself, or `TOPIC`.
        name : str
            The broker's number, or the topic.
        keys : Sequence[str]
        """
        from kafka.protocol.admin import DescribeConfigsRequest

        node = int(name) if kind == BROKER else self.any_node()
        answer = self.ask(lambda: DescribeConfigsRequest(resources=[(kind, name, list(keys))]), lambda: node)
        (result,) = answer.results
        if result.error_code != NONE:
            return None
        return {config.name: config.value for config in result.configs if config.value is not None}

    def feature_levels(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the cluster's features: the levels that are in force, and the highest that the asked broker knows."""
        from kafka.protocol.metadata import ApiVersionsRequest

        answer = self.ask(
            lambda: ApiVersionsRequest(client_software_name="barrier-kafka", client_software_version="0", min_version=3)
        )
        return (
            {feature.name: feature.max_version_level for feature in answer.finalized_features or ()},
            {feature.name: feature.max_version for feature in answer.supported_features or ()},
        )

    # -- transactions -----------------------------------------------------------------------------------------------

    def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        """Find the node of each transactional id's coordinator; remembered until `forget_coordinator`."""
        from kafka.protocol.metadata import FindCoordinatorRequest

        wanted = list(dict.fromkeys(ids))

        def attempt() -> dict[str, int] | None:
            unknown = [name for name in wanted if name not in self._coordinators]
            if unknown and self.version_of(FindCoordinatorRequest) >= 4:
                answer = self.ask(lambda: FindCoordinatorRequest(key_type=1, coordinator_keys=unknown, min_version=4))
                for coordinator in answer.coordinators:
                    self._remember(coordinator.key, coordinator)
            else:
                for name in unknown:
                    one = partial(FindCoordinatorRequest, key=name, key_type=1, max_version=3)
                    self._remember(name, self.ask(one))
            if all(name in self._coordinators for name in wanted):
                return {name: self._coordinators[name] for name in wanted}
            return None

        return self.until(attempt, "the coordinators of transactions")

    def _remember(self, transactional_id: str, coordinator: Any) -> None:
        if coordinator.error_code == ID_DENIED:
            raise missing_right("DESCRIBE", f"transactional id {transactional_id}")
        if coordinator.error_code == NONE:
            self._coordinators[transactional_id] = coordinator.node_id
        elif coordinator.error_code not in MOVING:
            raise StoreError(
                "KAFKA_REFUSED", reason=f"FindCoordinator of {transactional_id}: {error_name(coordinator.error_code)}"
            )

    def forget_coordinator(self, transactional_id: str) -> None:
        """Forget the coordinator of this id, so that it is asked for again."""
        self._coordinators.pop(transactional_id, None)

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        """Describe transactional ids; those that their coordinator does not know are not in the answer."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        left = set(ids)
        descriptions: dict[str, Description] = {}

        def attempt() -> dict[str, Description] | None:
            by_node: dict[int, list[str]] = {}
            for name, node in self.coordinators(sorted(left)).items():
                by_node.setdefault(node, []).append(name)
            cuts = [
                (node, names[start : start + DESCRIBE_BATCH])
                for node, names in by_node.items()
                for start in range(0, len(names), DESCRIBE_BATCH)
            ]
            requests = [(node, DescribeTransactionsRequest(transactional_ids=names)) for node, names in cuts]
            for (_, names), answer in zip(cuts, self.send_all(requests), strict=True):
                if isinstance(answer, Exception):
                    self.pass_over(answer)
                    for name in names:
                        self.forget_coordinator(name)
                    continue
                for txn in answer.transaction_states:
                    if self._settles(txn, descriptions):
                        left.discard(txn.transactional_id)
            return None if left else descriptions

        return self.until(attempt, "the state of transactions") if left else {}

    def _settles(self, txn: Any, descriptions: dict[str, Description]) -> bool:
        name, code = txn.transactional_id, txn.error_code
        if code == NONE:
            partitions = sorted(Partition(topic.topic, part) for topic in txn.topics for part in topic.partitions)
            descriptions[name] = Description(
                txn.transaction_state,
                txn.producer_id,
                txn.producer_epoch,
                txn.transaction_timeout_ms,
                txn.transaction_start_time_ms,
                tuple(partitions),
            )
        elif code == ID_DENIED:
            raise missing_right("DESCRIBE", f"transactional id {name}")
        elif code in MOVING:
            self.forget_coordinator(name)
            return False
        elif code != TRANSACTIONAL_ID_NOT_FOUND:
            raise StoreError("KAFKA_REFUSED", reason=f"DescribeTransactions of {name}: {error_name(code)}")
        return True

    def transactional_ids(self, states: Sequence[str] = (), producer_ids: Sequence[int] = ()) -> list[str]:
        """List transactional ids in these states (any, if none is given) over every broker.

        Raises
        ------
        RetriableError
            ``KAFKA_TIMEOUT``: a broker did not answer, or part of the transaction log has no leader.
        """
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        def attempt() -> list[str] | None:
            metadata = self._metadata([TRANSACTION_LOG])
            log = [topic for topic in metadata.topics if topic.error_code == NONE]
            if any(part.leader_id < 0 for topic in log for part in topic.partitions):
                return None
            nodes = sorted({broker.node_id for broker in metadata.brokers})
            requests = [
                (node, ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids)))
                for node in nodes
            ]
            ids: set[str] = set()
            for answer in self.send_all(requests):
                if isinstance(answer, Exception):
                    self.pass_over(answer)
                    return None
                if answer.error_code in MOVING:
                    return None
                if answer.error_code != NONE:
                    raise StoreError("KAFKA_REFUSED", reason=f"ListTransactions: {error_name(answer.error_code)}")
                ids.update(txn.transactional_id for txn in answer.transaction_states)
            return sorted(ids)

        return self.until(attempt, "a list of transactions from every broker")

    def check_write(self, transactional_id: str) -> None:
        """Check that this user may write under an id, and leave the id and its transaction as they are.

        Send EndTxn for a producer that cannot exist: a broker checks rights first, and then finds no such producer.
        Initialising the id would fence the query that uses it.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        """
        from kafka.protocol.producer.transaction import EndTxnRequest

        node = self.coordinators([transactional_id])[transactional_id]
        probe = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=NO_PRODUCER,
            producer_epoch=0,
            committed=False,
            max_version=4,
        )
        answer = self.send_all([(node, probe)])[0]
        if not isinstance(answer, Exception) and answer.error_code == ID_DENIED:
            raise missing_right("WRITE", f"transactional id {transactional_id}")

    def init_producer_id(self, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
        """Initialise an id, which aborts its open transaction and fences its producer; return producer id and epoch."""
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        def attempt() -> tuple[int, int] | None:
            answer = self.send_all(
                [
                    (
                        self.coordinators([transactional_id])[transactional_id],
                        # Version 6 is marked unstable: brokers refuse it by default.
                        InitProducerIdRequest(
                            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, max_version=5
                        ),
                    )
                ]
            )[0]
            if isinstance(answer, Exception):
                self.pass_over(answer)
                self.forget_coordinator(transactional_id)
                return None
            if answer.error_code == NONE:
                return answer.producer_id, answer.producer_epoch
            if answer.error_code in MOVING:
                self.forget_coordinator(transactional_id)
                return None
            if answer.error_code == CONCURRENT_TRANSACTIONS:
                return None
            if answer.error_code == ID_DENIED:
                raise missing_right("WRITE", f"transactional id {transactional_id}")
            if answer.error_code == INVALID_TRANSACTION_TIMEOUT:
                raise OptionError(
                    "INVALID_OPTION",
                    owner=self.config.name,
                    option="kafka.transaction.timeout.ms",
                    value=timeout_ms,
                    expectation="at most the brokers' transaction.max.timeout.ms, which this user may not read",
                )
            raise StoreError(
                "KAFKA_REFUSED", reason=f"InitProducerId of {transactional_id}: {error_name(answer.error_code)}"
            )

        return self.until(attempt, f"a producer id for {transactional_id}")


def latest_request(partitions: Iterable[Partition], *, committed: bool = False) -> Any:
    """Return a request for where partitions end: the high watermark, or, with `committed`, the last stable offset."""
    from kafka.protocol.consumer import ListOffsetsRequest

    kind = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, number in partitions:
        asked = kind.ListOffsetsPartition(partition_index=number, timestamp=-1)
        by_topic.setdefault(topic, []).append(asked)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[kind(name=topic, partitions=asked) for topic, asked in by_topic.items()],
        max_version=7,
    )
