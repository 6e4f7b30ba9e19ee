"""A thin client for what only administrators ask: transactions, coordinators, topic ids, the broker's limits.

kafka-python's network and protocol classes do the work. Requests go out as they are built here, because the outcome of
each must be told apart, not folded into an exception by a library.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import OptionError, RetriableError, StoreError

__all__ = ["Description", "KafkaAdmin", "TopicInfo", "error_name", "missing_right"]

CONNECT_SECONDS = 20.0
"""A query is refused within 30 s when no broker can be reached: the rest is for Spark's own worker."""

REQUEST_SECONDS = 30.0
"""Limit of one question, with its retries while a coordinator or leader moves; a failover takes a few seconds."""

IN_FLIGHT = 200
"""Requests that may be under way on one connection. The library refuses what is over its limit instead of queueing."""

DESCRIBE_BATCH = 1000
"""Transactional ids in one DescribeTransactions; 200 take 13 ms."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
"""Pauses between retries double from the first to the longest. Markers are usually written within 20 ms."""

TRANSACTION_LOG = "__transaction_state"

NONE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND = 0, 16, 51, 105
UNKNOWN_TOPIC, INVALID_TRANSACTION_TIMEOUT, CLUSTER_DENIED, TOPIC_DENIED, ID_DENIED = 3, 50, 31, 29, 53
MOVING = frozenset({7, 14, 15, 16, 5, 6, 13, 19, 20, 8})
"""Codes after which the same question is asked again: time-outs, loading or moving coordinators, absent leaders."""

ResponseT = TypeVar("ResponseT")


def error_name(code: int) -> str:
    """Name a protocol error: ``PRODUCER_FENCED (90)``."""
    from kafka.errors import for_code

    return f"{getattr(for_code(code), 'message', 'UNKNOWN')} ({code})"


@dataclass(frozen=True)
class Description:
    """What the coordinator says of a transactional id."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TopicInfo:
    """Id and partition leaders of a topic; `operations`: codes of what this user may do, None if not told."""

    topic_id: str
    leaders: Mapping[int, int]
    operations: frozenset[int] | None


class KafkaAdmin:
    """Connections to all brokers, made when they are needed and dropped by `close`; for one thread at a time.

    Parameters
    ----------
    configuration : Mapping[str, Any]
        kafka-python's, as `connector.kafka.config` makes it.
    clock : Clock, optional

    Attributes
    ----------
    limit : Deadline or None
        How long a question may take with its retries; 30 s where it is None.

    Raises
    ------
    StoreError
        ``BROKERS_UNREACHABLE`` within 30 s.
    """

    def __init__(self, configuration: Mapping[str, Any], clock: Clock | None = None) -> None:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        self.clock: Clock = clock or SystemClock()
        self.limit: Deadline | None = None
        self._coordinators: dict[str, int] = {}
        settings = {
            "bootstrap_timeout_ms": int(CONNECT_SECONDS * 1000),
            "max_in_flight_requests_per_connection": IN_FLIGHT + 10,
            "reconnect_backoff_max_ms": 1000,
            **configuration,
        }
        self._client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
        try:
            self._client.__init__(**settings)
        except (KafkaError, OSError, ValueError) as problem:
            self._abandon()
            raise StoreError(
                "BROKERS_UNREACHABLE",
                f"No broker of kafka.bootstrap.servers={settings.get('bootstrap_servers')!s} could be used within "
                f"{CONNECT_SECONDS:.0f} s ({type(problem).__name__}: {problem}). Check the addresses, that the brokers "
                "run, and kafka.security.protocol.",
                servers=str(settings.get("bootstrap_servers")),
            ) from problem
        self._manager: Any = self._client._manager

    def close(self) -> None:
        """Drop all connections and the thread that serves them."""
        self._client.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        """Send requests to their nodes, pipelined; answers in order, an exception in place of a missing one."""
        answers: list[Any] = []
        for start in range(0, len(requests), IN_FLIGHT):
            answers += self._manager.run(self._exchange, requests[start : start + IN_FLIGHT])
        if any(isinstance(answer, Exception) for answer in answers):
            self._manager.cluster.request_update()
        return answers

    async def _exchange(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        # All are sent before the first answer is awaited.
        sent = [self._start(node, request) for node, request in requests]
        return [await _finish(future) for future in sent]

    def _start(self, node: int, request: Any) -> Any:
        try:
            return self._manager.send(request, node_id=node)
        except Exception as problem:  # noqa: BLE001 - an unknown node is an answer too.
            return problem

    def ask(self, request: Callable[[], Any], node: Callable[[], int] | None = None) -> Any:
        """Send one request, again while connections break; to any node unless told which."""

        def attempt() -> Any:
            target = node() if node else self._manager.least_loaded_node()
            answer = self.send_all([(target, request())])[0]
            if isinstance(answer, Exception):
                return self._moving(answer)
            return answer

        return self.until(attempt, "an answer")

    def until(self, attempt: Callable[[], ResponseT | None], what: str) -> ResponseT:
        """Repeat `attempt` with growing pauses until it returns something.

        Raises
        ------
        RetriableError
            ``KAFKA_TIMEOUT`` when `limit` has passed.
        """
        deadline = self.limit or Deadline(REQUEST_SECONDS, self.clock)
        pause = FIRST_PAUSE_SECONDS
        while True:
            result = attempt()
            if result is not None:
                return result
            if deadline.passed():
                raise RetriableError(
                    "KAFKA_TIMEOUT", f"Kafka did not give {what} in time. Are all brokers up?", what=what
                )
            self.clock.sleep(min(pause, deadline.left()))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _moving(self, problem: Exception) -> None:
        """Pass over what a broken or busy connection raises; raise everything else."""
        from kafka.errors import (
            AuthorizationError,
            IncompatibleBrokerVersion,
            SaslAuthenticationFailedError,
            UnknownBrokerIdError,
        )
        from kafka.errors import RetriableError as KafkaRetriableError

        if isinstance(problem, (AuthorizationError, SaslAuthenticationFailedError, IncompatibleBrokerVersion)):
            raise StoreError(
                "KAFKA_REFUSED", f"Kafka refused a request: {type(problem).__name__}: {problem}", error=str(problem)
            ) from problem
        if not isinstance(problem, (KafkaRetriableError, UnknownBrokerIdError, OSError)):
            raise problem

    # -- cluster and topics -----------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Id of the cluster."""
        return str(self._metadata(()).cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Describe these topics; those that do not exist are not in the answer.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        """
        wanted = sorted(set(names))

        def attempt() -> dict[str, TopicInfo] | None:
            found: dict[str, TopicInfo] = {}
            for topic in self._metadata(wanted).topics:
                if topic.error_code == TOPIC_DENIED:
                    raise missing_right("DESCRIBE", f"topic {topic.name}")
                if topic.error_code == UNKNOWN_TOPIC:
                    continue
                if topic.error_code != NONE or any(part.leader_id < 0 for part in topic.partitions):
                    return None
                leaders = {part.partition_index: part.leader_id for part in topic.partitions}
                told = frozenset(topic.authorized_operations or ()) or None
                found[topic.name] = TopicInfo(str(topic.topic_id), leaders, told)
            return found

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
        self, partitions: Iterable[tuple[str, int]], topics: Mapping[str, TopicInfo]
    ) -> dict[tuple[str, int], int]:
        """High watermarks of partitions, by (topic, partition)."""
        from kafka.protocol.consumer import ListOffsetsRequest

        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in partitions:
            by_leader.setdefault(topics[topic].leaders[partition], {}).setdefault(topic, []).append(partition)
        kind = ListOffsetsRequest.ListOffsetsTopic
        requests = [
            (
                leader,
                ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=0,
                    topics=[
                        kind(
                            name=topic,
                            partitions=[
                                kind.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes
                            ],
                        )
                        for topic, indexes in of_topic.items()
                    ],
                    max_version=7,
                ),
            )
            for leader, of_topic in by_leader.items()
        ]
        ends: dict[tuple[str, int], int] = {}
        for answer in self.send_all(requests):
            if isinstance(answer, Exception):
                raise RetriableError("LEADER_MOVED", f"A partition's leader did not answer: {answer}") from answer
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code != NONE:
                        raise RetriableError(
                            "LEADER_MOVED", f"{topic.name} [{part.partition_index}]: {error_name(part.error_code)}"
                        )
                    ends[topic.name, part.partition_index] = part.offset
        return ends

    def end_txn_version(self) -> int:
        """Version of EndTxn to use: 5 where the cluster's finalized transaction.version is 2 or more, else up to 4."""
        from kafka.protocol.metadata import ApiVersionsRequest
        from kafka.protocol.producer.transaction import EndTxnRequest

        answer = self.ask(
            lambda: ApiVersionsRequest(client_software_name="barrier-kafka", client_software_version="0", min_version=3)
        )
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features or ()}
        highest = 5 if levels.get("transaction.version", 0) >= 2 else 4
        return int(self._manager.broker_version_data.api_version(EndTxnRequest, max_version=highest))

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' ``transaction.max.timeout.ms``, or None where this user may not read it."""
        from kafka.protocol.admin import DescribeConfigsRequest

        node = self._manager.least_loaded_node()
        name = "transaction.max.timeout.ms"
        answer = self.ask(lambda: DescribeConfigsRequest(resources=[(4, str(node), [name])]), lambda: int(node))
        for result in answer.results:
            for config in result.configs:
                if config.name == name:
                    return int(config.value)
        return None

    # -- transactions -----------------------------------------------------------------------------------------------

    def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        """Find the node of each transactional id's coordinator; remembered until `forget_coordinator`."""
        from kafka.protocol.metadata import FindCoordinatorRequest

        wanted = list(dict.fromkeys(ids))

        def attempt() -> dict[str, int] | None:
            unknown = [name for name in wanted if name not in self._coordinators]
            if unknown and self._manager.broker_version_data.api_version(FindCoordinatorRequest) >= 4:
                answer = self.ask(lambda: FindCoordinatorRequest(key_type=1, coordinator_keys=unknown, min_version=4))
                for found in answer.coordinators:
                    self._remember(found.key, found)
            else:
                for name in unknown:
                    one = partial(FindCoordinatorRequest, key=name, key_type=1, max_version=3)
                    self._remember(name, self.ask(one))
            if all(name in self._coordinators for name in wanted):
                return {name: self._coordinators[name] for name in wanted}
            return None

        return self.until(attempt, "the coordinators of transactions")

    def _remember(self, transactional_id: str, found: Any) -> None:
        if found.error_code == ID_DENIED:
            raise missing_right("DESCRIBE", f"transactional id {transactional_id}")
        if found.error_code == NONE:
            self._coordinators[transactional_id] = found.node_id
        elif found.error_code not in MOVING:
            raise StoreError("NO_COORDINATOR", f"No coordinator for {transactional_id}: {error_name(found.error_code)}")

    def forget_coordinator(self, transactional_id: str) -> None:
        """Ask again who coordinates this id."""
        self._coordinators.pop(transactional_id, None)

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        """Describe transactional ids; those that their coordinator does not know are not in the answer."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        left = set(ids)
        found: dict[str, Description] = {}

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
                    self._moving(answer)
                    for name in names:
                        self.forget_coordinator(name)
                    continue
                for txn in answer.transaction_states:
                    if self._settles(txn, found):
                        left.discard(txn.transactional_id)
            return None if left else found

        return self.until(attempt, "the state of transactions") if left else {}

    def _settles(self, txn: Any, found: dict[str, Description]) -> bool:
        name, code = txn.transactional_id, txn.error_code
        if code == NONE:
            partitions = sorted((topic.topic, part) for topic in txn.topics for part in topic.partitions)
            found[name] = Description(
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
            raise StoreError("KAFKA_REFUSED", f"DescribeTransactions of {name}: {error_name(code)}")
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
            found: set[str] = set()
            for answer in self.send_all(requests):
                if isinstance(answer, Exception):
                    self._moving(answer)
                    return None
                if answer.error_code in MOVING:
                    return None
                if answer.error_code != NONE:
                    raise StoreError("KAFKA_REFUSED", f"ListTransactions: {error_name(answer.error_code)}")
                found.update(txn.transactional_id for txn in answer.transaction_states)
            return sorted(found)

        return self.until(attempt, "a list of transactions from every broker")

    def init_producer_id(self, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
        """Initialise an id: an open transaction of it is aborted and its producer fenced. Returns id and epoch."""
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        def attempt() -> tuple[int, int] | None:
            answer = self.send_all(
                [
                    (
                        self.coordinators([transactional_id])[transactional_id],
                        # Version 6 is marked unstable: brokers refuse it unless told otherwise.
                        InitProducerIdRequest(
                            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, max_version=5
                        ),
                    )
                ]
            )[0]
            if isinstance(answer, Exception):
                self._moving(answer)
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
                    "TRANSACTION_TIMEOUT_TOO_LONG",
                    f"kafka.transaction.timeout.ms={timeout_ms} is over the brokers' transaction.max.timeout.ms, which "
                    "this user may not read. Set a shorter one.",
                    option="kafka.transaction.timeout.ms",
                    value=timeout_ms,
                )
            raise StoreError("KAFKA_REFUSED", f"InitProducerId of {transactional_id}: {error_name(answer.error_code)}")

        return self.until(attempt, f"a producer id for {transactional_id}")

    def _abandon(self) -> None:
        net = getattr(self._client, "_net", None) or getattr(getattr(self._client, "_client", None), "_net", None)
        if net is not None:
            self._client._client._manager.closed = True
            net.stop(timeout_ms=1000)


async def _finish(future: Any) -> Any:
    try:
        return future if isinstance(future, Exception) else await future
    except Exception as problem:  # noqa: BLE001 - the caller judges each by itself.
        return problem


def topic_uuid(text: str) -> uuid.UUID:
    """Parse a topic id as `TopicInfo` writes it."""
    return uuid.UUID(text)


def missing_right(operation: str, resource: str) -> StoreError:
    """Make the error of a right that is lacking."""
    return StoreError(
        "MISSING_RIGHT",
        f"This user lacks {operation} on {resource}. Grant it: kafka-acls.sh --add --operation {operation.title()} ...",
        operation=operation,
        resource=resource,
    )
