"""``barrier savepoint dispose``: what it refuses to delete, and deaths in between."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from connector.spark.savepoint import Savepoint, dispose, find, read, take
from tests.connector.cli_place import CliPlace, another_user, answer, dead_process, shared_folder, two_users
from transactional import faults
from transactional.errors import LocationError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """One settled checkpoint; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process())
    found.decided(0)
    return found


@pytest.fixture
def saved(place: CliPlace, tmp_path: Path) -> Savepoint:
    return take(str(place), str(tmp_path / "saved"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def claimed(saved: Savepoint, new: Path, capsys: Capture) -> int:
    return answer(capsys, "restore", saved.path, str(new), "--claim", "--yes")[0]


def disposed(saved: Savepoint, capsys: Capture) -> str:
    """By the command: its status, or the condition of its refusal."""
    _, document, _ = answer(capsys, "savepoint", "dispose", saved.path, "--yes")
    return str(document.get("condition", document["status"]))


def killed(at: str, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim dies at a fault point."""

    def reach(point: str) -> None:
        if point == at:
            raise faults.InjectedFault(point)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        assert claimed(saved, new, capsys) == 4


@pytest.mark.parametrize("more", ["a file", "a folder", "a query's place"])
def test_a_savepoint_that_holds_something_else_is_not_disposed_of(place: CliPlace, saved: Savepoint, more: str) -> None:
    path = Path(saved.path) / "checkpoint" / "more"
    if more == "a file":
        path.write_text("kept")
    elif more == "a folder":
        path.mkdir()
    else:
        shutil.copytree(place.path, path)
    with pytest.raises(LocationError) as caught:
        dispose(saved)
    assert (caught.value.condition, caught.value.parameters["found"][0]) == ("SAVEPOINT_HOLDS_MORE", "checkpoint/more")
    read(saved.path).verify()
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    dispose(saved)
    assert not os.path.exists(saved.path)


@pytest.mark.parametrize("at", ["rewind.begun", "restore.moved", "restore.copied", "made anew"])
def test_a_savepoint_that_a_begun_claim_needs_is_not_disposed_of(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Where the old place is closed, and the new one not made, the query can go on from nothing else."""
    if at in ("restore.copied", "made anew"):
        killed("restore.moved", saved, new, capsys, monkeypatch)
    if at == "made anew":
        assert claimed(saved, new, capsys) == 0
        at = "restore.whole"
    killed(at, saved, new, capsys, monkeypatch)
    status, document, _ = answer(capsys, "savepoint", "dispose", saved.path, "--yes")
    assert (status, document["condition"]) == (1, "SAVEPOINT_NEEDED")
    assert f"`barrier restore {saved.path} {new} --claim`" in document["message"]
    assert (f"`barrier rewind {place} --resume`" in document["message"]) is (at == "rewind.begun")
    assert claimed(saved, new, capsys) == 0
    assert disposed(saved, capsys) == "done"


def test_a_savepoint_whose_claim_was_given_up_or_whose_old_place_is_gone_is_disposed_of(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed("rewind.begun", saved, new, capsys, monkeypatch)
    assert answer(capsys, "rewind", str(place), "--resume", "--yes")[0] == 0
    second = take(str(place), f"{saved.path}-2")
    assert disposed(saved, capsys) == "done"
    killed("restore.moved", second, new, capsys, monkeypatch)
    assert disposed(second, capsys) == "SAVEPOINT_NEEDED"
    shutil.rmtree(place.path)
    assert disposed(second, capsys) == "done"


def killed_in_the_middle(saved: Savepoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disposal dies when it has deleted a file."""

    def rmtree(path: str, **_: object) -> None:
        os.unlink(os.path.join(path, "journal.json"))
        raise faults.InjectedFault("killed")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        assert answer(capsys, "savepoint", "dispose", saved.path, "--yes")[0] == 4


def test_a_disposal_that_was_killed_is_finished_by_the_same_command(
    saved: Savepoint, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_the_middle(saved, capsys, monkeypatch)
    assert find(str(tmp_path)) == []
    assert disposed(saved, capsys) == "done"
    assert sorted(os.listdir(tmp_path)) == ["output", "place"]
    assert disposed(saved, capsys) == "SAVEPOINT_NOT_FOUND"


def test_what_a_disposal_that_was_killed_has_left_is_deleted_by_the_next_take(
    place: CliPlace, saved: Savepoint, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_the_middle(saved, capsys, monkeypatch)
    take(str(place), saved.path).verify()
    assert sorted(os.listdir(tmp_path)) == ["output", "place", "saved"]


def test_a_disposal_that_is_at_work_is_left_alone(
    saved: Savepoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found = shutil.rmtree, list[str]()

    def rmtree(path: str) -> None:
        found.append(disposed(saved, capsys))
        real(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    dispose(saved)
    assert found == ["SAVEPOINT_NOT_FOUND"]


def test_a_savepoint_of_a_claim_that_was_done_is_disposed_of_though_the_query_has_gone_farther(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    assert claimed(saved, new, capsys) == 0
    second = take(str(new), str(new.parent / "second"))
    assert claimed(second, new.parent / "third", capsys) == 0
    shutil.rmtree(new)
    assert disposed(saved, capsys) == "done"


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_savepoint_that_is_restored_just_now_is_not_disposed_of(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    seen: list[str] = []

    def reach(point: str) -> None:
        if point == "restore.copied":
            seen.append(disposed(saved, capsys))

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        assert answer(capsys, "restore", saved.path, str(new), how, "--yes")[0] == 0
    assert seen == ["SAVEPOINT_NEEDED"]
    assert disposed(saved, capsys) == "done"


def test_a_claim_closes_nothing_when_its_savepoint_is_gone_by_then(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted by hand, or where nothing can be locked."""

    def reach(point: str) -> None:
        if point == "restore.copied":
            shutil.rmtree(saved.path)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        _, document, _ = answer(capsys, "restore", saved.path, str(new), "--claim", "--yes")
    assert (document["condition"], place.ledger().moved, new.exists()) == ("SAVEPOINT_DAMAGED", None, False)


@two_users
def test_a_disposal_that_can_delete_nothing_does_not_say_that_it_did(capsys: Capture) -> None:
    """A savepoint that its owner has made read-only."""
    with shared_folder() as base:
        place = CliPlace(base)
        place.run(process=dead_process())
        place.decided(0)
        saved = take(str(place), str(base / "saved"))
        assert answer(capsys, "savepoint", "show", saved.path)[0] == 0  # imports what is imported late
        for path in (base / "saved", *(base / "saved").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with another_user(base / "saved"):
            statuses = [disposed(saved, capsys) for _ in range(2)]
        assert "done" not in statuses
