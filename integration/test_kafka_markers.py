"""What the coordinator of a transaction does not know: markers from outside, markers left out, rows that were cut off.

EndTxn answers NONE in all of these cases. What is settled has to be readable, whole; what is gone is written again or named.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topics import UNKNOWN_EPOCH, Partition
from connector.kafka.sink.handles import KafkaHandle, parse_handle
from connector.kafka.sink.kafka_sink import KafkaSink
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine import SCHEMA
from integration.engine_query import KafkaQuery
from integration.releases import RELEASES, on_broker
from integration.test_kafka_crashes import ABORT_SCAN, MakeQuery, accept_loss, make_query
from integration.topic_output import TopicOutput
from transactional.checkpoint import DecidedCheckpoint
from transactional.entry import EntryKind
from transactional.errors import AmbiguousOutcomeError, RetriableError, TransactionLostError
from transactional.sink import Cutoff, Options, Outcome, TransactionContext

__all__ = ["make_query"]

NO_VERIFICATION = {"transaction.partition.verification.enable": "false"}
"""A partition then takes rows of a transaction that its coordinator does not know to be in the partition: the coordinator
writes no marker there, as KAFKA-20734 makes it."""

CHECKPOINT = DecidedCheckpoint(1, (0,), 0, "query", "prefix")
OVER = Cutoff("query", 9, 0)


@pytest.fixture(scope="module")
def lenient() -> Iterator[Cluster]:
    """A cluster that tests kill, and whose partitions take what no coordinator knows of."""
    with Cluster(properties={**ABORT_SCAN, **NO_VERIFICATION}) as cluster:
        yield cluster


@pytest.fixture
def admin(lenient: Cluster) -> Iterator[KafkaAdmin]:
    made = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": lenient.bootstrap_servers}))
    yield made
    made.close()


def abort_from_outside(servers: str, place: Partition, most: int = 1) -> int:
    """What ``kafka-transactions.sh abort --topic --partition --start-offset`` does to the first transactions open there."""
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": servers}))
    try:
        partitions = PartitionAdmin(admin)
        opened = sorted(partitions.open_transactions([place])[place].items(), key=lambda each: each[1].start)
        for producer_id, found in opened[:most]:
            # Version 4: the tool knows nothing of EndTxn 5, and writes the marker at the transaction's own epoch.
            assert partitions.write_marker(place, producer_id, found, found.epoch, False, 4) == 0
        return len(opened[:most])
    finally:
        admin.close()


# -- an abort by a marker from outside -------------------------------------------------------------------------------------


def test_a_part_that_is_aborted_from_outside_before_the_decision_stops_the_micro_batch(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)
    place = Partition(query.output.topic, 1)

    def abort(batch: int) -> None:
        if batch == 0:
            assert abort_from_outside(kafka.bootstrap_servers, place) == 1

    with pytest.raises(RetriableError, match="HANDLE_NOT_ALIVE") as stopped:
        query.engine(prepared=abort).run()
    assert f"{place[0]} [1] has its abort marker at" in str(stopped.value)
    assert EntryKind.DECIDED not in query.place.kinds()
    query.finish()


@pytest.mark.parametrize("point", ["decision.written", "commit.one"])
def test_a_part_that_is_aborted_from_outside_after_the_decision_is_written_again(
    kafka: Cluster, make_query: MakeQuery, point: str
) -> None:
    query = make_query(kafka)
    query.die(point)
    before = query.outcomes(query.known())
    assert abort_from_outside(kafka.bootstrap_servers, Partition(query.output.topic, 2)) == 1
    lost = query.outcomes(query.known())
    assert Counter(lost) - Counter(before) == Counter([Outcome.LOST])
    query.finish()
    assert {EntryKind.VOID, EntryKind.VERDICT} & set(query.place.kinds())


def while_paused(query: KafkaQuery, point: str, meanwhile: Callable[[], None]) -> None:
    """Run a driver, and do something while it stands at a point."""
    query.faults.arm(point, "pause")
    with ThreadPoolExecutor(1) as pool:
        life = pool.submit(query.engine().run)
        try:
            wait_until(lambda: query.faults.fired(point) or life.done(), point)
            meanwhile()
        finally:
            query.faults.resume(point)
        life.result()


def test_a_part_that_is_aborted_from_outside_between_look_and_commit_is_named(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    """Three of the transaction's partitions are committed, one is not: neither can be undone."""
    query = make_query(kafka)
    topic = query.output.topic
    with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN") as stopped:
        while_paused(
            query, "decision.written", lambda: check(abort_from_outside(kafka.bootstrap_servers, Partition(topic, 1)))
        )
    assert f"{topic} [1] lists the transaction's rows from offset" in str(stopped.value)
    assert query.place.ledger().unsettled()
    with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN") as again:
        query.engine().run()
    assert f"{topic} [1] lists the transaction's rows from offset" in str(again.value)
    assert "barrier resolve" in str(again.value)
    accept_loss(query, again.value)
    query.engine().run()
    writer = again.value.parameters["partition"]
    lost = [value for value in query.work.values(0, writer) if value % 4 == 1]
    assert query.output.rows() == Counter(range(query.work.expected)) - Counter(lost)
    assert query.output.is_quiet()


def check(done: int) -> None:
    """Something was done."""
    assert done


def test_a_transaction_that_is_aborted_from_outside_whole_between_look_and_commit_is_written_again(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka, partitions=1)
    with pytest.raises(TransactionLostError, match="TRANSACTION_LOST"):
        while_paused(
            query,
            "decision.written",
            lambda: check(abort_from_outside(kafka.bootstrap_servers, Partition(query.output.topic, 0))),
        )
    assert query.place.ledger().unsettled()
    query.finish()


# -- rows that were cut off ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_decided_rows_that_a_broker_lost_with_its_disk_are_written_again(
    lenient: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(lenient)
    query.die("decision.written")
    lenient.kill()
    shutil.rmtree(lenient.data / "node-1" / "log" / f"{query.output.topic}-3")
    lenient.start()
    assert query.outcomes(query.known()) == [Outcome.LOST] * 3
    query.close()  # it has read up to offsets that are no more
    query.finish()


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_decided_rows_that_an_unclean_leader_election_cut_off_are_written_again(make_query: MakeQuery) -> None:
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    with Cluster(3, properties=ABORT_SCAN) as cluster:
        query = make_query(cluster, partitions=1)
        query.close()
        cluster.delete_topic(query.output.topic)
        first, second = place_topic(cluster, query.output.topic, unclean)
        cluster.kill(second)
        query.die("decision.written")
        cluster.kill(first)
        cluster.start(second)
        cluster.start(first)
        assert query.outcomes(query.known()) == [Outcome.LOST] * 3
        query.finish()


def place_topic(cluster: Cluster, topic: str, config: Mapping[str, str]) -> tuple[int, int]:
    """Create a topic of one partition with two replicas; returns the numbers of the nodes of its leader and its follower."""
    from confluent_kafka.admin import AdminClient

    cluster.create_topic(topic, replication=2, config=config)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partition = client.list_topics(topic, timeout=30).topics[topic].partitions[0]
    follower = next(node for node in partition.replicas if node != partition.leader)
    return partition.leader - 1, follower - 1


# -- aborted rows that compaction has taken away ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_transaction_that_timed_out_in_a_compacted_topic_is_lost_also_when_its_rows_are_cleaned_away() -> None:
    """The leader then lists it among the aborted ones no more: that does not make it committed."""
    from confluent_kafka import Producer

    topic, prefix = "compacted", "q-compacted"
    quick = {"cleanup.policy": "compact", "segment.ms": "1500", "min.cleanable.dirty.ratio": "0.0001"}
    with Cluster(properties={**ABORT_SCAN, "log.cleaner.backoff.ms": "500"}) as cluster:
        cluster.create_topic(topic, config=quick)
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": topic,
            "transactionalIdPrefix": prefix,
        }
        sink = KafkaSink(Options({**options, "kafka.transaction.timeout.ms": "3000"}), SCHEMA)
        handle = prepare(sink, prefix, attempt=0, value=0)
        others = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        looker = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": cluster.bootstrap_servers}))
        part = parse_handle(handle).written[0]

        def is_listed() -> bool:
            others.produce(topic, key="other", value="row")  # so that segments are rolled, and cleaned
            others.flush()
            [end] = PartitionAdmin(looker).stable_ends([replace(part, leader_epoch=UNKNOWN_EPOCH)])
            return end.stable <= part.offset or handle["producerId"] in (end.aborted or {})

        wait_until(lambda: not is_listed(), "the log cleaner")
        looker.close()
        assert [state.outcome for state in sink.inspect([handle])] == [Outcome.LOST]
        sink.close()


# -- markers that a coordinator left out -----------------------------------------------------------------------------------


class Hanging:
    """A prepared transaction, of whose second partition the coordinator does not know."""

    def __init__(self, cluster: Cluster, admin: KafkaAdmin) -> None:
        self.topic = f"hanging-{uuid.uuid4().hex[:8]}"
        self.prefix = f"q-{self.topic}"
        cluster.create_topic(self.topic, partitions=2)
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": self.topic,
            "transactionalIdPrefix": self.prefix,
        }
        self.options = Options(options)
        self.output = TopicOutput(cluster.bootstrap_servers, self.topic, self.prefix)
        self.handle = self._prepare(admin)

    def sink(self) -> KafkaSink:
        return KafkaSink(self.options, SCHEMA)

    def _prepare(self, admin: KafkaAdmin) -> KafkaHandle:
        handle = prepare(self.sink(), self.prefix, attempt=0, value=0)
        produce_unknown(admin, handle, self.topic, partition=1, value=1)
        topics = admin.topics([self.topic])
        offset, epoch = admin.end_offsets([Partition(self.topic, 1)], topics)[Partition(self.topic, 1)]
        return {**handle, "written": {self.topic: [*handle["written"][self.topic], [1, offset, epoch]]}}


def prepare(sink: KafkaSink, prefix: str, attempt: int, value: int, partition: int = 0) -> KafkaHandle:
    """Write and prepare one row; the attempt picks the transactional id."""
    transaction = sink.beginTransaction(TransactionContext("query", 0, 0, attempt, prefix, "0" * 16))
    columns: dict[str, list[Any]] = {"key": ["key"], "value": [str(value)], "partition": [partition]}
    sink.write(transaction, pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    handle = sink.preCommit(transaction)
    sink.close()
    assert handle is not None
    return handle


def produce_unknown(admin: KafkaAdmin, handle: KafkaHandle, topic: str, partition: int, value: int) -> None:
    """Write a row of the transaction into a partition without a word to its coordinator."""
    from kafka.protocol.producer import ProduceRequest
    from kafka.record.memory_records import MemoryRecordsBuilder

    batch = MemoryRecordsBuilder(
        2,
        0,
        1 << 16,
        transactional=True,
        producer_id=handle["producerId"],
        producer_epoch=handle["producerEpoch"],
        base_sequence=0,
    )
    batch.append(timestamp=0, key=None, value=str(value).encode())
    batch.close()
    of_topic = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=handle["transactionalId"],
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            of_topic(
                name=topic,
                topic_id=uuid.UUID(handle["topics"][topic]),
                partition_data=[of_topic.PartitionProduceData(index=partition, records=bytes(batch.buffer()))],
            )
        ],
        # From 12 on the leader adds the partition to the transaction.
        max_version=11,
    )
    answer = admin.ask(lambda: request)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_marker_that_the_coordinator_left_out_is_written_before_the_checkpoint_is_settled(
    lenient: Cluster, admin: KafkaAdmin
) -> None:
    query = Hanging(lenient, admin)
    sink = query.sink()
    assert [state.outcome for state in sink.inspect([query.handle])] == [Outcome.PREPARED]
    sink.commit([query.handle], CHECKPOINT)
    wait_until(lambda: query.output.rows() == Counter([0]), "the coordinator's own marker")
    assert list(query.output.held_back()) == [1]
    repaired = sink.ensureVisible([query.handle], CHECKPOINT)
    assert [(each["partition"], each["marker"]) for each in repaired] == [(1, "commit")]
    assert "CompleteCommit" in repaired[0]["proof"]
    assert query.output.rows() == Counter([0, 1])
    assert query.output.is_quiet()
    assert sink.ensureVisible([query.handle], CHECKPOINT) == []
    sink.close()


def test_a_marker_that_was_left_out_before_the_driver_died_is_written_by_the_next(
    lenient: Cluster, admin: KafkaAdmin
) -> None:
    query = Hanging(lenient, admin)
    first = query.sink()
    first.commit([query.handle], CHECKPOINT)
    first.close()
    wait_until(lambda: not query.output.open_transactions(), "the coordinator's end")
    second = query.sink()
    assert [state.outcome for state in second.inspect([query.handle])] == [Outcome.COMMITTED]
    second.commit([query.handle], CHECKPOINT)
    assert len(second.ensureVisible([query.handle], CHECKPOINT)) == 1
    second.close()
    assert query.output.rows() == Counter([0, 1])
    assert query.output.is_quiet()


def test_an_abort_that_hangs_is_ended_before_its_transactional_id_is_used_again(
    lenient: Cluster, admin: KafkaAdmin
) -> None:
    """Or the next commit of the same id would make the aborted row readable: the control shows it."""
    swept, control = Hanging(lenient, admin), Hanging(lenient, admin)
    for query in (swept, control):
        sink = query.sink()
        assert sink.abort([query.handle]) == []
        assert list(query.output.held_back()) == [1]
        if query is swept:
            assert sink.sweep([], OVER) == 1
            assert query.output.is_quiet()
            assert sink.sweep([], OVER) == 0
        sink.close()
        again = prepare(query.sink(), query.prefix, attempt=64, value=2, partition=1)
        assert again["transactionalId"] == query.handle["transactionalId"]
        sink = query.sink()
        sink.commit([again], CHECKPOINT)
        sink.ensureVisible([again], CHECKPOINT)
        sink.close()
    assert swept.output.rows() == Counter([2])
    assert control.output.rows() == Counter([1, 2])


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "version", ["4.2.1", *(pytest.param(version, marks=on_broker(version)) for version in ("4.3.1", "4.4.0"))]
)
def test_every_row_can_be_read_after_a_partition_had_no_leader_at_the_commit(
    make_query: MakeQuery, version: str
) -> None:
    """Brokers 4.3.0, 4.3.1 and 4.4.0 leave the marker out (KAFKA-20734), 4.2.1 writes it when the leader is back."""
    with Cluster(3, version=version) as cluster:
        query = make_query(cluster, partitions=3)  # one replica each, a leader on every node
        query.close()

        def commit_without_a_leader() -> None:
            query.faults.arm("commit.done", "pause")
            cluster.kill(2)
            query.faults.resume("decision.written")
            wait_until(lambda: query.faults.fired("commit.done"), "the commit", 60)
            cluster.start(2)
            query.faults.resume("commit.done")

        while_paused(query, "decision.written", commit_without_a_leader)
        query.check()
        query.check_nothing_lost()
        settled = [entry.body for entry in query.place.entries() if entry.kind == EntryKind.SETTLED]
        assert ("repaired" in settled[0]) is (version != "4.2.1")


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("version", "features"), RELEASES)
def test_other_brokers_keep_the_promise(make_query: MakeQuery, version: str, features: Mapping[str, int]) -> None:
    with Cluster(version=version, features=features, properties={**ABORT_SCAN, **NO_VERIFICATION}) as cluster:
        query = make_query(cluster)
        query.die("commit.one")
        query.finish()
        query.check_nothing_lost()
        query = make_query(cluster)
        query.die("decision.written")
        assert abort_from_outside(cluster.bootstrap_servers, Partition(query.output.topic, 2)) == 1
        assert Counter(query.outcomes(query.known())) == Counter({Outcome.LOST: 1, Outcome.PREPARED: 2})
        query.finish()
        admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": cluster.bootstrap_servers}))
        try:
            hanging = Hanging(cluster, admin)
        finally:
            admin.close()
        sink = hanging.sink()
        sink.commit([hanging.handle], CHECKPOINT)
        assert len(sink.ensureVisible([hanging.handle], CHECKPOINT)) == 1
        sink.close()
        assert hanging.output.rows() == Counter([0, 1])
        assert hanging.output.is_quiet()
