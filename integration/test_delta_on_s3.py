"""The Delta sink on an object store: its contract, and a query that fails."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from obstore.store import S3Store

from connector.delta.sink import DeltaSink
from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from integration.driver_process import Faults
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.object_store import BUCKET, ObjectStoreServer
from integration.test_crash_matrix_files import fail_in_one_session
from transactional.errors import StoreError
from transactional.sink import Options
from transactional.testing import SinkConformance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = itertools.count()


def keys(table: str) -> list[str]:
    """What lies below a table's folder, relative to it."""
    prefix = table.removeprefix(f"s3://{BUCKET}/")
    store = S3Store(BUCKET, client_options={"allow_http": True}, virtual_hosted_style_request=False)
    return [each["path"].removeprefix(f"{prefix}/") for part in obstore.list(store, f"{prefix}/") for each in part]


def notes(table: str) -> list[str]:
    """The names of transactions that are neither added nor excluded."""
    return sorted(Path(key).stem for key in keys(table) if key.startswith("_barrier/") and key.endswith(".json"))


class TestDeltaSinkOnS3(SinkConformance):
    sink_type = DeltaSink
    deaths = 4  # all lines: tests/test_delta_conformance.py

    @pytest.fixture
    def sink_options(self, s3: ObjectStoreServer) -> Mapping[str, str]:
        options = {"path": f"s3://{BUCKET}/sink-{next(TABLES)}/a table", "transactionalIdPrefix": "conformance"}
        DeltaSink(Options(options), self.schema()).identify()
        return options

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return [int(value) for value in DeltaTable(options["path"]).to_pyarrow_table()["value"].to_pylist()]

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(notes(options["path"]))


class TableOnS3:
    """See `integration.driver_process.Output`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def rows(self) -> Counter[int]:
        if not DeltaTable.is_deltatable(self.path):
            return Counter()
        return Counter(DeltaTable(self.path).to_pyarrow_table(columns=["value"])["value"].to_pylist())

    def open_transactions(self) -> list[str]:
        return notes(self.path)

    def lose(self, names: list[str]) -> None:
        raise NotImplementedError

    def is_quiet(self) -> bool:
        return not self.open_transactions()


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("task.written", "kill"),
        ("commit.one", "kill"),
        pytest.param("task.prepared", "raise", marks=pytest.mark.matrix),
        pytest.param("decision.written", "kill", marks=pytest.mark.matrix),
        pytest.param("settled.written", "kill", marks=pytest.mark.matrix),
    ],
)
def test_a_table_on_s3_has_every_row_once_wherever_the_query_fails(
    s3: ObjectStoreServer, spark: SparkSession, tmp_path: Path, faults: Faults, point: str, action: str
) -> None:
    output = TableOnS3(f"s3://{BUCKET}/query-{next(TABLES)}/table")
    store = {f"storage.{key}": value for key, value in s3.environment.items()}
    live = LiveQuery(spark, tmp_path, Job("", output.path, sink={"format": "2pc-delta", **store}), output)
    fail_in_one_session(live, faults, point, 1, action)
    listed = {str(path) for path in DeltaTable(output.path).get_add_actions().column("path").to_pylist()}
    assert {key for key in keys(output.path) if key.endswith(".parquet") and "_delta_log" not in key} == listed
    for file in tmp_path.rglob("*.json"):
        assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in file.read_text(errors="replace"), file


def test_a_small_file_that_could_not_be_written_whole_leaves_the_former_one(
    s3: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TableFolder(parse_write_options(Options({"path": f"s3://{BUCKET}/put-{next(TABLES)}"})))
    folder.put("note.json", b"one")

    def fail(stream: object, data: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("connector.delta.storage._BytesOnly.write", fail)
        with pytest.raises(MemoryError):
            folder.put("note.json", b"two")
    gc.collect()
    assert folder.read("note.json") == b"one"
    folder.put("note.json", b"three")
    assert folder.read("note.json") == b"three"


def test_a_bucket_that_is_not_there_is_named_in_one_line(s3: ObjectStoreServer) -> None:
    options = {"path": "s3://no-such-bucket/table", "transactionalIdPrefix": "p"}
    with closing(DeltaSink(Options(options), pa.schema([("value", pa.int64())]))) as sink:
        for ask in (lambda: sink.checkStart("p"), sink.identify):
            with pytest.raises(StoreError, match=r"s3://no-such-bucket/table.*NoSuchBucket") as raised:
                ask()
            assert raised.value.condition == "TABLE_UNREACHABLE"
            assert "\x1b" not in str(raised.value)
