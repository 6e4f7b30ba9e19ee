"""What makes a journal entry durable, call by call: a crash of the machine can't be had in a test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from transactional.journal import LocalJournalStore

DATA = b"an entry" * 1000


class Disk:
    """Notes every call that makes something durable or visible, and how the file stood then."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fails: str | None = None
        self._folder = folder
        for name in ("fsync", "link", "rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._noted(name, getattr(os, name)))

    def _noted(self, name: str, real: Any) -> Any:
        def call(what: Any, *more: Any, **named: Any) -> Any:
            path = Path(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)
            if path != self._folder and self._folder not in path.parents:
                return real(what, *more, **named)
            if path.is_file() and name in ("fsync", "link"):
                assert path.read_bytes() == DATA, f"{name} before all was written"
            kind = "folder" if path == self._folder else "temporary" if path.name[0] == "." else "entry"
            self.calls.append((name, kind))
            if self.fails == f"{name} {kind}":
                raise OSError(5, "planted")
            return real(what, *more, **named)

        return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    folder.mkdir()
    return Disk(folder, monkeypatch)


def test_an_entry_is_durable_before_it_has_its_name_and_the_name_before_the_create_returns(
    folder: Path, disk: Disk
) -> None:
    assert LocalJournalStore(str(folder)).create("1.json", DATA)
    durable = [call for call in disk.calls if call[0] != "unlink"]
    assert durable == [("fsync", "temporary"), ("link", "temporary"), ("fsync", "folder")]
    assert os.listdir(folder) == ["1.json"]


def test_a_name_that_is_taken_is_not_replaced_and_nothing_stays_behind(folder: Path, disk: Disk) -> None:
    (folder / "1.json").write_bytes(b"another's")
    assert not LocalJournalStore(str(folder)).create("1.json", DATA)
    assert (folder / "1.json").read_bytes() == b"another's"
    assert os.listdir(folder) == ["1.json"]


@pytest.mark.parametrize("fails", ["fsync temporary", "fsync folder"])
def test_a_disk_that_cannot_make_it_durable_is_no_success(folder: Path, disk: Disk, fails: str) -> None:
    disk.fails = fails
    with pytest.raises(OSError, match="planted"):
        LocalJournalStore(str(folder)).create("1.json", DATA)
    assert os.listdir(folder) == ([] if fails == "fsync temporary" else ["1.json"])


def test_the_folders_of_a_new_journal_are_durable_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "location").mkdir()
    disk = Disk(tmp_path / "location", monkeypatch)
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "location" / "barrier" / "log"
    assert LocalJournalStore(str(folder)).create("1.json", DATA)
    above = [str(tmp_path), str(tmp_path / "location"), str(tmp_path / "location" / "barrier")]
    assert [name for name in synced if name in above] == above, "also of folders that Spark has made, without any fsync"
    assert synced[-1] == str(folder)
    assert ("link", "temporary") in disk.calls
