"""Crashes of real Spark from topic to topic: the barrier source, the Kafka sink, and a real broker."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import window

from integration.broker import Cluster
from integration.driver_process import DriverProcess, Faults, Place, wait_until
from integration.live_query import LiveQuery
from integration.test_named_cases_files import ON_KAFKA
from integration.topic_jobs import produce_keyed, topic_to_topic
from integration.topic_output import COMMITTED, LiveReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_topic_is_copied_once_by_a_query_whose_every_life_is_killed_at_another_point(
    kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One place, a JVM a life; a plain consumer reads the output from the first life to the last."""
    job, output = topic_to_topic(kafka, topic_name)
    produce_keyed(kafka, f"{topic_name}-in", range(job.batches * job.rows))
    with closing(LiveReader(output)) as reader, DriverProcess(tmp_path, job, output) as driver:
        place = driver.place

        def die(point: str) -> None:
            """Live until the point kills the JVM."""
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point)
            place.check_partial(driver.expected)

        die("source.latest")
        assert not (place.location / "offsets" / "0").exists()
        for point in ("task.written", "task.prepared", "commit.looked"):  # each life writes micro-batch 0 anew
            die(point)
            assert output.rows() == {}
            assert "decided" not in place.kinds()
        assert len(output.open_transactions()) == 2, "what the lives before have left was swept"
        die("decision.written")
        assert place.kinds()[-1] == "decided"
        assert len(output.open_transactions()) == 2
        die("commit.one")  # in the recovery of micro-batch 0: one of its two transactions
        wait_until(lambda: len(output.open_transactions()) == 1, "markers of what was committed")
        die("commit.done")  # in the next recovery
        assert place.kinds()[-1] != "settled"
        wait_until(output.is_quiet, "the markers of all that was committed")
        assert output.rows() == Counter(range(10))
        die("settled.written")  # of micro-batch 1, which Spark does not know to be committed
        assert place.kinds()[-1] == "settled"
        assert place.committed() == 0
        assert driver.faults.armed() == []
        assert {name.rsplit(".", 2)[0] for name in driver.faults.fired()} > ON_KAFKA
        driver.finish()
        assert reader.finish(output.ends(COMMITTED)) == Counter(range(driver.expected))
    assert not {"verdict", "repair", "void"} & set(place.kinds()), "something decided was lost"


# -- the first micro-batch of startingOffsets=latest ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("point", "rows_in_first"), [("task.written", 10), ("commit.called", 0)])
def test_rows_produced_between_a_crash_in_the_first_batch_of_latest_and_the_restart_are_read(
    kafka: Cluster,
    spark: SparkSession,
    topic_name: str,
    tmp_path: Path,
    faults: Faults,
    point: str,
    rows_in_first: int,
) -> None:
    """The replay begins where the first run began, not where ``latest`` is by then."""
    job, output = topic_to_topic(kafka, topic_name, startingOffsets="latest")
    source = f"{topic_name}-in"
    produce_keyed(kafka, source, range(1000, 1010))  # before the query: not its rows
    faults.arm("source.latest", "pause")
    faults.arm(point, "raise", times=4)  # two tasks, tried twice each
    with LiveQuery(spark, tmp_path, job, output) as query:
        query.start()
        wait_until(lambda: faults.fired("source.latest"), "where the query begins is fixed")
        produce_keyed(kafka, source, range(rows_in_first))
        faults.resume("source.latest")
        assert "InjectedFault" in query.wait_failed()
        faults.clear()
        assert query.place.committed() == -1
        produce_keyed(kafka, source, range(rows_in_first, 30))
        query.start()
        query.query.processAllAvailable()
        query.stop()
        query.place.check_whole(30)
    first, second = (json.loads(source_line(query.place, batch)) for batch in (0, 1))
    assert first["start"] == {source: {"0": 5, "1": 5}}
    assert second["start"] == first["topics"]


def source_line(place: Place, batch: int) -> str:
    """What Spark's offset log says of the only source of a micro-batch."""
    [line] = (place.location / "offsets" / str(batch)).read_text().splitlines()[2:]
    return line


# -- micro-batches without data -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("point", ["task.prepared", "decision.written"])
def test_a_no_data_micro_batch_that_repeats_the_barrier_and_emits_windows_is_written_once_whatever_fails(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, point: str
) -> None:
    """Values are seconds; a window of ten is written as its begin times 100 plus the count of its rows."""
    job, output = topic_to_topic(kafka, topic_name, maxOffsetsPerTrigger="100")
    place = Place(tmp_path / "checkpoint", output)

    def start() -> Any:
        rows = spark.readStream.format("barrier-kafka").options(**job.source).load()
        times = rows.selectExpr("timestamp_seconds(CAST(CAST(value AS STRING) AS LONG)) AS time")
        counts = times.withWatermark("time", "1 second").groupBy(window("time", "10 seconds")).count()
        frame = counts.selectExpr("CAST(unix_seconds(window.start) * 100 + count AS STRING) AS value")
        options = {**job.sink, "topic": job.output, "checkpointLocation": str(place.location)}
        return frame.writeStream.format("2pc-kafka").options(**options).start()

    produce_keyed(kafka, f"{topic_name}-in", [1, 2, 15, 23, 31, 44, 58, 100])
    faults.arm("decision.written", "pause")
    query = start()
    wait_until(lambda: faults.fired("decision.written"), "micro-batch 0, which closes no window yet")
    assert output.rows() == {}
    faults.arm(point, "raise", times=4 if point.startswith("task.") else 1)  # two tasks, tried twice each
    faults.resume("decision.written")
    wait_until(lambda: not query.isActive, "failure of the no-data micro-batch")
    faults.clear()
    assert f"fault point {point}" in str(query.exception())
    assert source_line(place, 0) == source_line(place, 1)
    assert json.loads(source_line(place, 1))["barrier"]["number"] == 1
    if point == "decision.written":
        assert output.open_transactions()
    # Else Spark aborts when one task has failed for good: the other may still prepare, and the next planning sweeps that.
    assert output.rows() == {}
    query = start()
    try:
        query.processAllAvailable()
        wait_until(output.is_quiet, "the markers")
        assert output.rows() == Counter([2, 1001, 2001, 3001, 4001, 5001])
        for value in (101, 131):  # a row that came a micro-batch after 131 would be late
            produce_keyed(kafka, f"{topic_name}-in", [value])
        query.processAllAvailable()
    finally:
        query.stop()
    wait_until(output.is_quiet, "no open transaction, no reader held back")
    assert output.rows() == Counter([2, 1001, 2001, 3001, 4001, 5001, 10002])
    assert place.ledger().unsettled() == []
