"""A table that holds more of a query than its journal, by the real coordinator: the location is an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connector.delta.sink import DeltaSink
from tests.transactional.bodies import lines
from transactional.checkpoint import Acknowledgement, Part
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import LocationError
from transactional.journal import Journal, LocalJournalStore
from transactional.recovery import QueryView
from transactional.sink import Options, TransactionContext

SCHEMA = pa.schema([("value", pa.int64())])


class Query:
    """A query that appends its micro-batch's number to a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = Options({"path": str(folder / "table"), "transactionalIdPrefix": "p"})

    def coordinator(self, batch: int, driver: str) -> CheckpointCoordinator:
        settings = RunSettings(driver, DeltaSink.name(), "options", "p")
        previous = lines(f"line {batch - 1}") if batch else None
        view = QueryView("q", "/place", batch, batch - 1, lines(f"line {batch}"), previous)
        return CheckpointCoordinator(self.journal(), DeltaSink(self.options, SCHEMA), settings, view)

    def journal(self) -> Journal:
        return Journal(LocalJournalStore(str(self.folder / "log")))

    def run(self, batch: int, driver: str) -> None:
        plan = self.coordinator(batch, driver).plan()
        sink = DeltaSink(self.options, SCHEMA)
        transaction = sink.beginTransaction(TransactionContext("q", batch, 0, 0, "p", f"{batch}{driver}", plan.token))
        sink.write(transaction, pa.record_batch([pa.array([batch])], schema=SCHEMA))
        part = Part(0, dict(sink.preCommit(transaction)), 1, 8, "1:0")
        message = Acknowledgement(plan.token, batch, 0, 0, False, [part], plan.sources)
        self.coordinator(batch, driver).commit([message], batch)

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
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*holds checkpoint"):
            query.run(1, "C")
    assert query.values() == [0, 1]
    journal = query.journal()
    journal.load()
    accepted = {"location": "/place", "suffix": "", "base": -1, "drop": False}
    journal.append(EntryKind.ADOPT, accepted, lambda ledger: None)
    query.run(1, "C")
    query.run(2, "D")
    assert query.values() == [0, 1, 1, 2]


def test_a_query_that_goes_on_under_new_drivers_is_not_refused(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(4):
        query.run(batch, f"driver {batch}")
    assert query.values() == [0, 1, 2, 3]
