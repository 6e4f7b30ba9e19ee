"""A broker that is not Apache Kafka's: our sink on it, with every crash; and one that lacks requests which the sink needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from integration.broker import Cluster
from integration.engine_query import POINTS
from integration.kfake import Kfake
from integration.test_doctor import examined
from integration.test_kafka_crashes import MakeQuery, make_query
from tests.connector.cli_place import answer

__all__ = ["make_query"]


@pytest.fixture(scope="module")
def kfake() -> Iterator[Kfake]:
    with Kfake() as broker:
        yield broker


def options_of(broker: Cluster | Kfake, topic: str) -> list[str]:
    """Of a sink, as words of a command."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "transactionalIdPrefix": "trial"}
    return [word for key, value in options.items() for word in ("--option", f"{key}={value}")]


def tried(broker: Cluster | Kfake, topic: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the doctor says of a trial transaction."""
    _, document, _ = answer(capsys, "doctor", "--try-transaction", *options_of(broker, topic))
    (found,) = (each for each in document["findings"] if each["check"] == "trial-transaction")
    return {key: found[key] for key in ("level", "sentence")}


def test_a_trial_transaction_is_begun_and_aborted_and_leaves_no_row(
    kafka: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic("tried", partitions=2)
    for _ in range(2):  # its transactional id can be used again
        found = tried(kafka, "tried", capsys)
        assert found["level"] == "good", found
        assert found["sentence"].startswith("trial.doctor began and aborted a transaction without rows in tried-0, in ")
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "isolation.level": "read_uncommitted"})
    assert reader.get_watermark_offsets(TopicPartition("tried", 0), timeout=30)[1] == 2, "two markers"
    reader.assign([TopicPartition("tried", 0, 0)])
    assert reader.poll(2) is None
    reader.close()


def test_a_trial_that_fails_says_why(kafka: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.create_topic("strict", config={"min.insync.replicas": "2"})
    found = tried(kafka, "strict", capsys)
    assert found["level"] == "problem", found


@pytest.mark.matrix
def test_another_broker_passes_the_trial(kfake: Kfake, capsys: pytest.CaptureFixture[str]) -> None:
    kfake.create_topic("tried")
    assert tried(kfake, "tried", capsys)["level"] == "good"


@pytest.mark.matrix
def test_a_broker_that_lacks_requests_is_refused_before_the_first_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests to describe transactions are there since Kafka 3.0."""
    with Kfake("v2.7") as old:
        old.create_topic("any")
        status, found = examined(capsys, kafka__bootstrap__servers=old.bootstrap_servers, topic="any")
        assert status == 1
        (refused,) = found["brokers"]
        assert refused["condition"] == "KAFKA_REFUSED"
        for name in ("Metadata version 10", "DescribeProducers", "DescribeTransactions", "ListTransactions"):
            assert name in refused["sentence"]


@pytest.mark.matrix
@pytest.mark.parametrize("kill", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("point", POINTS)
def test_a_death_anywhere_on_another_broker(kfake: Kfake, make_query: MakeQuery, point: str, kill: bool) -> None:
    query = make_query(kfake)
    query.die_at(point, error=False, kill=kill)
    query.finish()


@pytest.mark.matrix
def test_another_broker_is_killed_while_a_checkpoint_is_decided(make_query: MakeQuery) -> None:
    """Its coordinator and its partitions find prepared transactions on their disk."""
    with Kfake() as broker:
        query = make_query(broker)
        query.die("decision.written")
        broker.kill()
        broker.start()
        query.finish()
        query.check_nothing_lost()
