"""Partition values whose folders need escaping: what the log says of their files is what the notes and handles say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connector.delta.sink import DeltaHandle, DeltaSink
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Cutoff, Options, Outcome, TransactionContext

SCHEMA = pa.schema([("value", pa.string()), ("part", pa.string())])
VALUES = ("a b", "a%20b", "10:30", "50%", "x/y", "é", "#1", "a+b", "plain", None)
LATER = Cutoff("q", 2, 0)
CHECKPOINT = DecidedCheckpoint(1, (0,), 0)


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    options = {"path": str(tmp_path / "table"), "transactionalIdPrefix": "p", "partitionBy": "part"}
    made = DeltaSink(Options(options), SCHEMA)
    made.identify()
    return made


def prepare(sink: DeltaSink, values: Sequence[str | None] = VALUES) -> DeltaHandle:
    transaction = sink.beginTransaction(TransactionContext("q", 0, 0, 0, "p", os.urandom(8).hex(), 1))
    rows = {"value": [str(number) for number in range(len(values))], "part": list(values)}
    sink.write(transaction, pa.RecordBatch.from_pydict(rows, schema=SCHEMA))
    return sink.preCommit(transaction)


def committed_and_killed_before_the_notes_were_deleted(sink: DeltaSink, table: Path) -> list[DeltaHandle]:
    """A transaction for each value: of one with several files, a single one that is found would do."""
    handles = [prepare(sink, [value]) for value in VALUES]
    notes = {note: note.read_bytes() for note in table.glob("_barrier/*/*.json")}
    sink.commit(handles, CHECKPOINT)
    assert len(notes) == len(VALUES)
    for note, content in notes.items():
        note.write_bytes(content)
    return handles


def must_be_committed(sink: DeltaSink, table: Path, handles: list[DeltaHandle]) -> None:
    assert [state.outcome for state in sink.inspect(handles)] == [Outcome.COMMITTED] * len(VALUES)
    assert sink.sweep([], LATER) == 0
    assert sink.abort(handles) == handles
    sink.commit(handles, CHECKPOINT)
    assert parts(table) == sorted(VALUES, key=str)


def parts(table: Path) -> list[str | None]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["part"].to_pylist(), key=str)


@pytest.mark.parametrize("value", VALUES)
def test_each_value_is_read_back(sink: DeltaSink, tmp_path: Path, value: str | None) -> None:
    sink.commit([prepare(sink, [value])], CHECKPOINT)
    assert parts(tmp_path / "table") == [value]


def test_a_sweep_after_a_kill_between_commit_and_note_keeps_the_files(sink: DeltaSink, tmp_path: Path) -> None:
    table = tmp_path / "table"
    must_be_committed(sink, table, committed_and_killed_before_the_notes_were_deleted(sink, table))


def test_so_it_is_where_the_commit_was_cleaned_up_from_the_log(sink: DeltaSink, tmp_path: Path) -> None:
    """Then the table's own list of its files tells, which has their paths in another form than the log."""
    table = tmp_path / "table"
    handles = committed_and_killed_before_the_notes_were_deleted(sink, table)
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    must_be_committed(sink, table, handles)


def test_a_transaction_that_is_over_and_not_committed_is_swept(sink: DeltaSink, tmp_path: Path) -> None:
    handle = prepare(sink)
    assert sink.sweep([], LATER) == 1
    assert [file["path"] for file in handle["files"] if (tmp_path / "table" / file["path"]).exists()] == []
