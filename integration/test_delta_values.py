"""Random values of every type in Delta tables: deltalake, pyarrow's Parquet and delta-spark read what was sent.

What a partition column can't hold is refused by name.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connector.delta.sink import DeltaSink
from integration.random_values import batches, drawn, one_of, plain, rarely, same
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import RowRefusedError
from transactional.sink import Options, TransactionContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5_000
"""Of a checkpoint."""

QUICK, MANY = 150, 100_000

KINDS = {
    str(kind): kind
    for kind in (
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(9, 2),
        pa.decimal128(18, 6),
        pa.decimal128(38, 10),
        pa.decimal128(38, 38),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
    )
}

Reader = Callable[[Path], pa.Table]


def with_deltalake(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def with_parquet(path: Path) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(file).read() for file in DeltaTable(str(path)).file_uris())


class Table:
    """A table with a column of a type, and of what can be made of it; all values that were sent, by column."""

    def __init__(self, path: Path, fields: Sequence[tuple[str, pa.DataType]], seed: str, **options: str) -> None:
        self.path, self.rng = path, random.Random(seed)
        print(f"the seed is {seed!r}")
        self.schema = pa.schema([("id", pa.int64()), *fields])
        settings = {"path": str(path), "transactionalIdPrefix": "p", **options}
        self.sink = DeltaSink(Options(settings), self.schema)
        self.sink.identify()
        self.sent: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        self.batch = 0

    def write(self, columns: Sequence[Sequence[Any]]) -> None:
        """Send rows in a few batches, and commit them."""
        begin, self.batch = len(self.sent["id"]), self.batch + 1
        rows = [range(begin, begin + len(columns[0])), *columns]
        context = TransactionContext("q", self.batch, 0, 0, "p", os.urandom(8).hex(), 1)
        transaction = self.sink.beginTransaction(context)
        try:
            for batch in batches(self.rng, rows, self.schema, 3):
                self.sink.write(transaction, batch)
            handle = self.sink.preCommit(transaction)
        except RowRefusedError:
            self.sink.rollback(transaction)
            raise
        assert handle is not None
        self.sink.commit([handle], DecidedCheckpoint(self.batch, (self.batch,), 0, "q", "p"))
        for name, values in zip(self.schema.names, rows, strict=True):
            self.sent[name] += values

    def check(self, found: pa.Table, names: Sequence[str] = ()) -> None:
        """Compare the table with what was sent."""
        ids = plain(found["id"])
        assert sorted(ids) == self.sent["id"]
        for name in names or self.schema.names:
            for number, got in zip(ids, plain(found[name]), strict=True):
                value = self.sent[name][number]
                assert same(value, got), f"{name}: {str(value)[:300]} was read as {str(got)[:300]}"


def fields_of(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    inside = pa.struct([("a", kind), ("b", pa.list_(kind))])
    return [("v", kind), ("l", pa.list_(kind)), ("s", inside), ("m", pa.map_(kind, kind))]


def table_of(path: Path, name: str, count: int) -> Table:
    """A table of so many rows; nested values are an eighth of them."""
    table = Table(path, fields_of(KINDS[name]), f"delta {name} {count}")
    while len(table.sent["id"]) < count:
        rows = min(ROWS, count)
        draws = [rarely(drawn(kind), one_of(None), 20) for _, kind in fields_of(KINDS[name])]
        table.write(
            [
                [draw(table.rng) if at == 0 or not row % 8 else None for row in range(rows)]
                for at, draw in enumerate(draws)
            ]
        )
    return table


@pytest.mark.parametrize("name", KINDS)
def test_a_few_values_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    table = table_of(tmp_path / "table", name, QUICK)
    table.check(with_deltalake(table.path))
    table.check(with_parquet(table.path))


@pytest.mark.matrix
@pytest.mark.parametrize("name", KINDS)
def test_many_values_are_read_as_they_were(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = table_of(tmp_path / "table", name, MANY)
    table.check(with_deltalake(table.path))
    table.check(with_parquet(table.path))
    table.check(spark.read.format("delta").load(str(table.path)).toArrow())
    print(f"| {name} | {len(table.sent['id'])} |")
