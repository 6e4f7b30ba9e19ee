"""A task's transaction, from its producer to its handle. *Executor*.

A prepared transaction outlives its producer: any process that knows transactional id, producer id and epoch can end it. So a
task hands over these three and drops its producer, without closing it: closing aborts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.admin import TRANSACTION_LOG, Description, KafkaAdmin
from connector.kafka.client.errors import missing_right
from connector.kafka.client.kept_admin import give_back
from connector.kafka.native.library import native_library
from connector.kafka.native.producer import ArrowProducer
from connector.kafka.sink.deliveries import Deliveries, deliver, write_error
from connector.kafka.sink.handles import FORMAT, KafkaHandle
from connector.kafka.sink.transactional_ids import BUSY, choose_id
from connector.kafka.sink.write_options import LONGEST_DEFAULT_TIMEOUT_MS, WriteOptions
from transactional.clock import Clock, Deadline
from transactional.errors import ProtocolError, RetriableError, TwoPhaseCommitError
from transactional.sink import TransactionContext

if TYPE_CHECKING:
    from confluent_kafka import Producer

__all__ = [
    "WARM_UP_SECONDS",
    "KafkaTransaction",
    "begin",
    "begin_at_least_once",
    "connect",
    "is_free",
    "make_producer",
    "prepare",
    "roll_back",
    "timeout_of",
]

WARM_UP_SECONDS: Final = 5.0
"""Limit of the admin's questions together, and of each of the producer's two, while a task waits for its first row: perhaps
none comes, and the task ends behind them. A question that was sent, or a connection to silent brokers, ends by its own
limit: up to 40 s in all."""

INIT_SECONDS: Final = 60.0
"""Limit of a new producer's init: usually 63 ms; a coordinator that loads its log takes seconds."""

ROLLBACK_SECONDS: Final = 5.0
"""Limit of the abort of a failed task, without the search for the reason of a failure: the next sweep does the rest."""

ABANDONED_AT_MOST: Final = 8
"""Producers of one worker that are kept because their abort failed; each has a few threads."""

DEFAULT_MESSAGE_SECONDS: Final = 300.0
"""At-least-once has no transaction whose timeout would bound a row's delivery: librdkafka's own default."""


@dataclass
class KafkaTransaction:
    """An open transaction of one task: its producer, and its identity for its coordinator.

    At-least-once has neither name nor coordinator.
    """

    producer: Producer | ArrowProducer | None
    timeout_ms: int
    name: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    cluster_id: str = ""
    end_version: int = 0
    admin: KafkaAdmin | None = None
    rows: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)

    def drop(self, failed: bool = False) -> None:
        """Release producer, threads and connections. The producer is never closed: `close()` aborts."""
        self.producer = None
        if self.admin is not None:
            self.admin.intact = self.admin.intact and not failed  # the next try asks everything again
            give_back(self.admin)
            self.admin = None


def timeout_of(asked_ms: int | None, admin: KafkaAdmin) -> int:
    """Return the timeout of the sink's transactions, in milliseconds: what the user has set, or what the brokers allow."""
    if asked_ms is not None:
        return asked_ms
    return min(admin.longest_timeout_ms() or LONGEST_DEFAULT_TIMEOUT_MS, LONGEST_DEFAULT_TIMEOUT_MS)


def begin_at_least_once(settings: WriteOptions) -> KafkaTransaction:
    """Make a producer whose rows are visible at once."""
    transaction = KafkaTransaction(None, int(DEFAULT_MESSAGE_SECONDS * 1000))
    transaction.producer = make_producer(settings, transaction, {})
    return transaction


def connect(
    settings: WriteOptions, admin: KafkaAdmin, context: TransactionContext, patience: float = INIT_SECONDS
) -> KafkaTransaction:
    """Choose the first free transactional id of the task's partition id, and connect a producer: nothing changes there.

    The transaction owns `admin`, also when this fails.
    """
    from confluent_kafka import KafkaException

    transaction = KafkaTransaction(None, 0, admin=admin)
    admin.limit = Deadline(patience, admin.clock)
    try:
        transaction.timeout_ms = timeout_of(settings.timeout_ms, admin)
        transaction.cluster_id, transaction.end_version = admin.cluster_id(), admin.end_txn_version()
        transaction.name = choose_id(
            context.prefix, context.partitionId, context.taskAttemptId, context.nonce, admin.describe
        )
        named = {"transactional.id": transaction.name, "transaction.timeout.ms": transaction.timeout_ms}
        transaction.producer = make_producer(settings, transaction, named)
        try:
            for _ in range(2):
                # The first answer replaces the bootstrap connection, the second comes over the node's own. An init in
                # between finds no connection and waits half a second for its next try.
                transaction.producer.list_topics(settings.topic or TRANSACTION_LOG, timeout=patience)
        except KafkaException as problem:
            raise write_error(problem.args[0], settings.topic, None, 0) from None
    except BaseException:
        transaction.drop(failed=True)
        raise
    admin.limit = None
    return transaction


def is_free(transaction: KafkaTransaction) -> bool:
    """Whether the id is still free that was chosen a while ago: to initialise it would abort another task's transaction.

    False, too, if that can't be asked quickly: the brokers may have moved since, and whoever connects again finds them.
    """
    admin = transaction.admin
    if admin is None:
        return False
    admin.limit = Deadline(WARM_UP_SECONDS, admin.clock)
    try:
        described = admin.describe([transaction.name]).get(transaction.name)
    except BaseException as problem:
        transaction.drop(failed=True)
        if isinstance(problem, TwoPhaseCommitError):
            return False
        raise
    admin.limit = None
    return described is None or described.state not in BUSY


def begin(settings: WriteOptions, transaction: KafkaTransaction) -> KafkaTransaction:
    """Initialise a transaction's producer, and open the transaction."""
    from confluent_kafka import KafkaException

    producer, admin, topic = transaction.producer, transaction.admin, settings.topic
    if producer is None or admin is None:
        raise ProtocolError("PROTOCOL_VIOLATED", reason=f"{transaction.name} was dropped before it was begun")
    try:
        try:
            producer.init_transactions(INIT_SECONDS)
            producer.begin_transaction()
        except KafkaException as problem:
            if problem.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
                raise missing_right("WRITE", f"transactional id {transaction.name}") from None
            raise write_error(problem.args[0], topic, None, 0) from None
        # Asked between our init and our first row: a row is only taken at the epoch of our init, so if rows are
        # delivered at all, no other program initialised the id in between, and this is our epoch. If none are, it may
        # be another task's: `roll_back` must not go by it.
        admin.forget_coordinator(transaction.name)
        description = admin.describe([transaction.name]).get(transaction.name)
        if description is None:
            raise RetriableError(
                "PRODUCER_FENCED",
                reason=f"{transaction.name} is unknown right after it was initialised",
                transactionalId=transaction.name,
            )
        transaction.producer_id, transaction.producer_epoch = description.producer_id, description.producer_epoch
    except BaseException:
        transaction.drop(failed=True)
        raise
    return transaction


def make_producer(
    settings: WriteOptions, transaction: KafkaTransaction, more: Mapping[str, Any]
) -> Producer | ArrowProducer:
    """Make a producer that reports to the transaction."""
    from confluent_kafka import KafkaException, Producer

    client, deliveries = settings.client, transaction.deliveries
    configuration = {
        **client.for_librdkafka(),
        **more,
        "message.timeout.ms": transaction.timeout_ms,
        # Only failures are reported: a report for each row would cost more than writing it.
        "delivery.report.only.error": True,
    }
    library = None if settings.by_objects or any(map(callable, configuration.values())) else native_library()
    try:
        if library is not None:
            return ArrowProducer(library, configuration, deliveries.report)
        return Producer({**configuration, "on_delivery": deliveries.report_message})
    except (KafkaException, ValueError, TypeError) as problem:
        raise client.refused(problem) from None


def prepare(transaction: KafkaTransaction, producer: Producer | ArrowProducer, clock: Clock) -> KafkaHandle | None:
    """Wait until every row is delivered, collect the facts that a commit needs, and drop the producer."""
    # Each row's own limit is the transaction's timeout: after it nothing is left in the queue.
    limit = Deadline(transaction.timeout_ms / 1000 + 5, clock)
    try:
        waiting = deliver(producer, transaction.deliveries, limit)
    except RetriableError:
        if transaction.admin is not None:
            # The client may have lost the reason and name a consequence of it; the coordinator knows.
            # No partition was added to an empty one yet: an end, of whatever kind, would have another epoch or state.
            _described(transaction.admin, transaction, states=("Ongoing", "Empty"))
        raise
    if waiting:
        raise RetriableError("WRITE_FAILED", reason=f"{waiting} rows were not delivered in time", rows=waiting)
    # An empty transaction does not exist at the broker; at-least-once has none.
    handle = _handle(transaction, transaction.admin, clock) if transaction.admin and transaction.rows else None
    transaction.drop()
    return handle


def _handle(transaction: KafkaTransaction, admin: KafkaAdmin, clock: Clock) -> KafkaHandle:
    # The task may have run for minutes: who coordinates and who leads now is asked of two brokers each. A leader that was
    # paused and replaced would answer with an end from before our rows.
    admin.forget_coordinator(transaction.name)
    described = _described(admin, transaction)
    topics = admin.topics((topic for topic, _ in described.partitions), described.partitions)
    missing = {topic for topic, _ in described.partitions} - set(topics)
    if missing:
        raise RetriableError("TOPIC_CHANGED", topics=sorted(missing))
    # High watermarks: all our rows lie before them (each is replicated), and the marker will lie after them. The epochs of the
    # leaders that returned them show later whether a log still holds the rows before them.
    written: dict[str, list[list[int]]] = {}
    for (topic, partition), (offset, epoch) in sorted(admin.end_offsets(described.partitions, topics).items()):
        written.setdefault(topic, []).append([partition, offset, epoch])
    handle = KafkaHandle(
        format=FORMAT,
        transactionalId=transaction.name,
        producerId=transaction.producer_id,
        producerEpoch=transaction.producer_epoch,
        endTxnVersion=transaction.end_version,
        clusterId=transaction.cluster_id,
        topics={topic: topics[topic].topic_id for topic in written},
        written=written,
        preparedAt=int(clock.now() * 1000),
        startedAt=described.started_ms,
        timeoutMs=described.timeout_ms,
    )
    # Still open: so no marker was written before the offsets were read.
    _described(admin, transaction)
    return handle


def roll_back(transaction: KafkaTransaction) -> None:
    """Abort what was written, as far as that is quick; the next sweep does the rest.

    Only the producer itself aborts, which can end its own transaction only. A request by id and epoch could end that of
    another attempt, which may be prepared: a producer that was fenced before its first row does not know its epoch.
    """
    if transaction.producer is not None:
        _give_up(transaction.producer, in_transaction=transaction.admin is not None)
    transaction.drop(failed=True)


_abandoned: deque[Producer | ArrowProducer] = deque(maxlen=ABANDONED_AT_MOST)


def _give_up(producer: Producer | ArrowProducer, in_transaction: bool) -> None:
    """Let go of a producer whose rows are of no use.

    librdkafka (2.16) aborts the whole process if a producer is destroyed while its request to add partitions to its
    transaction is unanswered. Its own abort waits for the answer; if that fails, the producer is kept.
    """
    from confluent_kafka import KafkaException

    if not in_transaction:
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        return
    try:
        producer.abort_transaction(ROLLBACK_SECONDS)
    except KafkaException:
        _abandoned.append(producer)


def _described(admin: KafkaAdmin, transaction: KafkaTransaction, states: Collection[str] = ("Ongoing",)) -> Description:
    description = admin.describe([transaction.name]).get(transaction.name)
    ours = (transaction.producer_id, transaction.producer_epoch)
    if (
        description is None
        or description.state not in states
        or (description.producer_id, description.producer_epoch) != ours
    ):
        seen = "unknown" if description is None else f"{description.state}, epoch {description.producer_epoch}"
        raise RetriableError(
            "PRODUCER_FENCED",
            reason=f"{transaction.name} (epoch {transaction.producer_epoch}) is not open any more: {seen}",
            transactionalId=transaction.name,
        )
    return description
