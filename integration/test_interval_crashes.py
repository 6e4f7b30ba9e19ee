"""The crash matrix with `barrierInterval`: checkpoints over many micro-batches, on Kafka and on Delta."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.broker import Cluster
from integration.driver_process import Faults, Place, wait_until
from integration.live_query import LiveQuery
from integration.topic_jobs import PILE, ROWS, interval_job, produce_keyed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS = ["2pc-kafka", "2pc-delta"]
LOOK_EVERY = 0.05

FAILURES = {
    "task.begun": 4,  # two tasks, tried twice each
    "task.written": 4,
    "task.prepared": 4,
    "commit.called": 1,
    "commit.looked": 1,
    "journal.created": 1,
    "prepared.written": 1,
    "decision.written": 1,
    "commit.one": 1,
    "commit.done": 1,
    "settled.written": 1,
    "source.latest": 1,
}
"""Points that a query passes while prepared micro-batches pile up, and how often they have to fail for it to fail."""

RECOVERIES = ("recovery.claimed", "recovery.swept", "recovery.settling")
"""Points that a query passes when it starts with a pile, the last one with a decision."""


class Decided:
    """Rows of the micro-batches that are decided by now. Value v is row v // 2 of partition v % 2."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._values: set[int] = set()

    def values(self) -> set[int]:
        """What is decided now. A decision is told once; a rewind may take Spark's file away later."""
        path = self._place.location / "offsets" / str(self._place.ledger().decided)
        with contextlib.suppress(FileNotFoundError):
            [ends] = json.loads(path.read_text().splitlines()[2])["topics"].values()
            self._values |= {2 * offset + int(number) for number, end in ends.items() for offset in range(end)}
        return self._values


@contextmanager
def only_decided_rows_are_seen(place: Place) -> Iterator[None]:
    """Read the output all the time: no row of an undecided checkpoint may ever be there, none twice."""
    over = threading.Event()
    problems: list[str] = []
    decided = Decided(place)

    def look() -> None:
        while not over.wait(LOOK_EVERY):
            seen = place.output.rows()
            early = sorted(set(seen) - decided.values())  # asked afterwards: what was seen is decided by then
            doubled = sorted(value for value, count in seen.items() if count > 1)
            if early or doubled:
                problems.append(f"seen before their decision: {early[:20]}, twice: {doubled[:20]}")
                return

    def watch() -> None:
        try:
            look()
        except Exception as problem:  # noqa: BLE001 - handed to the test
            problems.append(f"the reader failed: {problem!r}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not problems, problems[0]


def pile_up(place: Place, batches: int = PILE) -> None:
    """Wait until so many micro-batches are prepared and not decided."""
    wait_until(lambda: len(place.ledger().undecided()) >= batches, f"{batches} prepared micro-batches")


def finish(query: LiveQuery, rows: int) -> None:
    """Read the rest, and end at a final barrier."""
    query.start(trigger="availableNow", source={**query.job.source, "maxOffsetsPerTrigger": "1000"})
    assert query.query.awaitTermination(180), "the query goes on for ever"
    assert query.query.exception() is None
    query.place.check_whole(rows)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sink", SINKS)
def test_every_row_is_there_once_wherever_a_query_of_long_checkpoints_fails(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, sink: str
) -> None:
    """One place, a failure after the other, each while prepared micro-batches wait for their decision."""
    job, output = interval_job(kafka, topic_name, sink, tmp_path)
    points = {point: FAILURES[point] for point in ("task.prepared", "prepared.written", "commit.one")}
    fail_one_after_the_other(kafka, LiveQuery(spark, tmp_path, job, output), faults, points, ("recovery.settling",))


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sink", SINKS)
def test_every_row_is_there_once_wherever_a_query_whose_checkpoints_close_by_the_clock_fails(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, sink: str
) -> None:
    """Every point. How many micro-batches a checkpoint has is the machine's to say: two are a pile."""
    job, output = interval_job(kafka, topic_name, sink, tmp_path, interval="5s", batches=50)
    fail_one_after_the_other(kafka, LiveQuery(spark, tmp_path, job, output), faults, FAILURES, RECOVERIES, pile=2)


def fail_one_after_the_other(
    kafka: Cluster,
    query: LiveQuery,
    faults: Faults,
    points: dict[str, int],
    recoveries: tuple[str, ...],
    pile: int = PILE,
) -> None:
    rows = 30 * ROWS * (len(points) + len(recoveries))
    produce_keyed(kafka, query.job.source["subscribe"], range(rows))
    with query, only_decided_rows_are_seen(query.place):
        for point, times in points.items():
            fail_at(query, faults, point, times, pile)
        for point in recoveries:
            recover_at(query, faults, point, pile)
        checkpoints = query.place.ledger().checkpoints.values()
        assert max(len(checkpoint.batches) for checkpoint in checkpoints) > pile
        finish(query, rows)
    assert not {"verdict", "repair", "void"} & set(query.place.kinds()), "something prepared was lost"


def fail_at(query: LiveQuery, faults: Faults, point: str, times: int, pile: int) -> None:
    query.start()
    pile_up(query.place, pile)
    faults.arm(point, "raise", times)
    assert point in query.wait_failed()
    faults.clear()


def recover_at(query: LiveQuery, faults: Faults, point: str, pile: int) -> None:
    if point == "recovery.settling":
        fail_at(query, faults, "decision.written", 1, pile)
    else:
        query.start()
        pile_up(query.place, pile)
        query.stop()
    if point == "recovery.claimed":
        faults.arm("task.begun", "raise", 4)  # which ends the run
        query.start()
        query.wait_failed()
    faults.arm(point, "raise")
    query.start()
    assert point in query.wait_failed()
