"""A query's location with three checkpoints, and a savepoint of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.savepoints.manifest import Savepoint
from connector.savepoints.take import take
from tests.connector.cli_place import CliPlace, dead_process
from transactional.entry import EntryKind


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """Micro-batches 0 to 2 are three settled checkpoints; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process())
    for batch in range(3):
        found.decided(batch, output={"orders-0": 10 * batch + 10})
    return found


@pytest.fixture
def saved(place: CliPlace, tmp_path: Path) -> Savepoint:
    return take(str(place), str(tmp_path / "saved"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


@pytest.fixture
def stopped(place: CliPlace) -> CliPlace:
    """The same, and its query has stopped."""
    run = place.ledger().newest_run
    assert run is not None
    place.append(EntryKind.STOPPED, {"run": run.token})
    return place
