"""A table that holds more of a query than its journal, by the real coordinator: the location is an older copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connector.delta.sink import DeltaSink
from tests.transactional.bodies import fact_of, lines
from transactional.checkpoint import Acknowledgement, Mode, Part
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entries import Fact, Request, Restarted
from transactional.entry import EntryKind
from transactional.errors import (
    FencedError,
    LocationError,
    PutBackError,
    RetriableError,
    StoreError,
    StoreUnreachableError,
)
from transactional.journal import Journal, LocalJournalStore
from transactional.recovery import QueryView
from transactional.rewind import Rewinder
from transactional.settlement import Settlement
from transactional.sink import Options, TransactionContext

SCHEMA = pa.schema([("value", pa.int64())])


class KeptLogs:
    """Spark's logs, which agree with every journal and can go back to every micro-batch."""

    def highest(self) -> tuple[int, int]:
        return -1, -1

    def repartitions(self, before: int) -> Sequence[int]:
        return []

    def check_can_go_back(self, batch: int) -> None:
        """It can."""

    def delete_after(self, batch: int) -> None:
        """Nothing is there."""

    def replay(self, first: int, last: int) -> None:
        raise AssertionError("nothing is kept")

    def is_replaced(self, batch: int, text: str) -> bool:
        return False

    def put_back(self, batch: int, text: str) -> None:
        raise AssertionError("nothing is replaced")


class Query:
    """A query that appends its micro-batch's number to a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = "p"
        self.open_from: int | None = None
        self.options = Options({"path": str(folder / "table"), "transactionalIdPrefix": self.prefix})

    def coordinator(self, batch: int, driver: str, versions: bool = False) -> CheckpointCoordinator:
        named = {"options": {"path": self.options["path"]}}
        settings = RunSettings(driver, DeltaSink.name(), self.options["path"], self.prefix, setup=named)
        previous = lines(self.line(batch - 1)) if batch and not versions else None
        committed = -1 if versions else batch - 1
        view = QueryView("q", "/place", batch, committed, lines(self.line(batch)), previous, gaps=versions)
        return CheckpointCoordinator(self.journal(), DeltaSink(self.options, SCHEMA), settings, view)

    def line(self, batch: int) -> str:
        """Of a source without barriers: every micro-batch closes a checkpoint. From `open_from` on, none does."""
        if self.open_from is None:
            return f"line {batch}"
        barrier = {"number": min(batch, self.open_from - 1), "kind": "checkpoint", "timestamp": 0}
        return json.dumps({"source": "barrier-kafka", "topics": {"t": {"0": batch}}, "barrier": barrier})

    def journal(self) -> Journal:
        return Journal(LocalJournalStore(str(self.folder / "log")))

    def rewind(self, checkpoint: int | None = None) -> int:
        """As `barrier rewind` does it; without a checkpoint, to a point from which no row is written twice."""
        rewinder = self.rewinder()
        rewinder.begin(rewinder.preview(checkpoint), {})
        return rewinder.finish()

    def rewinder(self) -> Rewinder:
        journal = self.journal()
        journal.load()
        return Rewinder(journal, DeltaSink(self.options, SCHEMA), KeptLogs(), "q", self.prefix)

    def run(self, batch: int, driver: str, versions: bool = False) -> None:
        messages = self.tasks(batch, driver, versions)
        if messages:
            self.coordinator(batch, driver, versions).commit(messages, batch)

    def tasks(self, batch: int, driver: str, versions: bool = False) -> list[Acknowledgement | None]:
        plan = self.coordinator(batch, driver, versions).plan()
        if plan.mode is Mode.DRAIN:
            return []
        sink = DeltaSink(self.options, SCHEMA)
        transaction = sink.beginTransaction(
            TransactionContext("q", batch, 0, 0, self.prefix, f"{batch}{driver}", plan.token)
        )
        sink.write(transaction, pa.record_batch([pa.array([batch])], schema=SCHEMA))
        part = Part(0, dict(sink.preCommit(transaction)), 1, 8, "2:0")
        return [Acknowledgement(plan.token, batch, 0, 0, False, [part], plan.sources)]

    def values(self) -> list[int]:
        table = DeltaTable(str(self.folder / "table")).to_pyarrow_table()
        return sorted(table.column("value").to_pylist())


@pytest.mark.parametrize("driver", ["A", "B"])
def test_an_older_copy_that_is_put_back_is_refused_until_somebody_accepts_it(tmp_path: Path, driver: str) -> None:
    query = Query(tmp_path)
    query.run(0, "A")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    query.run(1, driver)
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    for _ in range(2):
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*contains checkpoint"):
            query.run(1, "C")
    assert query.values() == [0, 1]
    journal = query.journal()
    journal.load()
    accepted = {"location": "/place", "suffix": "", "base": -1, "drop": False}
    journal.append(fact_of(EntryKind.ADOPT, accepted), lambda ledger: None)
    query.run(1, "C")
    query.run(2, "D")
    assert query.values() == [0, 1, 1, 2]


@pytest.mark.parametrize("kept", ["older copy", "nothing"])
def test_a_query_goes_on_after_an_older_copy_was_accepted_however_far_the_table_is_ahead(
    tmp_path: Path, kept: str
) -> None:
    """Its checkpoints get ids above those that the table holds: else each would look like one of before."""
    query = Query(tmp_path)
    query.run(0, "A")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    for batch in range(1, 12):
        query.run(batch, "A")
    shutil.rmtree(tmp_path / "log")
    if kept == "older copy":
        shutil.copytree(tmp_path / "copy", tmp_path / "log")
    journal = query.journal()
    base = journal.load().base
    first = 1 if kept == "older copy" else 12
    accepted = {"location": "/place", "suffix": "", "base": base if first == 1 else 11, "drop": first == 12}
    journal.append(fact_of(EntryKind.ADOPT, accepted), lambda ledger: None)
    for batch in range(first, 15):
        query.run(batch, "B" if batch < 13 else "C")
    assert query.values() == sorted([*range(15), *range(first, 12)])


def restarted(query: Query) -> None:
    """A supervisor starts the query again, while the store is away."""
    condition, reason = "TABLE_UNREACHABLE", "away"
    append(query, Restarted(by="supervise", number=1, delay=1.0, condition=condition, reason=reason, rewound=False))


def requested(query: Query) -> None:
    """An operator asks for a checkpoint."""
    append(query, Request(what="checkpoint"))


def rewound(query: Query) -> None:
    """A rewind runs while the table's volume is not mounted: nothing shows that the location is an older copy."""
    table, away = query.folder / "table", query.folder / "away"
    table.rename(away)
    newest = max(query.journal().load().checkpoints)
    query.rewind(newest)
    away.rename(table)


def append(query: Query, *facts: Fact) -> None:
    journal = query.journal()
    journal.load()
    for fact in facts:
        journal.append(fact, lambda ledger: None)


@pytest.mark.parametrize("writes", [restarted, requested, rewound], ids=lambda function: function.__name__)
def test_entries_that_decide_nothing_hide_no_older_copy(tmp_path: Path, writes: Callable[[Query], None]) -> None:
    """A checkpoint's id is the number of its decision. So its number alone may not decide what the journal knows."""
    query = Query(tmp_path)
    query.run(0, "A")
    query.run(1, "A")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    query.run(2, "A")
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    for _ in range(12):
        writes(query)
    with pytest.raises(PutBackError, match="LOCATION_PUT_BACK"):
        query.run(2, "B")
    assert query.values() == [0, 1, 2]


def test_a_rewind_of_a_store_that_does_not_answer_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path)
    query.run(0, "A")
    position = query.journal().load().position

    def away(*_: object) -> int:
        raise StoreUnreachableError("TABLE_UNREACHABLE", sink="2pc-delta", path="t", reason="away")

    monkeypatch.setattr(DeltaSink, "newestCheckpoint", away)
    with pytest.raises(StoreUnreachableError):
        query.rewind(max(query.journal().load().checkpoints))
    assert query.journal().load().position == position


@pytest.mark.parametrize("begun", [False, True], ids=["a new rewind", "a rewind that goes on"])
def test_a_driver_that_starts_while_a_rewind_looks_at_the_store_is_not_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The command has looked before whether a query runs here."""
    query = Query(tmp_path)
    query.run(0, "A")
    newest = max(query.journal().load().checkpoints)
    rewinder = query.rewinder()
    if begun:
        rewinder.begin(rewinder.preview(newest), {})
    real = DeltaSink.newestCheckpoint

    def looks(sink: DeltaSink, *given: str) -> int:
        monkeypatch.setattr(DeltaSink, "newestCheckpoint", real)
        if begun:
            other = query.rewinder()
            other.again({})
            other.finish()
        query.run(1, "B")
        return real(sink, *given)

    monkeypatch.setattr(DeltaSink, "newestCheckpoint", looks)
    with pytest.raises(LocationError, match="LOCATION_BUSY"):
        rewinder.again({}) if begun else rewinder.preview(newest)
    assert query.journal().load().rewinding is None
    query.run(2, "B")
    assert query.values() == [0, 1, 2]


def test_an_older_copy_is_refused_before_a_rewind_begins(tmp_path: Path) -> None:
    """It has a transaction as prepared that was aborted long ago: the log that said so may be cleaned up."""
    query = Query(tmp_path)
    query.open_from = 1
    query.run(0, "A")
    query.run(1, "A")
    assert len(query.journal().load().undecided()) == 1
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    assert query.rewind() == 0
    query.open_from = 100
    for batch in (1, 2):
        query.run(batch, "B")
    DeltaTable(str(tmp_path / "table")).create_checkpoint()
    for version in sorted((tmp_path / "table" / "_delta_log").glob("*.json"))[:-1]:
        version.unlink()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    position = query.journal().load().position
    with pytest.raises(PutBackError, match="LOCATION_PUT_BACK"):
        query.rewind()
    assert query.journal().load().position == position
    assert query.values() == [0, 1, 2]


def test_an_abort_leaves_the_checkpoint_that_the_table_holds(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(3):
        query.run(batch, "A")
    sink = DeltaSink(query.options, SCHEMA)
    held = sink.newestCheckpoint("q")
    [message] = query.tasks(3, "A")
    assert message is not None
    sink.abort(message.handles)  # type: ignore[arg-type]
    assert held
    assert DeltaSink(query.options, SCHEMA).newestCheckpoint("q") == held
    query.run(3, "B")
    assert query.values() == [0, 1, 2, 3]


def test_a_query_that_goes_on_under_new_drivers_is_not_refused(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(4):
        query.run(batch, f"driver {batch}")
    assert query.values() == [0, 1, 2, 3]


def test_a_driver_that_was_superseded_while_it_stood_still_is_not_told_that_its_location_is_an_old_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor has committed checkpoints that it has not read yet: who adopts the location then takes a check away."""
    query = Query(tmp_path)
    query.run(0, "A")
    messages = query.tasks(1, "A")
    real = Settlement.look

    def stands_still(settlement: Settlement, *given: Any) -> Any:
        monkeypatch.setattr(Settlement, "look", real)
        for batch in range(1, 4):
            query.run(batch, "B")
        return real(settlement, *given)

    monkeypatch.setattr(Settlement, "look", stands_still)
    with pytest.raises((FencedError, RetriableError)):
        query.coordinator(1, "A").commit(messages, 1)
    assert query.values() == [0, 1, 2, 3]


# -- a table that lacks what the journal has settled: what `StoreMatrix` does not have ----------------------------------


@pytest.mark.parametrize("versions", [False, True], ids=["query", "df.write"])
@pytest.mark.parametrize("driver", ["A", "B"], ids=["driver lives", "run begins"])
def test_a_table_that_has_lost_its_last_commit_is_not_written_into(tmp_path: Path, driver: str, versions: bool) -> None:
    query = Query(tmp_path)
    for batch in range(3):
        query.run(batch, "A", versions)
    max((tmp_path / "table" / "_delta_log").glob("*.json")).unlink()
    for batch in (2, 3) if versions else (3,):
        with pytest.raises(StoreError, match="STORE_WENT_BACK"):
            query.run(batch, driver, versions)
    assert query.values() == [0, 1]


def test_a_table_that_is_gone_is_not_made_anew_because_the_prefix_has_changed(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.run(0, "A")
    shutil.rmtree(tmp_path / "table")
    query.prefix = "another"
    with pytest.raises(StoreError, match="STORE_GONE"):
        query.run(1, "B")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("older", [True, False], ids=["older copy", "newest copy"])
def test_a_copy_of_the_table_under_another_path_must_be_the_newest(tmp_path: Path, older: bool) -> None:
    """A backup is seldom put back where the table was; what it held of the query was not compared there."""
    query = Query(tmp_path)
    for batch in range(4):
        query.run(batch, "A")
        if batch == (1 if older else 3):
            shutil.copytree(tmp_path / "table", tmp_path / "copy")
    former, query.options = query.options, query.options.replaced(path=str(tmp_path / "copy"))
    if older:
        with pytest.raises(StoreError, match="STORE_WENT_BACK"):
            query.run(4, "B")
    else:
        query.run(4, "B")
    query.options = former
    query.run(5 if not older else 4, "C")
    query.options = query.options.replaced(path=str(tmp_path / "new"))
    query.run(6 if not older else 5, "D")
    assert query.values() == ([0, 1, 2, 3, 4] if older else [0, 1, 2, 3, 5])


def test_the_users_own_versions_of_a_table_are_his_to_make(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(3):
        query.run(batch, "A")
    DeltaTable(str(tmp_path / "table")).restore(1)
    query.run(3, "A")
    DeltaTable(str(tmp_path / "table")).delete("value = 3")
    query.run(4, "B")
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    DeltaTable(str(tmp_path / "table")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    query.run(5, "C")
    assert query.values() == [0, 4, 5]


def test_a_table_that_is_behind_is_written_into_after_somebody_has_accepted_it(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(2):
        query.run(batch, "A")
    shutil.rmtree(tmp_path / "table")
    journal = query.journal()
    journal.load()
    accepted = {"location": "/place", "suffix": "", "base": -1, "drop": False}
    journal.append(fact_of(EntryKind.ADOPT, accepted), lambda ledger: None)
    query.run(2, "B")
    query.run(3, "C")
    assert query.values() == [2, 3]
