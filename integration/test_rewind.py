"""Going back: with `barrier recover` after outages longer than the transaction timeout, with `barrier rewind` by wish."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.broker import Cluster
from integration.delta_output import DeltaOutput
from integration.driver_process import DriverProcess, Faults, Place, wait_until
from integration.live_query import LiveQuery
from integration.test_interval_crashes import finish, only_decided_rows_are_seen, pile_up
from integration.topic_jobs import interval_job, produce_keyed, topic_to_topic
from transactional.faults import VARIABLE
from transactional.ledger import CheckpointRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = 10
"""Micro-batches of a checkpoint."""

STEPS = (
    "rewind.begun",
    "rewind.settled",
    "rewind.aborted",
    "rewind.deleted",
)


def barrier(*arguments: str, faults: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command `barrier` as its users do."""
    environment = {**os.environ, VARIABLE: str(faults) if faults else ""}
    environment.pop("COLUMNS", None)  # a worker of xdist has a width of its own
    command = [sys.executable, "-m", "connector.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def recovered(place: Place) -> dict[str, Any]:
    """`barrier recover` of a query that has stopped in a driver that lives; what it says."""
    return succeeds("recover", str(place.location), "--query-stopped")


def succeeds(*arguments: str) -> dict[str, Any]:
    """A command that has to succeed; what it says."""
    done = barrier(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lose_all(place: Place) -> None:
    """What is open ends, as it does when its timeout is over."""
    place.output.lose(place.output.open_transactions())
    wait_until(lambda: not place.output.open_transactions(), "end of all open transactions")


# -- outages ------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_prepared_micro_batches_that_were_lost_are_named_and_written_again(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    produce_keyed(kafka, f"{topic_name}-in", range(300))
    with LiveQuery(spark, tmp_path, job, output) as query, only_decided_rows_are_seen(query.place):
        query.start()
        pile_up(query.place, 4)
        query.stop()
        lose_all(query.place)
        query.start()
        problem = query.wait_failed()
        assert "[PREPARED_LOST]" in problem
        assert "barrier recover" in problem
        assert "micro-batch 1 " in problem
        refused = barrier("recover", str(query.place.location))
        assert refused.returncode == 1, "the driver lives: it has to be said that its query was stopped"
        recovered(query.place)
        assert query.place.committed() == 0
        finish(query, 300)


@pytest.mark.matrix
@pytest.mark.parametrize("writers", [2, 1])
def test_a_decision_over_ten_micro_batches_of_which_nothing_was_committed_is_void_and_written_anew(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, writers: int
) -> None:
    """Also with another number of writer tasks: the rows are cut anew."""
    query = ten_decided(kafka, spark, topic_name, tmp_path, faults, "decision.written")
    with query, only_decided_rows_are_seen(query.place):
        lose_all(query.place)
        query.start()
        assert "[PREPARED_LOST]" in query.wait_failed()
        recovered(query.place)
        query.job = replace(query.job, writers=writers)
        finish(query, 300)
    assert "void" in query.place.kinds()
    assert "repair" not in query.place.kinds()


@pytest.mark.slow
@pytest.mark.parametrize("again", ["", pytest.param("repair.handles", marks=pytest.mark.matrix)])
def test_a_decision_over_ten_micro_batches_of_which_some_was_committed_is_repaired_exactly(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, again: str
) -> None:
    """The micro-batches run again with the offsets that they had; also where one of these replays fails in between."""
    query = ten_decided(kafka, spark, topic_name, tmp_path, faults, "commit.one")
    with query, only_decided_rows_are_seen(query.place):
        [checkpoint] = query.place.ledger().unsettled()
        lines = [offsets(query.place, batch) for batch in checkpoint.batches]
        lose_all(query.place)
        committed = sum(query.place.output.rows().values()) - 10
        assert committed > 0
        query.start()
        assert "[PREPARED_LOST]" in query.wait_failed()
        done = recovered(query.place)
        assert query.place.ledger().replay is not None, done
        if again:
            faults.arm(again, "raise")
            query.start()
            assert again in query.wait_failed()
        finish(query, 300)
        assert [offsets(query.place, batch) for batch in checkpoint.batches] == lines
    assert {"verdict", "repair"} <= set(query.place.kinds())
    assert "void" not in query.place.kinds()


@pytest.mark.matrix
def test_a_decision_over_ten_micro_batches_of_which_all_was_committed_needs_no_rewind(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults
) -> None:
    query = ten_decided(kafka, spark, topic_name, tmp_path, faults, "commit.done")
    with query, only_decided_rows_are_seen(query.place):
        lose_all(query.place)
        finish(query, 300)


def ten_decided(kafka: Cluster, spark: SparkSession, topic: str, folder: Path, faults: Faults, point: str) -> LiveQuery:
    """A query that failed there, with a decision over ten micro-batches that is not settled."""
    job, output = interval_job(kafka, topic, "2pc-kafka", folder, batches=TEN)
    produce_keyed(kafka, f"{topic}-in", range(300))
    query = LiveQuery(spark, folder, job, output)
    query.start()
    pile_up(query.place, TEN - 1)
    faults.arm(point, "raise")
    assert point in query.wait_failed()
    [checkpoint] = query.place.ledger().unsettled()
    assert len(checkpoint.batches) == TEN
    return query


def offsets(place: Place, batch: int) -> Any:
    """Where a micro-batch ends, and its barrier."""
    line = json.loads((place.location / "offsets" / str(batch)).read_text().splitlines()[2])
    return line["topics"], line["barrier"]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_query_that_was_down_for_longer_than_the_timeout_comes_back(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    """The broker itself gives the transactions up."""
    # The interval is below half of the timeout, and long enough for three micro-batches, on a busy machine too.
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, interval="45s", batches=50)
    job = replace(job, sink={**job.sink, "kafka.transaction.timeout.ms": "100000"})
    produce_keyed(kafka, f"{topic_name}-in", range(300))
    with LiveQuery(spark, tmp_path, job, output) as query, only_decided_rows_are_seen(query.place):
        query.start()
        pile_up(query.place, 3)
        query.stop()
        wait_until(lambda: not query.place.output.open_transactions(), "expiry")
        query.start()
        assert "[PREPARED_LOST]" in query.wait_failed()
        recovered(query.place)
        finish(query, 300)


# -- a rewind that is killed --------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_rewind_that_was_killed_at_every_step_is_finished_by_another(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults
) -> None:
    query = ten_decided(kafka, spark, topic_name, tmp_path, faults, "commit.one")
    with query, only_decided_rows_are_seen(query.place):
        lose_all(query.place)
        location = str(query.place.location)
        for point in STEPS:
            faults.arm(point, "kill")
            killed = barrier("recover", location, "--query-stopped", faults=faults.folder)
            assert killed.returncode == -9, (point, killed.stderr)
            assert faults.fired(point)
            if point in ("rewind.begun", "rewind.deleted"):
                query.start()
                assert "[REWIND_NOT_DONE]" in query.wait_failed()
        refused = barrier("rewind", location, "--to", "2", "--yes", "--query-stopped")
        assert (refused.returncode, "REWIND_NOT_DONE" in refused.stderr) == (1, True)
        recovered(query.place)
        finish(query, 300)


# -- because a user wants to --------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_stateful_query_that_was_killed_goes_back_three_checkpoints_with_its_table(
    kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """RocksDB holds a count per key; 20 micro-batches, kill -9, back, on: table and state as if nothing had been."""
    job, _ = topic_to_topic(kafka, topic_name)
    produce_keyed(kafka, f"{topic_name}-in", range(300))
    conf = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider"
    }
    output = DeltaOutput(tmp_path / "table")
    sink = {"format": "2pc-delta"}
    job = replace(job, name="counted", output=str(output.path), sink=sink, conf=conf, batches=30, rows=10)
    with DriverProcess(tmp_path, job, output) as driver:
        place = driver.place
        driver.start()
        driver.wait_committed(19)
        driver.faults.arm("task.begun", "pause")
        driver.wait_fired("task.begun")  # nothing is decided and not settled then
        driver.kill()
        driver.faults.clear()
        target = checkpoints(place)[-4]
        refused = barrier("rewind", str(place.location), "--to", str(target.id), "--yes")
        assert refused.returncode == 1
        assert "--allow-reemit" in refused.stderr
        assert all(str(checkpoint.output["version"]) in refused.stderr for checkpoint in checkpoints(place)[-3:])
        back = ("rewind", str(place.location), "--to", str(target.id), "--yes")
        succeeds(*back, "--allow-reemit", "--restore-tables")
        assert place.committed() == target.batches[-1]
        assert sum(output.rows().values()) == 10 * (target.batches[-1] + 1)
        driver.start()
        assert driver.wait_exit() == 0, driver.tail()
    expected = Counter(key * 1000 + number for key in range(5) for number in range(60))
    assert output.rows() == expected


@pytest.mark.slow
def test_going_back_behind_what_a_topic_holds_writes_exactly_the_named_rows_again(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    job, output = topic_to_topic(kafka, topic_name)
    produce_keyed(kafka, f"{topic_name}-in", range(60))
    with LiveQuery(spark, tmp_path, replace(job, batches=6), output) as query:
        query.finish()
        place = query.place
        target = checkpoints(place)[-3]
        again = [row for row, _ in sorted(output.rows().items()) if row >= 10 * (target.batches[-1] + 1)]
        refused = barrier("rewind", str(place.location), "--to", str(target.id), "--query-stopped", "--yes")
        assert refused.returncode == 1
        assert f"{topic_name}-0" in refused.stderr, "partitions and offsets are named"
        back = ("rewind", str(place.location), "--to", str(target.id), "--yes")
        succeeds(*back, "--query-stopped", "--allow-reemit")
        query.start()
        query.query.processAllAvailable()
        query.stop()
        wait_until(output.is_quiet, "markers")
        assert output.rows() == Counter([*range(60), *again])


def checkpoints(place: Place) -> list[CheckpointRecord]:
    """Those with rows, oldest first."""
    return [checkpoint for _, checkpoint in sorted(place.ledger().checkpoints.items()) if checkpoint.rows]
