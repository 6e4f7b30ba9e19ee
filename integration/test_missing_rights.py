"""Users of a broker with an authorizer: what they need, and what they are told when a right is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.secured import Right, grant
from integration.test_bad_input import assert_empty, assert_told, failure, start, unreadable
from integration.topic_jobs import produce
from integration.topic_output import TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, SINK = "rights-in", "rights-out"
READS: frozenset[Right] = frozenset({("topic", SOURCE, "read")})  # offsets of groups are for monitoring only
WRITES: frozenset[Right] = frozenset(
    {
        ("topic", SINK, "write"),
        ("topic", SINK, "read"),
        ("transactional_id", "q*", "write"),
    }
)
PASSWORD = "hunter2"
USERS = 16


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """Who comes through the proxy has to log in, and may do what was granted; who does not may do everything."""
    names = " ".join(f'user_u{number}="{PASSWORD}"' for number in range(USERS))
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXY:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.proxy.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.proxy.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {names};"
        ),
    }
    with Cluster(proxy=True, properties=properties) as cluster:
        cluster.create_topic(SOURCE)
        cluster.create_topic(SINK)
        produce(cluster, SOURCE, range(5), partitions=1)
        yield cluster


class Users:
    """Users with rights of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made = 0

    def with_rights(self, rights: Iterable[Right]) -> dict[str, str]:
        """Options of a new user who has these rights and no others."""
        name = f"u{self._made}"
        self._made += 1
        grant(self._cluster, name, rights)
        return {
            "kafka.bootstrap.servers": self._cluster.proxy.bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": name,
            "kafka.sasl.password": PASSWORD,
        }


@pytest.fixture(scope="module")
def users(guarded: Cluster) -> Users:
    return Users(guarded)


def read(spark: SparkSession, options: dict[str, str]) -> Any:
    source = {**options, "subscribe": SOURCE, "startingOffsets": "earliest"}
    return spark.readStream.format("barrier-kafka").options(**source).load().select("value")


def test_a_user_with_exactly_these_rights_copies_a_topic(
    guarded: Cluster, spark: SparkSession, users: Users, tmp_path: Path
) -> None:
    guarded.create_topic("rights-copied")
    writes = {(kind, "rights-copied" if kind == "topic" else name, what) for kind, name, what in WRITES}
    options = users.with_rights({*READS, *writes})
    location = str(tmp_path / "location")
    sink = {**options, "topic": "rights-copied", "transactionalIdPrefix": "q1", "checkpointLocation": location}
    query = start(read(spark, options), sink)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    output = TopicOutput(guarded.bootstrap_servers, "rights-copied", "q1")
    wait_until(output.is_quiet, "no open transaction, no reader held back")
    assert output.rows() == Counter(range(5))


IDS: Right = ("transactional_id", "q*", "write")


@pytest.mark.parametrize(
    ("missing", "instead", "told"),
    [
        (("topic", SINK, "write"), [], ["WRITE on topic rights-out"]),
        (("topic", SINK, "read"), [], ["READ on topic rights-out"]),
        (IDS, [], [r"DESCRIBE on transactional id q2\.run"]),
        (IDS, [("transactional_id", "q*", "describe")], [r"WRITE on transactional id q2\.run"]),
    ],
)
def test_the_sink_names_the_right_that_is_missing_before_a_row_is_read(
    guarded: Cluster,
    spark: SparkSession,
    users: Users,
    tmp_path: Path,
    missing: Right,
    instead: list[Right],
    told: list[str],
) -> None:
    options = users.with_rights({*WRITES, *instead} - {missing})
    more = {"topic": SINK, "transactionalIdPrefix": "q2", "checkpointLocation": str(tmp_path / "location")}
    said = failure(start(unreadable(spark), {**options, **more}))
    assert_told(said, "MISSING_RIGHT", *told, r"kafka-acls\.sh")
    assert PASSWORD not in said
    assert_empty(guarded, SINK)


def test_the_sink_names_the_right_that_is_missing_on_a_task_s_own_id(
    spark: SparkSession, users: Users, tmp_path: Path
) -> None:
    """Granted literally on what the driver initialises: only a task can tell."""
    options = users.with_rights({*READS, *WRITES, ("transactional_id", "q3.run", "write")} - {IDS})
    more = {"topic": SINK, "transactionalIdPrefix": "q3", "checkpointLocation": str(tmp_path / "location")}
    said = failure(start(read(spark, options), {**options, **more}))
    assert_told(said, "MISSING_RIGHT", r"DESCRIBE on transactional id q3\.0\.", r"kafka-acls\.sh")


def test_the_sink_names_the_id_that_a_task_may_describe_and_not_write(
    spark: SparkSession, users: Users, tmp_path: Path
) -> None:
    run, ids = ("transactional_id", "q4.run", "write"), ("transactional_id", "q*", "describe")
    options = users.with_rights({*READS, *WRITES, run, ids} - {IDS})
    more = {"topic": SINK, "transactionalIdPrefix": "q4", "checkpointLocation": str(tmp_path / "location")}
    said = failure(start(read(spark, options), {**options, **more}))
    assert_told(said, "MISSING_RIGHT", r"WRITE on transactional id q4\.0\.", r"kafka-acls\.sh")


def test_the_source_names_the_right_to_describe_that_is_missing_at_load(spark: SparkSession, users: Users) -> None:
    with pytest.raises(Exception, match="MISSING_RIGHT") as failed:
        read(spark, users.with_rights([]))
    assert_told(str(failed.value), "MISSING_RIGHT", f"DESCRIBE on topic {SOURCE}", r"kafka-acls\.sh")


def test_the_source_names_the_right_to_read_that_is_missing(spark: SparkSession, users: Users, tmp_path: Path) -> None:
    options = users.with_rights({*WRITES, ("topic", SOURCE, "describe")})
    more = {"topic": SINK, "transactionalIdPrefix": "q5", "checkpointLocation": str(tmp_path / "location")}
    said = failure(start(read(spark, options), {**options, **more}))
    assert_told(said, "MISSING_RIGHT", f"READ on topic {SOURCE}", r"kafka-acls\.sh")
