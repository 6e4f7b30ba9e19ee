"""A table that went back: who does what the error says, in the order in which it stands there, ends with every row once."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from connector.cli import main
from connector.delta.sink import DeltaSink
from connector.location.location import CheckpointLocation
from connector.location.offset_log import spark_view
from connector.spark.hosted_sink import HostedSink
from tests.connector.cli_place import dead_process
from transactional.errors import StoreError
from transactional.sink import Options

SCHEMA = pa.schema([("value", pa.int64())])
COLUMNS = StructType([StructField("value", LongType())])


class Query:
    """A query whose micro-batches append their number, without Spark: its logs are written as Spark writes them."""

    def __init__(self, folder: Path) -> None:
        self.place, self.table = folder / "place", folder / "table"
        for log in ("offsets", "commits"):
            (self.place / log).mkdir(parents=True)
        (self.place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def names(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.place / log).iterdir() if path.name.isdigit())

    def run(self, driver: str) -> None:
        """Plan, write and commit the next micro-batch."""
        batch = max(self.names("commits"), default=-1) + 1
        (self.place / "offsets" / str(batch)).write_text(f"v1\n{{}}\nline {batch}")
        location = CheckpointLocation(str(self.place))
        options = Options({"path": str(self.table), "checkpointLocation": str(self.place)})
        host = HostedSink(DeltaSink, options, COLUMNS)
        rows = pa.record_batch([pa.array([batch])], schema=SCHEMA)
        with host.coordinator(spark_view(location), driver, dead_process()) as coordinator:
            messages = [host.write(coordinator.plan(), iter([rows]), 0, 0)]
        with host.coordinator(spark_view(location), driver, dead_process()) as coordinator:
            coordinator.commit(messages, batch)
        (self.place / "commits" / str(batch)).write_text("v1\n{}")

    def values(self) -> list[int]:
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table()["value"].to_pylist())


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Five micro-batches are committed, and the table is put back to the second."""
    made = Query(tmp_path)
    for batch in range(5):
        made.run("A")
        if batch == 1:
            shutil.copytree(made.table, tmp_path / "copy")
    shutil.rmtree(made.table)
    shutil.copytree(tmp_path / "copy", made.table)
    return made


def commands(query: Query) -> list[list[str]]:
    """The commands that the error names, in its order."""
    with pytest.raises(StoreError, match="STORE_WENT_BACK") as stopped:
        query.run("B")
    said = re.findall(r"`barrier ([^`]*)`", str(stopped.value).replace("LOCATION", str(query.place)))
    assert [command.split()[0] for command in said] == ["rewind", "restore", "restore", "recover", "restore"]
    return [[*command.split(), "--yes"] for command in said]


def test_the_remedy_of_a_table_that_went_back_writes_the_missing_rows_once(query: Query) -> None:
    first, second, *_ = commands(query)  # the others are for a rewind that can't finish, or can't begin
    assert main(first) == 0
    with pytest.raises(StoreError, match="STORE_WENT_BACK"):  # started by a supervisor, say
        query.run("C")
    assert main(second) == 0
    for _ in range(4):
        query.run("D")
    assert query.values() == [0, 1, 2, 3, 4, 5]


def test_a_remedy_that_is_refused_leaves_the_check_in_force(query: Query) -> None:
    """Spark keeps 100 micro-batches, and last night's backup is older: the rows were missing without another word."""
    for log in ("offsets", "commits"):
        for batch in range(3):
            (query.place / log / str(batch)).unlink()
    for command in commands(query):
        if main(command) != 0:
            break
    with pytest.raises(StoreError, match="STORE_WENT_BACK"):
        query.run("C")
    assert query.values() == [0, 1]
