"""Rows into files: one open per partition value, a next one when it is large, each announced before it is made."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connector.delta import data_files
from connector.delta.data_files import DataFiles, split, text_of
from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from transactional.errors import RowRefusedError


def files(
    path: Path, schema: pa.Schema, by: Sequence[str] = (), file_bytes: int = 1 << 27
) -> tuple[DataFiles, list[int]]:
    """And how many paths were announced each time, when so many files were there."""
    announced: list[int] = []

    def announce(paths: Sequence[str]) -> None:
        announced.append(len(paths))
        made = {str(file.relative_to(path)) for file in path.rglob("*.parquet")}
        assert made < set(paths), "a file was made before it was announced"

    folder = TableFolder(parse_write_options({"path": str(path)}))
    return DataFiles(folder, schema, by, "part-00000-q-0-n", file_bytes, "snappy", 32, announce), announced


def rows_of(path: Path, found: DataFiles) -> list[dict[str, Any]]:
    return [
        {**row, **file["partitionValues"]}
        for file in found.finish()
        for row in pq.ParquetFile(path / file["path"]).read().to_pylist()
    ]


def test_rows_lie_in_the_folders_of_their_partition_values(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"v": list(range(6)), "p": ["a/b", "", None, "a/b", "x=%", "a/b"], "q": [1] * 6})
    writer, announced = files(tmp_path, batch.schema, ["p", "q"])
    writer.write(batch)
    writer.write(batch)
    found = writer.finish()
    assert sorted(file["path"].rpartition("/")[0] for file in found) == [
        "p=__HIVE_DEFAULT_PARTITION__/q=1",
        "p=a%2Fb/q=1",
        "p=x%3D%25/q=1",
    ]
    assert announced == [3], "one note for all files of a batch"
    by_value = {file["partitionValues"]["p"]: file for file in found}
    assert set(by_value) == {"a/b", None, "x=%"}, "the empty text is null in Delta's log"
    assert pq.ParquetFile(tmp_path / by_value["a/b"]["path"]).read().to_pydict() == {"v": [0, 3, 5, 0, 3, 5]}
    assert all((tmp_path / file["path"]).stat().st_size == file["size"] for file in found)


def test_a_large_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "LEAST_GROUP_ROWS", 100)
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1)
    schema = pa.schema([("v", pa.int64())])
    writer, announced = files(tmp_path, schema, file_bytes=2000)
    for start in range(0, 2000, 200):
        writer.write(pa.RecordBatch.from_pydict({"v": list(range(start, start + 200))}, schema=schema))
    rows = rows_of(tmp_path, writer)
    assert [row["v"] for row in rows] == list(range(2000))
    assert len(writer.added) > 2
    assert len(announced) == len(writer.added)


def test_of_many_partitions_only_some_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "OPEN_FILES", 3)
    schema = pa.schema([("v", pa.int64()), ("p", pa.int64())])
    writer, _ = files(tmp_path, schema, ["p"])
    for _ in range(2):
        writer.write(pa.RecordBatch.from_pydict({"v": list(range(10)), "p": list(range(10))}, schema=schema))
    rows = rows_of(tmp_path, writer)
    assert sorted((row["v"], row["p"]) for row in rows) == [(n, str(n)) for n in range(10) for _ in range(2)]


def test_what_is_dropped_leaves_no_file(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"v": [1, 2], "p": [1, 2]})
    writer, _ = files(tmp_path, batch.schema, ["p"])
    writer.write(batch)
    writer.drop()
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        ("a b", "a b"),
        (True, "true"),
        (7, "7"),
        (Decimal("1.50"), "1.50"),
        (dt.date(2020, 2, 29), "2020-02-29"),
        (dt.datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=dt.timezone.utc), "2020-02-29T01:02:03.000004Z"),
        (float("inf"), "Infinity"),
    ],
)
def test_partition_values_are_written_as_deltas_protocol_says(value: Any, text: str | None) -> None:
    assert text_of(value) == text


def test_each_row_is_in_one_part_and_parts_have_one_value() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"v": list(range(100)), "p": [n % 7 for n in range(100)], "q": [n % 3 for n in range(100)]}
    )
    parts = dict(split(batch, ["p", "q"]))
    assert sorted(v for rows in parts.values() for v in rows["v"].to_pylist()) == list(range(100))
    for (p, q), rows in parts.items():
        assert {str(n % 7) for n in rows["v"].to_pylist()} == {p}
        assert {str(n % 3) for n in rows["v"].to_pylist()} == {q}


def test_every_file_is_durable_with_its_last_byte_when_it_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: dict[str, int] = {}
    real = os.fsync

    def fsync(file: int) -> None:
        durable[os.readlink(f"/proc/self/fd/{file}")] = os.fstat(file).st_size
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    batch = pa.RecordBatch.from_pydict({"v": list(range(6)), "p": ["a", "b"] * 3})
    writer, _ = files(tmp_path, batch.schema, ["p"], file_bytes=1)
    writer.write(batch)
    writer.write(batch)
    found = writer.finish()
    assert len(found) == 4
    bytes_of = {path: size for path, size in durable.items() if path.endswith(".parquet")}
    assert {str(tmp_path / file["path"]): file["size"] for file in found} == bytes_of
    assert {str(tmp_path / "p=a"), str(tmp_path / "p=b"), str(tmp_path)} <= set(durable), "and their folders"


def test_no_product_of_partition_values_is_too_large() -> None:
    """Ten columns of 100 values each are 10^20 combinations, and 2^63 is 9 * 10^18."""
    names = [f"p{number}" for number in range(10)]
    batch = pa.RecordBatch.from_pydict({name: [f"{name}-{row}" for row in range(100)] for name in names})
    parts = list(split(batch, names))
    assert len(parts) == 100
    for values, rows in parts:
        assert [tuple(row.values()) for row in rows.to_pylist()] == [values]


@pytest.mark.parametrize("value", ["a" * 300, "ü" * 130, "%" * 90])
def test_a_partition_value_that_no_folder_can_be_named_after_is_refused_by_column(tmp_path: Path, value: str) -> None:
    batch = pa.RecordBatch.from_pydict({"v": [1], "p": [value]})
    writer, _ = files(tmp_path, batch.schema, ["p"])
    with pytest.raises(RowRefusedError, match="partition column p"):
        writer.write(batch)
