"""A query that gets, loses and renames sources at one checkpoint location, on a PySpark that can do it; killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connector.cli import main as barrier
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from integration.broker import Cluster
from integration.driver_process import Faults
from integration.other_spark import OtherSpark, fetch
from integration.releases import SPARK_4_3, on_spark_4_3
from integration.topic_output import TopicOutput
from transactional import faults

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(3000), on_spark_4_3]

EVOLVES = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}

POINTS = ("source.latest", "task.prepared", "decision.written", "commit.one", "settled.written")
"""A life ends at each of these points, in the first micro-batch after its sources have changed."""


class Evolving:
    """A query of two topics, which are read by the sources that each start names."""

    def __init__(self, kafka: Cluster, spark: OtherSpark, topic: str, folder: Path) -> None:
        self.kafka, self.spark, self.topic, self.folder = kafka, spark, topic, folder
        self.location = CheckpointLocation(str(folder / "location"))
        self.faults = Faults(folder / "faults")
        self.sent: Counter[int] = Counter()
        for name in ("a", "b"):
            kafka.create_topic(f"{topic}-{name}", partitions=2)
        kafka.create_topic(f"{topic}-out", partitions=2)
        self.output = TopicOutput(kafka.bootstrap_servers, f"{topic}-out", "")

    def feed(self, *names: str, rows: int = 60) -> None:
        """Send new rows to topics."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for name in names:
            for _ in range(rows):
                number = len(self.sent)
                self.sent[number] += 1
                producer.produce(f"{self.topic}-{name}", key=str(number), value=str(number), partition=number % 2)
        producer.flush()

    def run(self, sources: Sequence[tuple[str, str, str]], *, version: str = "2", **settings: str) -> str:
        """Run the query to its end, or to its death; return what it has printed."""
        config = {
            "servers": self.kafka.bootstrap_servers,
            "target": f"{self.topic}-out",
            "location": str(self.folder / "location"),
            "version": version,
            "settings": {**EVOLVES, **settings} if version == "2" else settings,
            "sources": [[name, f"{self.topic}-{topic}", starting] for name, topic, starting in sources],
        }
        run = subprocess.run(
            [sys.executable, "-m", "integration.evolving_query", json.dumps(config)],
            env={**self.spark.environment(), faults.VARIABLE: str(self.faults.folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            start_new_session=True,
        )
        self.status = run.returncode
        return run.stdout + run.stderr

    def change(self, sources: Sequence[tuple[str, str, str]]) -> None:
        """Start the query with other sources: its lives are killed at different points, and the last one reads all rows."""
        for point in POINTS:
            self.faults.arm(point, "kill-jvm")
            said = self.run(sources)
            assert not self.faults.armed(), f"{point}: {said[-3000:]}"
        said = self.run(sources)
        assert self.status == 0, said[-3000:]
        assert self.output.rows() == self.sent

    def names(self) -> list[str]:
        """The names of the sources in Spark's newest offset file."""
        return sorted(line.name for line in source_lines(self.location, newest(self.location, "offsets")))

    def ends(self, name: str) -> str:
        """Where a source has stopped, as ``startingOffsets``."""
        lines = source_lines(self.location, newest(self.location, "offsets"))
        return json.dumps(next(line.ends for line in lines if line.name == name))


@pytest.fixture(scope="module")
def spark_4_3() -> OtherSpark:
    return fetch(SPARK_4_3)


@pytest.fixture
def query(kafka: Cluster, spark_4_3: OtherSpark, topic_name: str, tmp_path: Path) -> Evolving:
    return Evolving(kafka, spark_4_3, topic_name, tmp_path)


ALPHA, BETA = ("alpha", "a", "earliest"), ("beta", "b", "earliest")


def test_a_query_gets_a_source_and_loses_its_first_and_every_row_is_written_once(query: Evolving) -> None:
    query.feed("a")
    query.change([ALPHA])
    query.feed("a", "b")
    query.change([BETA, ALPHA])
    assert query.names() == ["alpha", "beta"]
    query.feed("a", "b")
    query.run([ALPHA, BETA])
    assert query.output.rows() == query.sent
    stopped = query.ends("alpha")
    query.feed("b")
    query.change([BETA])
    assert query.names() == ["beta"]

    # The first topic again, under another name: from anywhere else it is refused, and the remedy is followed.
    query.feed("a", "b")
    said = query.run([BETA, ("gamma", "a", "earliest")])
    assert query.status != 0
    assert "SOURCE_BEGINS_ELSEWHERE" in said
    assert stopped.replace(" ", "") in said.replace("\\", "")
    journal = query.location.journal().load()
    assert journal.completed is not None
    assert barrier(["rewind", str(query.folder / "location"), "--to", str(journal.completed.id), "--yes"]) == 0
    query.change([BETA, ("gamma", "a", stopped)])


def test_a_source_that_is_removed_with_rows_in_a_planned_micro_batch_is_asked_for_again(query: Evolving) -> None:
    query.feed("a", "b")
    query.run([ALPHA, BETA])
    query.feed("a", "b", rows=200)
    query.faults.arm("task.prepared", "kill-jvm")
    query.run([ALPHA, BETA])
    said = query.run([BETA])
    assert query.status != 0
    assert "SOURCE_REMOVED" in said
    assert query.output.rows() < query.sent
    query.change([ALPHA, BETA])
    query.run([BETA])
    assert query.status == 0


def test_a_location_keeps_version_1_of_the_log_and_its_sources(query: Evolving) -> None:
    """Up to 4.3, Spark has no way from version 1 to 2."""
    unnamed = [("", "a", "earliest"), ("", "b", "earliest")]
    query.feed("a", "b")
    query.faults.arm("decision.written", "kill-jvm")
    query.run(unnamed, version="1")
    query.feed("a")
    said = query.run([ALPHA, BETA])
    assert query.status != 0
    assert "CANNOT_ENABLE_ON_EXISTING_CHECKPOINT" in said, "Spark says so itself"
    said = query.run(unnamed, version="1")
    assert query.status == 0, said[-3000:]
    assert query.names() == ["", ""]
    assert query.output.rows() == query.sent
