"""Tables that ``2pc-delta`` writes, read back by delta-spark and deltalake; tables that it can't write, refused."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as sql

import connector
from integration.delta_output import DeltaOutput
from integration.driver_process import wait_until
from tests.connector.delta.test_filters import VALUES, written
from transactional.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS, BATCHES = 500, 3

EVERY_TYPE = {
    "value": "value",
    "a_byte": "CAST(value % 100 AS BYTE)",
    "a_short": "CAST(value % 1000 AS SHORT)",
    "an_int": "IF(value % 5 = 0, NULL, CAST(value AS INT))",
    "a_float": "CAST(value / 3 AS FLOAT)",
    "a_double": "IF(value % 7 = 0, double('NaN'), value / 3)",
    "small": "CAST(value / 7 AS DECIMAL(9, 2))",
    "large": "CAST(value AS DECIMAL(38, 10)) / 3",
    "a_date": "DATE_ADD(DATE'1969-12-01', CAST(value % 100 AS INT))",
    "an_instant": "TIMESTAMP_MICROS(value * 1234567 - 9)",
    "a_local_time": "CAST(TIMESTAMP_MICROS(value * 1234567) AS TIMESTAMP_NTZ)",
    "bytes": "CAST(CAST(value AS STRING) AS BINARY)",
    "flag": "value % 2 = 0",
    "text": "IF(value % 5 = 0, NULL, CONCAT('ü', value))",
    "long_text": "CONCAT(REPEAT('ü', 40), value)",
    "numbers": "IF(value % 9 = 0, NULL, ARRAY(value, NULL))",
    "pairs": "MAP(CAST(value AS STRING), value * 2)",
    "nested": "NAMED_STRUCT('x', value, 'y', ARRAY(NAMED_STRUCT('z', CAST(value AS STRING))))",
}

PREDICATES = [
    "value = 5",
    "an_int IS NULL",
    "a_float = CAST(5 / 3 AS FLOAT)",
    "a_double > 1e9",  # only NaN is: it is the greatest value for Spark
    "a_double < 3",
    "small = 1.00",
    "large < 1",
    "a_date = '1969-12-05'",
    "an_instant > TIMESTAMP'1970-01-01 00:00:05Z'",
    "a_local_time > TIMESTAMP_NTZ'1970-01-01 00:00:05'",
    "text = 'ü7'",
    "long_text > 'üüü'",
    "nested.x = 9",
    "numbers IS NULL",
]


@contextmanager
def streaming(
    spark: SparkSession, folder: Path, columns: Sequence[str], batches: int = BATCHES, **options: str
) -> Iterator[StreamingQuery]:
    """A query that writes ROWS rows a checkpoint into ``<folder>/table``."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ROWS), numPartitions="2").load()
    frame = source.where(f"value < {batches * ROWS}").selectExpr(*columns)
    writer = frame.writeStream.format("2pc-delta").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.options(**{key: value for key, value in options.items() if value}).start(str(folder / "table"))
    try:
        yield query
    finally:
        query.stop()


def write(
    spark: SparkSession, folder: Path, columns: Sequence[str] = ("value",), batches: int = BATCHES, **options: str
) -> Path:
    """Run such a query to its end."""
    with streaming(spark, folder, columns, batches, **options) as query:
        wait_until(
            lambda: not query.isActive or (query.lastProgress or {"batchId": -1})["batchId"] >= batches - 1, "end"
        )
        assert query.exception() is None, query.exception()
    return folder / "table"


def reached(query: StreamingQuery, batch: int) -> bool:
    """Whether the micro-batch is done."""
    last = query.lastProgress
    return last is not None and last["batchId"] >= batch


def refused(spark: SparkSession, folder: Path, columns: Sequence[str] = ("value",), **options: str) -> str:
    """The error of such a query."""
    try:
        with streaming(spark, folder, columns, BATCHES, **options) as query:
            wait_until(lambda: not query.isActive, "the query's failure")
            return str(query.exception())
    except (
        TwoPhaseCommitError
    ) as problem:  # another test of this process has registered the formats: `start` itself checks
        return str(problem)


# -- reading back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", ["", "part, day"])
def test_every_type_is_read_back_by_spark_as_it_was(spark: SparkSession, tmp_path: Path, partition_by: str) -> None:
    columns = [f"{expression} AS {name}" for name, expression in EVERY_TYPE.items()]
    columns += ["IF(value % 3 = 0, NULL, CONCAT('a/b=c d%', value % 3)) AS part", "DATE'2020-02-29' AS day"]
    table = spark.read.format("delta").load(str(write(spark, tmp_path, columns, partitionBy=partition_by)))
    source = spark.range(BATCHES * ROWS).withColumnRenamed("id", "value").selectExpr(*columns)
    order = table.columns
    assert sorted(map(repr, table.select(order).collect())) == sorted(map(repr, source.select(order).collect()))
    for predicate in PREDICATES:  # what a reader skips by statistics and partitions has none of the rows
        assert table.where(predicate).count() == source.where(predicate).count(), predicate


def test_spark_skips_no_file_with_a_value_that_it_looks_for(spark: SparkSession, tmp_path: Path) -> None:
    """By the same bounds that deltalake's own filters are tested with."""
    for kind, (type_, values) in VALUES.items():
        written(tmp_path / kind, type_, values)
        frame = spark.read.format("delta").load(str(tmp_path / kind / "table"))
        for value in values:
            if value is not None:
                text = value.isoformat() if isinstance(value, dt.date) else value
                literal = sql.lit(text).cast(frame.schema["v"].dataType)
                assert frame.where(sql.col("v") == literal).count() == 1, f"{kind}: {str(value)[:60]}"


def test_the_table_lives_on_under_delta_spark(spark: SparkSession, tmp_path: Path) -> None:
    """History, time travel, a streaming read, OPTIMIZE and VACUUM; and we go on after these."""
    path = write(spark, tmp_path)
    table = f"delta.`{path}`"
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    assert [row.operation for row in history] == ["WRITE"] * BATCHES + ["CREATE TABLE"]
    assert spark.read.format("delta").option("versionAsOf", 2).load(str(path)).count() == 2 * ROWS
    read = spark.readStream.format("delta").load(str(path)).writeStream.format("noop")
    query = read.option("checkpointLocation", str(tmp_path / "reader")).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == BATCHES * ROWS
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    assert spark.sql(f"VACUUM {table} RETAIN 0 HOURS DRY RUN").count() == 0
    spark.sql(f"OPTIMIZE {table}").collect()
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS").collect()
    write(spark, tmp_path, batches=BATCHES + 1)
    assert sorted(DeltaOutput(path).rows().elements()) == list(range((BATCHES + 1) * ROWS))


def test_columns_are_found_by_name_and_widened(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("extra", pa.string()), ("Value", pa.int64()), ("small", pa.int64())])
    write_deltalake(str(tmp_path / "table"), pa.Table.from_pylist([], schema=schema), partition_by=["extra"])
    columns = ("CAST(value AS INT) AS small", "value")
    write(spark, tmp_path, columns, partitionBy="small")  # the table's own partitioning wins
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    assert found["small"].to_pylist() == found["Value"].to_pylist()
    assert set(found["extra"].to_pylist()) == {None}
    assert DeltaTable(str(tmp_path / "table")).metadata().partition_columns == ["extra"]


def test_new_columns_are_added_where_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path, batches=1)
    assert "the table has no column more" in refused(spark, tmp_path, ("value", "value AS more"))
    write(spark, tmp_path, ("value", "value AS more"), mergeSchema="true")
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    assert found["more"].null_count == ROWS
    assert sorted(found["value"].to_pylist()) == list(range(BATCHES * ROWS))


# -- tables that can't be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("created", "told"),
    [
        ("(value LONG, twice LONG GENERATED ALWAYS AS (value * 2))", "column twice (generated)"),
        ("(value LONG, number LONG GENERATED ALWAYS AS IDENTITY)", "identity"),
        ("(value LONG) | TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "columnMapping"),
        ("(value LONG) | TBLPROPERTIES ('delta.enableRowTracking' = 'true')", "rowTracking"),
        ("(value LONG); CHECK (value < 10)", "CHECK constraint low"),
        ("(value INT)", "column value is int64 in the query and int32 in the table"),
        ("(value LONG, code VARCHAR(3))", "column code (CHAR or VARCHAR)"),
        ("(value LONG, part BINARY) | PARTITIONED BY (part)", "column part (binary partition column)"),
        ("(value LONG, other STRING NOT NULL)", "other is NOT NULL, but the query has no such column"),
    ],
)
def test_what_a_table_asks_of_its_writers_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, created: str, told: str
) -> None:
    columns, _, check = created.partition("; ")
    table = f"delta.`{tmp_path / 'table'}`"
    columns, _, more = columns.partition(" | ")
    spark.sql(f"CREATE TABLE {table} {columns} USING delta {more}")
    if check:
        spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT low {check}")
    assert told in refused(spark, tmp_path)


def test_not_null_and_change_data_feed_are_honoured(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    spark.sql(
        f"CREATE TABLE {table} (value LONG NOT NULL, nested STRUCT<x: LONG NOT NULL>) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    write(spark, tmp_path, ("value", "NAMED_STRUCT('x', value) AS nested"), batches=1)
    assert spark.sql(f"SELECT * FROM table_changes_by_path('{tmp_path / 'table'}', 1)").count() == ROWS
    assert "rows have null in value" in refused(spark, tmp_path, ("IF(value % 2 = 0, NULL, value) AS value",))
    nested = "NAMED_STRUCT('x', IF(value % 2 = 0, NULL, value)) AS nested"
    assert "rows have null in nested.x" in refused(spark, tmp_path, ("value", nested))


# -- others at the table --------------------------------------------------------------------------------------------


def test_a_query_can_be_started_in_any_thread(spark: SparkSession, tmp_path: Path) -> None:
    connector.register(spark)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    writer = rows.select("value").writeStream.format("2pc-delta").option("checkpointLocation", str(tmp_path / "c"))
    started: list[StreamingQuery] = []
    thread = threading.Thread(target=lambda: started.append(writer.start(str(tmp_path / "table"))))
    thread.start()
    thread.join()
    assert started, "Spark has found the format"
    started[0].stop()


@pytest.mark.matrix
def test_a_second_writer_and_optimize_lose_nothing_and_stop_nobody(spark: SparkSession, tmp_path: Path) -> None:
    path = write(spark, tmp_path, batches=1)
    over = threading.Event()
    theirs: list[int] = []

    def append() -> None:
        while not over.is_set():
            number = -1 - len(theirs)
            write_deltalake(str(path), pa.table({"value": pa.array([number], pa.int64())}), mode="append")
            theirs.append(number)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        with streaming(spark, tmp_path, ["value"], 8) as query:
            wait_until(lambda: reached(query, 3), "micro-batch 3")
            spark.sql(f"OPTIMIZE delta.`{path}`").collect()
            wait_until(lambda: not query.isActive or reached(query, 7), "micro-batch 7")
            assert query.exception() is None
    finally:
        over.set()
        thread.join()
    assert sorted(DeltaOutput(path).rows().elements()) == sorted([*theirs, *range(8 * ROWS)])
