"""Three brokers get another version of Kafka, one after the other, while a query copies a topic."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from integration.broker import Cluster
from integration.live_query import LiveQuery
from integration.releases import on_broker
from integration.topic_jobs import topic_to_topic
from integration.topic_output import COMMITTED, LiveReader, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES = {"min.insync.replicas": "2", "default.replication.factor": "3"}


class Feed:
    """Writes ten rows every fifth of a second, in a thread: 0, 1, 2 and so on."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer(quiet(bootstrap_servers=servers, enable_idempotence=True))
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rows = 0
        self._thread.start()

    def end(self) -> int:
        """Stop writing, and return how many rows there are."""
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.rows

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            for value in range(self.rows, self.rows + 10):
                self._producer.produce(self._topic, str(value).encode(), key=f"key-{value}".encode())
            self.rows += 10
            self._producer.poll(0)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("old", "new", "protocol"),
    [
        pytest.param("3.9.1", "4.2.1", (0, 2), marks=on_broker("3.9.1 to 4.2.1"), id="4.2.1"),
        pytest.param("4.2.1", "4.3.1", (2, 2), marks=on_broker("4.2.1 to 4.3.1"), id="4.3.1"),
        pytest.param("4.3.1", "4.4.0", (2, 2), marks=on_broker("4.3.1 to 4.4.0"), id="4.4.0"),
    ],
)
def test_a_rolling_upgrade_under_a_running_query_costs_no_row_and_no_restart(
    spark: SparkSession, topic_name: str, tmp_path: Path, old: str, new: str, protocol: tuple[int, int]
) -> None:
    """At its end, the cluster also gets the newer transaction protocol, under the query."""
    with Cluster(3, PROPERTIES, version=old) as cluster:
        job, output = topic_to_topic(cluster, topic_name, replication=3, maxOffsetsPerTrigger="1000")
        assert transaction_version(cluster) == protocol[0]
        with closing(LiveReader(output)) as reader, LiveQuery(spark, tmp_path, job, output) as query:
            feed = Feed(cluster.bootstrap_servers, job.source["subscribe"])

            def progress() -> None:
                """Wait until the query has written what is there now."""
                rows = feed.rows
                query.wait(lambda: reader.rows().total() > rows, "rows after a step")

            query.start()
            progress()
            for node in range(3):
                cluster.upgrade(node, new)
                progress()
            cluster.raise_features("metadata.version", "transaction.version")
            progress()
            assert transaction_version(cluster) == protocol[1]
            progress()
            rows = feed.end()
            query.wait(lambda: reader.rows().total() >= rows, "all rows")
            query.stop()
            query.place.check_whole(rows)
            assert reader.finish(output.ends(COMMITTED)) == Counter(range(rows))


def transaction_version(cluster: Cluster) -> int:
    """The level of ``transaction.version``."""
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": cluster.bootstrap_servers}))
    with closing(admin):
        levels, _ = admin.feature_levels()
        return levels.get("transaction.version", 0)
