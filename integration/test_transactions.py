"""``barrier transactions`` on a real broker: who holds readers back, and which command lets them go on."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from connector.cli import main
from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.serving import facts
from connector.serving.samples import samples
from connector.spark import hosted_sink
from connector.spark.process import this_process
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import clusters_of
from connector.transactions.ending import abort
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine_query import KafkaQuery
from integration.releases import on_broker
from integration.test_kafka_crashes import MakeQuery, make_query
from integration.test_kafka_markers import Hanging, admin, lenient, prepare, while_paused
from integration.test_missing_rights import Users, guarded, users
from tests.connector.cli_place import answer, dead_process, option_words
from transactional.entry import EntryKind
from transactional.faults import InjectedFault

__all__ = ["admin", "guarded", "lenient", "make_query", "users"]

DEAD = dead_process()


def die_as(query: KafkaQuery, process: Mapping[str, Any], *points: str) -> None:
    """Let a driver die that the journal takes for this process."""
    with mock.patch.object(hosted_sink, "driver_process", return_value=dict(process)):
        query.die(*points)


@pytest.fixture
def stranger(kafka: Cluster) -> Iterator[tuple[str, str]]:
    """A topic, and the transactional id of a program that has left a transaction open in it."""
    topic, name = f"strange-{uuid.uuid4().hex[:8]}", f"etl-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, str(number), partition=1)
    assert producer.flush(30) == 0
    yield topic, name
    producer.purge()


def test_nothing_is_open(kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]) -> None:
    query = make_query(kafka)
    query.engine().run()
    status, document, _ = answer(capsys, "transactions", "explain", query.work.options["topic"], query.work.location)
    assert (status, document["status"], document["held"]) == (0, "nothing to do", [])
    status, document, _ = answer(capsys, "transactions", "list", query.work.location)
    ours = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert (status, ours) == (0, [])


@pytest.mark.parametrize(
    ("point", "verdict"),
    [
        ("decision.written", "DECIDED"),
        ("commit.called", "LINGERING"),
        pytest.param("task.written", "LINGERING", marks=pytest.mark.matrix),
    ],
)
def test_a_reader_goes_on_after_the_command_that_explains_names(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str], point: str, verdict: str
) -> None:
    query = make_query(kafka, partitions=1)
    die_as(query, DEAD, point)
    topic = query.work.options["topic"]
    reader = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"waits-{topic}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    place = TopicPartition(topic, 0, 0)
    reader.assign([place])
    assert reader.consume(1, 1.0) == []
    reader.commit(offsets=[place], asynchronous=False)

    status, document, _ = answer(capsys, "transactions", "explain", topic, query.work.location)
    assert status == 0
    (held,) = document["held"]
    assert (held["partition"], held["stableOffset"], held["groups"]) == (0, 0, [f"waits-{topic}"])
    assert main(["transactions", "explain", topic, query.work.location]) == 0
    said = capsys.readouterr().out
    assert f"{topic}-0 can be read up to offset 0 of " in said
    command = f"barrier stop {query.work.location}"
    assert command in [line.strip() for line in said.splitlines()]

    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    ours = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert {each["verdict"] for each in ours} == {verdict}
    assert {each["command"] for each in ours} == {command}
    assert {each["driverAlive"] for each in ours} == {False}
    name = ours[0]["transactionalId"]
    status, document, _ = answer(capsys, "transactions", "abort", name, query.work.location, "--yes")
    assert (status, document["condition"]) == (1, "ABORT_REFUSED")
    assert command in document["message"]

    assert main(command.split()[1:]) == 0
    rows = [row for row in reader.consume(100, 3.0) if row.error() is None]
    reader.close()
    assert bool(rows) == (verdict == "DECIDED"), "what was not decided is aborted, and read again"
    capsys.readouterr()
    status, document, _ = answer(capsys, "transactions", "explain", topic, query.work.location)
    assert (status, document["held"]) == (0, [])
    query.finish()


def test_a_live_querys_transactions_are_left_alone(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(kafka)
    die_as(query, this_process(), "commit.called")
    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    ours = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert {(each["verdict"], each["command"]) for each in ours} == {("WRITING", None)}
    name = ours[0]["transactionalId"]
    status, document, _ = answer(capsys, "transactions", "abort", name, query.work.location, "--yes")
    assert (status, document["condition"]) == (1, "ABORT_REFUSED")
    assert "Leave the transaction alone" in document["message"]
    query.finish()


def test_a_driver_that_cant_be_seen_may_be_running(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(kafka)
    query.die("commit.called")
    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    ours = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert {each["verdict"] for each in ours} == {"WRITING"}
    assert ours[0]["command"] == f"barrier stop {query.work.location} --query-stopped"
    assert "can't be seen" in ours[0]["reason"]
    query.finish()


def test_a_strangers_transaction_is_aborted(
    kafka: Cluster, stranger: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    topic, name = stranger
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    status, document, _ = answer(capsys, "transactions", "explain", topic, *servers)
    assert (status, [each["holders"] for each in document["held"]]) == (0, [[name]])
    assert main(["transactions", "explain", topic, *servers]) == 0
    said = capsys.readouterr().out
    command = f"barrier transactions abort --bootstrap-server {kafka.bootstrap_servers} {name}"
    assert command in said
    assert main(command.split()[1:]) == 3, "it asks first"
    assert main([*command.split()[1:], "--yes"]) == 0
    capsys.readouterr()
    wait_until(lambda: not answer(capsys, "transactions", "explain", topic, *servers)[1]["held"], "its marker")
    status, document, _ = answer(capsys, "transactions", "list", "--id", name, *servers)
    assert (status, document["condition"]) == (1, "UNKNOWN_TRANSACTION")


def test_what_looks_like_ours_is_not_aborted_without_its_journal(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(kafka)
    die_as(query, DEAD, "decision.written")
    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    name = next(each["transactionalId"] for each in document["transactions"] if each["location"])
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    _, document, _ = answer(capsys, "transactions", "list", "--id", name, *servers)
    assert document["transactions"][0]["verdict"] == "STRANGER"
    assert document["transactions"][0]["command"] is None
    assert "Pass the checkpointLocation" in document["transactions"][0]["advice"]
    status, document, _ = answer(capsys, "transactions", "abort", name, *servers, "--yes")
    assert (status, document["condition"]) == (1, "ABORT_REFUSED")
    query.finish()


def test_an_abort_that_was_asked_for_of_an_older_transaction_leaves_the_next_one_alone(kafka: Cluster) -> None:
    """The program lives: it has ended the one that was looked at, and begun another at the same epoch."""
    topic, name = f"strange-{uuid.uuid4().hex[:8]}", f"etl-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)
    program = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    program.init_transactions()
    with clusters_of([], kafka.bootstrap_servers, {}) as (cluster,):

        def begin() -> Assessment:
            program.begin_transaction()
            program.produce(topic, b"1")
            assert program.flush(30) == 0
            return next(each for each in cluster.look([topic])[1] if each.transaction.name == name)

        first = begin()
        program.commit_transaction(30)
        begin()
        assert not abort(cluster.admin, first)
        program.commit_transaction(30)
        last = begin()
        assert abort(cluster.admin, last)
        with pytest.raises(KafkaException):
            program.commit_transaction(30)


def test_a_task_that_outlived_a_stopped_query(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(kafka)
    query.engine().run(1)
    assert main(["stop", query.work.location, "--query-stopped"]) == 0
    late = prepare(query.sink(), query.prefix, attempt=40, value=999)
    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    (left,) = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert (left["verdict"], left["transactionalId"]) == ("LINGERING", late["transactionalId"])
    assert main([*left["command"].split()[1:], "--yes"]) == 0
    assert query.output.is_quiet()
    query.finish()


@pytest.mark.matrix
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_hangs_is_named_and_left_to_its_query(
    lenient: Cluster, admin: KafkaAdmin, capsys: pytest.CaptureFixture[str], commit: bool
) -> None:
    query = Hanging(lenient, admin)
    sink = query.sink()
    if commit:
        sink.commit([query.handle], mock.Mock())
        wait_until(lambda: query.output.rows() == Counter([0]), "the coordinator's own marker")
    else:
        sink.abort([query.handle])
    sink.close()
    wait_until(lambda: list(query.output.held_back()) == [1], "the other marker")
    servers = ("--bootstrap-server", lenient.bootstrap_servers)
    status, document, _ = answer(capsys, "transactions", "explain", query.topic, *servers)
    assert (status, [each["partition"] for each in document["held"]]) == (0, [1])
    (found,) = document["transactions"]
    assert (found["verdict"], found["command"]) == ("HANGING", None)
    assert "KAFKA-20734" in found["reason"]
    assert ("committed" if commit else "aborted") in found["reason"]
    name, topic = query.handle["transactionalId"], ("--topic", query.topic)
    status, document, _ = answer(capsys, "transactions", "abort", name, *servers, *topic, "--yes")
    assert (status, document["condition"]) == (1, "ABORT_REFUSED")


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [pytest.param(each, marks=on_broker(each)) for each in ("4.3.1", "4.4.0")])
def test_a_marker_that_a_broker_left_out_is_explained_and_a_reader_goes_on_after_the_next_start(
    make_query: MakeQuery, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    """KAFKA-20734, with the brokers that have it: a partition has no leader when the query commits, and the query dies then."""
    with Cluster(3, version=version) as cluster:
        query = make_query(cluster, partitions=3)  # one replica each, a leader on every node
        query.close()

        def commit_without_a_leader() -> None:
            query.faults.arm("commit.done", "raise")
            cluster.kill(2)
            query.faults.resume("decision.written")

        with (
            mock.patch.object(hosted_sink, "driver_process", return_value=dict(DEAD)),
            pytest.raises(InjectedFault),
        ):
            while_paused(query, "decision.written", commit_without_a_leader)
        cluster.start(2)
        topic = query.work.options["topic"]
        (waits,) = wait_until(query.output.held_back, "the marker that is missing")
        status, document, _ = answer(capsys, "transactions", "explain", topic, query.work.location)
        assert (status, [each["partition"] for each in document["held"]]) == (0, [waits])
        assert len(document["transactions"]) == 3, "each task has written into each partition"
        command = f"barrier stop {query.work.location}"
        for found in document["transactions"]:
            assert (found["verdict"], found["location"], found["command"]) == ("HANGING", query.work.location, command)
            assert "KAFKA-20734" in found["reason"]
        assert main(command.split()[1:]) == 0
        assert not query.output.held_back()
        query.finish()


@pytest.mark.matrix
def test_who_may_not_see_an_id_is_not_told_that_it_hangs(
    guarded: Cluster, users: Users, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Producer({"bootstrap.servers": guarded.bootstrap_servers, "transactional.id": "etl.0.7"})
    program.init_transactions()
    program.begin_transaction()
    program.produce("rights-out", b"1")
    assert program.flush(30) == 0
    options = users.with_rights({("topic", "rights-out", "read")})
    given = option_words(options)
    servers = ("--bootstrap-server", options["kafka.bootstrap.servers"])
    status, document, _ = answer(capsys, "transactions", "explain", "rights-out", *servers, *given)
    (found,) = document["transactions"]
    assert (status, found["verdict"], found["command"]) == (0, "UNKNOWN", None)
    assert "is not allowed to DESCRIBE" in found["reason"]
    program.abort_transaction(30)


def test_a_decided_checkpoint_is_named_with_its_number(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(kafka)
    die_as(query, DEAD, "decision.written")
    (number,) = [entry.number for entry in query.place.entries() if entry.kind == EntryKind.DECIDED]
    _, document, _ = answer(capsys, "transactions", "list", query.work.location)
    ours = [each for each in document["transactions"] if each["location"] == query.work.location]
    assert {(each["checkpoint"], each["batch"]) for each in ours} == {(number, 0)}
    assert {each["partition"] for each in ours} == {0, 1, 2}
    query.finish()


@pytest.mark.matrix
def test_queries_of_one_cluster_are_seen_together_and_those_of_another_one_not(
    kafka: Cluster, lenient: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = make_query(kafka), make_query(kafka)
    two.work = replace(two.work, options={**two.work.options, "kafka.linger.ms": "7"})
    die_as(one, DEAD, "decision.written")
    die_as(two, DEAD, "decision.written")
    _, document, _ = answer(capsys, "transactions", "list", one.work.location, two.work.location)
    whose = {one.prefix: one.work.location, two.prefix: two.work.location}
    ours = [each for each in document["transactions"] if each["transactionalId"].rsplit(".", 2)[0] in whose]
    assert len(ours) == len({each["transactionalId"] for each in ours}) == 6
    for each in ours:
        assert each["location"] == whose[each["transactionalId"].rsplit(".", 2)[0]]
        assert each["verdict"] == "DECIDED"
    elsewhere = ("--bootstrap-server", lenient.bootstrap_servers)
    _, document, said = answer(capsys, "transactions", "list", one.work.location, *elsewhere)
    assert one.work.location not in {each["location"] for each in document["transactions"]}
    assert "the query writes to another cluster" in said
    one.finish()
    two.finish()


def test_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["transactions", "list"]) == 2
    assert "--bootstrap-server" in capsys.readouterr().err
    status, document, _ = answer(capsys, "transactions", "list", str(tmp_path))
    assert (status, document["condition"]) == (1, "NO_JOURNAL")


@pytest.mark.matrix
def test_a_cluster_that_is_down_hides_no_other(
    kafka: Cluster, stranger: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`barrier serve` asks one cluster after the other."""
    _, name = stranger
    configs = [
        ClientConfig("test", {"bootstrap.servers": servers}) for servers in ("127.0.0.1:1", kafka.bootstrap_servers)
    ]
    monkeypatch.setattr(facts, "configs_of", lambda *given: configs)
    away, there = facts.look_at_clusters([], None, {})
    assert (away.answered, away.servers, there.answered) == (False, "127.0.0.1:1", True)
    assert name in {each.transaction.shown_name for each in there.assessments}
    found = {(sample.name, sample.labels[0]) for sample in samples([], [away, there], 0.0)}
    assert ("barrier_open_transactions", "127.0.0.1:1") not in found
    assert ("barrier_brokers_reachable", "127.0.0.1:1") in found
