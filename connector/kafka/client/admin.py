"""Administrative requests about transactions: coordinators, states, producer ids. See `cluster_admin` for topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from connector.kafka.client.cluster_admin import (
    CONCURRENT_TRANSACTIONS,
    ID_DENIED,
    INVALID_TRANSACTION_TIMEOUT,
    MOVING,
    NONE,
    TRANSACTIONAL_ID_NOT_FOUND,
    ClusterAdmin,
)
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import error_name, missing_right
from connector.kafka.client.topics import Partition
from transactional.clock import Clock
from transactional.errors import OptionError, StoreError

DESCRIBE_BATCH = 1000
"""The maximum number of transactional ids in one DescribeTransactions request. 200 ids take 13 ms."""

TRANSACTION_LOG = "__transaction_state"

SECOND_LOOK_SECONDS: Final = 1.0
"""The shortest time between two checks that have to agree. A broker that resumes after a pause, or has just become a
coordinator, has fetched the cluster's current metadata by then: brokers fetch it twice a second."""

NO_PRODUCER = (1 << 63) - 1
"""A producer id that no broker assigns, because brokers count up from 0, in blocks of 1000."""

NEWER_WAS_THERE: Final = frozenset({47, 48, 52})
"""Error codes for a marker that is no longer needed: the producer has a later epoch, the transaction has ended, or there is a
newer coordinator. A caller that gets such a code has used outdated information, and has to check again."""


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
        """True if the coordinator has decided to commit or abort the transaction, and is still writing its markers."""
        return self.state.startswith("Prepare")


class Initialised(NamedTuple):
    """A transactional id's new producer id and epoch.

    `unanswered` is the number of earlier requests without an answer. Each may still reach the coordinator and raise the
    epoch by one.
    """

    producer_id: int
    producer_epoch: int
    unanswered: int = 0


class KafkaAdmin(ClusterAdmin):
    """Sends requests about transactions to a cluster, and repeats each request while leaders and coordinators move."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        super().__init__(config, clock)
        self._coordinators: dict[str, int] = {}

    def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the node id of each transactional id's coordinator. The answers are reused until `forget_coordinator`."""
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
        """Remember an id's coordinator if all answers name the same node. A paused broker may name an old coordinator."""
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
        """Forget all coordinators, because any of them may have moved."""
        self._coordinators.clear()

    def forget_coordinator(self, transactional_id: str) -> None:
        """Forget the coordinator of this id, so that the next request finds it again."""
        self._coordinators.pop(transactional_id, None)

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        """Return the state of each transactional id. Ids that their coordinator does not know are omitted."""
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
        """Return the transactional ids in these states, or all ids if no state is given.

        A broker that has only just become a coordinator may omit some of its ids.
        """
        return sorted({each.transactional_id for each in self._transactions(states, ())})

    def owners(self, producer_ids: Collection[int]) -> dict[int, str]:
        """Return the transactional id of each producer id. Producers that no coordinator knows are omitted.

        A broker that does not know yet that it has become a coordinator returns an empty list, without an error. So if a
        producer is missing from the lists, the brokers are asked again after a second.
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
            metadata = self.metadata([TRANSACTION_LOG])
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
        """Check that this user may write under a transactional id, without changing the id or its transaction.

        The check sends EndTxn for a producer that can't exist. A broker checks the rights before it looks for the producer.
        Initializing the id instead would fence the query that uses it.
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
        """Initialize a transactional id, which aborts its open transaction and fences its producer."""
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
                    expectation="at most the brokers' transaction.max.timeout.ms, which this user is not allowed to read",
                )
            raise StoreError(
                "KAFKA_REFUSED", reason=f"InitProducerId of {transactional_id}: {error_name(answer.error_code)}"
            )

        return self.until(attempt, f"a producer id for {transactional_id}")
