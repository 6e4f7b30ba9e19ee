"""The simulated Delta table answers as deltalake does: random commits of several processes, on both."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from connector.delta.commits import _write
from connector.delta.delta_log import read_past
from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from tests.simulation.delta_table import SimulatedDelta, SimulatedFolder
from tests.simulation.product import IN_DELTA
from tests.simulation.world import World
from transactional.sink import Options

OPERATIONS = 80
PROCESSES = 3
APPS = ("p", "q")


class Real:
    """A table on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "table"
        DeltaTable.create(str(self.path), Schema.from_arrow(pa.schema([("value", pa.int64())])))
        self.folder: Any = TableFolder(parse_write_options(Options({"path": str(self.path)})))

    def clean(self, before: int) -> None:
        """Clean the log up, as Spark does after a checkpoint."""
        DeltaTable(str(self.path)).create_checkpoint()
        for version in range(before):
            name = self.path / "_delta_log" / f"{version:020d}.json"
            if name.exists():
                os.unlink(name)


class Simulated:
    """The simulated one."""

    def __init__(self) -> None:
        store = World([], IN_DELTA).store
        assert isinstance(store, SimulatedDelta)
        self._store, self.folder = store, SimulatedFolder(store)
        self.folder.make()
        store.files = _Everything()

    def clean(self, before: int) -> None:
        """Clean the log up."""
        self._store.clean(before)


class _Everything(dict[str, bytes]):
    """Every data file is there, without rows."""

    def __contains__(self, _: object) -> bool:
        return True

    def get(self, *_: Any) -> bytes:
        return b"[]"


@pytest.mark.parametrize("seed", range(3))
def test_random_commits_of_several_processes_end_alike(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sides: list[Real | Simulated] = [Real(tmp_path), Simulated()]
    tables: list[list[Any]] = [[side.folder.open() for _ in range(PROCESSES)] for side in sides]
    done, failed = [], 0
    for number in range(OPERATIONS):
        process, app, kind = dice.randrange(PROCESSES), dice.choice(APPS), dice.randrange(8)
        newest = sides[1].folder.open().version()
        if kind < 4:
            done.append(f"{process} opens")
            answers = [_opened(side, of, process, app) for side, of in zip(sides, tables, strict=True)]
        elif kind < 7:
            paths = [f"{number}-{each}" for each in range(dice.randrange(3))]
            mark = {"aborted": [f"n{number}"]} if not paths else {}
            done.append(f"{process} writes {paths} as {app}")
            answers = [_written(of[process], paths, app, number, mark) for of in tables]
            failed += answers[0] == "refused"
        else:
            done.append(f"the log is cleaned up before {newest - 4}")
            for side in sides:
                side.clean(max(newest - 4, 0))
            answers = []
        assert not answers or answers[0] == answers[1], "\n".join(done[-20:])
    assert failed, "nobody was in another's way"


def _opened(side: Real | Simulated, tables: list[Any], process: int, app: str) -> Any:
    """Open the table anew; return what a sink reads of it."""
    folder: Any = side.folder
    table = tables[process] = folder.open()
    past = read_past(folder, table, max(table.version() - 6, 0))
    return table.version(), table.transaction_version(app), sorted(past.added), sorted(past.aborted), past.complete


def _written(table: Any, paths: list[str], app: str, number: int, mark: dict[str, Any]) -> str:
    try:
        _write(table, [AddAction(path, 1, {}, 0, True, "{}") for path in paths], app, number, mark)
    except DeltaError:
        return "refused"
    return "written"
