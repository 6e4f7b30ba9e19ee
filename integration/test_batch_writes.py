"""``df.write`` through a sink: each version once, also from ``foreachBatch``, which brings `update` mode."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.functions import window

from integration.broker import Cluster
from integration.delta_output import DeltaOutput
from integration.driver_process import Faults, wait_until
from integration.topic_output import TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def options(folder: Path, version: int, app: str = "app") -> dict[str, str]:
    return {"checkpointLocation": str(folder / "writes"), "txnAppId": app, "txnVersion": str(version)}


def save(frame: DataFrame, folder: Path, version: int, **more: str) -> None:
    writer = frame.write.format("2pc-delta").mode("append")
    writer.options(**{**options(folder, version), **more}).save(str(folder / "table"))


def values(folder: Path) -> list[int]:
    return sorted(DeltaOutput(folder / "table").rows().elements())


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame([(number,) for number in numbers], "value long").repartition(2)


def test_a_version_is_written_once_and_versions_may_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    for version in (0, 0, 3, 3, 0):
        save(rows(spark, version, version + 1), tmp_path, version)
    assert values(tmp_path) == [0, 1, 3, 4]


def test_another_number_of_rows_under_a_known_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    save(rows(spark, 1, 2), tmp_path, 7)
    with pytest.raises(Exception, match=r"VERSION_HAS_OTHER_ROWS.*txnVersion 7 was written with 2 rows.*has 3"):
        save(rows(spark, 1, 2, 3), tmp_path, 7)
    save(rows(spark, 3), tmp_path, 8)
    assert values(tmp_path) == [1, 2, 3]


def test_as_many_other_rows_under_a_known_version_are_refused_unless_that_was_accepted(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(rows(spark, 1, 2), tmp_path, 7)
    save(rows(spark, 2, 1).coalesce(1), tmp_path, 7)  # the same ones
    with pytest.raises(Exception, match=r"VERSION_HAS_OTHER_ROWS.*with 2 rows.*has 2 rows.*txnCompareRows=false"):
        save(rows(spark, 1, 3), tmp_path, 7)
    save(rows(spark, 1, 3), tmp_path, 7, txnCompareRows="false")
    save(rows(spark, 4), tmp_path, 8)
    assert values(tmp_path) == [1, 2, 4]


def test_a_table_that_is_gone_or_was_created_again_is_not_written_into(spark: SparkSession, tmp_path: Path) -> None:
    save(rows(spark, 1), tmp_path, 0)
    shutil.rmtree(tmp_path / "table")
    for version in (0, 1):
        with pytest.raises(Exception, match="STORE_GONE"):
            save(rows(spark, 1), tmp_path, version)
    save(rows(spark, 1), tmp_path, 0, checkpointLocation=str(tmp_path / "new"))
    for version in (0, 1):
        with pytest.raises(Exception, match=r"LOCATION_TAKEN.*table was .* its own checkpointLocation"):
            save(rows(spark, 1), tmp_path, version)
    assert values(tmp_path) == [1]


def to_kafka(frame: DataFrame, folder: Path, version: int, servers: str, **more: str) -> None:
    given = {**options(folder, version), "kafka.bootstrap.servers": servers, **more}
    frame.write.format("2pc-kafka").mode("append").options(**given).save()


def written(kafka: Cluster, topic: str) -> list[int]:
    output = TopicOutput(kafka.bootstrap_servers, topic, prefix="")
    wait_until(output.is_quiet, "markers")
    return sorted(output.rows().elements())


def test_the_topics_that_rows_choose_are_part_of_a_version(
    spark: SparkSession, kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    first, second = f"{topic_name}-1", f"{topic_name}-2"
    for topic in (first, second):
        kafka.create_topic(topic, partitions=1)

    def frame(topic: str) -> DataFrame:
        return rows(spark, 1, 2).selectExpr("CAST(value AS STRING) AS value", f"'{topic}' AS topic")

    to_kafka(frame(first), tmp_path, 5, kafka.bootstrap_servers)
    with pytest.raises(Exception, match="VERSION_HAS_OTHER_ROWS"):
        to_kafka(frame(second), tmp_path, 5, kafka.bootstrap_servers)
    to_kafka(frame(first), tmp_path, 5, kafka.bootstrap_servers)
    assert (written(kafka, first), written(kafka, second)) == ([1, 2], [])


def test_a_topic_that_was_created_again_is_another_target(
    spark: SparkSession, kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    frame = rows(spark, 1, 2).selectExpr("CAST(value AS STRING) AS value")
    kafka.create_topic(topic_name, partitions=1)
    to_kafka(frame, tmp_path, 5, kafka.bootstrap_servers, topic=topic_name)
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name, partitions=1)
    for version in (5, 6):
        with pytest.raises(Exception, match=r"LOCATION_TAKEN.*topicId was"):
            to_kafka(frame, tmp_path, version, kafka.bootstrap_servers, topic=topic_name)
    assert written(kafka, topic_name) == []


@pytest.mark.matrix
def test_another_cluster_is_another_target(
    spark: SparkSession, kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    frame = rows(spark, 1, 2).selectExpr("CAST(value AS STRING) AS value", f"'{topic_name}' AS topic")
    kafka.create_topic(topic_name, partitions=1)
    to_kafka(frame, tmp_path, 5, kafka.bootstrap_servers)
    with Cluster() as other:
        other.create_topic(topic_name, partitions=1)
        for version in (5, 6):
            with pytest.raises(Exception, match=r"LOCATION_TAKEN.*cluster was"):
                to_kafka(frame, tmp_path, version, other.bootstrap_servers)
        assert written(other, topic_name) == []
        to_kafka(frame, tmp_path / "other", 5, other.bootstrap_servers)
        assert written(other, topic_name) == [1, 2]


@pytest.mark.parametrize(
    "point", ["task.prepared", "commit.looked", "decision.written", "commit.one", "settled.written"]
)
@pytest.mark.parametrize("action", ["raise", "kill"])
def test_a_write_that_fails_is_written_once_by_its_repetition(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str, action: str
) -> None:
    faults.arm(point, action, 4 if point == "task.prepared" else 1)
    with pytest.raises(Exception, match=r"InjectedFault|Python worker exited|crashed|EOF"):
        save(rows(spark, 1, 2), tmp_path, 0)
    faults.clear()
    save(rows(spark, 1, 2), tmp_path, 0)
    save(rows(spark, 3), tmp_path, 1)
    assert values(tmp_path) == [1, 2, 3]
    assert DeltaOutput(tmp_path / "table").open_transactions() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        # One of the two alone: Delta's extension of the session says it first, where there is one.
        ({"txnAppId": None, "txnVersion": None}, r"MISSING_OPTION.*txnAppId"),
        ({"checkpointLocation": None}, r"MISSING_OPTION.*checkpointLocation"),
        ({"txnAppId": "other"}, r"LOCATION_TAKEN.*'app'.*'other'"),
        ({"path": "elsewhere"}, r"LOCATION_TAKEN.*but this write goes to .*elsewhere"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    spark: SparkSession, tmp_path: Path, changed: dict[str, str | None], told: str
) -> None:
    save(rows(spark, 1), tmp_path, 0)
    given = {key: value for key, value in {**options(tmp_path, 1), **changed}.items() if value is not None}
    path = given.pop("path", "table")
    with pytest.raises(Exception, match=re.compile(told, re.DOTALL)):
        rows(spark, 2).write.format("2pc-delta").mode("append").options(**given).save(str(tmp_path / path))
    assert values(tmp_path) == [1]


def test_a_version_below_the_newest_that_was_never_written_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    save(rows(spark, 1), tmp_path, 10)
    with pytest.raises(Exception, match=r"VERSION_TOO_LOW.*9 is too low: version 10 was already written"):
        save(rows(spark, 2), tmp_path, 9)
    assert values(tmp_path) == [1]


def test_overwrite_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    writer = rows(spark, 1).write.format("2pc-delta").mode("overwrite").options(**options(tmp_path, 0))
    with pytest.raises(Exception, match=r'2pc-delta does not support mode\("overwrite"\)'):
        writer.save(str(tmp_path / "table"))


# -- update mode, by foreachBatch -----------------------------------------------------------------------------------

BATCHES, ROWS, KEYS = 4, 40, 5


def counts(spark: SparkSession, folder: Path, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """A windowed aggregation in update mode: each micro-batch emits the new counts of the keys that it has met."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ROWS), numPartitions="2").load()
    counted = (
        source.where(f"value < {BATCHES * ROWS}")
        .selectExpr(f"value % {KEYS} AS key", "timestamp_seconds(value) AS at")
        .withWatermark("at", "1 day")
        .groupBy(window("at", "10 days"), "key")
        .count()
        .selectExpr("key * 1000 + count AS value")
    )
    stream = counted.writeStream.outputMode("update").foreachBatch(write)
    return stream.option("checkpointLocation", str(folder / "query")).start()


def expected() -> Counter[int]:
    """Every micro-batch updates every key."""
    return Counter(key * 1000 + (batch + 1) * ROWS // KEYS for batch in range(BATCHES) for key in range(KEYS))


def run(start: Callable[[], StreamingQuery], restarts: int) -> None:
    """Start the query again and again until it has done its batches."""
    for _ in range(restarts + 1):
        query = start()
        try:
            wait_until(lambda q=query: not q.isActive or _done(q), "the job's end")  # type: ignore[misc]
        finally:
            failed = query.exception()
            query.stop()
        if failed is None:
            return
    raise AssertionError(f"it keeps failing: {failed}")


def _done(query: StreamingQuery) -> bool:
    last: Any = query.lastProgress
    return bool(last and last["batchId"] >= BATCHES - 1)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["task.prepared", "decision.written", "commit.one", "settled.written"])
def test_updates_reach_a_table_once_through_foreach_batch(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str
) -> None:
    faults.arm(point, "pause", 2)
    faults.resume(point)
    faults.arm(point, "raise", 2)
    run(lambda: counts(spark, tmp_path, lambda frame, batch: save(frame, tmp_path, batch)), 3)
    assert faults.fired(point)
    assert DeltaOutput(tmp_path / "table").rows() == expected()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["decision.written", "commit.one"])
def test_updates_reach_a_topic_and_a_table_once_through_foreach_batch(
    spark: SparkSession, kafka: Cluster, topic_name: str, tmp_path: Path, faults: Faults, point: str
) -> None:
    """Two sinks by hand, each with a location of its own."""
    kafka.create_topic(topic_name, partitions=2)

    def write(frame: DataFrame, batch: int) -> None:
        frame.persist()
        save(frame, tmp_path, batch)
        writer = frame.selectExpr("CAST(value AS STRING) AS value").write.format("2pc-kafka").mode("append")
        writer.options(
            **options(tmp_path / "kafka", batch),
            **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic_name},
        ).save()
        frame.unpersist()

    faults.arm(point, "pause", 3)
    faults.resume(point)
    faults.arm(point, "raise", 2)
    run(lambda: counts(spark, tmp_path, write), 3)
    assert DeltaOutput(tmp_path / "table").rows() == expected()
    output = TopicOutput(kafka.bootstrap_servers, topic_name, prefix="")
    wait_until(output.is_quiet, "markers")
    assert output.rows() == expected()


def test_versions_of_another_streaming_query_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A new query starts its batch ids at 0 again: all that it wrote would be taken for written."""

    def write(frame: DataFrame, batch: int) -> None:
        save(frame, tmp_path, batch)

    run(lambda: counts(spark, tmp_path / "one", write), 0)
    before = DeltaTable(str(tmp_path / "table")).version()
    query = counts(spark, tmp_path / "two", write)
    wait_until(lambda: not query.isActive, "the query's failure")
    assert "VERSIONS_OF_ANOTHER_QUERY" in str(query.exception())
    assert DeltaTable(str(tmp_path / "table")).version() == before


def test_a_batch_that_is_computed_again_with_other_rows_goes_on_as_the_error_says(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    """A plan that is not deterministic: the version is complete as it was first written."""
    attempts: list[int] = []

    def write(frame: DataFrame, batch: int, **more: str) -> None:
        attempts.append(batch)
        other = frame.selectExpr(f"value + {100_000 * len(attempts)} AS value")
        save(other, tmp_path, batch, **more)

    faults.arm("settled.written", "raise")
    with pytest.raises(AssertionError, match=r"(?s)it keeps failing.*VERSION_HAS_OTHER_ROWS.*txnCompareRows=false"):
        run(lambda: counts(spark, tmp_path, write), 1)
    assert faults.fired("settled.written")
    run(lambda: counts(spark, tmp_path, lambda frame, batch: write(frame, batch, txnCompareRows="false")), 0)
    found = Counter(value % 100_000 for value in values(tmp_path))
    assert found == expected()
