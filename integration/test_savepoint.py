"""Savepoints and restores with real Spark and Kafka: other partitions, copies beside their original, closed origins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest
from connector.savepoints import restore
from connector.savepoints.manifest import read
from connector.savepoints.repartition import repartition
from connector.savepoints.take import take
from connector.spark.host import data_source_for
from integration.broker import Cluster
from integration.driver_process import FolderOutput, wait_until
from integration.file_sink import FileSink
from integration.jobs import JOBS, Job
from integration.live_query import LiveQuery
from integration.test_interval_crashes import pile_up
from integration.test_rewind import barrier
from integration.test_spark_rewind import STORES, settings
from integration.topic_jobs import interval_job, produce, produce_keyed
from integration.topic_output import TopicOutput
from tests.connector.cli_place import answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def command(*words: str) -> dict[str, Any]:
    """A command of `barrier`, which has to succeed; what it says."""
    done = barrier(*words, "--output", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def distinct_job(kafka: Cluster, topic: str, folder: Path) -> Job:
    """Every number of a topic of two partitions once, into files."""
    kafka.create_topic(topic, partitions=2)
    source = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40",
    }
    return Job("", str(folder / "output"), name="distinct", source=source)


def state(session: SparkSession, location: Path) -> Counter[int]:
    """The numbers that the query has seen, each with how many keys of the state hold it."""
    return Counter(row.key.value for row in session.read.format("statestore").load(str(location)).collect())


def run_to_the_end(query: LiveQuery) -> None:
    query.start()
    query.query.processAllAvailable()
    query.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stateful_query_goes_on_elsewhere_with_more_source_partitions_and_other_shuffle_partitions(
    kafka: Cluster,
    spark: SparkSession,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output and state equal those of an undisturbed run: each number once, all of them known."""
    monkeypatch.setattr(restore, "repartition", partial(repartition, session=spark))
    job = distinct_job(kafka, topic_name, tmp_path)
    produce(kafka, topic_name, [*range(100), *range(50)], 2)
    with settings(spark, STORES["rocksdb-changelog"]), LiveQuery(spark, tmp_path / "old", job) as query:
        query.start()
        query.query.processAllAvailable()
        early = take(query.job.location, str(tmp_path / "early"))
        produce(kafka, topic_name, range(100, 120), 2)
        query.query.processAllAvailable()
        query.stop()
        new = str(tmp_path / "new" / "checkpoint")
        assert answer(capsys, "stop", query.job.location, "--query-stopped")[0] == 0
        status, refused, _ = answer(capsys, "restore", early.path, new, "--claim", "--yes")
        assert (status, refused["condition"]) == (1, "ORIGIN_NOT_AT_SAVEPOINT")
        saved = take(query.job.location, str(tmp_path / "later"))
        assert saved.batch > early.batch

        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic_name, 4)])[topic_name].result(30)
        wait_until(lambda: len(admin.list_topics(topic_name).topics[topic_name].partitions) == 4, "new partitions")
        produce(kafka, topic_name, [*range(60, 200), *range(200)], 4)
        how = ("--claim", "--shuffle-partitions", "3", "--yes")
        status, done, _ = answer(capsys, "restore", saved.path, new, *how)
        assert (status, done["repartitioned"]) == (0, saved.batch + 1)

        moved = LiveQuery(spark, tmp_path / "new", job)
        with moved:
            run_to_the_end(moved)
        output = FolderOutput(tmp_path / "output")
        assert output.rows() == Counter(range(200))
        assert state(spark, moved.place.location) == Counter(range(200))
        assert "REPARTITION" in [each.reason for each in moved.place.ledger().checkpoints.values()]
        assert sorted(
            path.name for path in (moved.place.location / "state" / "0").iterdir() if path.name.isdigit()
        ) == [
            "0",
            "1",
            "2",
        ]
        query.start()
        assert "LOCATION_MOVED_ON" in query.wait_failed()
    assert output.rows() == Counter(range(200))


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_a_copy_and_its_original_run_side_by_side_without_touching_each_other(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    """What the original has prepared stays open while the copy starts, sweeps, and commits; then it commits that."""
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    assert isinstance(output, TopicOutput)
    copies = f"{topic_name}-copy"
    kafka.create_topic(copies, partitions=2)
    produce_keyed(kafka, f"{topic_name}-in", range(200))
    with LiveQuery(spark, tmp_path / "original", job, output) as original:
        original.start()
        pile_up(original.place, 3)
        saved = take(original.job.location, str(tmp_path / "saved"))
        assert [c.reason for c in original.place.ledger().checkpoints.values()][-1] == "REQUEST"
        pile_up(original.place, 2)
        original.query.processAllAvailable()
        opened = set(output.open_transactions())
        assert opened

        done = command("restore", saved.path, str(tmp_path / "copy" / "checkpoint"), "--no-claim", "--yes")
        sink = {key: value for key, value in job.sink.items() if key != "transactionalIdPrefix"}
        copied = TopicOutput(kafka.bootstrap_servers, copies, prefix=done["query"])
        with LiveQuery(spark, tmp_path / "copy", replace(job, output=copies, sink=sink), copied) as copy:
            copy.start(trigger="availableNow", source={**job.source, "maxOffsetsPerTrigger": "1000"})
            wait_until(lambda: not copy.query.isActive, "end of the copy")
            assert copy.query.exception() is None
        assert set(output.open_transactions()) >= opened, "the copy's sweep leaves them alone"
        assert original.query.isActive
        produce_keyed(kafka, f"{topic_name}-in", range(200, 220))
        original.query.processAllAvailable()
        original.stop()
        original.start(trigger="availableNow")
        wait_until(lambda: not original.query.isActive, "end of the original")
        assert original.query.exception() is None
    wait_until(lambda: output.is_quiet() and copied.is_quiet(), "markers")
    assert output.rows() == Counter(range(220))
    assert copied.rows() == Counter(range(10 * (saved.batch + 1), 200)), "it wrote what comes after the savepoint, once"


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_a_query_whose_place_is_claimed_under_it_stops_and_nothing_is_doubled(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    assert isinstance(output, TopicOutput)
    produce_keyed(kafka, f"{topic_name}-in", range(150))
    with LiveQuery(spark, tmp_path / "old", job, output) as query:
        query.start()
        pile_up(query.place, 2)
        saved = take(query.job.location, str(tmp_path / "saved"))
        query.query.processAllAvailable()
        assert output.open_transactions()
        new = str(tmp_path / "new" / "checkpoint")
        refused = barrier("restore", saved.path, new, "--claim", "--yes")
        assert (refused.returncode, "ORIGIN_NOT_AT_SAVEPOINT" in refused.stderr) == (1, True)
        command("rewind", query.job.location, "--to", str(saved.checkpoint), "--query-stopped", "--yes")
        assert not output.open_transactions(), "what was prepared there is given up"
        command("restore", saved.path, new, "--claim", "--yes")
        produce_keyed(kafka, f"{topic_name}-in", range(150, 180))
        assert "LOCATION_MOVED_ON" in query.wait_failed()
    with LiveQuery(spark, tmp_path / "new", job, output) as moved:
        moved.start(trigger="availableNow", source={**job.source, "maxOffsetsPerTrigger": "1000"})
        wait_until(lambda: not moved.query.isActive, "end of the query")
        assert moved.query.exception() is None
    wait_until(output.is_quiet, "markers")
    assert output.rows() == Counter(range(180))


# -- Spark's repartition, run by somebody else ---------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("partitions", [1, 5])
def test_a_repartition_that_a_user_runs_on_a_stopped_query_is_accepted(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, partitions: int
) -> None:
    job = distinct_job(kafka, topic_name, tmp_path)
    produce(kafka, topic_name, range(100), 2)
    with settings(spark, STORES["rocksdb"]), LiveQuery(spark, tmp_path, job) as query:
        run_to_the_end(query)
        location = CheckpointLocation(query.job.location)
        last = newest(location, "commits")
        manager: Any = spark._streamingCheckpointManager
        manager.repartition(query.job.location, partitions)
        assert newest(location, "commits") == last + 1
        produce(kafka, topic_name, [*range(50, 150)], 2)
        run_to_the_end(query)
        assert FolderOutput(tmp_path / "output").rows() == Counter(range(150))
        found = [c for c in query.place.ledger().checkpoints.values() if c.reason == "REPARTITION"]
        assert [each.batches for each in found] == [[last + 1]]
        saved = take(query.job.location, str(tmp_path / "saved"))
        command("stop", query.job.location, "--query-stopped")
        command("restore", saved.path, str(tmp_path / "new" / "checkpoint"), "--claim", "--yes")
        with LiveQuery(spark, tmp_path / "new", job) as moved:
            produce(kafka, topic_name, range(160), 2)
            run_to_the_end(moved)
        assert FolderOutput(tmp_path / "output").rows() == Counter(range(160))


# -- every state store ---------------------------------------------------------------------------------------------------


def processed(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """As the job `distinct`, with transformWithState: its metadata names files by their whole path."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Once(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.seen = handle.getValueState("seen", "seen BOOLEAN")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            import pandas as pd

            list(rows)
            if self.seen.exists():
                return iter(())
            self.seen.update((True,))
            return iter([pd.DataFrame({"value": [key[0]]})])

        def close(self) -> None:
            return

    rows = session.readStream.format("barrier-kafka").options(**job.source).load()
    numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value").groupBy("value")
    once = numbers.transformWithStateInPandas(Once(), "value LONG", "append", "none")
    session.dataSource.register(data_source_for(FileSink))
    return once, FileSink.name(), {"path": job.output}


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", [*STORES, "transformWithState"])
def test_a_copy_goes_on_with_the_state_of_every_store_when_its_original_is_gone(
    kafka: Cluster,
    spark: SparkSession,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    job = distinct_job(kafka, topic_name, tmp_path)
    if store == "transformWithState":
        monkeypatch.setitem(JOBS, "processed", processed)
        job = replace(job, name="processed")
    conf = {
        **STORES.get(store, STORES["rocksdb-changelog"]),
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    }
    with settings(spark, conf), LiveQuery(spark, tmp_path / "old", job) as query:
        produce(kafka, topic_name, range(100), 2)
        query.start()
        query.query.processAllAvailable()
        produce(kafka, topic_name, range(50, 120), 2)
        query.query.processAllAvailable()
        saved = take(query.job.location, str(tmp_path / "saved"))
        produce(kafka, topic_name, range(50, 140), 2)
        query.query.processAllAvailable()
        query.stop()
        query.place.location.rename(tmp_path / "gone")
        new = tmp_path / "new" / "checkpoint"
        partitions = ["--shuffle-partitions", "3"] if store == "transformWithState" else []
        monkeypatch.setattr(restore, "repartition", partial(repartition, session=spark))
        status, _, said = answer(capsys, "restore", saved.path, str(new), "--no-claim", "--yes", *partitions)
        assert status == 0, said
        with LiveQuery(spark, tmp_path / "new", replace(job, output=str(tmp_path / "copies"))) as copy:
            produce(kafka, topic_name, range(150), 2)
            run_to_the_end(copy)
        assert FolderOutput(tmp_path / "output").rows() == Counter(range(140))
        assert FolderOutput(tmp_path / "copies").rows() == Counter(range(120, 150))


@pytest.mark.matrix
def test_spark_cuts_the_state_of_the_default_store_never_and_says_so_before_anything_is_written(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = distinct_job(kafka, topic_name, tmp_path)
    produce(kafka, topic_name, range(10), 2)
    with LiveQuery(spark, tmp_path / "old", job) as query:
        run_to_the_end(query)
        command("stop", query.job.location, "--query-stopped", "--savepoint", str(tmp_path / "saved"))
        how = ("--claim", "--shuffle-partitions", "3", "--yes")
        status, refused, _ = answer(capsys, "restore", str(tmp_path / "saved"), str(tmp_path / "new"), *how)
        assert (status, refused["condition"]) == (1, "REPARTITION_REFUSED")
        assert "HDFSBackedStateStoreProvider" in refused["message"]
        assert query.place.ledger().moved is None


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_the_command_cuts_the_state_anew_in_a_session_of_its_own(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    """Also where the path has characters that Spark's repartition percent-encodes."""
    job = distinct_job(kafka, topic_name, tmp_path)
    produce(kafka, topic_name, range(100), 2)
    with settings(spark, STORES["rocksdb"]), LiveQuery(spark, tmp_path / "old", job) as query:
        run_to_the_end(query)
        command("stop", query.job.location, "--query-stopped", "--savepoint", str(tmp_path / "saved"))
        saved = read(str(tmp_path / "saved"))
        how = ("--claim", "--shuffle-partitions", "5", "--yes")
        new = tmp_path / "new %20#q?{1}[2] ü"
        done = command("restore", saved.path, str(new / "checkpoint"), *how)
        assert done["repartitioned"] == saved.batch + 1
        assert [path.name for path in new.iterdir()] == ["checkpoint"]
        with LiveQuery(spark, new, job) as moved:
            produce(kafka, topic_name, range(120), 2)
            run_to_the_end(moved)
    assert FolderOutput(tmp_path / "output").rows() == Counter(range(120))


# -- what nobody takes any more -------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_a_topic_that_the_restored_query_does_not_read_any_more_is_left_behind_only_if_its_start_allows_it(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = distinct_job(kafka, topic_name, tmp_path)
    other = f"{topic_name}-other"
    kafka.create_topic(other, partitions=1)
    both = replace(job, source={**job.source, "subscribe": f"{topic_name},{other}"})
    produce(kafka, topic_name, range(20), 2)
    produce(kafka, other, range(20, 30), 1)
    with LiveQuery(spark, tmp_path / "old", both) as query:
        run_to_the_end(query)
        saved = take(query.job.location, str(tmp_path / "saved"))
    produce(kafka, topic_name, range(40), 2)
    new = str(tmp_path / "new" / "checkpoint")
    moved = LiveQuery(spark, tmp_path / "new", replace(job, output=str(tmp_path / "copies")))
    assert answer(capsys, "restore", saved.path, new, "--no-claim", "--yes")[0] == 0
    with moved:
        moved.start()
        assert "can no longer be found" in moved.wait_failed(), "the source's own lock"
        tolerant = {**job.source, "failOnDataLoss": "false"}
        moved.start(source=tolerant)
        problem = moved.wait_failed()
        assert "STATE_NOT_RESTORED" in problem
        assert f"the topic {other}" in problem
        assert moved.place.kinds() == ["restoring", "opened"], "nothing was begun"
        moved.start(source=tolerant, sink={**moved.job.sink, "allowNonRestoredState": "true"})
        moved.query.processAllAvailable()
    assert FolderOutput(tmp_path / "copies").rows() == Counter(range(30, 40)), "the state is there"
