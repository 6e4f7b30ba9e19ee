"""The cases that broke this design on paper, each by name, on the file sink."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.spark.host import data_source_for
from integration.crash_matrix import POINTS
from integration.driver_process import DEADLINE, DriverProcess, Faults, FolderOutput, Place, wait_until
from integration.file_sink import FileSink, committed_rows, pending_files
from integration.jobs import TWO_HOSTS, Job
from integration.live_query import LiveQuery
from integration.probed_sink import ProbedFileSink, calls, gate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBED = {"format": ProbedFileSink.name()}

ON_KAFKA = frozenset(
    {
        "task.written",
        "task.prepared",
        "commit.looked",
        "decision.written",
        "commit.one",
        "commit.done",
        "settled.written",
    }
)
"""Points at which `test_kafka_spark_crashes` kills a JVM, too."""


def folder_of(query: LiveQuery | DriverProcess) -> Path:
    assert isinstance(query.place.output, FolderOutput)
    return query.place.output.folder


def aborted_files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "aborted"))


# -- lives in a row ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_query_whose_every_life_ends_at_the_next_fault_point_writes_every_row_once(tmp_path: Path) -> None:
    """One place, a life for each point that is not `ON_KAFKA`; what one death leaves is what the next life recovers."""
    with DriverProcess(tmp_path, Job("", "", batches=5)) as driver:
        place = driver.place

        def die(point: str) -> None:
            """Live until the point kills the JVM."""
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point)
            place.check_partial(driver.expected)

        def lose_what_is_pending() -> None:
            pending = place.output.open_transactions()
            assert pending
            place.output.lose(pending)

        # Nothing is decided: every life writes micro-batch 0 anew.
        for point in ("recovery.claimed", "recovery.swept", "task.begun", "commit.called"):
            die(point)
            assert place.output.rows() == {}
            assert "decided" not in place.kinds()

        # The create of the decision succeeds, its answer never comes. (The first create of a life is that of its run.)
        driver.faults.arm("commit.looked", "pause")
        driver.start()
        driver.wait_fired("commit.looked")
        driver.faults.arm("journal.created", "kill-jvm")
        driver.faults.resume("commit.looked")
        driver.wait_death("journal.created")
        assert place.kinds()[-1] == "decided"

        die("recovery.settling")  # of micro-batch 0, just decided
        die("decision.written")  # of micro-batch 1
        assert place.kinds()[-1] == "decided"
        die("commit.one")  # in its recovery: one of its two transactions
        assert len(place.output.open_transactions()) == 1
        lose_what_is_pending()
        die("repair.verdict")
        die("repair.handles")
        die("mark.published")  # in the recovery of the repaired one
        assert place.kinds()[-1] != "settled"
        driver.faults.arm("task.written", "raise")
        die("abort.journalled")  # of the next micro-batch
        assert place.kinds()[-1] == "aborted"

        assert {name.rsplit(".", 2)[0] for name in driver.faults.fired()} | ON_KAFKA == set(POINTS)
        assert driver.faults.armed() == []
        driver.finish()


# -- who calls what, where ------------------------------------------------------------------------------------------


def test_recovery_never_runs_in_the_commit_process_and_a_sweep_there_only_after_the_outcome(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("commit.one", "raise")  # leaves something to recover
    with LiveQuery(spark, tmp_path, Job("", "", sink=PROBED)) as query:
        errors = query.finish(restarts=1)
        assert len(errors) == 1
        said = calls(folder_of(query))
    planning = [call for call in said if call["role"] == "planning"]
    commit = [call for call in said if call["role"] == "commit"]
    assert {call["role"] for call in said} == {"planning", "commit", "task"}
    assert {call["call"] for call in commit} == {"inspect", "commit", "sweep"}
    assert {call["pid"] for call in planning}.isdisjoint({call["pid"] for call in commit})
    assert "commit" in {call["call"] for call in planning}
    for before, sweep in itertools.pairwise(commit):
        if sweep["call"] == "sweep":
            assert before["call"] in ("commit", "sweep"), "a sweep between a look and its decision"
    first_commit = said.index(next(call for call in said if call["role"] == "commit"))
    assert said[first_commit]["call"] == "inspect", "the commit process begins with the look, whatever it is built for"
    assert sum(call["found"] for call in said if call["call"] == "sweep") == 0, "something prepared was swept"


def test_a_no_data_micro_batch_of_a_watermark_that_emits_rows_is_not_taken_for_decided(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    from pyspark.sql.functions import window

    spark.dataSource.register(data_source_for(FileSink))
    (tmp_path / "input").mkdir()

    def feed(number: int, times: list[str]) -> None:
        lines = "".join(json.dumps({"time": f"2024-01-01 {time}"}) + "\n" for time in times)
        (tmp_path / f"{number}.json").write_text(lines)
        (tmp_path / f"{number}.json").rename(tmp_path / "input" / f"{number}.json")

    def begin() -> Any:
        stream = spark.readStream.schema("time timestamp").json(str(tmp_path / "input"))
        counts = stream.withWatermark("time", "1 second").groupBy(window("time", "10 seconds")).count()
        writer = counts.selectExpr("cast(window.start as string) as start", "count").writeStream.format(FileSink.name())
        return writer.options(checkpointLocation=str(tmp_path / "cp"), path=str(tmp_path / "out")).start()

    def counted() -> Counter[str]:
        return Counter({row["start"]: row["count"] for row in committed_rows(tmp_path / "out")})

    place = Place(tmp_path / "cp", FolderOutput(tmp_path / "out"))
    feed(0, ["10:00:01", "10:00:02", "10:00:15"])
    faults.arm("commit.called", "pause")
    query = begin()
    wait_until(lambda: faults.fired("commit.called"), "the first commit")
    faults.arm("decision.written", "raise", times=1)  # in micro-batch 0, which emits nothing,
    faults.resume("commit.called")
    wait_until(lambda: not query.isActive, "failure of micro-batch 0")
    faults.arm("commit.one", "raise")  # and in the no-data micro-batch, which emits the first window
    query = begin()
    wait_until(lambda: not query.isActive, "failure of the no-data micro-batch")
    lines = [(tmp_path / "cp" / "offsets" / name).read_text().splitlines()[2:] for name in ("0", "1")]
    assert lines[0] == lines[1], "micro-batch 1 was to have no data"
    query = begin()
    try:
        wait_until(
            lambda: place.committed() >= 1,
            "commits/1",
            alive=lambda: None if query.isActive else str(query.exception()),
        )
        assert counted() == {"2024-01-01 10:00:00": 2}
        feed(1, ["10:00:31"])
        wait_until(lambda: len(counted()) >= 2, "the second window", alive=lambda: None if query.isActive else "dead")
    finally:
        query.stop()
    assert counted() == {"2024-01-01 10:00:00": 2, "2024-01-01 10:00:10": 1}
    assert len(committed_rows(tmp_path / "out")) == 2
    assert place.output.open_transactions() == []


# -- two drivers ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_of_two_drivers_the_one_paused_before_its_decision_is_fenced_and_the_other_wins(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("commit.looked", "pause")
    with LiveQuery(spark, tmp_path) as first, DriverProcess(tmp_path / "second", first.job) as second:
        first.start()
        wait_until(lambda: faults.fired("commit.looked"), "the first driver before its decision")
        stale = pending_files(folder_of(first))
        assert len(stale) == 2
        second.faults.arm("settled.written", "pause")
        second.start()
        second.wait_fired("settled.written")
        assert aborted_files(folder_of(first)) == stale, "the second driver's sweep ends what the first prepared"
        faults.resume("commit.looked")
        error = first.wait_failed()
        assert "RUN_SUPERSEDED" in error
        assert first.place.kinds().count("decided") == 1
        first.place.check_partial(first.expected)
        second.faults.resume("settled.written")
        assert second.wait_exit() == 0, second.tail()
        second.place.check_whole(second.expected)
        # Starting it again is a new run: it takes over what the other has left.
        first.finish(batches=second.job.batches)


@pytest.mark.matrix
def test_the_abort_of_a_fenced_driver_without_messages_touches_nothing_of_the_new_run(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("task.written", "pause", times=2)
    with LiveQuery(spark, tmp_path) as first, DriverProcess(tmp_path / "second", first.job) as second:
        first.start()
        wait_until(lambda: len(faults.fired("task.written")) == 2, "both tasks of the first driver")
        second.faults.arm("commit.looked", "pause")
        second.start()
        second.wait_fired("commit.looked")
        prepared = pending_files(folder_of(first))
        entries = first.place.kinds()
        assert len(prepared) == 2
        first.stop()  # abort([None, None])
        assert pending_files(folder_of(first)) == prepared
        assert first.place.kinds() == entries, "the fenced driver has written into the journal"
        second.faults.resume("commit.looked")
        assert second.wait_exit() == 0, second.tail()
        second.place.check_whole(second.expected)


@pytest.mark.matrix
def test_what_a_zombie_task_of_a_dead_driver_begins_late_is_swept_and_never_seen(tmp_path: Path) -> None:
    with DriverProcess(tmp_path, Job("", "", sink=PROBED)) as driver:
        opened = gate(folder_of(driver))
        driver.start()
        taken = opened.with_name("begin.taken")
        wait_until(lambda: taken.exists() and taken.read_text(), "a task at the gate")
        zombie = int(taken.read_text())
        driver.kill(spare=zombie)
        driver.faults.arm("commit.looked", "pause")
        driver.start()
        driver.wait_fired("commit.looked")
        prepared = pending_files(folder_of(driver))
        opened.touch()
        late = set(
            wait_until(lambda: set(pending_files(folder_of(driver))) - set(prepared), "the zombie's transaction")
        )
        wait_until(lambda: not Path(f"/proc/{zombie}").exists(), "end of the zombie, whose JVM is gone")
        driver.faults.resume("commit.looked")
        assert driver.wait_exit() == 0, driver.tail()
        driver.place.check_whole(driver.expected)
        assert late <= set(aborted_files(folder_of(driver)))


# -- the location ---------------------------------------------------------------------------------------------------


def run_three(spark: SparkSession, folder: Path) -> LiveQuery:
    query = LiveQuery(spark, folder)
    query.finish()
    return query


def test_a_location_whose_offsets_and_commits_were_deleted_is_refused_and_the_way_out_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = run_three(spark, tmp_path)
    for log in ("offsets", "commits"):
        shutil.rmtree(Path(query.job.location) / log)
    error = query.start().wait_failed()
    assert "BATCHES_NOT_ACCOUNTED" in error
    assert "--as-is" in error
    query.place.check_whole(query.expected)


def test_a_restored_backup_of_the_journal_is_refused_and_the_way_out_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = LiveQuery(spark, tmp_path, Job("", "", batches=6))
    journal = Path(query.job.location) / "barrier"
    query.start()
    query.wait_committed(1)
    query.stop()
    shutil.copytree(journal, tmp_path / "backup")
    query.finish()
    shutil.rmtree(journal)
    shutil.copytree(tmp_path / "backup", journal)
    error = query.start().wait_failed()
    assert "BATCHES_NOT_ACCOUNTED" in error
    assert "--as-is" in error
    query.place.check_partial(query.expected)


# -- tasks that run twice -------------------------------------------------------------------------------------------


def test_a_task_retried_after_its_first_attempt_had_prepared_is_committed_once(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("task.prepared", "raise")
    with LiveQuery(spark, tmp_path) as query:
        assert query.finish() == []
        assert len(faults.fired("task.prepared")) == 1
        assert len(aborted_files(folder_of(query))) == 1, "the first attempt's"


@pytest.mark.matrix
def test_a_stage_retried_after_its_executor_died_is_committed_once(tmp_path: Path) -> None:
    job = Job("", "", name="shuffled", master="local-cluster[2,1,1024]", rows=20)
    with DriverProcess(tmp_path, job) as driver:
        driver.faults.arm("task.prepared", "kill-jvm")  # the executor's, with its shuffle files
        driver.finish()
        assert len(driver.faults.fired("task.prepared")) == 1
        assert aborted_files(folder_of(driver)) != []


@pytest.mark.matrix
def test_the_loser_of_a_speculation_that_had_prepared_is_gone_afterwards(tmp_path: Path) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with DriverProcess(tmp_path, Job("", "", batches=4, master=TWO_HOSTS)) as driver:
        driver.faults.arm("task.prepared", "pause")
        driver.start(batches=3, conf=speculation)
        driver.wait_committed(0)
        assert len(driver.faults.fired("task.prepared")) == 1
        assert len(aborted_files(folder_of(driver))) >= 1, "the loser's"
        driver.faults.resume("task.prepared")
        assert driver.wait_exit() == 0, driver.tail()
        # A loser of the last micro-batch may prepare after that micro-batch's sweep: the next start's finds it.
        driver.finish()


def test_a_repair_with_another_number_of_writer_tasks_is_refused_and_the_right_number_mends_it(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("commit.one", "raise")
    with LiveQuery(spark, tmp_path) as query:
        assert "InjectedFault" in query.start().wait_failed()
        lost = pending_files(folder_of(query))
        assert len(lost) == 1
        FolderOutput(folder_of(query)).lose(lost)
        # Fewer: the commit tells. More: a task does, by the rows of its part, or the first that is one too many.
        more = ("partition 1 of 2: recorded 5 rows of ", "writer tasks: recorded 2, now 3 or more")
        for writers, numbers in ((1, ("writer tasks: recorded 2, now 1",)), (3, more)):
            error = query.start(writers=writers).wait_failed()
            assert "REPLAY_DIFFERS" in error
            assert any(told in error for told in numbers)
            assert "spark.sql.adaptive.enabled=false" in error
            assert "resolve" in error
            query.place.check_partial(query.expected)
        query.finish()


# -- stopping -------------------------------------------------------------------------------------------------------


def test_a_query_stopped_in_the_middle_of_a_micro_batch_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("task.written", "pause", times=2)
    with LiveQuery(spark, tmp_path) as query:
        query.start()
        wait_until(lambda: len(faults.fired("task.written")) == 2, "both tasks")
        query.stop()
        assert query.place.output.rows() == {}
        faults.resume("task.written")
        query.finish()


def test_a_query_stopped_in_the_middle_of_a_commit_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("commit.one", "pause")
    with LiveQuery(spark, tmp_path) as query:
        query.start()
        wait_until(lambda: faults.fired("commit.one"), "the middle of a commit")
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        faults.resume("commit.one")
        stopping.join(DEADLINE)
        assert not stopping.is_alive()
        query.place.check_partial(query.expected)
        query.finish()


def test_stopping_and_starting_again_within_one_session_is_the_same_run(spark: SparkSession, tmp_path: Path) -> None:
    with LiveQuery(spark, tmp_path, Job("", "", batches=4)) as query:
        query.start()
        query.wait_committed(1)
        query.stop()
        query.finish()
        assert "fenced" not in query.place.kinds()


def test_two_queries_in_one_session_do_not_fence_themselves(spark: SparkSession, tmp_path: Path) -> None:
    with (
        LiveQuery(spark, tmp_path / "one", Job("", "", batches=5)) as one,
        LiveQuery(spark, tmp_path / "two", Job("", "", batches=5)) as two,
    ):
        one.start()
        two.start()
        for query in (one, two):
            query.wait_committed(4)
        for query in (one, two):
            query.stop()
            query.place.check_whole(query.expected)
            assert query.place.kinds().count("run") == 1
            assert "fenced" not in query.place.kinds()


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_trigger_of_70_seconds_outlives_its_planning_workers_and_does_not_fence_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LiveQuery(spark, tmp_path, Job("", "", batches=5, trigger="70 seconds")) as query:
        query.start()
        query.wait_committed(4, deadline=500)
        query.stop()
        query.place.check_whole(query.expected)
        assert query.place.kinds().count("run") == 1


def test_an_offset_log_of_another_version_is_refused_and_its_advice_works(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(data_source_for(FileSink))
    setting = "spark.sql.streaming.offsetLog.formatVersion"

    def run(location: str) -> str:
        source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="3", numPartitions="1").load()
        writer = source.selectExpr("value").writeStream.format(FileSink.name()).trigger(availableNow=True)
        query = writer.options(checkpointLocation=str(tmp_path / location), path=str(tmp_path / "out")).start()
        wait_until(lambda: not query.isActive, "the query's end")
        return str(query.exception() or "")

    spark.conf.set(setting, "2")
    try:
        assert f"Spark uses the version in {setting}, and keeps that" in run("first")
    finally:
        spark.conf.unset(setting)
    assert "SPARK_OFFSETS_UNKNOWN" in run("first"), "a location keeps the version that it began with"
    assert committed_rows(tmp_path / "out") == []
    assert run("second") == ""
    assert committed_rows(tmp_path / "out")
