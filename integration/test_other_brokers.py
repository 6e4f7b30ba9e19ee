"""A broker that is not Apache Kafka's: our sink on it, with every crash; and one that lacks requests which the sink needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.config import ClientConfig
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine_query import POINTS
from integration.kfake import Kfake
from integration.releases import RELEASES
from integration.test_doctor import examined
from integration.test_kafka_crashes import MakeQuery, make_query
from tests.connector.cli_place import answer, option_words
from transactional.errors import RetriableError

__all__ = ["make_query"]


on_kfake = pytest.mark.version("kfake of franz-go", "2026-09-18")


@pytest.fixture(scope="module")
def kfake() -> Iterator[Kfake]:
    with Kfake() as broker:
        yield broker


def options_of(broker: Cluster | Kfake, topic: str) -> list[str]:
    """Of a sink, as words of a command."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "transactionalIdPrefix": "trial"}
    return option_words(options)


def tried(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What the doctor says of a trial transaction."""
    _, document, _ = answer(capsys, "doctor", "--try-transaction", *words)
    (found,) = (each for each in document["findings"] if each["check"] == "trial-transaction")
    return dict(found)


def test_a_trial_ends_two_transactions_and_leaves_no_row(kafka: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.create_topic("tried", partitions=2)
    for _ in range(2):  # its transactional id can be used again
        found = tried(capsys, *options_of(kafka, "tried"))
        assert found["level"] == "good", found
        said = "trial.doctor aborted and committed a transaction without rows in tried-0, in "
        assert found["sentence"].startswith(said)
    reader = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "isolation.level": "read_uncommitted"}
    )
    assert reader.get_watermark_offsets(TopicPartition("tried", 0), timeout=30)[1] == 4, "four markers"
    reader.assign([TopicPartition("tried", 0, 0)])
    assert reader.poll(2) is None
    reader.close()


def test_a_trial_that_fails_leaves_nothing_open(
    kafka: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator describes the transaction in another state."""
    describe = KafkaAdmin.describe

    def wrong(self: KafkaAdmin, ids: Iterable[str]) -> dict[str, Description]:
        found = describe(self, ids)
        return {name: replace(each, state="Dead") if each.state == "Ongoing" else each for name, each in found.items()}

    kafka.create_topic("failed")
    monkeypatch.setattr(KafkaAdmin, "describe", wrong)
    found = tried(capsys, *options_of(kafka, "failed"))
    assert (found["level"], found["condition"]) == ("problem", "KAFKA_REFUSED")
    assert "trial.doctor as Dead in failed-0, not as Ongoing in failed-0" in found["sentence"]
    monkeypatch.undo()
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": kafka.bootstrap_servers}))
    wait_until(
        lambda: admin.describe(["trial.doctor"])["trial.doctor"].state == "CompleteAbort", "the transaction ends"
    )
    admin.close()


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "good", "deliveryGuarantee": "at-least-once", "transactionalIdPrefix": "trial"},
        {"topic": "good"},
        {"transactionalIdPrefix": "trial"},
        {"subscribe": "good"},
    ],
    ids=str,
)
def test_a_trial_that_was_not_made_is_reported(
    kafka: Cluster, capsys: pytest.CaptureFixture[str], options: dict[str, str]
) -> None:
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics
    if "good" not in topics:
        kafka.create_topic("good")
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **options}
    found = tried(capsys, *option_words(options))
    assert found["level"] == "unknown"


@pytest.mark.matrix
@pytest.mark.parametrize(("version", "features"), RELEASES)
def test_other_releases_pass_the_trial(
    capsys: pytest.CaptureFixture[str], version: str, features: Mapping[str, int]
) -> None:
    with Cluster(version=version, features=features) as cluster:
        cluster.create_topic("tried")
        found = tried(capsys, *options_of(cluster, "tried"))
        assert found["level"] == "good", found


@on_kfake
@pytest.mark.matrix
def test_another_broker_passes_the_trial(kfake: Kfake, capsys: pytest.CaptureFixture[str]) -> None:
    kfake.create_topic("tried")
    found = tried(capsys, *options_of(kfake, "tried"))
    assert found["level"] == "good", found


@pytest.mark.matrix
def test_a_broker_that_lacks_requests_is_refused_before_the_first_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests to describe transactions are there since Kafka 3.0."""
    with Kfake("v2.7") as old:
        old.create_topic("any")
        status, found = examined(capsys, kafka__bootstrap__servers=old.bootstrap_servers, topic="any")
        assert status == 1
        (refused,) = found["brokers"]
        assert refused["condition"] == "KAFKA_REFUSED"
        for name in ("DescribeProducers version 0", "DescribeTransactions", "ListTransactions"):
            assert name in refused["sentence"]


@on_kfake
@pytest.mark.matrix
@pytest.mark.parametrize("kill", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("point", POINTS)
def test_a_death_anywhere_on_another_broker(kfake: Kfake, make_query: MakeQuery, point: str, kill: bool) -> None:
    query = make_query(kfake)
    query.die_at(point, error=False, kill=kill)
    query.finish()


@on_kfake
@pytest.mark.matrix
def test_a_broker_that_forgets_prepared_transactions_stops_the_query(make_query: MakeQuery) -> None:
    """Kfake does, if it is killed: it has neither the transactions nor markers that would show how they ended."""
    with Kfake() as broker:
        query = make_query(broker)
        query.die("decision.written")
        broker.kill()
        broker.start()
        with pytest.raises(RetriableError, match="MARKERS_PENDING"):
            query.run()
        query.look()
