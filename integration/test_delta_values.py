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
from deltalake import DeltaTable, QueryBuilder

from connector.delta.sink import DeltaSink
from integration.random_values import batches, drawn, is_utf8, one_of, plain, rarely, same, value_of
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


def with_deltalake(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def with_sql(path: Path) -> pa.Table:
    table = DeltaTable(str(path))
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    return found.cast(pa.schema(table.schema().to_arrow()))


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
    """A table of `count` rows; nested values are an eighth of them."""
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


PARTS = {name: kind for name, kind in KINDS.items() if "binary" not in name}
VALUES_OF_PARTS = 60
"""Of a checkpoint: each makes a file."""

FEW_PARTS, MANY_PARTS = 20, 2_400

UNSAFE = "\"#%'*/:=?\\\x7f{[]^"
"""What Spark escapes in the name of a folder."""


def as_part(kind: pa.DataType) -> Callable[[Any], bool]:
    """Whether a partition column holds a value."""
    if pa.types.is_date32(kind):
        return lambda value: -719_162 <= value < 2_932_897  # the years 1 to 9999
    if pa.types.is_timestamp(kind):
        return lambda value: -719_162 <= value // 86_400_000_000 < 2_932_897
    if kind in (pa.string(), pa.large_string()):
        return lambda text: is_utf8(text) and sum(3 if c < " " or c in UNSAFE else len(c.encode()) for c in text) < 254
    return lambda value: True


def partitioned(path: Path, name: str, count: int) -> Table:
    """A table with `count` values of its partition column, and rows of each in turn."""
    kind = KINDS[name]
    fits, refused = as_part(kind), 0
    table = Table(path, [("p", kind)], f"delta, partitioned by {name} {count}", partitionBy="p")
    draw = rarely(value_of(drawn(kind), fits, 60), one_of(None), 30)
    each = min(count, VALUES_OF_PARTS)
    for _ in range(count // each):
        drew = [draw(table.rng) for _ in range(each)]
        good = [value for value in drew if value is None or fits(value)]
        for value in drew:
            if value is not None and not fits(value):
                with pytest.raises(RowRefusedError, match=r"\[ROW_REFUSED\] .*the partition column p") as refusal:
                    table.write([[*good[:2], value, *good[2:4]]])
                assert refusal.value.getMessageParameters()["column"] == "p"
                refused += 1
        table.write([[*good, *reversed(good), *good[:9]]])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        table.sent["p"] = [value or None for value in table.sent["p"]]  # Delta's log has no empty text
    print(f"| partition column, {name} | {len(table.sent['id'])} | {refused} |")
    return table


@pytest.mark.parametrize("name", PARTS)
def test_a_few_values_of_partition_columns_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    table = partitioned(tmp_path / "table", name, FEW_PARTS)
    table.check(with_sql(table.path))
    if "decimal" not in name:  # deltalake 1.6.6 reads -9.96 as "-9.-96" there
        table.check(with_deltalake(table.path))


@pytest.mark.matrix
@pytest.mark.parametrize("name", PARTS)
def test_many_values_of_partition_columns_are_read_as_they_were(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = partitioned(tmp_path / "table", name, MANY_PARTS)
    table.check(with_sql(table.path))
    table.check(spark.read.format("delta").load(str(table.path)).toArrow())
