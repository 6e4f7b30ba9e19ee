"""Open, prepare and roll back a task's transaction.

A prepared transaction outlives its producer: any process that knows its transactional id, producer id and epoch can end
it. So a task returns these three and drops its producer. It does not close the producer, because that would abort the
transaction.
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

WARM_UP_SECONDS: Final = 5.0
"""The time limit for the requests of a task that is still waiting for its first row. It applies to all of the admin's
requests together, and to each of the producer's two requests. If no row comes, the task can end only after these
requests. A request that was already sent, or a connection to brokers that do not respond, has its own limit: up to 40 s
in all."""

INIT_SECONDS: Final = 60.0
"""The time limit for initializing a new producer. This usually takes less than 100 ms, but several seconds if a
coordinator is loading its log."""

FRESH_SECONDS: Final = 0.2
"""The time for which the brokers' answers to `connect` remain valid: which id is free, and which broker coordinates the
id. If rows arrive immediately, the task does not ask again. Asking again would not help: another task could also take
the id after the second answer."""

ROLLBACK_SECONDS: Final = 5.0
"""The time limit for a failed task's abort. If the abort takes longer, the next sweep aborts the transaction."""

ABANDONED_AT_MOST: Final = 8
"""The maximum number of producers that a process keeps because their abort failed. Each has a few threads."""

DEFAULT_MESSAGE_SECONDS: Final = 300.0
"""The time limit for the delivery of a row with at-least-once, which has no transaction timeout. This is librdkafka's
default."""


@dataclass
class KafkaTransaction:
    """An open transaction of one task: its producer, and the ids by which its coordinator knows it.

    With at-least-once, there is no transaction at the brokers: the names are empty, and the producer's id and epoch are -1.
    """

    producer: Producer | ArrowProducer | None
    timeout_ms: int
    name: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    cluster_id: str = ""
    end_version: int = 0
    admin: KafkaAdmin | None = None
    fresh: Deadline | None = None
    rows: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)

    def drop(self, failed: bool = False) -> None:
        """Release the producer, and give back the admin client, which is not reused if `failed`.

        The producer is not closed, because `close()` would abort the transaction.
        """
        self.producer = None
        if self.admin is not None:
            self.admin.intact = self.admin.intact and not failed  # so the next attempt gets a new admin
            give_back(self.admin)
            self.admin = None


def timeout_of(asked_ms: int | None, admin: KafkaAdmin) -> int:
    """Return the timeout of the sink's transactions, in milliseconds.

    This is the user's setting. By default, it is the longest timeout that the brokers allow, but at most 15 min.
    """
    if asked_ms is not None:
        return asked_ms
    return min(admin.longest_timeout_ms() or LONGEST_DEFAULT_TIMEOUT_MS, LONGEST_DEFAULT_TIMEOUT_MS)


def begin_at_least_once(settings: WriteOptions) -> KafkaTransaction:
    """Return a `KafkaTransaction` for at-least-once: it has only a producer, whose rows are visible immediately."""
    transaction = KafkaTransaction(None, int(DEFAULT_MESSAGE_SECONDS * 1000))
    transaction.producer = make_producer(settings, transaction, {})
    return transaction


def connect(
    settings: WriteOptions, admin: KafkaAdmin, context: TransactionContext, patience: float = INIT_SECONDS
) -> KafkaTransaction:
    """Choose an unused transactional id for the task's partition, and connect a producer.

    This changes nothing on the brokers. The returned transaction owns `admin`. If this function fails, it releases `admin`.
    """
    from confluent_kafka import KafkaException

    transaction = KafkaTransaction(None, 0, admin=admin)
    admin.limit = Deadline(patience, admin.clock)
    try:
        transaction.timeout_ms = timeout_of(settings.timeout_ms, admin)
        transaction.cluster_id, transaction.end_version = admin.cluster_id(), admin.end_txn_version()
        transaction.fresh = Deadline(FRESH_SECONDS, admin.clock)
        transaction.name = choose_id(
            context.prefix, context.partitionId, context.taskAttemptId, context.nonce, admin.describe
        )
        named = {"transactional.id": transaction.name, "transaction.timeout.ms": transaction.timeout_ms}
        transaction.producer = make_producer(settings, transaction, named)
        try:
            for _ in range(2):
                # The first answer replaces the bootstrap connection, the second arrives over the node's own. An init in
                # between would find no connection, and wait half a second for its next try.
                transaction.producer.list_topics(settings.topic or TRANSACTION_LOG, timeout=patience)
        except KafkaException as problem:
            raise write_error(problem.args[0], settings.topic, None, 0) from None
    except BaseException:
        transaction.drop(failed=True)
        raise
    admin.limit = None
    return transaction


def is_free(transaction: KafkaTransaction) -> bool:
    """Return whether the chosen id is still unused. If not, initializing the id would abort another task's transaction.

    Also return False if the brokers do not answer quickly: they may have moved, and a new connection will find them.
    """
    admin = transaction.admin
    if admin is None:
        return False
    if _is_fresh(transaction):
        return True
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
    """Initialize a transaction's producer, and open the transaction."""
    from confluent_kafka import KafkaException

    producer, admin, topic = transaction.producer, transaction.admin, settings.topic
    if producer is None or admin is None:
        raise ProtocolError("PROTOCOL_VIOLATED", reason=f"{transaction.name} was dropped before it began")
    try:
        try:
            producer.init_transactions(INIT_SECONDS)
            producer.begin_transaction()
        except KafkaException as problem:
            if problem.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
                raise missing_right("WRITE", f"transactional id {transaction.name}") from None
            raise write_error(problem.args[0], topic, None, 0) from None
        # Ask for the epoch between our init and our first row. Brokers accept our rows only at the epoch of our init. So
        # if rows are delivered, no other program initialized the id in between, and this is our epoch. If no row is
        # delivered, it may be another task's epoch, so `roll_back` must not use it.
        if not _is_fresh(transaction):
            admin.forget_coordinator(transaction.name)
        description = admin.describe([transaction.name]).get(transaction.name)
        if description is None:
            raise RetriableError(
                "PRODUCER_FENCED",
                reason=f"{transaction.name} is unknown right after it was initialized",
                transactionalId=transaction.name,
            )
        transaction.producer_id, transaction.producer_epoch = description.producer_id, description.producer_epoch
    except BaseException:
        transaction.drop(failed=True)
        raise
    return transaction


def _is_fresh(transaction: KafkaTransaction) -> bool:
    return transaction.fresh is not None and not transaction.fresh.passed()


def make_producer(
    settings: WriteOptions, transaction: KafkaTransaction, more: Mapping[str, Any]
) -> Producer | ArrowProducer:
    """Return a producer that reports undelivered rows to the transaction. `more` has further settings of the client."""
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
    """Wait until every row is delivered, drop the producer, and return the handle, with which any process can commit.

    Return None if there is nothing to commit.
    """
    # Each row's time limit is the transaction's timeout. After that, no row is left in the queue.
    limit = Deadline(transaction.timeout_ms / 1000 + 5, clock)
    try:
        waiting = deliver(producer, transaction.deliveries, limit)
    except RetriableError:
        if transaction.admin is not None:
            # The client may have lost the reason and name only a consequence. The coordinator knows the reason. In state
            # Empty, no partition was added to the transaction yet. If it had ended, its epoch or state would be different.
            _described(transaction.admin, transaction, states=("Ongoing", "Empty"))
        raise
    if waiting:
        raise RetriableError("WRITE_FAILED", reason=f"{waiting} rows were not delivered in time", rows=waiting)
    # A transaction without rows does not exist at the broker. At-least-once has no transaction.
    handle = _handle(transaction, transaction.admin, clock) if transaction.admin and transaction.rows else None
    transaction.drop()
    return handle


def _handle(transaction: KafkaTransaction, admin: KafkaAdmin, clock: Clock) -> KafkaHandle:
    # The task may have run for minutes, so ask two brokers again who coordinates and who leads. A leader that was paused and
    # replaced could answer with an end offset from before our rows.
    admin.forget_coordinator(transaction.name)
    described = _described(admin, transaction)
    topics = admin.topics((topic for topic, _ in described.partitions), described.partitions)
    missing = {topic for topic, _ in described.partitions} - set(topics)
    if missing:
        raise RetriableError("TOPIC_CHANGED", topics=sorted(missing))
    # The end offsets are high watermarks: all our rows are before them (each row is replicated), and the marker will be after
    # them. Later, the epochs of the leaders that returned them show whether a log still has the rows before them.
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
    # If the transaction is still open, no marker was written before the offsets were read.
    _described(admin, transaction)
    return handle


def roll_back(transaction: KafkaTransaction) -> None:
    """Try for a few seconds to abort the transaction. If this fails, the next sweep aborts it.

    Only the producer itself aborts, because it can end only its own transaction. Do not send a request by id and epoch: if the
    producer was fenced before its first row, its epoch is not known. The request could then abort another attempt's
    transaction, even a prepared one.
    """
    if transaction.producer is not None:
        _give_up(transaction.producer, in_transaction=transaction.admin is not None)
    transaction.drop(failed=True)


_abandoned: deque[Producer | ArrowProducer] = deque(maxlen=ABANDONED_AT_MOST)


def _give_up(producer: Producer | ArrowProducer, in_transaction: bool) -> None:
    """Release a producer whose rows are not needed.

    librdkafka (2.16) crashes the whole process if a producer is destroyed while its request to add partitions to its
    transaction is unanswered. So this function first aborts the transaction, which waits for the answer. If the abort
    fails, the producer is never destroyed.
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
            reason=f"{transaction.name} (epoch {transaction.producer_epoch}) is no longer open: {seen}",
            transactionalId=transaction.name,
        )
    return description
