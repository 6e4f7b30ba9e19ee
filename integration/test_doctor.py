"""``barrier doctor`` on real brokers: it finds each planted mistake, and nothing on a good set-up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from integration.broker import Cluster
from integration.object_store import BUCKET
from integration.releases import RELEASES
from integration.schema_registry import RegistryServer
from integration.test_kafka_crashes import MakeQuery, make_query
from integration.test_missing_rights import WRITES, Users, guarded, users
from tests.connector.cli_place import answer, option_words

__all__ = ["guarded", "make_query", "users"]

SAFE = {"min.insync.replicas": "2"}

CHANGED: Mapping[str, Mapping[str, str]] = {
    "good": SAFE,
    "unclean": {**SAFE, "unclean.leader.election.enable": "true"},
    "strict": {"min.insync.replicas": "4"},
    "loose": {"min.insync.replicas": "1"},
    "brittle": {"min.insync.replicas": "3"},
    "small": {**SAFE, "max.message.bytes": "10000"},
    "short": {**SAFE, "retention.ms": "3600000"},
    "little": {**SAFE, "retention.bytes": "1000000"},
}
"""Topics with three replicas, and their settings."""


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(3, jvm_options=["-Xmx256m"]) as cluster:
        for name, config in CHANGED.items():
            cluster.create_topic(name, partitions=2, replication=3, config=config)
        cluster.create_topic("single", replication=1)
        yield cluster


def examined(capsys: pytest.CaptureFixture[str], *words: str, **options: str) -> tuple[int, dict[str, list[Any]]]:
    """The doctor's exit status, and its findings that are not good, by their checks."""
    given = option_words({key.replace("__", "."): value for key, value in options.items()})
    status, document, _ = answer(capsys, "doctor", *words, *given)
    found: dict[str, list[Any]] = {}
    for each in document["findings"]:
        if each["level"] != "good":
            found.setdefault(each["check"], []).append(each)
    return status, found


def sink(cluster: Cluster, topic: str = "good", **more: str) -> dict[str, str]:
    return {"kafka__bootstrap__servers": cluster.bootstrap_servers, "topic": topic, **more}


def source(cluster: Cluster, topic: str = "good", **more: str) -> dict[str, str]:
    return {"kafka__bootstrap__servers": cluster.bootstrap_servers, "subscribe": topic, **more}


def test_a_good_set_up(three: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "a" / "place")
    assert examined(capsys, **sink(three, checkpointLocation=place, transactionalIdPrefix="unused")) == (0, {})
    assert examined(capsys, **source(three, checkpointLocation=place)) == (0, {})
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


QUICK = [
    ({"topic": "good", "lingerms": "3"}, "options", "problem"),
    ({"topic": "absent"}, "topic", "problem"),
    ({"topic": "good", "kafka__transaction__timeout__ms": "3600000"}, "transaction-timeout", "problem"),
    ({"topic": "good", "barrierInterval": "10 min"}, "transaction-timeout", "problem"),
    ({"topic": "unclean"}, "unclean-election", "problem"),
    ({"topic": "strict"}, "replication", "warning"),
    ({"topic": "loose"}, "replication", "warning"),
    ({"subscribe": "short"}, "retention", "warning"),
    ({"subscribe": "absent"}, "topic", "problem"),
]
REST = [
    ({"topic": "good", "deliveryGuarantee": "twice"}, "options", "problem"),
    ({"topic": "good", "kafka__linger__ms": "soon"}, "options", "problem"),
    ({"topic": "good", "format": "2pc-kafak"}, "options", "problem"),
    ({"topic": "good", "kafka__transaction__timeout__ms": "30000"}, "transaction-timeout", "warning"),
    ({"topic": "good", "barrierInterval": "soon"}, "options", "problem"),
    ({"topic": "brittle"}, "replication", "warning"),
    ({"topic": "single"}, "replication", "warning"),
    ({"topic": "small"}, "message-size", "warning"),
    ({"subscribe": "little"}, "retention", "warning"),
    ({"subscribePattern": "nothing.*"}, "topic", "problem"),
    ({"assign": '{"good": [7]}'}, "options", "problem"),
    ({"subscribe": "good", "startingOffsets": "newest"}, "options", "problem"),
    ({"topic": "good", "kafka__security__protocol": "SSL"}, "brokers", "problem"),
    ({"topic": "good", "checkpointLocation": "oss://bucket/place"}, "store", "problem"),
]
"""What is planted, the check that finds it, and the level; the rest in the matrix only."""


@pytest.mark.parametrize(
    ("planted", "check", "level"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.matrix) for each in REST)],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_one_planted_mistake_is_found_and_nothing_else(
    three: Cluster, capsys: pytest.CaptureFixture[str], planted: dict[str, str], check: str, level: str
) -> None:
    prefix = {} if "topic" not in planted else {"transactionalIdPrefix": "unused"}
    status, found = examined(capsys, kafka__bootstrap__servers=three.bootstrap_servers, **prefix, **planted)
    assert {name: [each["level"] for each in findings] for name, findings in found.items()} == {check: [level]}
    assert status == (1 if level == "problem" else 0)
    assert found[check][0]["page"] == f"docs/doctor.md#{check}"


def test_brokers_that_are_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.kafka.client.brokers.REACH_SECONDS", 1.0)
    status, found = examined(capsys, topic="good", kafka__bootstrap__servers=closed_port())
    assert (status, [each["condition"] for each in found["brokers"]]) == (1, ["BROKERS_UNREACHABLE"])


def test_a_prefix_and_a_topic_that_others_use(
    three: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query(three)
    query.engine().run(1)
    status, found = examined(capsys, **sink(three, transactionalIdPrefix=query.prefix))
    assert (status, set(found)) == (1, {"prefix"})
    own = {key.replace(".", "__"): value for key, value in query.work.options.items()}
    for given in ({"words": (query.work.location,)}, {**own, "checkpointLocation": query.work.location}):
        status, found = examined(capsys, *given.pop("words", ()), **given)
        assert (status, set(found)) == (0, {"replication"}), (
            "the prefix is the location's own; its topic has one replica"
        )
    stranger = Producer({"bootstrap.servers": three.bootstrap_servers, "transactional.id": "etl-9"})
    stranger.init_transactions()
    stranger.begin_transaction()
    stranger.produce("good", b"1")
    stranger.flush(30)
    status, found = examined(capsys, **sink(three, transactionalIdPrefix="unused"))
    assert (status, set(found)) == (0, {"open-transactions"})
    assert "etl-9" in found["open-transactions"][0]["sentence"]
    stranger.abort_transaction(30)
    query.finish()


@pytest.mark.matrix
def test_a_wrong_password_and_a_missing_right(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    options = {key.replace(".", "__"): value for key, value in users.with_rights(WRITES).items()}
    options |= {"topic": "rights-out", "transactionalIdPrefix": "q"}
    status, found = examined(capsys, **options)
    assert (status, {each["level"] for of_one in found.values() for each in of_one}) == (0, {"unknown"})
    assert set(found) == {"transaction-timeout", "replication"}, "this user may not read settings"
    del options["transactionalIdPrefix"]
    status, found = examined(capsys, **options)
    assert (status, [each["level"] for each in found["rights"]]) == (0, ["unknown"]), "of which prefix, is not known"
    status, found = examined(capsys, **options, barrierInterval="10 min")
    assert (status, [each["level"] for each in found["transaction-timeout"]]) == (1, ["problem"])
    options["transactionalIdPrefix"] = "q"
    status, found = examined(capsys, **{**options, "kafka__sasl__password": "guessed"})
    assert (status, [each["condition"] for each in found["brokers"]]) == (1, ["AUTHENTICATION_FAILED"])
    assert "guessed" not in str(found)
    fewer = {
        key.replace(".", "__"): value
        for key, value in users.with_rights(WRITES - {("topic", "rights-out", "read")}).items()
    }
    status, found = examined(capsys, **{**options, **fewer})
    assert (status, [each["condition"] for each in found["rights"]]) == (1, ["MISSING_RIGHT"])
    reads = {
        key.replace(".", "__"): value for key, value in users.with_rights({("topic", "rights-in", "describe")}).items()
    }
    status, found = examined(capsys, **reads, subscribe="rights-in")
    assert (status, [each["condition"] for each in found["rights"]]) == (1, ["MISSING_RIGHT"])


def test_a_store_that_cant_be_written(three: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "place")
    status, found = examined(capsys, **sink(three, checkpointLocation=place, transactionalIdPrefix="unused"))
    assert (status, set(found)) == (1, {"store"})


def test_a_table(tmp_path: Path, s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tmp_path / "table")
    assert examined(capsys, path=table, partitionBy="day,value") == (0, {})
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    rows = pa.table({"a": [1], "b": ["x"]})
    write_deltalake(table, rows)
    before = sorted(tmp_path.rglob("*"))
    assert examined(capsys, path=table, checkpointLocation=str(tmp_path / "place")) == (0, {})
    assert sorted(tmp_path.rglob("*")) == before
    store = {"storage__AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"], "storage__AWS_ALLOW_HTTP": "true"}
    assert examined(capsys, path=f"s3://{BUCKET}/doctor/table", **store) == (0, {})
    (tmp_path / "file").write_text("")
    for bad, check, condition in (
        ({"path": str(tmp_path / "file" / "table")}, "options", "INVALID_OPTION"),
        ({"path": "s3://no-such-bucket/table", **store}, "table", "TABLE_UNREACHABLE"),
    ):
        status, found = examined(capsys, **bad)
        assert (status, [each["condition"] for each in found[check]]) == (1, [condition])
    login = {
        "path": "s3://no-such-bucket/table",
        "storage__AWS_ENDPOINT_URL": f"http://svc:s3cret-word@{closed_port()}",
    }
    status, found = examined(capsys, **{**store, **login})
    assert (status, set(found)) == (1, {"table"})
    assert "s3cret-word" not in str(found)
    status, found = examined(capsys, path=table, mergeShema="true")
    assert (status, [each["condition"] for each in found["options"]]) == (1, ["UNKNOWN_OPTION"])
    DeltaTable(table).alter.add_constraint({"positive": "a > 0"})
    status, found = examined(capsys, path=table)
    assert (status, [each["condition"] for each in found["table"]]) == (1, ["TABLE_NEEDS_FEATURES"])


def test_a_schema_registry(capsys: pytest.CaptureFixture[str]) -> None:
    with RegistryServer("etl", "s3cret-word") as registry:
        registry.register("orders-value", '{"type": "string"}')
        registry.register("events-value", "{}", "JSON")
        registry.register("old-value", 'syntax = "proto3"; message A {}', "PROTOBUF")
        given = {"url": registry.url, "basic__auth__user__info": "etl:s3cret-word"}
        assert examined(capsys, **given) == (0, {})
        for subject in ("orders-value", "events-value"):
            assert examined(capsys, **given, subject=subject) == (0, {})
        for wrong, check, condition in (
            ({"subject": "old-value"}, "registry", "UNSUPPORTED_SCHEMA"),
            ({"subject": "no-value"}, "options", "INVALID_OPTION"),
            ({"basic__auth__user__info": "etl:guessed"}, "registry", "REGISTRY_REFUSED"),
            ({"url": f"http://{closed_port()}"}, "registry", "REGISTRY_UNREACHABLE"),
        ):
            status, found = examined(capsys, **{**given, **wrong})
            assert (status, [each["condition"] for each in found[check]]) == (1, [condition])
            assert "guessed" not in str(found)
            assert "s3cret-word" not in str(found)


@pytest.mark.matrix
def test_slow_clients(three: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("connector.doctor.versions.native_columns", lambda: None)
    status, found = examined(capsys, **source(three))
    assert (status, set(found)) == (0, {"clients"})
    monkeypatch.setattr("connector.doctor.versions.SPARK", {(3, 5): ""})
    status, found = examined(capsys, **source(three))
    assert (status, set(found)) == (1, {"clients", "spark"})


@pytest.mark.matrix
@pytest.mark.parametrize(("version", "features"), RELEASES)
def test_other_brokers(capsys: pytest.CaptureFixture[str], version: str, features: Mapping[str, int]) -> None:
    with Cluster(version=version, features=features) as cluster:
        cluster.create_topic("good")
        status, found = examined(capsys, **source(cluster))
        assert (status, set(found)) == (0, {"transaction-version"})
