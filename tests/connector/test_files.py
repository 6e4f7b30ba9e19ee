"""The files of a location on a local disk: whole, durable, and closed to others where that was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from connector.location.files import LocalFiles
from connector.location.location import CheckpointLocation
from connector.savepoints.take import take
from tests.connector.cli_place import CliPlace
from transactional.errors import TwoPhaseCommitError

DURABLE = ("fsync", "link", "rename")


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every change of a disk from now on, and of what."""
    steps: list[tuple[str, str]] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any, **more: Any) -> Any:
            what = os.readlink(f"/proc/self/fd/{given[0]}") if name == "fsync" else given[-1]
            steps.append((name, os.path.basename(what)))
            return real(*given, **more)

        monkeypatch.setattr(os, name, call)

    for name in DURABLE:
        watch(name)
    return steps


def test_a_file_is_durable_before_it_has_its_name_and_the_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(monkeypatch)
    LocalFiles(str(tmp_path)).put("deep/er/name", [b"one ", b"two"])
    assert (tmp_path / "deep" / "er" / "name").read_text() == "one two"
    kinds = [kind if name.startswith(".") else f"{kind} {name}" for kind, name in steps]
    assert kinds[kinds.index(f"fsync {tmp_path.name}") :] == [
        f"fsync {tmp_path.name}",
        "fsync deep",
        "fsync",
        "rename name",
        "fsync er",
    ]


def test_a_savepoint_is_durable_before_it_has_its_manifest(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(monkeypatch)
    saved = take(str(place), str(tmp_path / "saved"))
    names = {os.path.basename(file.path) for file in saved.files}
    end = steps.index(("link", "savepoint.json"))
    renamed = [name for kind, name in steps[:end] if kind == "rename"]
    assert sorted(renamed) == sorted(os.path.basename(file.path) for file in saved.files)
    for name in names:
        at = max(number for number, step in enumerate(steps) if step == ("rename", name))
        folders = {Path(file.path).parent.name for file in saved.files if Path(file.path).name == name}
        assert folders & {name for kind, name in steps[at:end] if kind == "fsync"}
    assert steps[end + 1] == ("fsync", "saved")


def test_what_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put("name", b"one")

    def breaks() -> Any:
        yield b"tw"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.put("name", breaks())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"name": "one"}


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put("name", b"one")
    (tmp_path / "name").chmod(0o640)
    files.put("name", b"two")
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o640


def test_private_files_are_closed_to_others(tmp_path: Path) -> None:
    LocalFiles(str(tmp_path), private=True).put("folder/name", b"one")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "folder", tmp_path / "folder" / "name")]
    assert modes == [0o700, 0o600]


def test_the_location_itself_is_removed_only_if_no_file_is_in_it(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "location"))
    files.put("one/name", b"one")
    (tmp_path / "location" / "empty" / "deep").mkdir(parents=True)
    files.remove("")
    assert files.tree("") == ["one/name"]
    files.remove("one")
    files.remove("")
    assert not (tmp_path / "location").exists()
    files.remove("")


READING = ("names", "tree", "chunks", "exists", "mark")
CHANGING = ("create", "put", "delete", "remove")


@pytest.mark.parametrize("method", [*READING, *CHANGING])
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), PermissionError(13, "no", "file"), NotADirectoryError()]
)
def test_whatever_a_store_fails_with_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: OSError
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    location = CheckpointLocation(str(tmp_path))
    monkeypatch.setattr(LocalFiles, method, fails)
    wanted = "LOCATION_UNREADABLE" if method in READING else "LOCATION_UNWRITABLE"
    expected: Any = {PermissionError: "LOCATION_NOT_OURS.*file", OSError: f"{wanted}.*{tmp_path}.*Input/output"}
    given = (("a/b", b"") if method in ("create", "put") else (["a/b"],)) if method in CHANGING[:3] else ("a/b",)
    with pytest.raises((TwoPhaseCommitError, NotADirectoryError), match=expected.get(type(error))):
        list(getattr(location.files, method)(*given) or ())
