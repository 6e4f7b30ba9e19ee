"""The Delta sink on an object store: its contract, and what it tells."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connector.delta.sink import DeltaSink
from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from integration.delta_output import TableOnS3
from integration.object_store import BUCKET, ObjectStoreServer
from transactional.errors import StoreError
from transactional.sink import Options
from transactional.testing import SinkConformance

TABLES = itertools.count()


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
        return len(TableOnS3(options["path"]).open_transactions())


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
