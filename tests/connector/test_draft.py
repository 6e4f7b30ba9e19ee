"""Folders that are made under a temporary name, where several processes make and tidy them at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from connector.spark import manifest
from connector.spark.draft import Draft
from connector.spark.savepoint import read, take
from tests.connector.cli_place import CliPlace, dead_process
from transactional import faults
from transactional.errors import LocationError


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """One settled checkpoint; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process())
    found.decided(0)
    return found


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "saved")


def tidied_when_made(monkeypatch: pytest.MonkeyPatch, *tidying: Draft) -> None:
    """Between the making of the next folders and their locks another process looks for leftovers."""
    real, others = os.mkdir, list(tidying)

    def mkdir(path: str, *more: Any) -> None:
        real(path, *more)
        if others and ".saved." in path:
            others.pop(0).begin()

    monkeypatch.setattr(os, "mkdir", mkdir)


def test_a_draft_is_never_at_work_without_its_lock(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, other = Draft(target, "taking"), Draft(target, "taking")
    with monkeypatch.context() as patch:
        tidied_when_made(patch, other)
        draft.begin()
    Path(draft.path, "metadata").write_text("of the first")
    Draft(target, "taking").begin()
    assert Path(draft.path, "metadata").exists()
    assert Path(other.path).exists()


def test_a_folder_that_another_process_has_locked_already_is_left_to_it(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, held = Draft(target, "taking"), list[int]()
    real = os.mkdir

    def mkdir(path: str, *more: Any) -> None:
        real(path, *more)
        if not held:
            held.append(os.open(path, os.O_RDONLY))
            fcntl.flock(held[0], fcntl.LOCK_EX)

    first = draft.path
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        draft.begin()
    assert draft.path != first
    os.close(held[0])
    Draft(target, "taking").begin()
    assert (Path(first).exists(), Path(draft.path).exists()) == (False, True)


def test_a_savepoint_is_not_reported_as_taken_without_its_files(
    place: CliPlace, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take it for a leftover when it is made, and again when its files are copied."""
    copied: list[str] = []

    def reach(point: str) -> None:
        if point == "savepoint.copied":
            copied.append(point)
            Draft(target, "taking").begin()

    tidied_when_made(monkeypatch, Draft(target, "taking"))
    monkeypatch.setattr(faults, "reach", reach)
    take(str(place), target).verify()
    assert copied == ["savepoint.copied"]


@pytest.mark.parametrize("lost", ["the folder", "a file", "the end of a file"])
def test_a_copy_that_vanishes_before_it_has_its_name_is_made_anew(
    place: CliPlace, target: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = manifest.write, list[str]()

    def write(draft: str, *more: Any) -> Any:
        found = real(draft, *more)
        written.append(draft)
        if len(written) == 1:
            file = Path(draft, "checkpoint", "metadata")
            if lost == "the folder":
                os.rename(draft, f"{target}-elsewhere")
            elif lost == "a file":
                file.unlink()
            else:
                file.write_text("{")
        return found

    monkeypatch.setattr("connector.spark.savepoint.write", write)
    take(str(place), target).verify()
    assert len(written) == 2


@pytest.mark.parametrize("there", ["a savepoint", "a file"])
def test_of_two_savepoints_that_are_taken_into_one_folder_at_once_the_later_is_refused(
    place: CliPlace, target: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(point: str) -> None:
        monkeypatch.setattr(faults, "reach", lambda _: None)
        if there == "a file":
            Path(target).touch()
        else:
            take(str(place), target)

    monkeypatch.setattr(faults, "reach", reach)
    with pytest.raises(LocationError, match="SAVEPOINT_EXISTS"):
        take(str(place), target)
    if there == "a savepoint":
        read(target).verify()
    assert sorted(os.listdir(place.path.parent)) == ["output", "place", "saved"]
