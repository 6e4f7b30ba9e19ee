"""The format ``2pc-kafka``: Kafka transactions that one process prepares and another commits.

The prepared transaction outlives its producer: whoever knows transactional id, producer id and epoch can end it. So a
task hands over these three and drops its producer, without closing it: closing aborts.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.admin import TRANSACTION_LOG, Description, KafkaAdmin
from connector.kafka.client.config import check_brokers
from connector.kafka.client.connection import missing_right
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topic_ids import from_kafka_python
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.handles import FORMAT, KafkaHandle, Prepared, parse_handle
from connector.kafka.sink.hanging import end_hanging
from connector.kafka.sink.row_writer import DEFAULT_QUEUE_ROWS, Deliveries, RowWriter, deliver, write_error
from connector.kafka.sink.transactional_ids import MAX_PREPARED, TransactionalId, choose_lane, run_id
from connector.kafka.sink.write_options import LONGEST_DEFAULT_TIMEOUT_MS, parse_write_options
from connector.spark.host import data_source_for
from transactional.clock import Deadline, SystemClock
from transactional.errors import (
    FencedError,
    OptionError,
    ProtocolError,
    RetriableError,
    TransactionLostError,
)
from transactional.history import History, put_back
from transactional.sink import HandleState, Options, RunMark, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

    from transactional.checkpoint import CompletedCheckpoint

__all__ = ["KafkaHandle", "KafkaSink", "KafkaTransaction", "TwoPhaseKafkaDataSource"]

INIT_SECONDS: Final = 60.0
"""Limit of a new producer's init: 63 ms as a rule; a coordinator that loads its log takes seconds."""

ROLLBACK_SECONDS: Final = 5.0
"""A task that fails does not wait longer for its abort: the next sweep does it."""

ABANDONED_AT_MOST: Final = 8
"""Producers whose abort failed, of one worker; each keeps a few threads."""

DEFAULT_MESSAGE_SECONDS: Final = 300.0
"""At-least-once has no transaction whose timeout would bound a row's delivery: librdkafka's own default."""

MOST_PLACES: Final = 100
"""Partitions whose offsets a checkpoint names in the journal."""

COMMITTED: Final = ("PrepareCommit", "CompleteCommit")
"""States of a transaction that is committed, until its id is used again."""

READ, WRITE = 3, 4
"""Codes of operations in Kafka's protocol."""


@dataclass
class KafkaTransaction:
    """An open transaction of one task: its producer, and who it is for its coordinator.

    At-least-once has neither name nor coordinator.
    """

    producer: Producer | None
    timeout_ms: int
    name: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    admin: KafkaAdmin | None = None
    rows: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)

    def drop(self) -> None:
        """Let go of producer, threads and connections. The producer is never closed: `close()` aborts."""
        self.producer = None
        if self.admin is not None:
            self.admin.close()
            self.admin = None


class KafkaSink(TwoPhaseCommitSink[KafkaTransaction, KafkaHandle]):
    """Writes rows with the columns of Spark's Kafka sink into Kafka, exactly once for `read_committed` readers.

    Parameters
    ----------
    options : Options
        See `connector.kafka.sink.write_options`.
    schema : pyarrow.Schema
        Of ``value`` and optionally ``key``, ``headers``, ``topic``, ``partition``.

    Raises
    ------
    OptionError
        Offline: unknown, forbidden or missing options, wrong columns.
    """

    maxPrepared = MAX_PREPARED

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._settings = parse_write_options(options)
        queue = self._settings.client.settings.get("queue.buffering.max.messages", str(DEFAULT_QUEUE_ROWS))
        self._writer = RowWriter(schema, self._settings.topic, int(queue), self._settings.queue_bytes)
        self._clock = SystemClock()
        self._admin: KafkaAdmin | None = None
        self._kept_ender: TransactionEnder | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "2pc-kafka"

    def close(self) -> None:
        """Drop the driver's connections."""
        if self._admin is not None:
            self._admin.close()
            self._admin = self._kept_ender = None

    # -- executor ---------------------------------------------------------------------------------------------------

    def beginTransaction(self, context: TransactionContext) -> KafkaTransaction:
        """Open a transaction in the first free lane of the task's partition id."""
        if not self._settings.exactly_once:
            seconds = DEFAULT_MESSAGE_SECONDS
            transaction = KafkaTransaction(None, int(seconds * 1000))
            transaction.producer = self._producer(transaction, {})
            return transaction
        admin = self._connect()
        transaction = KafkaTransaction(None, 0, admin=admin)
        try:
            transaction.timeout_ms = self._timeout_ms(admin)
            transaction.name = choose_lane(context.prefix, context.partitionId, context.taskAttemptId, admin.describe)
            settings = {"transactional.id": transaction.name, "transaction.timeout.ms": transaction.timeout_ms}
            transaction.producer = self._producer(transaction, settings)
            self._open(transaction, transaction.producer, admin)
        except BaseException:
            transaction.drop()
            raise
        return transaction

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        """Queue a batch's rows."""
        if transaction.producer is None:
            raise ProtocolError("TRANSACTION_ENDED", f"{transaction.name} is prepared or rolled back already.")
        self._writer.write(transaction.producer, batch, transaction.deliveries)
        transaction.rows += batch.num_rows

    def preCommit(self, transaction: KafkaTransaction) -> KafkaHandle | None:
        """Wait until every row is delivered, learn what it takes to commit, and drop the producer.

        Raises
        ------
        RowRefusedError
            ``ROW_TOO_LARGE``, ``ROW_REFUSED``.
        RetriableError
            ``LANE_TAKEN``: another task initialised the id meanwhile; ``WRITE_FAILED``.
        """
        if transaction.producer is None:
            raise ProtocolError("TRANSACTION_ENDED", f"{transaction.name} is prepared or rolled back already.")
        # Each row's own limit is the transaction's timeout: past it nothing is left in the queue.
        limit = Deadline(transaction.timeout_ms / 1000 + 5, self._clock)
        try:
            waiting = deliver(transaction.producer, transaction.deliveries, limit)
        except RetriableError:
            if transaction.admin is not None:
                # The client may have lost the reason and name what followed from it; the coordinator knows.
                self._described(transaction.admin, transaction)
            raise
        if waiting:
            raise RetriableError("WRITE_FAILED", f"{waiting} rows were not delivered in time.", rows=waiting)
        # An empty transaction does not exist at the broker; at-least-once has none.
        handle = self._handle(transaction, transaction.admin) if transaction.admin and transaction.rows else None
        transaction.drop()
        return handle

    def rollback(self, transaction: KafkaTransaction) -> None:
        """Abort and fence what was written, as far as that is quick; the next sweep does the rest."""
        if transaction.producer is not None:
            _give_up(transaction.producer, in_transaction=transaction.admin is not None)
        transaction.producer = None
        admin = transaction.admin
        if admin is not None and transaction.producer_id >= 0:
            with contextlib.suppress(Exception):
                limit = Deadline(ROLLBACK_SECONDS, self._clock)
                admin.limit = limit
                described = admin.describe([transaction.name])
                ours = {name: d for name, d in described.items() if _is_open(d, transaction)}
                TransactionEnder(admin, admin.cluster_id()).abort_open(ours, admin.end_txn_version(), limit)
        transaction.drop()

    def _open(self, transaction: KafkaTransaction, producer: Producer, admin: KafkaAdmin) -> None:
        from confluent_kafka import KafkaException

        try:
            for _ in range(2):
                # The first answer replaces the bootstrap connection, the second comes over the node's own. An init in
                # between finds no connection and waits half a second for its next try.
                producer.list_topics(self._settings.topic or TRANSACTION_LOG, timeout=INIT_SECONDS)
            producer.init_transactions(INIT_SECONDS)
            producer.begin_transaction()
        except KafkaException as problem:
            if problem.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
                raise missing_right("WRITE", f"transactional id {transaction.name}") from None
            raise write_error(problem.args[0], self._settings.topic, None, 0) from None
        # Asked between our init and our first row: a row is only taken at the epoch of our init, so if rows are
        # delivered at all, nobody else initialised the id in between, and this is our epoch.
        found = admin.describe([transaction.name]).get(transaction.name)
        if found is None:
            raise RetriableError("LANE_TAKEN", f"{transaction.name} is unknown right after it was initialised.")
        transaction.producer_id, transaction.producer_epoch = found.producer_id, found.producer_epoch

    def _handle(self, transaction: KafkaTransaction, admin: KafkaAdmin) -> KafkaHandle:
        described = self._described(admin, transaction)
        topics = admin.topics((topic for topic, _ in described.partitions), described.partitions)
        missing = {topic for topic, _ in described.partitions} - set(topics)
        if missing:
            raise RetriableError(
                "TOPIC_CHANGED",
                f"The topic {', '.join(sorted(missing))} was deleted while rows were written to it, or the broker that was "
                "asked does not know it yet. Nothing is decided: start the query again.",
                topics=sorted(missing),
            )
        # High watermarks: all our rows lie before them (each is replicated), and the marker will lie behind. With the epochs
        # of the leaders that gave them out it can be told later whether a log still holds what stood before them.
        written: dict[str, list[list[int]]] = {}
        for (topic, partition), (offset, epoch) in sorted(admin.end_offsets(described.partitions, topics).items()):
            written.setdefault(topic, []).append([partition, offset, epoch])
        handle = KafkaHandle(
            format=FORMAT,
            transactionalId=transaction.name,
            producerId=transaction.producer_id,
            producerEpoch=transaction.producer_epoch,
            endTxnVersion=admin.end_txn_version(),
            clusterId=admin.cluster_id(),
            topics={topic: topics[topic].topic_id for topic in written},
            written=written,
            preparedAt=int(self._clock.now() * 1000),
            startedAt=described.started_ms,
            timeoutMs=described.timeout_ms,
        )
        # Still open: so no marker was written before the offsets were read.
        self._described(admin, transaction)
        return handle

    @staticmethod
    def _described(admin: KafkaAdmin, transaction: KafkaTransaction) -> Description:
        found = admin.describe([transaction.name]).get(transaction.name)
        if found is None or not _is_open(found, transaction):
            seen = "unknown" if found is None else f"{found.state}, epoch {found.producer_epoch}"
            raise RetriableError(
                "LANE_TAKEN",
                f"{transaction.name} (epoch {transaction.producer_epoch}) is not open any more ({seen}): another task "
                "initialised it, or kafka.transaction.timeout.ms passed while its rows were written.",
                transactionalId=transaction.name,
            )
        return found

    def _producer(self, transaction: KafkaTransaction, settings: Mapping[str, Any]) -> Producer:
        from confluent_kafka import KafkaException, Producer

        configuration = {
            **self._settings.client.for_librdkafka(),
            **settings,
            "message.timeout.ms": transaction.timeout_ms,
            # Only failures are reported: a report for each row would cost more than writing it.
            "delivery.report.only.error": True,
            "on_delivery": transaction.deliveries.report,
        }
        try:
            return Producer(configuration)
        except (KafkaException, ValueError, TypeError) as problem:
            raise self._settings.client.refused(problem) from None

    # -- driver -----------------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Check brokers, topic, timeout and rights, also those on the name that the run will initialise."""
        self.identify()
        if prefix is not None and self._settings.exactly_once:
            self._driver_admin().check_write(run_id(prefix))

    def identify(self) -> Mapping[str, str]:
        """Check brokers, topic, timeout and rights; returns cluster and topic id."""
        client = self._settings.client
        client.tell_ignored()
        admin = self._driver_admin()
        if client.is_secured:
            # What lets one library in need not let the other in: the tasks' would say so in the middle of the rows.
            check_brokers(client)
        identity = {"cluster": admin.cluster_id()}
        topic = self._settings.topic
        if topic is not None:
            found = admin.topics([topic]).get(topic)
            if found is None:
                raise OptionError(
                    "UNKNOWN_TOPIC",
                    f"2pc-kafka: the topic {topic!r} (option topic) does not exist: create it, or correct the option.",
                    option="topic",
                    topic=topic,
                )
            if found.operations is not None and WRITE not in found.operations:
                raise missing_right("WRITE", f"topic {topic}")
            if self._settings.exactly_once and found.operations is not None and READ not in found.operations:
                # Without it nobody can tell how a transaction ended whose id was initialised again.
                raise missing_right("READ", f"topic {topic}")
            identity.update(topic=topic, topicId=found.topic_id)
        settings: dict[str, Any] = {}
        timeout_ms = int(DEFAULT_MESSAGE_SECONDS * 1000)
        if self._settings.exactly_once:
            self._check_timeout(admin)
            timeout_ms = self._timeout_ms(admin)
            settings = {"transactional.id": run_id(self._prefix()), "transaction.timeout.ms": timeout_ms}
        # The client refuses wrong settings when it is made. This one is never initialised, so the broker learns nothing.
        self._producer(KafkaTransaction(None, timeout_ms), settings)
        return identity

    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """See that nobody has initialised ``<prefix>.run`` since the newest run, nor committed what is not recorded.

        A coordinator forgets an id after 7 days without use (transactional.id.expiration.ms): then it proves nothing.
        """
        if not self._settings.exactly_once:
            return {}
        admin, prefix = self._driver_admin(), self._prefix()
        name = run_id(prefix)
        described = admin.describe([name, *self._ours(admin, COMMITTED)])
        run = described.pop(name, None)
        if history.binding and history.mark and run is not None:
            now = {"producerId": run.producer_id, "epoch": run.producer_epoch}
            if now not in [dict(mark) for mark in (history.mark, *history.late)]:
                raise put_back(f"{name} was initialised after the newest run ({dict(history.mark)} then, {now} now)")
        newest = max(described, key=lambda lane: described[lane].started_ms, default="")
        began = described[newest].started_ms if newest else 0
        seen = (history.seen or {}).get("committed") if history.binding else None
        if seen is not None and began > max(seen, history.stamp, _began(history.handles)):
            raise put_back(
                f"{newest} has committed a transaction that began at {_time(began)}, after every recorded one"
            )
        return {"committed": began}

    def stamp(self, handles: Sequence[KafkaHandle]) -> int:
        """When the newest of them began, by its coordinator's clock."""
        return _began(handles)

    def guardRun(self, mark: RunMark | None) -> RunMark:
        """Initialise ``<prefix>.run``, or check that nobody else did since."""
        if not self._settings.exactly_once:
            return {}
        admin, name = self._driver_admin(), run_id(self._prefix())
        if mark:
            found = admin.describe([name]).get(name)
            # Forgotten after 7 days without a run (transactional.id.expiration.ms): nobody took it. To initialise it again
            # would look like another query's doing to whoever knows this mark only.
            if found is None or {"producerId": found.producer_id, "epoch": found.producer_epoch} == dict(mark):
                return mark
            raise FencedError(
                "PREFIX_TAKEN",
                f"Another query uses the transactionalIdPrefix {self._prefix()!r}: {name} was initialised "
                f"by it (epoch {mark['epoch']} is now {found.producer_epoch}). Give each query its own prefix.",
                prefix=self._prefix(),
            )
        producer_id, epoch = admin.init_producer_id(name, self._timeout_ms(admin))
        if name not in admin.transactional_ids(producer_ids=[producer_id]):
            raise missing_right("DESCRIBE", f"the transactional ids of the prefix {self._prefix()}")
        return {"producerId": producer_id, "epoch": epoch}

    def lifetime(self) -> float | None:
        """The transaction timeout, in seconds."""
        return self._timeout_ms(self._driver_admin()) / 1000 if self._settings.exactly_once else None

    def targets(self, handles: Sequence[KafkaHandle]) -> Collection[str]:
        """Ids of the topics that have rows of the transactions, as a source's offsets have them."""
        return {from_kafka_python(part.topic_id) for handle in handles for part in parse_handle(handle).written}

    def output(self, handles: Sequence[KafkaHandle], checkpoint: CompletedCheckpoint) -> Mapping[str, Any]:
        """Per partition an offset before which all of the checkpoint's rows are; over many partitions, only how many."""
        ends: dict[str, int] = {}
        for part in (part for handle in handles for part in parse_handle(handle).written):
            place = f"{part.topic}-{part.partition}"
            ends[place] = max(part.offset, ends.get(place, 0))
        if len(ends) <= MOST_PLACES:
            return dict(sorted(ends.items()))
        return {"partitions": len(ends)}

    def commit(self, handles: Sequence[KafkaHandle], checkpoint: CompletedCheckpoint) -> None:
        """Commit all of them, now or earlier."""
        lost = self._ender().commit(_parsed(handles), self._commit_deadline()) if handles else []
        if lost:
            raise TransactionLostError(
                "TRANSACTION_LOST",
                f"{len(lost)} of {len(handles)} prepared transactions were aborted, by their timeout, by another "
                f"user of their ids, or by a marker from outside; the first is {lost[0].name}.",
                handles=[each.handle for each in lost],
            )

    def ensureVisible(
        self, handles: Sequence[KafkaHandle], checkpoint: CompletedCheckpoint
    ) -> Sequence[Mapping[str, Any]]:
        """Wait until each written partition shows the rows; write the markers that a coordinator has left out."""
        return self._ender().ensure_readable(_parsed(handles), self._commit_deadline()) if handles else ()

    def abort(self, handles: Sequence[KafkaHandle]) -> Sequence[KafkaHandle]:
        """Abort and fence all of them; returns those found committed."""
        if not handles:
            return []
        return [each.handle for each in self._ender().abort(_parsed(handles), self._commit_deadline())]

    def inspect(self, handles: Sequence[KafkaHandle]) -> Sequence[HandleState]:
        """Look at all of them with one question to each coordinator, and one to the leaders of their partitions."""
        return self._ender().look(_parsed(handles)) if handles else []

    def abortLingering(self, known: Sequence[KafkaHandle]) -> int:
        """Abort open transactions under our prefix, whole names compared, but for those that `known` names."""
        admin = self._driver_admin()
        ours = self._ours(admin, ["Ongoing"])
        excepted = {(h["transactionalId"], h["producerId"], h["producerEpoch"]) for h in known}
        lingering = {
            name: found
            for name, found in admin.describe(ours).items()
            if found.state == "Ongoing" and (name, found.producer_id, found.producer_epoch) not in excepted
        }
        ended = 0
        if lingering:
            ended = self._ender().abort_open(lingering, admin.end_txn_version(), self._commit_deadline())
        if self._settings.exactly_once and self._settings.topic is not None:
            ended += end_hanging(admin, PartitionAdmin(admin), self._settings.topic, self._prefix(), excepted)
        return ended

    def _ours(self, admin: KafkaAdmin, states: Sequence[str]) -> list[str]:
        """The ids of our tasks' transactions in these states, whole names compared."""
        listed = admin.transactional_ids(states)
        return [name for name in listed if (p := TransactionalId.parse(name)) and p.prefix == self._prefix()]

    # -- shared -----------------------------------------------------------------------------------------------------

    def _connect(self) -> KafkaAdmin:
        return KafkaAdmin(self._settings.client.for_kafka_python(), self._clock)

    def _driver_admin(self) -> KafkaAdmin:
        if self._admin is None:
            self._admin = self._connect()
        return self._admin

    def _ender(self) -> TransactionEnder:
        if self._kept_ender is None:  # one commit of a checkpoint is a call for each of its micro-batches
            admin = self._driver_admin()
            self._kept_ender = TransactionEnder(admin, admin.cluster_id())
        return self._kept_ender

    def _commit_deadline(self) -> Deadline:
        return Deadline(self._settings.commit_seconds, self._clock)

    def _prefix(self) -> str:
        if self._settings.prefix is None:
            raise ProtocolError("NO_PREFIX", "The host did not fill in transactionalIdPrefix.")
        return self._settings.prefix

    def _timeout_ms(self, admin: KafkaAdmin) -> int:
        if self._settings.timeout_ms is not None:
            return self._settings.timeout_ms
        return min(admin.longest_timeout_ms() or LONGEST_DEFAULT_TIMEOUT_MS, LONGEST_DEFAULT_TIMEOUT_MS)

    def _check_timeout(self, admin: KafkaAdmin) -> None:
        asked, allowed = self._settings.timeout_ms, admin.longest_timeout_ms()
        if asked is not None and allowed is not None and asked > allowed:
            raise OptionError(
                "TRANSACTION_TIMEOUT_TOO_LONG",
                f"kafka.transaction.timeout.ms={asked} is over the brokers' transaction.max.timeout.ms={allowed}: "
                "lower the option or raise the brokers' limit.",
                option="kafka.transaction.timeout.ms",
                value=asked,
                limit=allowed,
            )


_abandoned: deque[Producer] = deque(maxlen=ABANDONED_AT_MOST)


def _give_up(producer: Producer, in_transaction: bool) -> None:
    """Let go of a producer whose rows are of no use.

    librdkafka (2.16) aborts the whole process where a producer is destroyed whose request to add partitions to its
    transaction has no answer yet. Its own abort waits for that; where it fails, the producer is kept.
    """
    from confluent_kafka import KafkaException

    if not in_transaction:
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        return
    try:
        producer.abort_transaction(ROLLBACK_SECONDS)
    except KafkaException:
        _abandoned.append(producer)


def _began(handles: Sequence[Mapping[str, Any]]) -> int:
    return max((handle.get("startedAt", handle["preparedAt"]) for handle in handles), default=0)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")


def _is_open(found: Description, transaction: KafkaTransaction) -> bool:
    ours = (transaction.producer_id, transaction.producer_epoch)
    return found.state == "Ongoing" and (found.producer_id, found.producer_epoch) == ours


def _parsed(handles: Sequence[KafkaHandle]) -> list[Prepared]:
    return [parse_handle(handle) for handle in handles]


TwoPhaseKafkaDataSource = data_source_for(KafkaSink)
