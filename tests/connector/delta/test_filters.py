"""deltalake's own filters find what was written: a bound that is missing counts as no match there."""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from connector.delta.sink import DeltaSink
from tests.pyarrow_release import MAJOR
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Options, TransactionContext

HIGHEST = "\U0010ffff"

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "one boolean": (pa.bool_(), [True]),
    "long text": (pa.string(), ["x" * 4097, "a", "z" * (1 << 20)]),
    "highest text": (pa.string(), [HIGHEST * 40, HIGHEST * 40 + "a", "a" * 31 + HIGHEST + "b", "\0", ""]),
    "infinities": (pa.float64(), [math.inf, -math.inf, -0.0, 5e-324]),
    "floats": (pa.float32(), [math.inf, 1.5, None]),
    "many digits": (pa.decimal128(38, 18), [Decimal("1.1"), Decimal("12345678901234567890.123456789012345678")]),
    "38 digits": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    "small decimals": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38)]),
    "first dates": (pa.date32(), [dt.date(1, 1, 1), dt.date(999, 12, 31)]),
    "integers": (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    "bytes": (pa.binary(), [b"\xff\x00", b""]),
}


def written(folder: Path, type_: pa.DataType, values: list[Any]) -> DeltaTable:
    schema = pa.schema([("v", type_)])
    sink = DeltaSink(Options({"path": str(folder / "table"), "transactionalIdPrefix": "p"}), schema)
    sink.identify()
    transaction = sink.beginTransaction(TransactionContext("q", 0, 0, 0, "p", os.urandom(8).hex(), 1))
    sink.write(transaction, pa.RecordBatch.from_pydict({"v": values}, schema=schema))
    sink.commit([sink.preCommit(transaction)], DecidedCheckpoint(1, (0,), 0, "q", "p"))
    return DeltaTable(str(folder / "table"))


@pytest.mark.parametrize("kind", VALUES)
def test_deltalakes_filters_find_every_value(tmp_path: Path, kind: str) -> None:
    if kind == "many digits" and MAJOR < 22:
        pytest.skip("older versions of pyarrow find no such value with a filter, whoever wrote it")
    type_, values = VALUES[kind]
    table = written(tmp_path, type_, values)
    assert table.to_pyarrow_table()["v"].to_pylist() == values
    for value in values:
        if value is not None:
            for compared in ("=", ">=", "<="):
                assert value in table.to_pyarrow_table(filters=[("v", compared, value)])["v"].to_pylist()
    found = QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t WHERE v IS NOT NULL")
    assert pa.table(found)["n"].to_pylist() == [sum(value is not None for value in values)]
