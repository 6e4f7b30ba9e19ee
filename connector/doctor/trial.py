"""Test whether brokers handle transactions as Apache Kafka does. The test uses transactions without rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from connector.doctor.finding import failed
from connector.kafka.client.admin import Initialised, KafkaAdmin
from connector.kafka.client.cluster_admin import CONCURRENT_TRANSACTIONS, MOVING, NONE
from connector.kafka.client.errors import error_name
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.transactional_ids import trial_id
from transactional.clock import Deadline
from transactional.errors import StoreError, TwoPhaseCommitError
from transactional.finding import Finding, good, problem

TIMEOUT_MS: Final = 10_000
"""The timeout of the transactions in milliseconds, unless the brokers allow only a shorter one. If the command dies,
the brokers abort its transaction after this timeout."""

SECONDS, END_SECONDS = 30.0, 5.0
"""Time limits in seconds: for the whole trial, and for the abort of a transaction that failed."""

ENDED: Final = {False: ("CompleteAbort", "Empty"), True: ("CompleteCommit", "Empty")}
"""For aborted (False) and committed (True) transactions, the states that brokers may report. Brokers that do not
remember how a transaction ended report ``Empty``."""


def try_transaction(admin: KafkaAdmin, prefix: str, topic: str) -> Finding:
    """Check that the brokers abort and commit transactions without rows in the first partition of a topic.

    The check writes no row. Two markers stay in the partition. The brokers keep the transactional id
    ``<prefix>.doctor`` for a week.
    """
    name, place = trial_id(prefix), Partition(topic, 0)
    began = time.monotonic()
    admin.limit = Deadline(SECONDS)
    try:
        _Trial(admin, name, place).run()
    except TwoPhaseCommitError as error:
        sentence = f"A transaction of {name} without rows, in {place}, failed: {error}"
        if error.condition != "KAFKA_REFUSED":
            return replace(failed(error), check="trial-transaction", sentence=sentence)
        remedy = "If no other `barrier doctor` ran at the same time, these brokers do not support transactions as Kafka does."
        return problem("trial-transaction", sentence, remedy, error.condition)
    finally:
        admin.limit = None
    took = (time.monotonic() - began) * 1000
    return good(
        "trial-transaction", f"{name} aborted and committed a transaction without rows in {place}, in {took:.0f} ms"
    )


class _Trial:
    """The transactions of `try_transaction`."""

    def __init__(self, admin: KafkaAdmin, name: str, place: Partition) -> None:
        self._admin = admin
        self._name = name
        self._place = place
        self._timeout_ms = min(TIMEOUT_MS, admin.longest_timeout_ms() or TIMEOUT_MS)

    def run(self) -> None:
        """Abort a transaction, commit another one, and check that the first producer is fenced.

        Raises StoreError ``KAFKA_REFUSED`` if a broker behaves differently.
        """
        first = self._transact(commit=False)
        self._transact(commit=True)
        if self._refusal(lambda: self._end_request(first, commit=True)) is None:
            raise StoreError("KAFKA_REFUSED", reason=f"the brokers did not fence a replaced producer of {self._name}")

    def _transact(self, commit: bool) -> Initialised:
        """Begin a transaction, commit or abort it, and check its state before and after the end.

        Return the transaction's producer.
        """
        producer = self._admin.init_producer_id(self._name, self._timeout_ms)
        try:
            self._add(producer)
            self._expect(("Ongoing",))
            PartitionAdmin(self._admin).open_transactions([self._place])
        except BaseException:
            self._admin.limit = Deadline(END_SECONDS)
            with suppress(TwoPhaseCommitError):
                self._end(producer, commit=False)
            raise
        self._end(producer, commit=commit)
        self._expect(ENDED[commit])
        return producer

    def _add(self, producer: Initialised) -> None:
        from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

        topic, number = self._place
        self._send(
            "AddPartitionsToTxn",
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._name,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[number])
                ],
                max_version=3,  # later versions are for brokers
            ),
        )

    def _end(self, producer: Initialised, commit: bool) -> None:
        self._send("EndTxn", lambda: self._end_request(producer, commit))

    def _end_request(self, producer: Initialised, commit: bool) -> Any:
        from kafka.protocol.producer.transaction import EndTxnRequest

        return EndTxnRequest(
            transactional_id=self._name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
            version=self._admin.end_txn_version(),
        )

    def _expect(self, states: Collection[str]) -> None:
        """Wait while the brokers do not know the transaction or are ending it, then check that its state is in `states`.

        If the transaction is open, also check that it contains the partition.
        """

        def attempt() -> bool | None:
            found = self._admin.describe([self._name]).get(self._name)
            if found is None or found.ending:
                return None
            if found.state not in states or (found.state == "Ongoing" and self._place not in found.partitions):
                named = ", ".join(map(str, found.partitions)) or "no partition"
                expected = " or ".join(states)
                raise StoreError(
                    "KAFKA_REFUSED",
                    reason=f"the brokers report {self._name} as {found.state} in {named}, not as {expected} in {self._place}",
                )
            return True

        self._admin.until(attempt, f"the state {' or '.join(states)} of {self._name}")

    def _send(self, what: str, request: Callable[[], Any]) -> None:
        """Repeat a request until the coordinator answers.

        Raises StoreError ``KAFKA_REFUSED`` if the answer is a rejection.

        `what` names the request in the error.
        """
        code = self._refusal(request)
        if code is not None:
            raise StoreError("KAFKA_REFUSED", reason=f"{what} of {self._name}: {error_name(code)}")

    def _refusal(self, request: Callable[[], Any]) -> int | None:
        """Repeat a request until the coordinator answers. Return the error code of a rejection, otherwise None."""

        def attempt() -> int | None:
            node = self._admin.coordinators([self._name])[self._name]
            answer = self._admin.send_all([(node, request())])[0]
            if isinstance(answer, Exception):
                self._admin.pass_over(answer)
            else:
                code = _code_of(answer)
                if code == CONCURRENT_TRANSACTIONS:
                    return None
                if code not in MOVING:
                    return code
            self._admin.forget_coordinator(self._name)
            return None

        code = self._admin.until(attempt, f"an answer about {self._name}")
        return None if code == NONE else code


def _code_of(answer: Any) -> int:
    """Return the error code in an answer to EndTxn or AddPartitionsToTxn."""
    topics = getattr(answer, "results_by_topic_v3_and_below", None)
    return int(topics[0].results_by_partition[0].partition_error_code if topics else answer.error_code)
