"""The Delta sink keeps the sinks' contract, and what only a table can do to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from connector.delta.commits import add_files
from connector.delta.sink import DeltaHandle, DeltaSink
from integration.every_line import EveryLine
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import AmbiguousOutcomeError, OptionError, TransactionLostError
from transactional.sink import Cutoff, Options, Outcome, TransactionContext
from transactional.testing import SinkConformance, StoreMatrix

SCHEMA = pa.schema([("value", pa.string())])


class TestDeltaSink(EveryLine, StoreMatrix, SinkConformance):
    sink_type = DeltaSink
    golden_handles = Path(__file__).parent / "golden" / "2pc-delta"
    deaths = 10  # at every line: in the matrix

    @pytest.fixture
    def sink_options(self, tmp_path: Path) -> Mapping[str, str]:
        options = {"path": str(tmp_path / "table"), "transactionalIdPrefix": "conformance"}
        DeltaSink(Options(options), self.schema()).identify()
        return options

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return [int(value) for value in DeltaTable(options["path"]).to_pyarrow_table()["value"].to_pylist()]

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(list(Path(options["path"]).glob("_barrier/*/*.json")))

    def takeCopy(self, options: Mapping[str, str]) -> Path:
        table = Path(options["path"])
        return Path(shutil.copytree(table, table.with_name(f"copy-{os.urandom(4).hex()}")))

    def putBack(self, options: Mapping[str, str], copy: Path) -> None:
        self.remove(options)
        shutil.copytree(copy, options["path"])

    def remove(self, options: Mapping[str, str]) -> None:
        shutil.rmtree(options["path"], ignore_errors=True)

    def replace(self, options: Mapping[str, str]) -> None:
        self.remove(options)
        write_deltalake(options["path"], pa.table({"value": pa.array([], pa.string())}))

    def emptyLog(self, options: Mapping[str, str]) -> bool:
        newest = max(Path(options["path"], "_delta_log").glob("*.json"))
        newest.write_bytes(b"")
        return True


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    made = DeltaSink(Options({"path": str(tmp_path / "table"), "transactionalIdPrefix": "p"}), SCHEMA)
    made.identify()
    return made


def prepare(sink: DeltaSink, value: str, run: int = 1, batch: int = 0) -> DeltaHandle:
    transaction = sink.beginTransaction(TransactionContext("q", batch, 0, 0, "p", os.urandom(8).hex(), run))
    sink.write(transaction, pa.RecordBatch.from_pydict({"value": [value]}, schema=SCHEMA))
    return sink.preCommit(transaction)


def values(tmp_path: Path) -> list[str]:
    return sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["value"].to_pylist())


def checkpoint(number: int) -> DecidedCheckpoint:
    return DecidedCheckpoint(number, (0,), 0, "q", "p")


def test_a_table_made_anew_is_not_taken_for_the_one_that_was_prepared_for(sink: DeltaSink, tmp_path: Path) -> None:
    handle = prepare(sink, "1")
    shutil.rmtree(tmp_path / "table" / "_delta_log")
    sink.identify()
    with pytest.raises(AmbiguousOutcomeError, match="deleted and created again"):
        sink.commit([handle], checkpoint(1))
    assert values(tmp_path) == []


def test_a_commit_that_stood_still_meanwhile_adds_nothing_after_an_abort(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the files; the abort takes the app transaction first, and deletes then."""
    handle, real = prepare(sink, "1"), add_files

    def late(*args: Any) -> None:
        monkeypatch.setattr("connector.delta.sink.add_files", real)
        assert list(sink.abort([handle])) == []
        real(*args)

    monkeypatch.setattr("connector.delta.sink.add_files", late)
    with pytest.raises(TransactionLostError):
        sink.commit([handle], checkpoint(1))
    assert values(tmp_path) == []


def test_a_sweep_touches_only_what_is_over(sink: DeltaSink, tmp_path: Path) -> None:
    """However late a superseded driver sweeps: a later run's files, and other queries', stay."""
    earlier, same, later = (
        prepare(sink, "1", run=3, batch=1),
        prepare(sink, "2", run=3, batch=2),
        prepare(sink, "3", run=4),
    )
    assert sink.sweep([], Cutoff("other", 9, 9)) == 0
    assert sink.sweep([], Cutoff("q", 3, 2)) == 1
    outcomes = [state.outcome for state in sink.inspect([earlier, same, later])]
    assert outcomes == [Outcome.LOST, Outcome.PREPARED, Outcome.PREPARED]


def test_a_sweep_keeps_what_is_committed_whatever_became_of_its_files_in_the_table(
    sink: DeltaSink, tmp_path: Path
) -> None:
    """A note that outlived its commit, of files that OPTIMIZE has replaced since: time travel needs them."""
    handles = [prepare(sink, "1", batch=0), prepare(sink, "2", batch=1)]
    notes = {note: note.read_bytes() for note in tmp_path.glob("table/_barrier/*/*.json")}
    sink.commit(handles, checkpoint(1))
    for note, content in notes.items():
        note.write_bytes(content)
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    assert sink.sweep([], Cutoff("q", 2, 0)) == 0
    assert not list(tmp_path.glob("table/_barrier/*/*.json"))
    before = DeltaTable(str(tmp_path / "table"), version=1).to_pyarrow_table()["value"].to_pylist()
    assert sorted(before) == values(tmp_path) == ["1", "2"]
    sink.commit(handles, checkpoint(1))
    assert values(tmp_path) == ["1", "2"]


def test_a_file_that_is_gone_or_torn_is_never_added(sink: DeltaSink, tmp_path: Path) -> None:
    whole, gone, torn = (prepare(sink, value) for value in "123")
    (tmp_path / "table" / gone["files"][0]["path"]).unlink()
    (tmp_path / "table" / torn["files"][0]["path"]).write_bytes(b"PAR1")
    with pytest.raises(TransactionLostError) as lost:
        sink.commit([whole, gone, torn], checkpoint(1))
    assert lost.value.handles == [gone, torn]
    assert values(tmp_path) == []
    sink.commit([whole], checkpoint(1))
    assert values(tmp_path) == ["1"]


def test_a_commit_before_a_hole_in_the_log_is_none(sink: DeltaSink, tmp_path: Path) -> None:
    """As one writes it who stood still until its version was taken and cleaned up: no snapshot has it."""
    handle = prepare(sink, "1")
    table, log = tmp_path / "table", tmp_path / "table" / "_delta_log"
    for value in "23":
        write_deltalake(str(table), pa.table({"value": [value]}), mode="append")
    DeltaTable(str(table)).create_checkpoint()
    (log / f"{2:020d}.json").unlink()
    (log / f"{1:020d}.json").write_text(json.dumps({"add": {"path": handle["files"][0]["path"]}}))
    assert [state.outcome for state in sink.inspect([handle])] == [Outcome.UNKNOWN]
    with pytest.raises(AmbiguousOutcomeError, match="no longer has all commits after"):
        sink.commit([handle], checkpoint(1))


def test_the_check_of_a_start_refuses_what_the_planning_would_and_makes_no_table(tmp_path: Path) -> None:
    def checked(schema: pa.Schema, **options: str) -> None:
        DeltaSink(Options({"path": str(tmp_path / "table"), **options}), schema).checkStart(None)

    checked(SCHEMA)
    assert not (tmp_path / "table").exists()
    DeltaSink(Options({"path": str(tmp_path / "table")}), SCHEMA).identify()
    checked(SCHEMA)
    with pytest.raises(OptionError, match="COLUMNS_MISMATCH"):
        checked(pa.schema([("value", pa.int64())]))
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*more"):
        checked(wider)
    checked(wider, mergeSchema="true")
    assert DeltaTable(str(tmp_path / "table")).version() == 0
