"""Rows that the journal calls settled are there after a power failure, at whichever step the machine fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from integration.delta_output import DeltaOutput
from integration.engine import Engine, Work, command
from integration.power_failure import Call, Disk, record_calls
from transactional import faults
from transactional.faults import InjectedFault

OF_NAMES = ("sync", "sync_folder", "link", "rename", "unlink")
"""Calls after which something else survives a power failure than before them."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("power") / "disk"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def work(root: Path) -> Work:
    """Two checkpoints; neither the location's nor the table's folder is there, nor those above them."""
    options = {"path": str(root / "tables" / "deep" / "t"), "transactionalIdPrefix": "p", "partitionBy": "partition"}
    return Work(str(root / "queries" / "q"), options, partitions=2, format="2pc-delta")


@pytest.fixture(scope="module")
def calls(root: Path, work: Work) -> list[Call]:
    return record_calls(command(work), root, root.parent)


def entries(work: Work) -> Iterator[dict[str, object]]:
    for path in sorted(Path(work.location).glob("barrier/log/[0-9]*.json"), key=lambda path: int(path.stem)):
        data = path.read_bytes()
        if data:  # a name of an entry that was not synced under its temporary name is never there
            yield json.loads(data)


def settled(work: Work) -> Counter[int]:
    """The rows of all checkpoints that the journal calls settled."""
    decided: dict[object, int] = {}
    rows: Counter[int] = Counter()
    for entry in entries(work):
        body = entry["body"]
        assert isinstance(body, dict)
        if entry["kind"] == "decided":
            decided[entry["number"]] = body["batch"]
        elif entry["kind"] == "settled":
            rows.update(v for writer in range(work.writers) for v in work.values(decided[body["checkpoint"]], writer))
    return rows


def prepared_files(work: Work) -> Iterator[tuple[Path, int]]:
    """The files of all checkpoints that the journal has decided, with their sizes."""
    for entry in entries(work):
        body = entry["body"]
        assert isinstance(body, dict)
        for part in body.get("parts") or []:
            for file in (part["handle"] or {"files": []})["files"]:
                yield Path(work.options["path"]) / file["path"], file["size"]


def rows(work: Work) -> Counter[int]:
    """What a reader sees, once a torn file of the newest version is deleted, as `docs/stores.md` says."""
    table = Path(work.options["path"])
    try:
        return DeltaOutput(table).rows()
    except DeltaError:
        newest = max((table / "_delta_log").glob("*.json"))
        assert newest.stat().st_size > 0
        newest.unlink()
        return DeltaOutput(table).rows()


@pytest.mark.parametrize("kept", ["nothing", "names", "names and half"])
def test_settled_rows_are_there_whenever_the_power_fails(work: Work, calls: list[Call], root: Path, kept: str) -> None:
    disk, most = Disk(root), 0
    for number, call in enumerate(calls):
        disk.take(call)
        if call[0] not in (OF_NAMES[:2] if kept == "nothing" else OF_NAMES):
            continue
        disk.after_failure(kept)
        promised = settled(work)
        if promised:
            assert not promised - rows(work), f"the power failed after call {number}, {call[:2]}"
        for path, size in prepared_files(work):
            assert path.is_file(), f"{path.name}, prepared, is gone if the power fails after call {number}, {call[:2]}"
            assert path.stat().st_size == size
        most = max(most, promised.total())
    assert most == work.expected, "the journal itself is not durable"


def test_a_torn_commit_stops_the_query_until_its_file_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy of docs/stores.md: the commit is repeated, and each row is there once."""
    options = {"path": str(tmp_path / "table"), "transactionalIdPrefix": "p"}
    work = Work(str(tmp_path / "location"), options, format="2pc-delta")
    real = faults.reach

    def die(point: str) -> None:
        if point == "commit.one":
            raise InjectedFault(point)
        real(point)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(InjectedFault):
            Engine(work).run()
    newest = max((tmp_path / "table" / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(Exception, match="Json error"):
        Engine(work).run()
    newest.unlink()
    Engine(work).run()
    assert DeltaOutput(tmp_path / "table").rows() == Counter(range(work.expected))
