"""A transaction without rows, which shows what brokers really do. Brokers that are not Apache Kafka's may differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import CONCURRENT_TRANSACTIONS, MOVING, NONE
from connector.kafka.client.errors import error_name
from connector.kafka.client.topics import Partition
from connector.kafka.sink.transactional_ids import trial_id
from transactional.clock import Deadline
from transactional.errors import StoreError, TwoPhaseCommitError
from transactional.finding import Finding, good, problem

TIMEOUT_MS: Final = 10_000
"""The transaction's timeout, in milliseconds: the brokers abort it after that time if the command dies."""

SECONDS: Final = 15.0
"""How long the transaction may take."""


def try_transaction(admin: KafkaAdmin, prefix: str, topic: str) -> Finding:
    """Begin a transaction in the first partition of a topic, describe it, abort it, and see it as aborted.

    It writes no row. It leaves an abort marker in the partition, and the transactional id ``<prefix>.doctor``, which the brokers
    forget after a week.
    """
    name, place = trial_id(prefix), Partition(topic, 0)
    began = time.monotonic()
    admin.limit = Deadline(SECONDS)
    try:
        trial = _Trial(admin, name, place)
        trial.begin()
        trial.expect("Ongoing")
        trial.abort()
        trial.expect("CompleteAbort")
    except TwoPhaseCommitError as error:
        return problem(
            "trial-transaction",
            f"A transaction of {name} without rows, in {place}, failed: {error.message}",
            "Check whether these brokers support transactions as Apache Kafka does.",
            error.condition,
        )
    finally:
        admin.limit = None
    took = (time.monotonic() - began) * 1000
    return good("trial-transaction", f"{name} began and aborted a transaction without rows in {place}, in {took:.0f} ms")


class _Trial:
    """The transaction."""

    def __init__(self, admin: KafkaAdmin, name: str, place: Partition) -> None:
        self._admin = admin
        self._name = name
        self._place = place
        self._producer = admin.init_producer_id(name, TIMEOUT_MS)

    def begin(self) -> None:
        """Add the partition to the transaction."""
        from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

        topic, number = self._place
        self._send(
            "AddPartitionsToTxn",
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._name,
                v3_and_below_producer_id=self._producer.producer_id,
                v3_and_below_producer_epoch=self._producer.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[number])
                ],
                max_version=3,  # later versions are for brokers
            ),
            lambda answer: int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code),
        )

    def abort(self) -> None:
        """Abort the transaction."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        self._send(
            "EndTxn",
            lambda: EndTxnRequest(
                transactional_id=self._name,
                producer_id=self._producer.producer_id,
                producer_epoch=self._producer.producer_epoch,
                committed=False,
                version=self._admin.end_txn_version(),
            ),
            lambda answer: int(answer.error_code),
        )

    def expect(self, state: str) -> None:
        """Wait until the coordinator describes the transaction with this state, and while it is open with its partition."""

        def attempt() -> bool | None:
            found = self._admin.describe([self._name]).get(self._name)
            if found is None or found.ending:
                return None
            if found.state != state or (state == "Ongoing" and self._place not in found.partitions):
                named = ", ".join(map(str, found.partitions)) or "no partition"
                raise StoreError(
                    "KAFKA_REFUSED", reason=f"{self._name} is {found.state} with {named}, not {state} with {self._place}"
                )
            return True

        self._admin.until(attempt, f"the state {state} of {self._name}")

    def _send(self, what: str, request: Callable[[], Any], code_of: Callable[[Any], int]) -> None:
        def attempt() -> bool | None:
            node = self._admin.coordinators([self._name])[self._name]
            answer = self._admin.send_all([(node, request())])[0]
            if isinstance(answer, Exception):
                self._admin.pass_over(answer)
            elif (code := code_of(answer)) == NONE:
                return True
            elif code == CONCURRENT_TRANSACTIONS:
                return None
            elif code not in MOVING:
                raise StoreError("KAFKA_REFUSED", reason=f"{what} of {self._name}: {error_name(code)}")
            self._admin.forget_coordinator(self._name)
            return None

        self._admin.until(attempt, f"an answer to {what} of {self._name}")
