"""`connector.delta.idempotent_merge`: a micro-batch is merged once, however often ``foreachBatch`` gets it."""

from __future__ import annotations

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable as DeltaLake
from pyspark.sql import DataFrame

from connector.delta import idempotent_merge
from integration import ROOT
from integration.driver_process import wait_until

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCHES, ROWS, KEYS = 4, 20, 5


def merge(frame: DataFrame, target: Path, batch: int, app: str | None = None) -> None:
    idempotent_merge(
        frame,
        str(target),
        "source.key = target.key",
        lambda clauses: clauses.whenMatchedUpdate(
            set={"total": "target.total + source.total"}
        ).whenNotMatchedInsertAll(),
        version=batch,
        app=app,
    )


def test_sums_are_merged_once_though_every_micro_batch_fails_after_its_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Adding to what is there shows a repetition, which an upsert of final values would hide."""
    target = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{target}` (key LONG, total LONG) USING delta")
    failed: list[int] = []

    def upsert(frame: DataFrame, batch: int) -> None:
        merge(frame.groupBy("key").sum("value").withColumnRenamed("sum(value)", "total"), target, batch)
        if batch not in failed:
            failed.append(batch)
            raise RuntimeError("after the merge")

    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ROWS), numPartitions="2").load()
    rows = source.where(f"value < {BATCHES * ROWS}").selectExpr(f"value % {KEYS} AS key", "value")
    for _ in range(BATCHES + 1):
        query = rows.writeStream.foreachBatch(upsert).option("checkpointLocation", str(tmp_path / "query")).start()
        wait_until(lambda q=query: not q.isActive or done(q), "the query's end")  # type: ignore[misc]
        query.stop()
    assert failed == list(range(BATCHES))
    found = {row.key: row.total for row in spark.read.format("delta").load(str(target)).collect()}
    assert found == {key: sum(range(key, BATCHES * ROWS, KEYS)) for key in range(KEYS)}


def test_the_page_s_merge_deletes(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{target}` (id LONG, customer STRING, amount LONG) USING delta")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deletes.md").read_text(), re.DOTALL)
    (program,) = (block.replace("/tables/orders", str(target)) for block in blocks if "def merge" in block)
    merging: dict[str, Any] = {"idempotent_merge": partial(idempotent_merge, app="page")}
    exec(program, merging)
    chance, wanted, offset = random.Random(1), dict[int, int](), 0
    for batch in range(3):
        rows = []
        for _ in range(60):
            number, amount, deleted, offset = (
                chance.randrange(20),
                chance.randrange(100),
                chance.random() < 0.4,
                offset + 1,
            )
            rows.append((number, "c", None if deleted else amount, deleted, offset))
            wanted.pop(number, None)
            if not deleted:
                wanted[number] = amount
        chance.shuffle(rows)
        frame = spark.createDataFrame(rows, "id long, customer string, amount long, deleted boolean, offset long")
        for _ in range(2):
            merging["merge"](frame, batch)
        found = {row.id: row.amount for row in spark.read.format("delta").load(str(target)).collect()}
        assert found == wanted


def done(query: StreamingQuery) -> bool:
    last = query.lastProgress
    return last is not None and last["batchId"] >= BATCHES - 1


def test_outside_of_foreach_batch_an_app_is_needed(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{target}` (key LONG, total LONG) USING delta")
    frame = spark.createDataFrame([(1, 10)], "key long, total long")
    with pytest.raises(Exception, match=r"MISSING_OPTION.*needs the option app"):
        merge(frame, target, 0)
    for version in (0, 0, 1):
        merge(frame, target, version, app="job")
    assert spark.read.format("delta").load(str(target)).collect()[0].total == 20
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_what_another_thread_appends_meanwhile_is_no_part_of_the_merge(spark: SparkSession, tmp_path: Path) -> None:
    """It had the merge's app transaction: of two appends the second was skipped."""
    target, other = tmp_path / "table", str(tmp_path / "other")
    spark.sql(f"CREATE TABLE delta.`{target}` (key LONG, total LONG) USING delta")
    frame = spark.createDataFrame([(1, 10)], "key long, total long")
    frame.createOrReplaceTempView("these_rows")
    spark.conf.set("spark.sql.shuffle.partitions", "3")

    def append() -> None:
        spark.range(1).write.format("delta").mode("append").save(other)

    def clauses(builder: DeltaMergeBuilder) -> DeltaMergeBuilder:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(append).result()
            thread.submit(append).result()
        return builder.whenNotMatchedInsertAll()

    idempotent_merge(spark.table("these_rows"), str(target), "source.key = target.key", clauses, version=7, app="job")
    assert spark.read.format("delta").load(other).count() == 2
    assert DeltaLake(other).transaction_version("job") is None
    assert DeltaLake(str(target)).transaction_version("job") == 7


def test_merges_run_beside_each_other(spark: SparkSession, tmp_path: Path) -> None:
    tables = [tmp_path / f"table{number}" for number in range(3)]
    frame = spark.createDataFrame([(1, 10)], "key long, total long")
    for table in tables:
        spark.sql(f"CREATE TABLE delta.`{table}` (key LONG, total LONG) USING delta")
    together = threading.Barrier(3, timeout=60)

    def clauses(builder: DeltaMergeBuilder) -> DeltaMergeBuilder:
        together.wait()
        return builder.whenNotMatchedInsertAll()

    def run(number: int) -> None:
        condition = "source.key = target.key"
        idempotent_merge(frame, str(tables[number]), condition, clauses, version=number, app=f"job{number}")

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, range(3)))
    for number, table in enumerate(tables):
        assert DeltaLake(str(table)).transaction_version(f"job{number}") == number
