"""A savepoint is durable before it has its name: every file, and every folder that names one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from connector.spark.savepoint import take
from tests.connector.cli_place import CliPlace, answer


class Disk:
    """What was made durable, and what was not when a folder got the name `published`."""

    def __init__(self, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing: list[str] | None = None
        self.named = False
        self._published = published
        self._durable: set[tuple[int, int]] = set()
        fsync, rename = os.fsync, os.rename

        def sync(file: int) -> None:
            found = os.fstat(file)
            self._durable.add((found.st_dev, found.st_ino))
            self.named = self.named or (
                self.missing is not None and os.readlink(f"/proc/self/fd/{file}") == str(published.parent)
            )
            fsync(file)

        def renamed(old: Any, new: Any, *more: Any, **named: Any) -> None:
            if Path(new) == published:
                self.missing = self._not_durable(Path(old))
            rename(old, new, *more, **named)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "rename", renamed)

    def _not_durable(self, draft: Path) -> list[str]:
        stats = {str(path.relative_to(draft)): path.stat() for path in (draft, *draft.rglob("*"))}
        return sorted(name for name, found in stats.items() if (found.st_dev, found.st_ino) not in self._durable)


@pytest.fixture
def stateful(place: CliPlace) -> CliPlace:
    (place.path / "state" / "0" / "0").mkdir(parents=True)
    (place.path / "state" / "0" / "0" / "3.snapshot").write_text("state")
    return place


def test_a_savepoint_is_durable_before_it_has_its_name(
    stateful: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "saves" / "one", monkeypatch)
    take(str(stateful), str(tmp_path / "saves" / "one"))
    assert disk.missing == []
    assert disk.named, "the name itself"


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_restored_location_is_durable_before_it_has_its_name(
    stateful: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    saved = take(str(stateful), str(tmp_path / "saved"))
    disk = Disk(tmp_path / "new", monkeypatch)
    assert answer(capsys, "restore", saved.path, str(tmp_path / "new"), how, "--yes")[0] == 0
    assert disk.missing == []
    assert disk.named, "the name itself"
