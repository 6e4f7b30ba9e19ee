"""The crash matrix over Delta tables: after every case the table is exactly the input, and was never part of a checkpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from integration.delta_output import DeltaOutput, WholeReader
from integration.driver_process import DriverProcess, Faults
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.test_crash_matrix_files import POINTS, REPAIRS, fail_in_one_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_POINTS = [point for point in POINTS if point not in REPAIRS]
"""A checkpoint is one commit: where all its micro-batches are at hand, none of it is ever committed and some lost."""


def table_job(folder: Path) -> tuple[Job, DeltaOutput]:
    """Spark's deterministic source into a table, ten rows a checkpoint."""
    output = DeltaOutput(folder / "table")
    return Job("", str(output.path), sink={"format": "2pc-delta"}), output


def query(spark: SparkSession, folder: Path) -> LiveQuery:
    job, output = table_job(folder)
    return LiveQuery(spark, folder, job, output)


def check_versions(output: DeltaOutput, checkpoints: int) -> None:
    """As many versions as checkpoints with rows, besides the creation and the marks of excluded transactions."""
    marks = [mark["outcome"] for mark in output.marks()]
    assert marks.count("committed") == checkpoints
    assert DeltaTable(str(output.path)).version() == len(marks)
    listed = DeltaTable(str(output.path)).get_add_actions().column("path").to_pylist()
    assert sorted(output.files()) == sorted(map(unquote, listed))


@pytest.mark.parametrize(
    ("point", "action"), [(point, ["kill", "raise"][number % 2]) for number, point in enumerate(DELTA_POINTS)]
)
def test_a_table_has_every_row_once_wherever_it_fails(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, action: str
) -> None:
    live = query(spark, tmp_path)
    path = tmp_path / "table"

    def read_by_spark() -> Counter[int]:
        if not (path / "_delta_log" / f"{0:020d}.json").exists():
            return Counter()
        return Counter(row.value for row in spark.read.format("delta").load(str(path)).select("value").collect())

    reader = WholeReader(read_by_spark, live.job.rows)
    fail_in_one_session(live, faults, point, 1, action)
    reader.finish(live.expected)
    check_versions(DeltaOutput(path), live.job.batches)


@pytest.mark.matrix
@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", DELTA_POINTS)
def test_a_table_has_every_row_once_after_one_and_two_failures(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, times: int, action: str
) -> None:
    live = query(spark, tmp_path)
    fail_in_one_session(live, faults, point, times, action)
    check_versions(DeltaOutput(tmp_path / "table"), live.job.batches)


@pytest.mark.matrix
@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("point", ["task.prepared", "decision.written", "commit.one", "commit.done", "settled.written"])
def test_a_table_whose_partition_folders_are_escaped_has_every_row_once(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, action: str
) -> None:
    """Times have colons: at ``commit.one`` the files are added, their note is still there, and the next sweep looks at it."""
    job, output = table_job(tmp_path)
    partitioned = replace(job, sink={**job.sink, "partitionBy": "timestamp"})
    fail_in_one_session(LiveQuery(spark, tmp_path, partitioned, output), faults, point, 1, action)
    assert any("%3A" in name for name in output.files())
    check_versions(output, job.batches)


@pytest.mark.slow
def test_files_that_vanish_after_the_decision_are_written_anew(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    faults.arm("decision.written", "raise")
    with query(spark, tmp_path) as live:
        live.start()
        live.wait_failed()
        live.place.output.lose(live.place.output.open_transactions()[:1])
        live.finish()
        assert "void" in live.place.kinds()
        assert next(mark["outcome"] for mark in DeltaOutput(tmp_path / "table").marks()) == "aborted"


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_table_has_every_row_once_where_each_life_of_the_driver_is_killed(tmp_path: Path) -> None:
    job, output = table_job(tmp_path)
    reader = WholeReader(output.rows, job.rows)
    with DriverProcess(tmp_path, job, output) as driver:
        for point in ("task.written", "decision.written", "commit.one", "settled.written"):
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point)
        driver.finish()
    reader.finish(driver.expected)
    check_versions(output, job.batches)
