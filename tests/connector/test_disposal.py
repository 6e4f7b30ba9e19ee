"""``barrier savepoint dispose``: nothing else is deleted, and deaths in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connector.savepoints.manifest import Savepoint, find
from connector.savepoints.take import take
from tests.connector.cli_place import CliPlace, another_user, answer, dead_process, shared_folder, two_users
from tests.connector.killed_command import killed_before

Capture = pytest.CaptureFixture[str]


def disposed(saved: Savepoint, capsys: Capture) -> str:
    """By the command: its status, or the condition of its refusal."""
    _, document, _ = answer(capsys, "savepoint", "dispose", saved.path, "--yes")
    return str(document.get("condition", document["status"]))


def test_what_else_lies_in_its_folder_stays(saved: Savepoint, capsys: Capture) -> None:
    path = Path(saved.path)
    (path / "more").mkdir()
    (path / "more" / "kept").write_text("somebody's")
    assert disposed(saved, capsys) == "done"
    assert [str(each.relative_to(path)) for each in path.rglob("*")] == ["more", "more/kept"]
    assert disposed(saved, capsys) == "SAVEPOINT_NOT_FOUND"


def test_a_folder_that_is_no_savepoint_is_left_alone(saved: Savepoint, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty" / "folders").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "empty", tmp_path / "nothing", tmp_path / "saved" / "savepoint.json"):
        _, document, _ = answer(capsys, "savepoint", "dispose", str(path), "--yes")
        assert document["condition"] == "SAVEPOINT_NOT_FOUND"
    assert (tmp_path / "empty" / "folders").is_dir()
    saved.verify()


def test_a_disposal_that_is_killed_before_any_of_its_changes_is_finished_by_the_same_command(
    place: CliPlace, tmp_path: Path, capsys: Capture
) -> None:
    death = 0
    while True:
        death += 1
        saved = take(str(place), str(tmp_path / "saved"))
        if not killed_before(death, ["savepoint", "dispose", saved.path, "--yes"]):
            break
        left = [each for each in find(str(tmp_path)) if isinstance(each, Savepoint)]
        assert [each.id for each in left] in ([], [saved.id])
        for each in left:
            each.verify()  # what looks like a savepoint is a whole one
        if os.path.exists(saved.path):
            assert disposed(saved, capsys) in ("done", "SAVEPOINT_NOT_FOUND")
        assert not any(Path(saved.path).rglob("*"))
    assert death > 5
    assert sorted(os.listdir(tmp_path)) == ["output", "place"]


@two_users
def test_a_disposal_that_can_delete_nothing_does_not_say_that_it_did(capsys: Capture) -> None:
    """A savepoint that its owner has made read-only."""
    with shared_folder() as base:
        place = CliPlace(base)
        place.run(process=dead_process())
        place.decided(0)
        saved = take(str(place), str(base / "saved"))
        assert answer(capsys, "savepoint", "list", *saved.path.rsplit("/", 1))[0] == 0  # imports what is imported late
        for path in (base / "saved", *(base / "saved").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with another_user(base / "saved"):
            statuses = [disposed(saved, capsys) for _ in range(2)]
        assert "done" not in statuses
