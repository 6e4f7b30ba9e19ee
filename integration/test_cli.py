"""The command line and the listener beside real queries: what they tell is what happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import connector
from connector.cli import main
from connector.location.location import CheckpointLocation
from connector.operations.listener import Listening
from connector.operations.stopping import request_stop
from integration.broker import Cluster
from integration.driver_process import DriverProcess, Place, wait_until
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.topic_jobs import produce_keyed, topic_to_topic
from transactional.stats import CheckpointHistory, Restored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Capture = pytest.CaptureFixture[str]


class Told(connector.CheckpointListener):
    """Keeps what it is told; raises, too, which must hurt nobody."""

    def __init__(self) -> None:
        self.completed: list[CheckpointHistory] = []
        self.failed: list[CheckpointHistory] = []
        self.restored: list[Restored] = []

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        self.completed.append(checkpoint)
        raise RuntimeError("the pager is asleep")

    def onCheckpointFailed(self, checkpoint: CheckpointHistory) -> None:
        self.failed.append(checkpoint)

    def onRestored(self, restored: Restored) -> None:
        self.restored.append(restored)


def answer(capsys: Capture, place: Place, *command: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, document and sentences of a command about the place."""
    capsys.readouterr()
    location, more = str(place.location), [word for word in command if word.startswith("--")]
    status = main([*[word for word in command if word not in more], location, *more, "--output", "json"])
    said = capsys.readouterr()
    return status, json.loads(said.out), said.err


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> Iterator[Told]:
    """Attached before there is a location, and beside another listener that has had enough."""
    found = Told()
    listening = connector.add_listener(spark, str(tmp_path / "checkpoint"), found)
    connector.add_listener(spark, str(tmp_path / "checkpoint"), Told()).stop()
    yield found
    listening.stop()


@pytest.mark.slow
def test_a_query_is_seen_while_it_runs_and_its_listener_hears_of_each_checkpoint_once(
    spark: SparkSession, told: Told, tmp_path: Path, capsys: Capture
) -> None:
    with LiveQuery(spark, tmp_path, Job("", "", batches=3, rows=10)) as query:
        query.start()
        query.wait_committed(3)
        place = query.place
        status, shown, _ = answer(capsys, place, "checkpoints", "show")
        assert status == 0
        stats = shown["stats"]
        assert (stats["run"]["sink"], stats["run"]["alive"], stats["run"]["ended"]) == ("2pc-testfile", True, None)
        assert stats["query"] == str(query.query.id)
        before = place.ledger().position
        status, refused, said = answer(capsys, place, "recover")
        assert (status, refused["condition"]) == (1, "QUERY_RUNS")
        assert f"pid {stats['run']['process']['pid']})" in said
        assert place.ledger().rewinding is None
        assert place.ledger().position >= before
        wait_until(lambda: len(told.completed) >= 4, "events of four micro-batches")
        request_stop(CheckpointLocation(query.job.location))  # `query.stop()` leaves a commit at work
        assert "STOP_REQUESTED" in query.wait_failed()
    decided = sorted(place.ledger().checkpoints)
    wait_until(lambda: len(told.completed) >= len(decided), "the last event")
    assert [each.id for each in told.completed] == decided, "once, and in order"
    assert [each.batches for each in told.completed] == [[number] for number in range(len(decided))]
    assert (told.failed, told.restored) == ([], [])

    status, listed, _ = answer(capsys, place, "checkpoints", "list", "--limit=1000")
    assert (status, [each["id"] for each in listed["checkpoints"]]) == (0, decided)
    assert [each["rows"] for each in listed["checkpoints"][:4]] == [10, 10, 10, 0]
    reasons = [each["reason"] for each in listed["checkpoints"]]
    assert reasons[:-1] == ["OTHER_SOURCE"] * (len(decided) - 1)
    assert reasons[-1] in ("OTHER_SOURCE", "STOP"), "a micro-batch may have been at work when the stop was asked for"
    first = listed["checkpoints"][0]
    assert first["prepared"] <= first["decided"] <= first["committed"]
    assert (first["handles"], first["barrier"]) == (2, None)
    assert listed["counts"] == {
        "triggered": len(decided),
        "completed": len(decided),
        "failed": 0,
        "restarts": 0,
        "declined": 0,
        "restored": 0,
    }


def test_a_listener_hears_of_what_failed_and_of_the_run_that_went_on(
    spark: SparkSession, told: Told, tmp_path: Path, faults: Any
) -> None:
    with LiveQuery(spark, tmp_path, Job("", "", batches=3, rows=10)) as query:
        query.start()
        query.wait_committed(0)
        faults.arm("commit.looked", "raise")
        query.wait_failed()
        query.finish()
        wait_until(lambda: bool(told.restored), "restored")
        wait_until(lambda: len(told.completed) >= 3, "the last event")
    [failed] = told.failed
    assert failed.reason == "ABORTED"
    [restored] = told.restored
    assert restored.checkpoint in [each.id for each in told.completed]
    assert restored.run > failed.id


@pytest.mark.slow
def test_a_dead_query_is_taken_back_by_the_command_and_goes_on_from_there(tmp_path: Path, capsys: Capture) -> None:
    with DriverProcess(tmp_path, Job("", "", batches=1000, rows=10, trigger="500 milliseconds")) as driver:
        place = driver.place
        driver.start()
        driver.wait_committed(3)
        assert answer(capsys, place, "rewind", "--to=2", "--yes")[1]["condition"] == "QUERY_RUNS"
        driver.kill()
        _, shown, _ = answer(capsys, place, "checkpoints", "show")
        assert shown["stats"]["run"]["alive"] is False
        _, listed, _ = answer(capsys, place, "checkpoints", "list", "--limit=1000")
        target = next(each for each in listed["checkpoints"] if each["batches"] == [1])
        status, refused, _ = answer(capsys, place, "rewind", f"--to={target['id']}", "--yes")
        assert (status, refused["condition"]) == (1, "OUTPUT_COMMITTED")
        emitted = sum(each["rows"] for each in refused["emitted"])
        status, done, _ = answer(capsys, place, "rewind", f"--to={target['id']}", "--allow-reemit", "--yes")
        assert (status, done["status"], done["batch"], place.committed()) == (0, "done", 1, 1)
        again = sorted(place.output.rows())
        assert again == list(range(20 + emitted)), "what was committed stays"
        driver.start(batches=4)
        assert driver.wait_exit() == 0, driver.tail()
        assert "rows up to micro-batch 3 are visible" in driver.tail(), "a healthy query is not silent"
        # However far it came before the kill: what was emitted stays, and micro-batches 2 and 3 are written again.
        assert place.output.rows() == Counter(range(20 + emitted)) + Counter(range(20, 40))


@pytest.mark.slow
def test_a_checkpoint_that_was_asked_for_closes_what_is_prepared(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, capsys: Capture
) -> None:
    job, output = topic_to_topic(kafka, topic_name)
    source = {**job.source, "barrierInterval": "5 min", "maxOffsetsPerTrigger": "10"}
    with LiveQuery(spark, tmp_path, replace(job, source=source), output) as query:
        produce_keyed(kafka, f"{topic_name}-in", range(50))
        query.start()
        query.query.processAllAvailable()
        place = query.place
        status, shown, _ = answer(capsys, place, "checkpoints", "show")
        pending = shown["stats"]["pending"]
        assert (status, pending["batches"][-1]) == (0, place.committed())
        assert pending["rows"] == 50 - sum(output.rows().values())
        assert pending["lifetime"] == 900.0
        assert 0 < pending["oldest_age"] < 300
        told = Told()
        listening = Listening(CheckpointLocation(str(place.location)), told)
        assert answer(capsys, place, "checkpoints", "trigger")[1]["status"] == "done"
        assert answer(capsys, place, "checkpoints", "trigger")[1]["status"] == "nothing to do"
        # One row is one micro-batch: the query does not wait for more.
        produce_keyed(kafka, f"{topic_name}-in", range(50, 51))
        query.query.processAllAvailable()
        assert listening.poll() == 1, "without an event of Spark"
        [asked] = told.completed
        assert (asked.reason, asked.batches[:-1]) == ("REQUEST", pending["batches"])
        wait_until(lambda: output.rows() == Counter(range(51)), "all rows are visible")
        assert asked.output.keys() <= {f"{topic_name}-{partition}" for partition in range(4)}
        assert asked.output
