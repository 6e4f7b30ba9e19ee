"""Questions of an administrator: topics, offsets, coordinators, transactions, the brokers' limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import ENOUGH, KafkaConnection
from connector.kafka.client.errors import error_name, missing_right
from connector.kafka.client.topics import Partition, TopicInfo
from transactional.clock import Clock
from transactional.errors import OptionError, RetriableError, StoreError

__all__ = ["BROKER", "TOPIC", "Description", "Initialised", "KafkaAdmin", "latest_request", "metadata_request"]

DESCRIBE_BATCH = 1000
"""Transactional ids in one DescribeTransactions; 200 take 13 ms."""

TRANSACTION_LOG = "__transaction_state"

NONE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND = 0, 16, 51, 105
UNKNOWN_TOPIC, INVALID_TRANSACTION_TIMEOUT, CLUSTER_DENIED, TOPIC_DENIED, ID_DENIED = 3, 50, 31, 29, 53
TOPIC, BROKER = 2, 4
"""Kinds of resources whose settings are asked for."""

SECOND_LOOK_SECONDS: Final = 1.0
"""Time between two looks that agree. A broker that wakes, or has become a coordinator, fetches the cluster's metadata twice a
second."""

NO_PRODUCER = (1 << 63) - 1
"""A producer id that no broker assigns: they count up from 0, in blocks of 1000."""

MOVING = frozenset({7, 14, 15, 16, 5, 6, 9, 13, 74, 75, 78, 19, 20, 8, 56, 89, -1})
"""Codes after which the same question is asked again: time-outs, loading or moving coordinators, absent or new leaders; a
broker whose disk failed, that throttles, or that answers with an unknown error."""


NEWER_WAS_THERE: Final = frozenset({47, 48, 52})
"""Codes of a marker that a newer process has made needless: a later epoch of the producer, an ended transaction, a newer
coordinator. Who is answered so has looked at what was, and has to look again."""


@dataclass(frozen=True)
class Description:
    """A transactional id's state, as its coordinator describes it."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[Partition, ...]

    @property
    def ending(self) -> bool:
        """Whether it has been decided how the transaction ends, and its markers are being written."""
        return self.state.startswith("Prepare")


class Initialised(NamedTuple):
    """A transactional id's newest producer. Each unanswered request may still arrive, and raises the epoch by one."""

    producer_id: int
    producer_epoch: int
    unanswered: int = 0


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

        Two brokers are asked, and of each partition the newer leader counts: one that was paused may know an older one.
        Wait until each partition has a leader; if `awaited` is given, only until each of those has one.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        """
        wanted = sorted(set(names))

        def attempt() -> dict[str, TopicInfo] | None:
            answers = self.ask_several(lambda: metadata_request(wanted))
            if answers is None:
                return None
            if len(answers) < min(ENOUGH, max(len(answer.brokers) for answer in answers)):
                self.look_for_brokers()  # more than one was not known
                return None
            infos: dict[str, TopicInfo] = {}
            for name in wanted:
                seen = [topic for answer in answers for topic in answer.topics if topic.name == name]
                if any(topic.error_code == TOPIC_DENIED for topic in seen):
                    raise missing_right("DESCRIBE", f"topic {name}")
                seen = [topic for topic in seen if topic.error_code != UNKNOWN_TOPIC]
                if any(topic.error_code != NONE for topic in seen) or len({topic.topic_id for topic in seen}) > 1:
                    return None
                if seen:
                    infos[name] = info = _newest(seen)
                    needed = [
                        number for number in info.leaders if awaited is None or Partition(name, number) in awaited
                    ]
                    if any(info.leaders[number] < 0 for number in needed):
                        return None
            return infos

        return self.until(attempt, f"leaders for topics {', '.join(wanted)}") if wanted else {}

    def _metadata(self, topics: Iterable[str]) -> Any:
        return self.ask(lambda: metadata_request(topics))

    def end_offsets(
        self, partitions: Iterable[Partition], topics: Mapping[str, TopicInfo], *, committed: bool = False
    ) -> dict[Partition, tuple[int, int]]:
        """Return the high watermarks of partitions, or with `committed` their last stable offsets, and the leaders' epochs.

        The requests have the leaders' epochs: a leader that was replaced does not answer them with what it had before.

        Raises
        ------
        StoreError
            ``UNKNOWN_TOPIC``, ``MISSING_RIGHT``, ``KAFKA_REFUSED``
        RetriableError
            ``KAFKA_TIMEOUT``
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

        return self.until(attempt, "the ends of partitions")

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
                every = partial(FindCoordinatorRequest, key_type=1, coordinator_keys=unknown, min_version=4)
                answers = self.ask_several(every) or []
                for found in zip(*(answer.coordinators for answer in answers), strict=True):
                    self._remember(found[0].key, found)
            else:
                for name in unknown:
                    one = partial(FindCoordinatorRequest, key=name, key_type=1, max_version=3)
                    self._remember(name, self.ask_several(one) or [])
            if all(name in self._coordinators for name in wanted):
                return {name: self._coordinators[name] for name in wanted}
            return None

        return self.until(attempt, "the coordinators of transactions")

    def _remember(self, transactional_id: str, opinions: Sequence[Any]) -> None:
        """Remember a coordinator that all opinions name. A broker that was paused may name one that was replaced."""
        for opinion in opinions:
            if opinion.error_code == ID_DENIED:
                raise missing_right("DESCRIBE", f"transactional id {transactional_id}")
            if opinion.error_code not in (NONE, *MOVING):
                raise StoreError(
                    "KAFKA_REFUSED", reason=f"FindCoordinator of {transactional_id}: {error_name(opinion.error_code)}"
                )
        named = {opinion.node_id if opinion.error_code == NONE else None for opinion in opinions}
        if len(named) == 1 and (node := named.pop()) is not None:
            self._coordinators[transactional_id] = node

    def forget_coordinators(self) -> None:
        """Forget all coordinators: time has passed, and they may have moved."""
        self._coordinators.clear()

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

    def transactional_ids(self, states: Sequence[str] = ()) -> list[str]:
        """List transactional ids in these states (any, if none is given); a new coordinator can leave some out.

        Raises
        ------
        RetriableError
            ``KAFKA_TIMEOUT``: a broker did not answer, or part of the transaction log has no leader.
        """
        return sorted({each.transactional_id for each in self._transactions(states, ())})

    def owners(self, producer_ids: Collection[int]) -> dict[int, str]:
        """Find the transactional ids of producers; those that no coordinator knows are absent.

        A broker that does not know yet that it has become a coordinator lists nothing, without an error. So who is not
        listed is looked for twice, a pause apart.

        Raises
        ------
        RetriableError
            As `transactional_ids`.
        """
        found: dict[int, str] = {}
        for pause in (0.0, SECOND_LOOK_SECONDS):
            if set(found) < set(producer_ids):
                self.clock.sleep(pause)
                listed = self._transactions((), sorted(producer_ids))
                found.update((each.producer_id, each.transactional_id) for each in listed)
        return found

    def _transactions(self, states: Sequence[str], producer_ids: Sequence[int]) -> list[Any]:
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        def attempt() -> list[Any] | None:
            metadata = self._metadata([TRANSACTION_LOG])
            log = [topic for topic in metadata.topics if topic.error_code == NONE]
            if any(part.leader_id < 0 for topic in log for part in topic.partitions):
                return None
            nodes = sorted({broker.node_id for broker in metadata.brokers})
            requests = [
                (node, ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids)))
                for node in nodes
            ]
            listed: list[Any] = []
            for answer in self.send_all(requests):
                if isinstance(answer, Exception):
                    self.pass_over(answer)
                    return None
                if answer.error_code in MOVING:
                    return None
                if answer.error_code != NONE:
                    raise StoreError("KAFKA_REFUSED", reason=f"ListTransactions: {error_name(answer.error_code)}")
                listed += answer.transaction_states
            return listed

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

    def init_producer_id(self, transactional_id: str, timeout_ms: int) -> Initialised:
        """Initialise an id, which aborts its open transaction and fences its producer."""
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        unanswered = 0

        def attempt() -> Initialised | None:
            nonlocal unanswered
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
                unanswered += 1
                return None
            if answer.error_code == NONE:
                return Initialised(answer.producer_id, answer.producer_epoch, unanswered)
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


def metadata_request(topics: Iterable[str]) -> Any:
    """Return a request for topics, which creates none."""
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )


def _newest(seen: Sequence[Any]) -> TopicInfo:
    """Return one topic as several brokers describe it: of each partition what the newest leader epoch says."""
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
    """Return the leaders of a partition's topic; none if the topic is gone, or another one."""
    info = found.get(place.topic)
    return {} if info is None or info.topic_id != known[place.topic].topic_id else info.leaders


def latest_request(partitions: Iterable[Partition], topics: Mapping[str, TopicInfo], *, committed: bool = False) -> Any:
    """Return a request for where partitions end: the high watermark, or, with `committed`, the last stable offset."""
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
