"""`KafkaSink` against a real broker, without Spark: prepared transactions, their ends, and who may judge them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
)

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import CONCURRENT_TRANSACTIONS
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import error_name
from connector.kafka.sink.kafka_sink import KafkaHandle, KafkaSink, KafkaTransaction
from integration.broker import Cluster
from integration.proxy import END_TXN
from integration.topic_output import nothing_is_ending
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import (
    AmbiguousOutcomeError,
    RetriableError,
    StoreError,
    TransactionLostError,
)
from transactional.sink import Cutoff, HandleState, Options, Outcome, TransactionContext

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
CHECKPOINT = cast("DecidedCheckpoint", None)
OVER = Cutoff("query", 9, 0)
"""The Kafka sink commits handles, whatever checkpoint they are of."""

DEADLINE_SECONDS = 120.0
ATTEMPTS = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(kafka: Cluster, topic_name: str) -> str:
    kafka.create_topic(topic_name, partitions=2)
    return topic_name


@pytest.fixture
def sink(kafka: Cluster, topic: str, prefix: str) -> Iterator[KafkaSink]:
    made = make_sink(kafka.bootstrap_servers, topic, prefix)
    yield made
    made.sweep([], OVER)
    made.close()


@pytest.fixture(scope="module")
def proxied() -> Iterator[Cluster]:
    with Cluster(proxy=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def older() -> Iterator[Cluster]:
    """A cluster of before KIP-890, that forgets ids quickly."""
    properties = {
        "transactional.id.expiration.ms": "3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "auto.create.topics.enable": "true",  # Kafka's own default
    }
    with Cluster(features={"transaction.version": 1}, properties=properties) as cluster:
        yield cluster


def make_sink(servers: str, topic: str | None, prefix: str, schema: pa.Schema = SCHEMA, **options: str) -> KafkaSink:
    named = {key.replace("_", "."): value for key, value in options.items()}
    given = {"kafka.bootstrap.servers": servers, "transactionalIdPrefix": prefix, **named}
    return KafkaSink(Options({**given, **({"topic": topic} if topic else {})}), schema)


def begin(
    sink: KafkaSink, partition: int = 0, prefix: str | None = None, attempt: int | None = None
) -> KafkaTransaction:
    number = next(ATTEMPTS) if attempt is None else attempt
    name = prefix or sink.options["transactionalIdPrefix"]
    return sink.beginTransaction(TransactionContext("query", 0, partition, number, name, "nonce"))


def batch_of(values: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [f"key-{v}" for v in values], "value": list(values)}, schema=SCHEMA)


def prepare(sink: KafkaSink, *values: str, partition: int = 0, prefix: str | None = None) -> KafkaHandle:
    transaction = begin(sink, partition, prefix)
    sink.write(transaction, batch_of(values))
    handle = sink.preCommit(transaction)
    assert handle is not None
    return cast("KafkaHandle", json.loads(json.dumps(handle)))


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """Read all rows that stand before the end that this isolation level shows."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "isolation.level": isolation})
    rows: list[str] = []
    for partition in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
        place = TopicPartition(topic, partition)
        end = consumer.get_watermark_offsets(place, timeout=10, cached=False)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            for message in consumer.consume(1000, 0.05):
                assert message.error() is None
                rows.append((message.value() or b"").decode())
            at = consumer.position([place])[0].offset
            if at >= end or end == 0:
                break
            assert time.monotonic() < deadline, f"{topic} [{partition}] at {at} of {end}"
    consumer.close()
    return sorted(rows)


def await_rows(servers: str, topic: str, *expected: str) -> None:
    """Wait until these rows are visible; when no transaction is ending any more, they are still all."""
    wait_until(lambda: read(servers, topic) == sorted(expected), lambda: f"{read(servers, topic)}")
    wait_until(lambda: nothing_is_ending(servers), lambda: "transactions are still ending")
    assert read(servers, topic) == sorted(expected)


def wait_until(holds: Callable[[], bool], shown: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.02)


def state(sink: KafkaSink, handle: KafkaHandle) -> HandleState:
    return sink.inspect([handle])[0]


def admin_of(sink: KafkaSink) -> KafkaAdmin:
    return sink._driver_admin()


def end(sink: KafkaSink, handle: KafkaHandle, commit: bool, version: int) -> str:
    """Send one raw EndTxn, again only while markers are being written; returns the answer's name."""
    from kafka.protocol.producer.transaction import EndTxnRequest

    admin, name = admin_of(sink), handle["transactionalId"]
    while True:
        request = EndTxnRequest(
            version=version,
            transactional_id=name,
            producer_id=handle["producerId"],
            producer_epoch=handle["producerEpoch"],
            committed=commit,
        )
        code = admin.send_all([(admin.coordinators([name])[name], request)])[0].error_code
        if code != CONCURRENT_TRANSACTIONS:
            wait_until(lambda: not described(sink, handle).startswith("Prepare"))
            return error_name(code).split()[0]


def described(sink: KafkaSink, handle: KafkaHandle) -> str:
    found = admin_of(sink).describe([handle["transactionalId"]]).get(handle["transactionalId"])
    return "" if found is None else found.state


def threads_and_sockets() -> tuple[int, int]:
    sockets = sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())
    return len(os.listdir("/proc/self/task")), sockets


def test_an_attempt_that_was_fenced_before_its_first_row_ends_no_other_attempts_transaction(
    kafka: Cluster, topic: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fenced between its init and its question for its epoch: the answer is the other's."""
    with (
        closing(make_sink(kafka.bootstrap_servers, topic, prefix)) as first,
        closing(make_sink(kafka.bootstrap_servers, topic, prefix)) as second,
    ):
        contexts = [TransactionContext("query", 1, 0, attempt, prefix, f"{attempt}", 1) for attempt in (0, 64)]
        # Otherwise it depends on the machine's speed whether the first question is for the epoch already.
        monkeypatch.setattr("connector.kafka.sink.transaction.FRESH_SECONDS", 0.0)
        for sink, context in zip((first, second), contexts, strict=True):
            sink.warmUp(context)
        admin = first._warm.admin  # type: ignore[union-attr]
        assert admin is not None
        handles: list[KafkaHandle] = []
        ask, asked = admin.describe, []

        def describe(names: Sequence[str]) -> Any:
            asked.append(names)
            if len(asked) == 2:
                other = second.beginTransaction(contexts[1])
                second.write(other, batch_of(["b"]))
                handle = second.preCommit(other)
                assert handle is not None
                assert handle["transactionalId"] == names[0]
                handles.append(handle)
            return ask(names)

        monkeypatch.setattr(admin, "describe", describe)
        transaction = first.beginTransaction(contexts[0])
        first.write(transaction, batch_of(["a"]))
        with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
            first.preCommit(transaction)
        first.rollback(transaction)
        assert [state.outcome for state in second.inspect(handles)] == [Outcome.PREPARED]
        second.abort(handles)


# -- prepare, commit, abort -----------------------------------------------------------------------------------------


def test_closing_a_producer_aborts_its_transaction_and_dropping_it_does_not(kafka: Cluster, topic: str) -> None:
    """Guards FACTS: the sink must never call `Producer.close()`."""
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": kafka.bootstrap_servers}))
    names = {"closed": f"{topic}.closed", "dropped": f"{topic}.dropped"}
    for way, name in names.items():
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(DEADLINE_SECONDS)
        producer.begin_transaction()
        producer.produce(topic, b"row")
        assert producer.flush(DEADLINE_SECONDS) == 0
        if way == "closed":
            producer.close()
        del producer
    wait_until(lambda: admin.describe([names["closed"]])[names["closed"]].state == "CompleteAbort")
    assert admin.describe([names["dropped"]])[names["dropped"]].state == "Ongoing"
    admin.init_producer_id(names["dropped"], 60_000)
    admin.close()


def test_nothing_is_left_in_a_worker_after_prepare(kafka: Cluster, sink: KafkaSink, topic: str, prefix: str) -> None:
    program = (  # a process of its own: in this one, clients of other tests come and go
        "import json, sys\n"
        "from integration.test_kafka_sink import make_sink, prepare, threads_and_sockets, wait_until\n"
        "worker = make_sink(*sys.argv[1:])\n"
        "prepare(worker, 'warm-up')\n"
        "before = threads_and_sockets()\n"
        "handles = [prepare(worker, str(number), partition=number) for number in range(5)]\n"
        "left = lambda: [now > then for now, then in zip(threads_and_sockets(), before)]\n"
        "wait_until(lambda: not any(left()), lambda: f'{threads_and_sockets()} is more than {before}')\n"
        "print(json.dumps(handles), flush=True)\n"
    )
    command = [sys.executable, "-c", program, kafka.bootstrap_servers, topic, prefix]
    worker = subprocess.run(command, capture_output=True, text=True, check=False)
    assert worker.returncode == 0, worker.stderr
    handles: list[KafkaHandle] = json.loads(worker.stdout)
    assert [found.outcome for found in sink.inspect(handles)] == [Outcome.PREPARED] * 5
    assert sink.sweep([], OVER) == 6


def test_commit_twice_and_from_another_process_shows_the_rows_once(
    kafka: Cluster, sink: KafkaSink, topic: str, prefix: str
) -> None:
    handles = [prepare(sink, str(number), partition=number) for number in range(30)]
    other = make_sink(kafka.bootstrap_servers, topic, prefix)
    sink.commit(handles, CHECKPOINT)
    other.commit(handles, CHECKPOINT)
    other.close()
    await_rows(kafka.bootstrap_servers, topic, *(str(number) for number in range(30)))
    assert {found.outcome for found in sink.inspect(handles)} == {Outcome.COMMITTED}


@pytest.mark.parametrize("version", [5, 4])
def test_commit_and_abort_raced_end_in_exactly_one(
    kafka: Cluster, sink: KafkaSink, topic: str, prefix: str, version: int
) -> None:
    other = make_sink(kafka.bootstrap_servers, topic, prefix)
    expected: list[str] = []
    for number in range(8):
        handle = prepare(sink, str(number))
        handle["endTxnVersion"] = version
        with ThreadPoolExecutor(2) as pool:
            aborted = pool.submit(other.abort, [handle])
            committed = pool.submit(sink.commit, [handle], CHECKPOINT)
            found_committed = bool(aborted.result())
            assert (committed.exception() is None) is found_committed
        if found_committed:
            expected.append(str(number))
    other.close()
    await_rows(kafka.bootstrap_servers, topic, *expected)


def test_an_abort_fences_the_zombie_that_still_writes(kafka: Cluster, sink: KafkaSink, topic: str) -> None:
    zombie = begin(sink)
    sink.write(zombie, batch_of(["first half"]))
    assert zombie.producer is not None
    assert zombie.producer.flush(DEADLINE_SECONDS) == 0
    assert sink.sweep([], OVER) == 1
    sink.write(zombie, batch_of(["second half"]))
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
        sink.preCommit(zombie)
    sink.rollback(zombie)
    assert sink.sweep([], OVER) == 0
    assert read(kafka.bootstrap_servers, topic) == []


def test_a_late_commit_of_an_old_handle_changes_nothing(kafka: Cluster, sink: KafkaSink, topic: str) -> None:
    transaction = begin(sink, attempt=7)
    sink.write(transaction, batch_of(["old"]))
    old = sink.preCommit(transaction)
    assert old is not None
    sink.abort([old])
    again = begin(sink, attempt=7)
    sink.write(again, batch_of(["new"]))
    new = sink.preCommit(again)
    assert new is not None
    assert new["transactionalId"] == old["transactionalId"]
    with pytest.raises(TransactionLostError):
        sink.commit([old], CHECKPOINT)
    assert state(sink, new).ready
    assert sink.abort([old]) == []
    assert state(sink, new).ready
    sink.commit([new], CHECKPOINT)
    await_rows(kafka.bootstrap_servers, topic, "new")


def test_a_task_takes_the_next_id_while_its_own_is_taken(sink: KafkaSink, prefix: str) -> None:
    transactions = [begin(sink, attempt=63) for _ in range(2)]
    for transaction in transactions:
        sink.write(transaction, batch_of(["row"]))
    # An id that was only initialised is free: the second took it over, and the first finds out.
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
        sink.preCommit(transactions[0])
    assert sink.preCommit(transactions[1]) is not None
    sink.rollback(transactions[0])
    third = begin(sink, attempt=63)
    assert third.name not in {transaction.name for transaction in transactions}
    sink.rollback(third)


# -- outcomes -------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[bool, int]] = {
    "commit-5": (True, 5),
    "commit-4": (True, 4),
    "abort-5": (False, 5),
    "abort-4": (False, 4),
}

OUTCOMES = {
    ("commit-5", "commit-5"): "NO_ERROR",
    ("commit-5", "commit-4"): "PRODUCER_FENCED",
    ("commit-5", "abort-5"): "INVALID_TXN_STATE",
    ("commit-4", "commit-5"): "INVALID_TXN_STATE",
    ("commit-4", "commit-4"): "NO_ERROR",
    # An abort that was taken does not prove that nothing was committed.
    ("commit-4", "abort-5"): "NO_ERROR",
    ("abort-5", "commit-5"): "INVALID_TXN_STATE",
    ("abort-5", "commit-4"): "PRODUCER_FENCED",
    ("abort-5", "abort-5"): "NO_ERROR",
    ("abort-4", "commit-5"): "INVALID_TXN_STATE",
    ("abort-4", "commit-4"): "INVALID_TXN_STATE",
    ("init", "commit-5"): "PRODUCER_FENCED",
    ("init", "commit-4"): "PRODUCER_FENCED",
    ("init", "abort-5"): "PRODUCER_FENCED",
}
"""What an EndTxn is answered after the transaction ended in the first way: FACTS' table, row by row."""


@pytest.mark.parametrize(("first", "then"), OUTCOMES, ids=["-then-".join(row) for row in OUTCOMES])
def test_the_outcome_table_is_true(kafka: Cluster, sink: KafkaSink, topic: str, first: str, then: str) -> None:
    handle = prepare(sink, "row")
    if first == "init":
        admin_of(sink).init_producer_id(handle["transactionalId"], 60_000)
    else:
        assert end(sink, handle, *ENDS[first]) == "NO_ERROR"
    assert end(sink, handle, *ENDS[then]) == OUTCOMES[first, then]
    committed = first.startswith("commit")
    assert state(sink, handle).outcome is (Outcome.COMMITTED if committed else Outcome.LOST)
    for version in (5, 4):
        handle["endTxnVersion"] = version
        assert bool(sink.abort([handle])) is committed
        if committed:
            sink.commit([handle], CHECKPOINT)
        else:
            with pytest.raises(TransactionLostError):
                sink.commit([handle], CHECKPOINT)
    await_rows(kafka.bootstrap_servers, topic, *(["row"] if committed else []))


def test_an_expired_transaction_is_lost(kafka: Cluster, topic: str, prefix: str) -> None:
    sink = make_sink(kafka.bootstrap_servers, topic, prefix, kafka_transaction_timeout_ms="4000")
    handle = prepare(sink, "late")
    found = state(sink, handle)
    assert found.outcome is Outcome.PREPARED
    assert found.margin == 1.0
    wait_until(lambda: state(sink, handle).outcome is Outcome.LOST)
    with pytest.raises(TransactionLostError):
        sink.commit([handle], CHECKPOINT)
    assert sink.abort([handle]) == []
    sink.close()


@pytest.mark.parametrize("committed", [True, False])
def test_the_log_judges_when_a_stranger_has_taken_the_id(
    kafka: Cluster, sink: KafkaSink, topic: str, committed: bool
) -> None:
    handle = prepare(sink, "row")
    if committed:
        sink.commit([handle], CHECKPOINT)
    stranger = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": handle["transactionalId"]})
    stranger.init_transactions(DEADLINE_SECONDS)
    stranger.begin_transaction()
    stranger.produce(topic, b"strange")
    if committed:
        stranger.abort_transaction(DEADLINE_SECONDS)
    else:
        stranger.commit_transaction(DEADLINE_SECONDS)
    found = state(sink, handle)
    assert found.outcome is (Outcome.COMMITTED if committed else Outcome.LOST)
    assert topic in found.evidence
    if committed:
        sink.commit([handle], CHECKPOINT)
        await_rows(kafka.bootstrap_servers, topic, "row")
    else:
        with pytest.raises(TransactionLostError):
            sink.commit([handle], CHECKPOINT)
        await_rows(kafka.bootstrap_servers, topic, "strange")


def test_a_topic_that_was_created_again_makes_the_outcome_unknown(kafka: Cluster, sink: KafkaSink, topic: str) -> None:
    handle = prepare(sink, "row")
    sink.commit([handle], CHECKPOINT)
    kafka.delete_topic(topic)
    assert state(sink, handle).outcome is Outcome.UNKNOWN
    kafka.create_topic(topic, partitions=2)
    found = state(sink, handle)
    assert found.outcome is Outcome.UNKNOWN
    assert "created again" in found.evidence
    admin_of(sink).init_producer_id(handle["transactionalId"], 60_000)
    with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN"):
        sink.commit([handle], CHECKPOINT)


def test_a_log_that_starts_past_the_witness_makes_the_outcome_unknown(
    kafka: Cluster, sink: KafkaSink, topic: str
) -> None:
    handle = prepare(sink, "row")
    sink.commit([handle], CHECKPOINT)
    await_rows(kafka.bootstrap_servers, topic, "row")
    places = [TopicPartition(topic, partition, -1) for partition in range(2)]
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in client.delete_records(places).values():
        future.result(DEADLINE_SECONDS)
    assert state(sink, handle).outcome is Outcome.UNKNOWN


def test_a_handle_of_another_cluster_or_format_is_never_judged(sink: KafkaSink) -> None:
    handle = prepare(sink, "row")
    assert state(sink, {**handle, "clusterId": "another"}).outcome is Outcome.UNKNOWN
    with pytest.raises(AmbiguousOutcomeError, match="another"):
        sink.commit([{**handle, "clusterId": "another"}], CHECKPOINT)
    with pytest.raises(StoreError, match="FORMAT_UNKNOWN"):
        sink.inspect([{**handle, "format": 3}])
    assert state(sink, handle).ready


# -- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "crosses"), [(5, False), (4, True)])
def test_a_late_duplicate_commits_the_next_transaction_only_below_version_5(
    proxied: Cluster, topic_name: str, prefix: str, version: int, crosses: bool
) -> None:
    """KAFKA-17754; the control with version 4 shows that the test can fail."""
    from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

    proxied.create_topic(topic_name)
    sink = make_sink(proxied.proxy.bootstrap_servers, topic_name, prefix)
    handle = prepare(sink, "first")
    handle["endTxnVersion"] = version
    duplicate = proxied.proxy.repeat_late(END_TXN)
    sink.commit([handle], CHECKPOINT)
    await_rows(proxied.bootstrap_servers, topic_name, "first")
    admin, name = admin_of(sink), handle["transactionalId"]
    wait_until(lambda: described(sink, handle) == "CompleteCommit")
    kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    second = AddPartitionsToTxnRequest(
        version=3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=handle["producerId"],
        v3_and_below_producer_epoch=admin.describe([name])[name].producer_epoch,
        v3_and_below_topics=[kind(name=topic_name, partitions=[0])],
    )
    admin.send_all([(admin.coordinators([name])[name], second)])
    assert described(sink, handle) == "Ongoing"
    duplicate.release()
    duplicate.wait_until_sent()
    assert (described(sink, handle) != "Ongoing") is crosses
    sink.sweep([], OVER)
    sink.close()


# -- sweep and prefix -----------------------------------------------------------------------------------------------


def test_the_sweep_leaves_known_transactions_and_foreign_prefixes_alone(
    kafka: Cluster, sink: KafkaSink, topic: str, prefix: str
) -> None:
    known = prepare(sink, "known", partition=0)
    foreign = prepare(sink, "foreign", partition=0, prefix=f"{prefix}.x")
    stale = prepare(sink, "stale", partition=1)
    assert sink.sweep([known], OVER) == 1
    assert [found.outcome for found in sink.inspect([known, foreign, stale])] == [
        Outcome.PREPARED,
        Outcome.PREPARED,
        Outcome.LOST,
    ]
    assert sink.sweep([known], OVER) == 0
    # The id is known, but not at this epoch: it is another transaction.
    assert sink.sweep([{**known, "producerEpoch": known["producerEpoch"] + 1}], OVER) == 1
    sink.abort([foreign])
    assert read(kafka.bootstrap_servers, topic) == []


def test_the_check_of_a_start_touches_neither_a_name_nor_its_transaction(
    sink: KafkaSink, topic: str, prefix: str, kafka: Cluster
) -> None:
    mark, handle = sink.guardRun(None), prepare(sink, "a")
    other = make_sink(kafka.bootstrap_servers, topic, prefix)
    other.checkStart(prefix)
    other.checkStart(None)
    admin_of(other).check_write(handle["transactionalId"])
    other.close()
    assert sink.guardRun(mark) == mark
    assert state(sink, handle).outcome is Outcome.PREPARED
    sink.commit([handle], CHECKPOINT)
    await_rows(kafka.bootstrap_servers, topic, "a")


# -- rows -----------------------------------------------------------------------------------------------------------


def test_headers_partitions_topics_and_tombstones_arrive(kafka: Cluster, topic: str, prefix: str) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": headers,
        "topic": pa.string(),
        "partition": pa.int32(),
    }
    schema = pa.schema(list(columns.items()))
    sink = make_sink(kafka.bootstrap_servers, None, prefix, schema)
    rows: dict[str, list[Any]] = {
        "key": [b"k1", None],
        "value": [None, b"v2"],
        "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
        "topic": [topic, topic],
        "partition": [1, 0],
    }
    transaction = begin(sink)
    sink.write(transaction, pa.RecordBatch.from_pydict(rows, schema=schema))
    handle = sink.preCommit(transaction)
    assert handle is not None
    assert [entry[0] for entry in handle["written"][topic]] == [0, 1]
    sink.commit([handle], CHECKPOINT)
    sink.close()
    await_rows(kafka.bootstrap_servers, topic, "", "v2")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "t"})
    consumer.assign([TopicPartition(topic, 1, 0)])
    message = consumer.consume(1, DEADLINE_SECONDS)[0]
    consumer.close()
    assert (message.key(), message.value(), message.headers()) == (b"k1", None, [("h", b"1"), ("h", None)])


def test_at_least_once_shows_its_rows_at_once_and_has_no_handle(kafka: Cluster, topic: str, prefix: str) -> None:
    sink = make_sink(kafka.bootstrap_servers, topic, prefix, deliveryGuarantee="at-least-once")
    assert sink.identify()["topic"] == topic
    assert sink.guardRun(None) == {}
    transaction = begin(sink)
    sink.write(transaction, batch_of(["a"]))
    assert sink.preCommit(transaction) is None
    sink.commit([], CHECKPOINT)
    assert sink.sweep([], OVER) == 0
    sink.close()
    await_rows(kafka.bootstrap_servers, topic, "a")


# -- bad input ------------------------------------------------------------------------------------------------------


def test_a_topic_of_the_column_that_does_not_exist_is_refused_before_a_broker_could_create_it(
    kafka: Cluster, topic: str, prefix: str
) -> None:
    schema = pa.schema([("value", pa.string()), ("topic", pa.string())])
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [topic, f"{topic}-misspelt"]}, schema=schema)
    with closing(make_sink(kafka.bootstrap_servers, None, prefix, schema)) as sink:
        transaction = begin(sink)
        with pytest.raises(StoreError, match=rf"UNKNOWN_TOPIC.*{topic}-misspelt"):
            sink.write(transaction, batch)
        sink.rollback(transaction)


def test_a_topic_that_is_gone_is_not_created_by_the_sink_s_own_clients(
    older: Cluster, topic_name: str, prefix: str
) -> None:
    schema = pa.schema([("value", pa.string()), ("topic", pa.string())])
    rows = pa.RecordBatch.from_pydict({"value": ["v"], "topic": [topic_name]}, schema=schema)
    admin = AdminClient({"bootstrap.servers": older.bootstrap_servers})
    quick = {"kafka_topic_metadata_propagation_max_ms": "1000"}
    with closing(make_sink(older.bootstrap_servers, topic_name, prefix, schema, **quick)) as sink:
        with pytest.raises(StoreError, match=rf"UNKNOWN_TOPIC.*{topic_name}"):  # noqa: PT012 - whichever step notices it
            transaction = begin(sink)
            sink.write(transaction, rows)
            sink.preCommit(transaction)
        assert topic_name not in admin.list_topics(timeout=10).topics
    with closing(make_sink(older.bootstrap_servers, None, prefix, schema, createTopics="true")) as sink:
        transaction = begin(sink)
        sink.write(transaction, rows)
        assert sink.preCommit(transaction) is not None
        sink.rollback(transaction)
    assert topic_name in admin.list_topics(timeout=10).topics


def test_an_older_cluster_gets_version_4_and_is_fenced_by_init(older: Cluster, topic_name: str, prefix: str) -> None:
    older.create_topic(topic_name)
    sink = make_sink(older.bootstrap_servers, topic_name, prefix)
    mark = sink.guardRun(None)
    handles = [prepare(sink, str(number), partition=number) for number in range(4)]
    assert {handle["endTxnVersion"] for handle in handles} == {4}
    sink.commit(handles[:2], CHECKPOINT)
    sink.commit(handles[:2], CHECKPOINT)
    assert sink.abort(handles[1:3]) == handles[1:2]
    assert sink.sweep([], OVER) == 1
    await_rows(older.bootstrap_servers, topic_name, "0", "1")
    # An id that its coordinator has forgotten is no conflict, and the log still knows the end of its transactions.
    ids = [handle["transactionalId"] for handle in handles]
    wait_until(lambda: admin_of(sink).describe([f"{prefix}.run", *ids]) == {})
    assert sink.guardRun(mark) == mark
    assert [found.outcome for found in sink.inspect(handles)] == [Outcome.COMMITTED] * 2 + [Outcome.LOST] * 2
    sink.close()


def test_an_abort_fences_the_zombie_on_an_older_cluster_too(older: Cluster, topic_name: str, prefix: str) -> None:
    older.create_topic(topic_name)
    sink = make_sink(older.bootstrap_servers, topic_name, prefix)
    zombie = begin(sink)
    sink.write(zombie, batch_of(["first half"]))
    assert zombie.producer is not None
    assert zombie.producer.flush(DEADLINE_SECONDS) == 0
    before = admin_of(sink).describe([zombie.name])[zombie.name].producer_epoch
    assert sink.sweep([], OVER) == 1
    found = admin_of(sink).describe([zombie.name]).get(zombie.name)
    assert found is None or found.producer_epoch > before  # None: this cluster forgets an id after 3 s
    rows = batch_of([str(number) for number in range(50)])
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):  # noqa: PT012 - whichever call sees the broker's answer.
        sink.write(zombie, rows)
        sink.preCommit(zombie)
    sink.rollback(zombie)
    assert read(older.bootstrap_servers, topic_name) == []
    sink.close()


def test_a_fenced_zombie_that_writes_on_is_told_why(older: Cluster, topic_name: str, prefix: str) -> None:
    older.create_topic(topic_name)
    schema = SCHEMA.append(pa.field("partition", pa.int32()))
    for columns, extra in ((SCHEMA, {}), (schema, {"partition": [0]})):  # in a batch, and row by row
        sink = make_sink(older.bootstrap_servers, topic_name, prefix, columns)
        row = pa.RecordBatch.from_pydict({"key": ["k"], "value": ["v"], **extra}, schema=columns)
        zombie = begin(sink)
        sink.write(zombie, row)
        assert zombie.producer is not None
        assert zombie.producer.flush(DEADLINE_SECONDS) == 0
        assert sink.sweep([], OVER) == 1
        with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
            write_until_refused(sink, zombie, row)
        sink.rollback(zombie)
        sink.close()
    assert read(older.bootstrap_servers, topic_name) == []


def write_until_refused(sink: KafkaSink, zombie: KafkaTransaction, row: pa.RecordBatch) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        sink.write(zombie, row)
