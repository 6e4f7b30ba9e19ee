"""The crash matrix on the file sink: every fault point, in every way to die, and what is found afterwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.driver_process import DriverProcess, Faults, Place
from integration.jobs import Job
from integration.live_query import LiveQuery
from transactional.faults import POINTS as ALL_POINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = [point for point in ALL_POINTS if point != "source.latest"]  # passed by the Kafka source only

PROVOKED_BY = {
    "abort.journalled": ("task.written", 4),  # two tasks, tried twice each
    "recovery.settling": ("decision.written", 1),
    "repair.verdict": ("commit.one", 1),
    "repair.handles": ("commit.one", 1),
}
"""Points that are passed only after another point has raised, so often for each time."""

REPAIRS = ("repair.verdict", "repair.handles")

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

RESTARTS = 12
"""More than any cell needs: two faults at a point, with what provokes them, and their pairs."""


def provoke(faults: Faults, point: str, times: int) -> None:
    """Arm what leads to the point."""
    if point in PROVOKED_BY:
        other, each = PROVOKED_BY[point]
        faults.arm(other, "raise", each * times if point == "abort.journalled" else each)
    if point == "repair.verdict" and times > 1:
        faults.arm("repair.handles", "raise", times - 1)  # a verdict is judged anew only when its repair is lost, too


def losing(faults: Faults, place: Place, points: tuple[str, ...], times: int = 1) -> Callable[[], None]:
    """Between two lives: what a half committed checkpoint has left is lost, `times` times, where a repair is to come."""
    left = [times if set(points) & set(REPAIRS) else 0]

    def lose() -> None:
        pending = place.output.open_transactions()
        if left[0] and pending and faults.fired("commit.one") and place.ledger().unsettled():
            left[0] -= 1
            place.output.lose(pending)

    return lose


def fail_in_one_session(query: LiveQuery, faults: Faults, point: str, times: int, action: str) -> None:
    """Run the query to its end; on the way the point fails `times` times in a row."""
    provoke(faults, point, times)
    faults.arm(point, action, times)
    with query:
        query.finish(RESTARTS, losing(faults, query.place, (point,), times))
    assert len(faults.fired(point)) == times


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


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("point", ["decision.written", "commit.one"])
def test_what_is_lost_after_its_decision_is_written_again(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, lost: int
) -> None:
    """None, some and all of three transactions; after ``commit.one`` one of them is committed, and two are all."""
    faults.arm(point, "raise")
    with LiveQuery(spark, tmp_path, Job("", "", writers=3, rows=12)) as query:
        query.start()
        assert "InjectedFault" in query.wait_failed()
        pending = query.place.output.open_transactions()
        assert len(pending) == (3 if point == "decision.written" else 2)
        query.place.output.lose(pending[:lost])
        query.finish()
        kinds = query.place.kinds()
        assert kinds.count("void") == (1 if lost and point == "decision.written" else 0)
        assert kinds.count("repair") == (1 if lost and point == "commit.one" else 0)
        if lost and point == "commit.one":
            assert kinds.index("verdict") < kinds.index("repair") < kinds.index("settled")


@pytest.mark.parametrize("point", REPAIRS)
def test_a_repair_that_fails_half_way_is_repaired(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str
) -> None:
    provoke(faults, point, 1)
    faults.arm(point, "kill")
    with LiveQuery(spark, tmp_path) as query:
        assert len(query.finish(RESTARTS, losing(faults, query.place, (point,)))) == 2
    assert faults.armed() == []


# -- make matrix ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_every_point_fails_once_and_twice_in_a_row_in_one_session(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, times: int, action: str
) -> None:
    fail_in_one_session(LiveQuery(spark, tmp_path), faults, point, times, action)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_every_point_kills_the_driver_once_and_twice_in_a_row(tmp_path: Path, point: str, times: int) -> None:
    with DriverProcess(tmp_path) as driver:
        lose = losing(driver.faults, driver.place, (point,), times)

        def die(where: str) -> None:
            before = len(driver.faults.fired(where))
            driver.faults.arm(where, "kill-jvm")
            driver.start()
            driver.wait_death(where, before + 1)
            driver.place.check_partial(driver.expected)
            driver.faults.clear()
            lose()

        if point in REPAIRS or point == "recovery.settling":
            die(PROVOKED_BY[point][0])
        for number in range(times):
            if point == "abort.journalled":
                driver.faults.arm("task.written", "raise")  # a driver of its own tries a task once
            if point == "repair.verdict" and number:
                die("repair.handles")  # a verdict is judged anew only when its repair is lost, too
            die(point)
        driver.finish()


@pytest.mark.matrix
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(POINTS, 2)))
def test_every_pair_of_points_fails_in_one_session(
    spark: SparkSession, tmp_path: Path, faults: Faults, first: str, second: str
) -> None:
    """The second is armed when the first has fired; ways to fail are drawn by the pair's names."""
    chance = random.Random(f"{first} {second}")
    provoke(faults, first, 1)
    faults.arm(first, chance.choice(["kill", "raise"]))
    with LiveQuery(spark, tmp_path, Job("", "", batches=4)) as query:
        lose = losing(faults, query.place, (first, second))
        armed: list[str] = []

        def between() -> None:
            lose()
            if faults.fired(first) and not armed:
                armed.append(second)
                provoke(faults, second, 1)
                faults.arm(second, chance.choice(["kill", "raise"]))

        query.finish(RESTARTS, between)
