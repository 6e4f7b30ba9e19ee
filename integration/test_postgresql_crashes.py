"""The crash matrix over a table of PostgreSQL: drivers, workers and the server are killed, and every row is there once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.delta_output import WholeReader
from integration.driver_process import DriverProcess, Faults, wait_until
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.postgresql import PostgresqlServer
from integration.sql_output import SqlOutput
from integration.test_crash_matrix_files import POINTS, REPAIRS, fail_in_one_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL_POINTS = [point for point in POINTS if point not in REPAIRS]
"""A checkpoint is one commit: where all its micro-batches are at hand, none of it is ever committed and some lost."""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server:
        yield server


@pytest.fixture
def output(database: PostgresqlServer) -> SqlOutput:
    name = uuid.uuid4().hex[:8]
    return SqlOutput(database, f"t_{name}", f"s_{name}")


def job_of(output: SqlOutput, **more: str) -> Job:
    """Spark's deterministic source into a table, ten rows a checkpoint."""
    return Job("", "", sink=output.options(**more))


def check(output: SqlOutput) -> None:
    assert output.staged() == 0
    assert output.open_transactions() == []


@pytest.mark.parametrize(
    ("point", "action"), [(point, ["kill", "raise"][number % 2]) for number, point in enumerate(SQL_POINTS)]
)
def test_a_table_has_every_row_once_wherever_it_fails(
    spark: SparkSession, tmp_path: Path, faults: Faults, output: SqlOutput, point: str, action: str
) -> None:
    live = LiveQuery(spark, tmp_path, job_of(output), output)
    reader = WholeReader(output.rows, live.job.rows)
    fail_in_one_session(live, faults, point, 1, action)
    reader.finish(live.expected)
    check(output)


@pytest.mark.matrix
@pytest.mark.parametrize("key", ["", "value"])
@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", SQL_POINTS)
def test_a_table_has_every_row_once_after_one_and_two_failures(
    spark: SparkSession,
    tmp_path: Path,
    faults: Faults,
    output: SqlOutput,
    point: str,
    times: int,
    action: str,
    key: str,
) -> None:
    job = job_of(output, **({"upsertKey": key} if key else {}))
    fail_in_one_session(LiveQuery(spark, tmp_path, job, output), faults, point, times, action)
    check(output)


@pytest.mark.slow
def test_staged_rows_that_vanish_after_the_decision_are_written_again(
    spark: SparkSession, tmp_path: Path, faults: Faults, output: SqlOutput
) -> None:
    faults.arm("decision.written", "raise")
    with LiveQuery(spark, tmp_path, job_of(output), output) as live:
        live.start()
        live.wait_failed()
        live.place.output.lose(live.place.output.open_transactions()[:1])
        live.finish()
        assert "void" in live.place.kinds()
    check(output)


@pytest.mark.parametrize(
    "point",
    [
        "task.prepared",
        "decision.written",
        "commit.one",
        *(pytest.param(point, marks=pytest.mark.matrix) for point in ("task.written", "settled.written")),
    ],
)
@pytest.mark.slow
def test_the_server_is_killed_where_the_query_stands(
    spark: SparkSession, tmp_path: Path, faults: Faults, output: SqlOutput, database: PostgresqlServer, point: str
) -> None:
    faults.arm(point, "pause")
    with LiveQuery(spark, tmp_path, job_of(output), output) as live:
        live.start()
        wait_until(lambda: faults.fired(point), point)
        database.kill()
        database.start()
        faults.resume(point)
        wait_until(lambda: live.place.committed() >= live.job.batches - 1 or not live.query.isActive, "the query")
        live.stop()
        live.finish(3)
    check(output)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", ["", "value"])
def test_a_table_equals_an_undisturbed_one_after_twelve_kills(
    tmp_path: Path, output: SqlOutput, database: PostgresqlServer, key: str
) -> None:
    """Driver, workers and the server itself, in turn: between prepare and decision, decision and commit, in the commit."""
    job = replace(job_of(output, **({"upsertKey": key} if key else {})), batches=8, restarts=3)
    with DriverProcess(tmp_path, job, output) as driver:
        for point in ("task.prepared", "decision.written", "commit.one", "settled.written"):
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point)
            driver.faults.arm("task.written", "kill")
            driver.faults.arm(point, "pause")
            driver.start()
            driver.wait_fired(point, 2)
            database.kill()
            database.start()
            driver.faults.resume(point)
            driver.kill()
        driver.finish()
        assert output.rows() == Counter(range(driver.expected))
    check(output)
