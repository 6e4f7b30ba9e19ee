"""The format ``2pc-kafka``: Kafka transactions that one process prepares and another commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.admin import SECOND_LOOK_SECONDS
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.kept_admin import borrow_admin, give_back
from connector.kafka.client.protocol import check_protocol, check_topic_id
from connector.kafka.client.release import check_release
from connector.kafka.client.topics import Partition, lineage_namespace, short_id
from connector.kafka.marks.barrier_topic import BarrierTopic
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.errors import transactions_lost
from connector.kafka.sink.examination import check_prefix, check_timeout, check_topic
from connector.kafka.sink.handles import KafkaHandle, Prepared, parse_handle
from connector.kafka.sink.hanging import end_hanging
from connector.kafka.sink.row_writer import DEFAULT_QUEUE_ROWS, RowWriter
from connector.kafka.sink.transaction import (
    DEFAULT_MESSAGE_SECONDS,
    WARM_UP_SECONDS,
    KafkaTransaction,
    begin,
    begin_at_least_once,
    connect,
    is_free,
    make_producer,
    prepare,
    roll_back,
    timeout_of,
)
from connector.kafka.sink.transactional_ids import BUSY, MAX_PREPARED, ids_under, run_id
from connector.kafka.sink.write_options import LONGEST_TIMEOUT_MS, WRITE_OPTIONS, parse_write_options
from transactional.capabilities import (
    Examines,
    Expires,
    GuardsRuns,
    KeepsEvidence,
    MarksCheckpoints,
    NamesDatasets,
    ReportsOutput,
    ShowsLater,
    WarmsUp,
    WritesTopics,
)
from transactional.clock import Deadline, SystemClock
from transactional.errors import FencedError, LocationError, OptionError, ProtocolError, PutBackError, StoreError
from transactional.finding import Finding, good, unknown
from transactional.history import History
from transactional.sink import Cutoff, HandleState, Options, RunMark, TransactionContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa

    from connector.kafka.client.admin import Description, KafkaAdmin
    from connector.kafka.client.config import ClientConfig
    from transactional.checkpoint import CheckpointMark, DecidedCheckpoint

__all__ = ["KafkaHandle", "KafkaSink", "KafkaTransaction"]

MOST_NAMED: Final = 100
"""The maximum number of partitions whose offsets a checkpoint records in the journal."""

COMMITTED: Final = ("PrepareCommit", "CompleteCommit")
"""The states in which a coordinator reports a committed transaction, until its transactional id is used again."""


class KafkaSink(
    Examines,
    WarmsUp,
    GuardsRuns,
    KeepsEvidence,
    Expires,
    ShowsLater,
    ReportsOutput,
    WritesTopics,
    MarksCheckpoints,
    NamesDatasets,
    TwoPhaseCommitSink[KafkaTransaction, KafkaHandle],
):
    """Writes rows to Kafka, exactly once for `read_committed` readers. The columns are those of Spark's Kafka sink.

    Parameters
    ----------
    options : Options
        See `connector.kafka.sink.write_options`.
    schema : pyarrow.Schema
        The rows' columns: ``value`` and optionally ``key``, ``headers``, ``topic``, ``partition``.

    Raises
    ------
    OptionError
        An option is unknown, forbidden or missing, or a column is wrong. This is checked without a connection.
    """

    maxPrepared = MAX_PREPARED
    addressOptions = frozenset({"topic", "kafka.bootstrap.servers"})

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._settings = replace(parse_write_options(options), by_objects="headers" in schema.names)
        queue = self._settings.client.settings.get("queue.buffering.max.messages", str(DEFAULT_QUEUE_ROWS))
        self._writer = RowWriter(
            schema, self._settings.topic, int(queue), self._settings.queue_bytes, self._check_named_topic
        )
        self._clock = SystemClock()
        self._admin: KafkaAdmin | None = None
        self._kept_ender: TransactionEnder | None = None
        self._warm: KafkaTransaction | None = None
        self._late = 0  # unanswered initializations by earlier runs: each may still arrive

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "2pc-kafka"

    @property
    def client(self) -> ClientConfig:
        """The configuration of the sink's Kafka clients."""
        return self._settings.client

    @property
    def topic(self) -> str | None:
        """The topic of all rows; None if a column names each row's topic."""
        return self._settings.topic

    @property
    def exactly_once(self) -> bool:
        """True if rows are written in transactions; False if the option ``deliveryGuarantee`` is ``at-least-once``."""
        return self._settings.exactly_once

    @property
    def timeout_ms(self) -> int | None:
        """The transactions' timeout in milliseconds; None if the user has not set it."""
        return self._settings.timeout_ms

    def close(self) -> None:
        """Release the connections that do not belong to a transaction, and a warmed-up producer that was not used."""
        self._drop(self._warm)
        self._warm = None
        if self._admin is not None:
            give_back(self._admin)
            self._admin = self._kept_ender = None

    # -- executor ---------------------------------------------------------------------------------------------------

    def warmUp(self, context: TransactionContext) -> None:
        """Choose a transactional id, and connect a producer. This changes nothing on the brokers."""
        if self._settings.exactly_once:
            self._warm = connect(self._settings, self._connect(), context, WARM_UP_SECONDS)

    def beginTransaction(self, context: TransactionContext) -> KafkaTransaction:
        """Open a transaction with an unused transactional id for the task's partition."""
        if not self._settings.exactly_once:
            return begin_at_least_once(self._settings)
        transaction, self._warm = self._warm, None
        if transaction is None or not is_free(transaction):
            self._drop(transaction)
            transaction = connect(self._settings, self._connect(), context)
        return begin(self._settings, transaction)

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        """Queue a batch's rows in the transaction's producer. The rows may be delivered later."""
        self._writer.write(_producer_of(transaction), batch, transaction.deliveries)
        transaction.rows += batch.num_rows

    def _check_named_topic(self, topic: str) -> None:
        """Raise an error if a topic that a row names does not exist, unless the option ``createTopics`` is true.

        Without this check, brokers might create a topic for a misspelled name.
        """
        if not self._settings.creates_topics and topic not in self._driver_admin().topics([topic], ()):
            raise StoreError("UNKNOWN_TOPIC", option="topic", topic=topic)

    def preCommit(self, transaction: KafkaTransaction) -> KafkaHandle | None:
        """Wait until every row is delivered, drop the producer, and return a handle, with which any process can commit."""
        return prepare(transaction, _producer_of(transaction), self._clock)

    def rollback(self, transaction: KafkaTransaction) -> None:
        """Try for a few seconds to abort the transaction. If this fails, the next sweep aborts it."""
        roll_back(transaction)

    # -- driver -----------------------------------------------------------------------------------------------------

    @classmethod
    def ofOptions(cls, options: Options) -> KafkaSink:
        """Create a sink from options alone, with a schema that fits the options."""
        import pyarrow as pa

        columns = [("key", pa.binary()), ("value", pa.binary())]
        return cls(options, pa.schema(columns if "topic" in options else [*columns, ("topic", pa.string())]))

    def checkStart(self, prefix: str | None) -> None:
        """Check brokers, topic, timeout and rights, including the right to initialize the id ``<prefix>.run``."""
        self.identify()
        if prefix is not None and self._settings.exactly_once:
            self._driver_admin().check_write(run_id(prefix))

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterator[Finding]:
        """Check the brokers' transaction protocol and the transaction timeout, the prefix, and the topic's settings.

        No other query may use the prefix. The topic's settings are replication, unclean elections and message size.
        """
        admin = self._driver_admin()
        yield good("brokers", self.client.bootstrap_servers)
        if prefix is None:
            way = "Set transactionalIdPrefix: the default, the query id, is not known before the first start."
            yield unknown("rights", "The right to write under the transactional ids was not checked.", way)
        else:
            yield good("rights", "the sink has all rights that it needs")
        yield from check_release(admin)
        if self._settings.exactly_once:
            yield check_timeout(admin, self._settings.timeout_ms, intervalMs)
            yield check_prefix(admin, prefix, own)
        if self._settings.topic is None:
            yield unknown("topic", "A column names the topics of the rows, so no topic was checked.")
        else:
            yield good("topic", self._settings.topic)
            yield from check_topic(admin, self._settings.topic)

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the topics of the partitions in `output`, as pairs of an OpenLineage namespace and a topic name."""
        if "kafka.bootstrap.servers" not in options:
            return []
        namespace = lineage_namespace(options["kafka.bootstrap.servers"])
        topics = output.get("topics", ()) if "partitions" in output else {each.rpartition("-")[0] for each in output}
        return {(namespace, topic) for topic in topics}

    def identify(self) -> Mapping[str, str]:
        """Check brokers, topic, timeout and rights. Return the cluster's id, and the topic's name and id."""
        client = self._settings.client
        client.warn_of_ignored()
        # Check with librdkafka first: it gives the reason of a failure, and the tasks will write with it.
        check_brokers(client)
        admin = self._driver_admin()
        if self._settings.exactly_once:
            check_protocol(admin, client.bootstrap_servers)
        identity = {"cluster": admin.cluster_id()}
        topic = self._settings.topic
        if topic is not None:
            info = admin.topics([topic]).get(topic)
            if info is None:
                raise OptionError("UNKNOWN_TOPIC", option="topic", topic=topic)
            info.check_rights(topic, "WRITE")
            if self._settings.exactly_once:
                # If a transaction's id was initialized again, only the topic itself shows how the transaction ended.
                info.check_rights(topic, "READ")
                check_topic_id(topic, info.topic_id)
            identity.update(topic=topic, topicId=info.topic_id)
        if self._settings.barrier_topic is not None:
            BarrierTopic.kept(client, self._settings.barrier_topic).ensure(admin)
        settings: dict[str, Any] = {}
        timeout_ms = int(DEFAULT_MESSAGE_SECONDS * 1000)
        if self._settings.exactly_once:
            self._check_timeout(admin)
            timeout_ms = timeout_of(self._settings.timeout_ms, admin)
            settings = {"transactional.id": run_id(self._prefix()), "transaction.timeout.ms": timeout_ms}
        # A client refuses wrong settings when it is made. This client is never initialized, so brokers don't see it.
        make_producer(self._settings, KafkaTransaction(None, timeout_ms), settings)
        return identity

    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """Check that no one initialized ``<prefix>.run`` after the newest run, and that the journal has every commit.

        A coordinator forgets an id after 7 days without use (transactional.id.expiration.ms). After that, the check
        finds nothing. Before the first run, the id is checked only if the prefix is the query's id, because any other
        prefix may have belonged to an old query.
        """
        return self._looking_twice(lambda: self._compare(history)) if self._settings.exactly_once else {}

    def _looking_twice(self, check: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """If a check fails, repeat it once after a pause, because a coordinator that was replaced may have answered."""
        try:
            return check()
        except (LocationError, FencedError):
            self._clock.sleep(SECOND_LOOK_SECONDS)
            self._driver_admin().forget_coordinators()
            return check()

    def _compare(self, history: History) -> Mapping[str, Any]:
        admin, prefix = self._driver_admin(), self._prefix()
        name = run_id(prefix)
        described = admin.describe([name, *self._ours(admin, COMMITTED)])
        run = described.pop(name, None)
        begins = history.binding and not history.position and not history.mark
        if begins and run is not None and prefix == history.queryId:
            raise PutBackError("LOCATION_PUT_BACK", evidence=f"the id {name} was initialized by a run of the query")
        marks = (history.mark, *history.late) if history.binding and history.mark else ()
        self._late = sum(mark.get("unanswered", 0) for mark in history.late)
        if marks and run is not None and not any(_is_marked(run, mark, self._late) for mark in marks):
            now = {"producerId": run.producer_id, "epoch": run.producer_epoch}
            evidence = f"the id {name} was initialized after the newest run (then: {dict(marks[0])}, now: {now})"
            raise PutBackError("LOCATION_PUT_BACK", evidence=evidence)
        newest = max(described, key=lambda candidate: described[candidate].started_ms, default="")
        began = described[newest].started_ms if newest else 0
        seen = (history.seen or {}).get("committed") if history.binding else None
        if seen is not None and began > max(seen, history.stamp, _began(history.handles)):
            evidence = (
                f"the transactional id {newest} committed a transaction that began at {_time(began)}, after every recorded "
                "transaction"
            )
            raise PutBackError("LOCATION_PUT_BACK", evidence=evidence)
        return {"committed": began}

    def stamp(self, handles: Sequence[KafkaHandle]) -> int:
        """Return when the newest of the transactions began, by its coordinator's clock, in milliseconds since 1970."""
        return _began(handles)

    def guardRun(self, mark: RunMark | None) -> RunMark:
        """Initialize the transactional id ``<prefix>.run``, which fences older runs. Return the new run's mark.

        The mark contains the id's producer id and epoch; it is empty with at-least-once. If `mark` is given, only check that no
        other program has initialized the id since then.
        """
        if not self._settings.exactly_once:
            return {}
        admin, name = self._driver_admin(), run_id(self._prefix())
        if mark:
            return self._looking_twice(partial(self._guarded, mark))
        made = admin.init_producer_id(name, timeout_of(self._settings.timeout_ms, admin))
        admin.describe([name])  # raises if this user lacks the right: lists would omit the query's transactions
        mark = {"producerId": made.producer_id, "epoch": made.producer_epoch}
        late = {"unanswered": made.unanswered, "late": made.unanswered + self._late}
        return {**mark, **late} if late["late"] else mark

    def _guarded(self, mark: RunMark) -> RunMark:
        admin, name = self._driver_admin(), run_id(self._prefix())
        description = admin.describe([name]).get(name)
        # If the id is not known, it was forgotten after 7 days without a run (transactional.id.expiration.ms), and no one
        # took it. Don't initialize it again: a process that only knows this mark would mistake that for another query.
        if description is None or _is_marked(description, mark, mark.get("late", 0)):
            return mark
        raise FencedError(
            "PREFIX_TAKEN",
            prefix=self._prefix(),
            reason=f"{name} was at epoch {mark['epoch']}, but is now at epoch {description.producer_epoch}",
        )

    def lifetime(self) -> float | None:
        """Return the transaction timeout, in seconds; None if transactions never expire, or with at-least-once."""
        if not self._settings.exactly_once:
            return None
        timeout = timeout_of(self._settings.timeout_ms, self._driver_admin())
        return None if timeout == LONGEST_TIMEOUT_MS else timeout / 1000

    def targets(self, handles: Sequence[KafkaHandle]) -> Collection[str]:
        """Return the ids of the topics that the transactions wrote to, in base64 as in the source's offsets."""
        return {short_id(part.topic_id) for handle in handles for part in parse_handle(handle).written}

    def output(self, handles: Sequence[KafkaHandle], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Return, for each partition, an offset that is after all rows of the checkpoint.

        If the checkpoint has rows in more than 100 partitions, return the number of partitions, and the topics.
        """
        ends = _ends_of(handles)
        if len(ends) <= MOST_NAMED:
            return {name: ends[partition] for name, partition in sorted((str(each), each) for each in ends)}
        return {"partitions": len(ends), "topics": sorted({each.topic for each in ends})}

    def commit(self, handles: Sequence[KafkaHandle], checkpoint: DecidedCheckpoint) -> None:
        """Commit all transactions that are not committed yet."""
        lost = self._ender().commit(_parsed(handles), self._commit_deadline()) if handles else []
        if lost:
            raise transactions_lost(
                lost, "they were aborted by their timeout, by another user of their ids, or by another program's marker"
            )

    def ensureVisible(
        self, handles: Sequence[KafkaHandle], checkpoint: DecidedCheckpoint
    ) -> Sequence[Mapping[str, Any]]:
        """Wait until each written partition shows the rows to readers. Write markers that a coordinator has left out."""
        return self._ender().ensure_readable(_parsed(handles), self._commit_deadline()) if handles else ()

    @property
    def publishesMarks(self) -> bool:
        """True if the option ``barrierTopic`` is set."""
        return self._settings.barrier_topic is not None

    def publishMark(self, mark: CheckpointMark, handles: Sequence[KafkaHandle], confirm: Callable[[], None]) -> None:
        """Write the checkpoint's mark to the barrier topic."""
        topic, barrier_topic = self._settings.topic, self._settings.barrier_topic
        if topic is not None and barrier_topic is not None:
            marks = BarrierTopic.kept(self._settings.client, barrier_topic)
            marks.publish(mark, topic, _ends_of(handles), self._driver_admin(), confirm, self._commit_deadline())

    def abort(self, handles: Sequence[KafkaHandle]) -> Sequence[KafkaHandle]:
        """Abort and fence the transactions of these handles. Return the handles of those that were already committed."""
        if not handles:
            return []
        return [prepared.handle for prepared in self._ender().abort(_parsed(handles), self._commit_deadline())]

    def inspect(self, handles: Sequence[KafkaHandle]) -> Sequence[HandleState]:
        """Return the transactions' states, according to their coordinators and to the leaders of their partitions."""
        return self._ender().look(_parsed(handles)) if handles else []

    def sweep(self, known: Sequence[KafkaHandle], before: Cutoff) -> int:
        """Abort this prefix's open transactions, except those in `known`, and end hanging ones. Return how many ended."""
        admin = self._driver_admin()
        ours = self._ours(admin, sorted(BUSY))
        excepted = {(h["transactionalId"], h["producerId"], h["producerEpoch"]) for h in known}
        lingering = {
            name: description
            for name, description in admin.describe(ours).items()
            if description.state == "Ongoing"
            and (name, description.producer_id, description.producer_epoch) not in excepted
        }
        ended = 0
        if lingering:
            ended = self._ender().abort_open(lingering, admin.end_txn_version(), self._commit_deadline())
        if self._settings.exactly_once and self._settings.topic is not None:
            over = not lingering and {*ours} <= {name for name, _, _ in excepted}
            ended += end_hanging(admin, self._ender().partitions, self._settings.topic, self._prefix(), excepted, over)
        return ended

    def _ours(self, admin: KafkaAdmin, states: Sequence[str]) -> list[str]:
        """Return the transactional ids that have exactly this sink's prefix and are in one of these states."""
        return ids_under(self._prefix(), admin.transactional_ids(states))

    # -- shared -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _drop(transaction: KafkaTransaction | None) -> None:
        if transaction is not None:
            transaction.drop()

    def _connect(self) -> KafkaAdmin:
        return borrow_admin(self._settings.client, self._clock)

    def _driver_admin(self) -> KafkaAdmin:
        if self._admin is None:
            self._admin = self._connect()
        return self._admin

    def _ender(self) -> TransactionEnder:
        if self._kept_ender is None:  # to commit a checkpoint takes one call for each of its micro-batches
            admin = self._driver_admin()
            self._kept_ender = TransactionEnder(admin, admin.cluster_id())
        return self._kept_ender

    def _commit_deadline(self) -> Deadline:
        return Deadline(self._settings.commit_seconds, self._clock)

    def _prefix(self) -> str:
        if self._settings.prefix is None:
            raise ProtocolError("PROTOCOL_VIOLATED", reason="the host has not filled in transactionalIdPrefix")
        return self._settings.prefix

    def _check_timeout(self, admin: KafkaAdmin) -> None:
        asked, allowed = self._settings.timeout_ms, admin.longest_timeout_ms()
        if asked is not None and allowed is not None and asked > allowed:
            raise WRITE_OPTIONS.invalid(
                "kafka.transaction.timeout.ms",
                str(asked),
                f"at most {allowed}, the brokers' transaction.max.timeout.ms",
            )


def _producer_of(transaction: KafkaTransaction) -> Any:
    if transaction.producer is None:
        raise ProtocolError("PROTOCOL_VIOLATED", reason=f"{transaction.name} was already prepared or rolled back")
    return transaction.producer


def _ends_of(handles: Sequence[KafkaHandle]) -> dict[Partition, int]:
    """Return, for each partition, an offset that is after all rows of the transactions."""
    ends: dict[Partition, int] = {}
    for part in (part for handle in handles for part in parse_handle(handle).written):
        ends[part.partition] = max(part.offset, ends.get(part.partition, 0))
    return ends


def _is_marked(run: Description, mark: RunMark, late: int) -> bool:
    """Return whether the transactional id ``<prefix>.run`` still has the producer id and epoch in `mark`.

    The epoch may be up to `late` higher, because delayed requests of the query itself may have raised it.
    """
    return bool(run.producer_id == mark["producerId"] and 0 <= run.producer_epoch - mark["epoch"] <= late)


def _began(handles: Sequence[Mapping[str, Any]]) -> int:
    return max((handle.get("startedAt", handle["preparedAt"]) for handle in handles), default=0)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")


def _parsed(handles: Sequence[KafkaHandle]) -> list[Prepared]:
    return [parse_handle(handle) for handle in handles]
