"""What `TableSink` does for every database: how staged rows are moved, and what stops it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from connector.sql.dialect import Index, Target
from connector.sql.mysql_sink import MysqlSink
from connector.sql.mysql_table import Column as MysqlColumn
from connector.sql.mysql_table import Mysql
from connector.sql.postgresql_sink import PostgresqlSink
from connector.sql.postgresql_table import Column as PostgresqlColumn
from connector.sql.staged_sink import StagedHandle, StagedTransaction
from connector.sql.table_sink import Staged, TableSink
from transactional.errors import RowRefusedError, StoreError
from transactional.sink import Options, TransactionContext

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = {"id": "bigint", "name": "text"}
KEY = Index("PRIMARY", frozenset({"id"}))
ID, NAME = (MysqlColumn(name, kind, kind, True, False, False) for name, kind in COLUMNS.items())


def target(*columns: MysqlColumn, keys: Sequence[Index] = (KEY,)) -> Target[MysqlColumn]:
    return Target("`d`.`t`", "t", "`d`.`t`", columns or (ID, NAME), keys, [])


class Moving(MysqlSink):
    """Remembers what it was to move."""

    dialect = Mysql(True)
    found: Target[MysqlColumn]
    taken: tuple[int, int | None] = (1, None)

    def look_up(self, cursor: Any) -> Target[MysqlColumn] | None:
        return self.found

    def insert(self, cursor: Any, target: Any, staged: Staged, more: str = "") -> tuple[int, int | None]:
        self.moved = [*getattr(self, "moved", []), staged]
        return self.taken[0] * len(staged.nonces), self.taken[1]


class Grouping(Moving):
    at_once = 500


def sink(found: Target[MysqlColumn], kind: type[Moving] = Moving) -> Moving:
    made = kind(Options({"url": "mysql://db/d", "dbtable": "t"}), SCHEMA)
    made.found = found
    return made


def handle(nonce: str, staging: str = "s", key: Sequence[str] = (), rows: int = 1, **columns: str) -> StagedHandle:
    more = {"columns": columns or COLUMNS, "key": list(key)}
    return StagedHandle(format=1, nonce=nonce, batch=0, partition=0, rows=rows, staging=staging, target="", more=more)


@pytest.mark.parametrize(
    ("kind", "moved"), [(Grouping, [["a", "b"], ["c"], ["d"]]), (Moving, [["a"], ["b"], ["c"], ["d"]])]
)
def test_rows_of_one_staging_table_and_key_are_moved_by_one_statement_in_order(
    kind: type[Moving], moved: list[list[str]]
) -> None:
    """Not if the database would lock the whole staging table for several transactions."""
    made = sink(target(), kind)
    made.publish(None, [handle("a"), handle("b"), handle("c", staging="other"), handle("d", key=["id"])])
    assert [each.nonces for each in made.moved] == moved
    assert [each.staging for each in made.moved][-2:] == ["other", "s"]
    assert all(each.names == list(COLUMNS) for each in made.moved)


def test_a_table_that_takes_fewer_rows_is_named() -> None:
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*the table stored 1 of 2 rows"):
        sink(target()).publish(None, [handle("a", rows=2)])
    made = sink(target())
    made.taken = 2, 2  # as for an upsert that replaced a row
    made.publish(None, [handle("a", key=["id"])])


@pytest.mark.parametrize(
    ("columns", "keys", "said"),
    [
        ((ID,), (KEY,), "name was text, and is gone"),
        ((ID, MysqlColumn("name", "varchar(9)", "varchar", True, False, False)), (KEY,), r"is varchar\(9\)"),
        ((ID, NAME), (), "no unique index on exactly id"),
        ((ID, NAME), (KEY, Index("other", frozenset({"name"}))), r"another unique index \(other\)"),
    ],
)
def test_columns_or_a_key_that_were_altered_since_the_rows_were_staged_are_named(
    columns: Sequence[MysqlColumn], keys: Sequence[Index], said: str
) -> None:
    made = sink(target(*columns, keys=keys))
    with pytest.raises(StoreError, match=f"TABLE_CHANGED.*{said}"):
        made.publish(None, [handle("a", key=["id"])])
    assert not hasattr(made, "moved")


def test_a_key_that_can_not_delete_any_more_is_named() -> None:
    made = sink(target(MysqlColumn("id", "bigint", "enum", True, False, False), NAME))
    deleting = handle("a", key=["id"])
    made.publish(None, [deleting])
    assert [each.deletes for each in made.moved] == [False]
    deleting["more"]["deletes"] = True
    with pytest.raises(StoreError, match=r"TABLE_CHANGED.*enum"):
        made.publish(None, [deleting])


def test_a_row_that_does_not_say_whether_it_deletes_is_refused() -> None:
    schema = pa.schema([*SCHEMA, ("gone", pa.bool_())])
    options = {"url": "mysql://db/d", "dbtable": "t", "upsertKey": "id", "deleteColumn": "Gone"}
    made = Moving(Options(options), schema)
    batch = pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"]), pa.array([True, None])], schema=schema)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*gone.*is null"):
        made.write(StagedTransaction(TransactionContext("q", 0, 0, 0, "p", "n", 1), None, ""), batch)


@pytest.mark.parametrize(
    ("kind", "url", "column", "name"),
    [
        (
            PostgresqlSink,
            "postgresql://db/d",
            PostgresqlColumn("id", "bigint", "int8", True, False, False),
            '"barrier"."staged_t_cb64a4c4f02f"',
        ),
        (MysqlSink, "mysql://db/d", ID, "`barrier`.`staged_t_feadb7fb3ed6`"),
    ],
)
def test_a_staging_table_has_the_name_that_it_had_in_earlier_releases(
    kind: type[TableSink], url: str, column: Any, name: str
) -> None:
    """Else each upgrade would leave one behind for every query."""
    made = kind(Options({"url": url, "dbtable": "t", "transactionalIdPrefix": "p"}), SCHEMA)
    made.dialect = getattr(kind, "dialect", Mysql(True))
    found: Target[Any] = Target("d.t", "t", 7, [column], [], [("CHECK (id > 0)", frozenset({"id"}))])
    assert made._staging_of(found, [column]) == name
