"""The crash matrix over a table of a database: drivers, workers and the server are killed, and every row is there once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.driver_process import DriverProcess, Faults, wait_until
from integration.engine import Work
from integration.engine_query import POINTS as ALL_POINTS
from integration.engine_query import EngineQuery, kill_twelve_times
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.postgresql import PostgresqlServer
from integration.sql_output import DatabaseServer, SqlOutput
from integration.test_crash_matrix_files import POINTS, REPAIRS, fail_in_one_session
from transactional.faults import VARIABLE as FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL_POINTS = [point for point in POINTS if point not in REPAIRS]
"""A checkpoint is one commit: where all its micro-batches are at hand, none of it is ever committed and some lost."""

ENGINE_POINTS = [point for point in ALL_POINTS if point in SQL_POINTS]


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    if request.param == "mariadb":
        mariadb_or_skip()
    with MariadbServer() if request.param == "mariadb" else PostgresqlServer() as server:
        yield server


@pytest.fixture
def output(database: DatabaseServer) -> SqlOutput:
    name = uuid.uuid4().hex[:8]
    return SqlOutput(database, f"t_{name}", f"s_{name}")


def job_of(output: SqlOutput, **more: str) -> Job:
    """Spark's deterministic source into a table, ten rows a checkpoint."""
    return Job("", "", sink=output.options(**more))


def check(output: SqlOutput) -> None:
    assert output.staged() == 0
    assert output.open_transactions() == []


@pytest.mark.parametrize(("number", "point"), list(enumerate(ENGINE_POINTS)), ids=ENGINE_POINTS)
def test_a_table_has_every_row_once_wherever_the_driver_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: SqlOutput, number: int, point: str
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "faults"))
    options = output.options(transactionalIdPrefix=tmp_path.name)
    work = Work(str(tmp_path / "location"), options, format=options.pop("format"))
    query = EngineQuery(work, output, tmp_path)
    query.die_at(point, error=bool(number % 2))
    query.finish()
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
    spark: SparkSession, tmp_path: Path, faults: Faults, output: SqlOutput, database: DatabaseServer, point: str
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
    tmp_path: Path, output: SqlOutput, database: DatabaseServer, key: str
) -> None:
    """Driver, workers and the server itself, in turn: between prepare and decision, decision and commit, in the commit."""
    job = replace(job_of(output, **({"upsertKey": key} if key else {})), batches=8, restarts=3)
    with DriverProcess(tmp_path, job, output) as driver:
        kill_twelve_times(driver, database)
        assert output.rows() == Counter(range(driver.expected))
    check(output)
