"""Which version a checkpoint made, and the way back to it: only over what this query itself has committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from connector.delta.sink import DeltaSink
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import FencedError, StoreError
from transactional.sink import Options, TransactionContext

SCHEMA = pa.schema([("value", pa.string())])


class Table:
    """A table, and queries that write into it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "table")

    def sink(self, prefix: str = "p") -> DeltaSink:
        made = DeltaSink(Options({"path": self.path, "transactionalIdPrefix": prefix}), SCHEMA)
        made.identify()
        return made

    def write(self, number: int, query: str = "q") -> dict[str, Any]:
        """Commit a checkpoint of that number, whose only row is the number; returns where its output stands."""
        sink = self.sink(query)
        transaction = sink.beginTransaction(TransactionContext(query, number, 0, 0, query, os.urandom(8).hex(), 1))
        sink.write(transaction, pa.RecordBatch.from_pydict({"value": [str(number)]}, schema=SCHEMA))
        handles = [sink.preCommit(transaction)]
        sink.commit(handles, DecidedCheckpoint(number, (number,), 0))
        return dict(sink.output(handles, DecidedCheckpoint(number, (number,), 0)))

    def values(self) -> list[str]:
        return sorted(DeltaTable(self.path).to_pyarrow_table()["value"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_checkpoint_s_output_names_the_version_that_it_made(table: Table) -> None:
    outputs = [table.write(number) for number in (1, 2)]
    assert [(output["version"], output["app"]) for output in outputs] == [(1, "q/2pc-delta"), (2, "q/2pc-delta")]


def test_of_two_queries_with_one_checkpoint_number_each_finds_its_own_version(table: Table) -> None:
    assert (table.write(1)["version"], table.write(1, query="other")["version"]) == (1, 2)
    sink = table.sink()
    transaction = sink.beginTransaction(TransactionContext("q", 2, 0, 0, "p", os.urandom(8).hex(), 1))
    sink.write(transaction, pa.RecordBatch.from_pydict({"value": ["2"]}, schema=SCHEMA))
    handles = [sink.preCommit(transaction)]
    sink.commit(handles, DecidedCheckpoint(2, (2,), 0))
    table.write(2, query="other")
    assert sink.output(handles, DecidedCheckpoint(2, (2,), 0))["version"] == 3


def test_the_table_goes_back_once_however_often_the_rewind_is_run(table: Table) -> None:
    first, _ = table.write(1), table.write(2)
    sink = table.sink()
    sink.checkRestore(first)
    sink.restoreOutput(first, 7)
    assert table.values() == ["1"]
    version = DeltaTable(table.path).version()
    sink.restoreOutput(first, 7)
    assert DeltaTable(table.path).version() == version
    table.write(3)
    sink.restoreOutput(first, 7)
    assert table.values() == ["1", "3"], "what came after the rewind is not undone by the same one"
    sink.restoreOutput(first, 8)
    assert table.values() == ["1"], "another rewind goes over this query's commits and over former rewinds"


@pytest.mark.parametrize("when", ["before", "at the rewind"])
def test_commits_of_others_are_not_undone(table: Table, when: str) -> None:
    first, _ = table.write(1), table.write(2)
    write_deltalake(table.path, pa.table({"value": ["theirs"]}), mode="append")
    table.write(3)
    sink = table.sink()
    with pytest.raises(StoreError, match=r"TABLE_HAS_OTHER_COMMITS.*versions 3, "):
        sink.checkRestore(first) if when == "before" else sink.restoreOutput(first, 7)
    assert table.values() == ["1", "2", "3", "theirs"]


def test_a_rewind_that_another_has_taken_over_undoes_nothing_that_came_after(table: Table) -> None:
    first, _ = table.write(1), table.write(2)
    sink = table.sink()
    sink.restoreOutput(first, 8)  # by the process that resumed the rewind 7
    table.write(9)  # the query runs again, and has decided checkpoint 9
    with pytest.raises(FencedError, match="another process has finished the rewind"):
        sink.restoreOutput(first, 7)  # the first process goes on
    assert table.values() == ["1", "9"]


def test_a_rewind_of_another_query_is_not_taken_for_ours(table: Table) -> None:
    """Entry numbers of two journals have nothing to do with each other."""
    first, theirs = table.write(1), table.write(2, query="other")
    table.write(3, query="other")
    table.sink("other").restoreOutput(theirs, 7)
    with pytest.raises(StoreError, match="TABLE_HAS_OTHER_COMMITS"):
        table.sink().restoreOutput(first, 7)


def test_a_table_that_nothing_has_changed_since_stays_as_it_is(table: Table) -> None:
    """Of several tables, some may have got no row after the checkpoint."""
    table.write(1)
    newest = table.write(2)
    table.sink().restoreOutput(newest, 7)
    assert (table.values(), DeltaTable(table.path).version()) == (["1", "2"], newest["version"])
