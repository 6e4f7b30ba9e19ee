"""What a table's log says is over, and what only seems to be: whose files may be deleted, and what is no commit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from connector.delta import commits
from connector.delta.sink import DeltaHandle, DeltaSink
from tests.test_delta_conformance import SCHEMA, checkpoint, prepare, values
from transactional.errors import AmbiguousOutcomeError, TransactionLostError
from transactional.sink import Cutoff, Options, Outcome, TransactionContext


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    made = DeltaSink(Options({"path": str(tmp_path / "table"), "transactionalIdPrefix": "p"}), SCHEMA)
    made.identify()
    return made


def files_there(tmp_path: Path, *handles: DeltaHandle) -> list[bool]:
    return [(tmp_path / "table" / file["path"]).exists() for handle in handles for file in handle["files"]]


def notes(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("table/_barrier/*/*.json"))


def clean_up(tmp_path: Path) -> None:
    """As a writer that checkpoints its log, and lets the commits before it go."""
    table = DeltaTable(str(tmp_path / "table"))
    theirs = {name: ["theirs"] for name in table.schema().to_arrow().names}
    write_deltalake(table, pa.table(theirs), mode="append")
    table = DeltaTable(str(tmp_path / "table"))
    table.create_checkpoint()
    for version in range(table.version()):
        (tmp_path / "table" / "_delta_log" / f"{version:020d}.json").unlink()


def test_what_is_swept_loses_its_files_and_what_is_committed_keeps_them(sink: DeltaSink, tmp_path: Path) -> None:
    committed, excluded = prepare(sink, "1"), prepare(sink, "2")
    sink.commit([committed], checkpoint(1))
    sink.sweep([], Cutoff("q", 9, 0))
    assert files_there(tmp_path, committed, excluded) == [True, False]
    assert (values(tmp_path), notes(tmp_path)) == (["1"], [])
    assert [state.outcome for state in sink.inspect([excluded])] == [Outcome.LOST]


def test_what_may_have_been_committed_keeps_its_files(sink: DeltaSink, tmp_path: Path) -> None:
    """It was, and a compaction has taken its files out of the table since: time travel and slow readers need them."""
    handle = prepare(sink, "1")
    note = {path: path.read_bytes() for path in notes(tmp_path)}
    sink.commit([handle], checkpoint(1))
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    write_deltalake(str(tmp_path / "table"), pa.table({"value": ["2"]}), mode="append")
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    clean_up(tmp_path)
    for path, content in note.items():
        path.write_bytes(content)
    assert sink.sweep([], Cutoff("q", 9, 0)) == 0
    assert files_there(tmp_path, handle) == [True]
    with pytest.raises(AmbiguousOutcomeError, match="no longer has all commits"):
        sink.abort([handle])
    assert files_there(tmp_path, handle) == [True]


def test_a_commit_that_wrote_a_version_which_had_been_cleaned_up_is_no_commit(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still after its look, until its version was taken and cleaned up: deltalake then writes it, and says nothing."""
    handle = prepare(sink, "1")

    def late(table: DeltaTable, actions: list[Any], *more: Any) -> None:
        for value in "23":
            write_deltalake(str(tmp_path / "table"), pa.table({"value": [value]}), mode="append")
        clean_up(tmp_path)
        gone = tmp_path / "table" / "_delta_log" / f"{table.version() + 1:020d}.json"
        gone.write_text(json.dumps({"add": {"path": handle["files"][0]["path"]}}))

    monkeypatch.setattr(commits, "_write", late)
    with pytest.raises(AmbiguousOutcomeError, match="no longer has all commits after"):
        sink.commit([handle], checkpoint(1))
    assert files_there(tmp_path, handle) == [True]
    assert len(notes(tmp_path)) == 1


def test_an_abort_that_was_killed_before_it_deleted_the_files_holds(sink: DeltaSink, tmp_path: Path) -> None:
    handle = prepare(sink, "1")
    path = tmp_path / "table" / handle["files"][0]["path"]
    content = path.read_bytes()
    assert sink.abort([handle]) == []
    path.write_bytes(content)
    assert [state.outcome for state in sink.inspect([handle])] == [Outcome.LOST]
    with pytest.raises(TransactionLostError):
        sink.commit([handle], checkpoint(1))
    assert values(tmp_path) == []
    version = DeltaTable(str(tmp_path / "table")).version()
    assert sink.abort([handle]) == []
    assert DeltaTable(str(tmp_path / "table")).version() == version, "said once"
    assert not path.exists()


def test_what_a_commit_has_lost_stays_noted_so_that_its_files_are_swept(sink: DeltaSink, tmp_path: Path) -> None:
    whole, torn = prepare(sink, "1"), prepare(sink, "2")
    (tmp_path / "table" / torn["files"][0]["path"]).write_bytes(b"PAR1")
    with pytest.raises(TransactionLostError):
        sink.commit([whole, torn], checkpoint(1))
    assert [note.stem for note in notes(tmp_path)] == [torn["nonce"]]
    assert values(tmp_path) == []
    assert sink.sweep([], Cutoff("q", 9, 0)) == 1
    assert files_there(tmp_path, whole, torn) == [True, False]


# -- a transaction of several files ------------------------------------------------------------------------------------


@pytest.fixture
def parted(tmp_path: Path) -> DeltaSink:
    schema = pa.schema([("part", pa.string()), ("value", pa.string())])
    options = {"path": str(tmp_path / "table"), "transactionalIdPrefix": "p", "partitionBy": "part"}
    made = DeltaSink(Options(options), schema)
    made.identify()
    return made


def prepare_parts(sink: DeltaSink) -> DeltaHandle:
    transaction = sink.beginTransaction(TransactionContext("q", 0, 0, 0, "p", os.urandom(8).hex(), 1))
    sink.write(transaction, pa.RecordBatch.from_pydict({"part": ["a", "b"], "value": ["1", "2"]}, schema=sink.schema))
    handle = sink.preCommit(transaction)
    assert len(handle["files"]) == 2
    return handle


@pytest.mark.parametrize("cleaned", [False, True])
def test_half_of_a_transaction_is_no_commit_and_says_so(parted: DeltaSink, tmp_path: Path, cleaned: bool) -> None:
    """One commit adds all of its files. Half of them was called committed, and the other half was lost."""
    handle = prepare_parts(parted)
    half = DeltaHandle(**{**handle, "files": handle["files"][:1]})
    commits.add_files(DeltaTable(str(tmp_path / "table")), [half], checkpoint(1))
    if cleaned:
        clean_up(tmp_path)
    said = "only 1 of the transaction's 2 files are in the log"
    state = parted.inspect([handle])[0]
    assert (state.outcome, said in state.evidence) == (Outcome.UNKNOWN, True)
    for attempt in (lambda: parted.commit([handle], checkpoint(1)), lambda: parted.abort([handle])):
        with pytest.raises(AmbiguousOutcomeError, match=rf"OUTCOME_UNKNOWN.*{said}"):
            attempt()
    assert parted.sweep([], Cutoff("q", 9, 0)) == 0
    assert files_there(tmp_path, handle) == [True, True]


def test_what_was_committed_whole_stays_so_when_half_of_it_was_removed(parted: DeltaSink, tmp_path: Path) -> None:
    """The log's removal of a file proves that it was added, though the commit that added it was cleaned up."""
    handle = prepare_parts(parted)
    parted.commit([handle], checkpoint(1))
    clean_up(tmp_path)
    DeltaTable(str(tmp_path / "table")).delete("part = 'a'")
    assert [state.outcome for state in parted.inspect([handle])] == [Outcome.COMMITTED]
    assert parted.abort([handle]) == [handle]
    parted.sweep([], Cutoff("q", 9, 0))
    assert files_there(tmp_path, handle) == [True, True]
