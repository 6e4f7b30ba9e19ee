"""The crash matrix, whose cells `integration.crash_matrix` lists, decisions that are lost, and twelve kills in a row."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.crash_matrix import CELLS, LIVES, QUICK, TABLES, Cell, database_of, make_target, run
from integration.delta_output import DeltaOutput
from integration.driver_process import DriverProcess, Faults
from integration.live_query import LiveQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    """In `make matrix`; perhaps in `make test`, too, where the long ones come first."""
    slow = cell.life == "process" or cell.crashes[0].way == "server"
    return [pytest.mark.matrix, *([pytest.mark.quick] if cell in QUICK else []), *([pytest.mark.slow] if slow else [])]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=str(cell), marks=marks(cell)) for cell in CELLS])
def test_every_row_is_there_once_wherever_a_life_ends(request: pytest.FixtureRequest, cell: Cell) -> None:
    run(cell, request)


@pytest.mark.parametrize(
    ("sink", "point", "lost"),
    [
        *itertools.product(["files"], ["decision.written", "commit.one"], [0, 1, 3]),
        *itertools.product(["delta", "postgresql", "mariadb"], ["decision.written"], [1]),
    ],
)
def test_what_is_lost_after_its_decision_is_written_again(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    faults: Faults,
    sink: str,
    point: str,
    lost: int,
) -> None:
    """None, some and all of three transactions; after ``commit.one`` one of them is committed, and two are all."""
    target = make_target(sink, "session", request)
    faults.arm(point, "raise")
    with LiveQuery(spark, tmp_path, replace(target.job, writers=3, rows=12), target.output) as query:
        query.start()
        assert "InjectedFault" in query.wait_failed()
        pending = target.output.open_transactions()
        assert len(pending) == (3 if point == "decision.written" else 2)
        target.output.lose(pending[:lost])
        query.finish()
        kinds = query.place.kinds()
        assert kinds.count("void") == (1 if lost and point == "decision.written" else 0)
        assert kinds.count("repair") == (1 if lost and point == "commit.one" else 0)
        if lost and point == "commit.one":
            assert kinds.index("verdict") < kinds.index("repair") < kinds.index("settled")
    target.check()
    if isinstance(target.output, DeltaOutput):
        assert target.output.marks()[0]["outcome"] == "aborted"


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sink", [*TABLES, "multi"])
def test_a_table_equals_an_undisturbed_one_after_twelve_kills(
    request: pytest.FixtureRequest, tmp_path: Path, sink: str
) -> None:
    """Driver, workers and the database itself, in turn, around a decision and its commit."""
    target, database = make_target(sink, "process", request), database_of(sink, request)
    with DriverProcess(tmp_path, replace(target.job, batches=8, restarts=3), target.output) as driver:
        for point in LIVES:
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
    target.check()
