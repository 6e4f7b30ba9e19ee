"""Who may read a journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.location.location import CheckpointLocation
from transactional.journal import LocalJournalStore
from transactional.journal.folders import sync_folder


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def modes(location: Path) -> list[str]:
    LocalJournalStore(str(location / "barrier" / "log")).create("1.json", b"{}")
    names = ("barrier", "barrier/log", "barrier/log/1.json")
    return [f"{(location / name).stat().st_mode & 0o777:o}" for name in names]


@pytest.mark.usefixtures("_usual_umask")
@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (0o755, ["700", "700", "600"]),
        (0o777, ["700", "700", "600"]),  # everybody's, not a group's
        (0o770, ["770", "770", "660"]),
        (0o2770, ["770", "770", "660"]),
    ],
)
def test_a_journal_is_its_owner_s_or_its_group_s_where_that_shares_the_location(
    tmp_path: Path, location: int, expected: list[str]
) -> None:
    tmp_path.chmod(location)
    assert modes(tmp_path) == expected


@pytest.mark.usefixtures("_usual_umask")
def test_what_an_earlier_release_has_opened_to_others_gets_no_new_file_for_them(tmp_path: Path) -> None:
    (tmp_path / "barrier" / "log").mkdir(parents=True, mode=0o755)
    (tmp_path / "barrier" / "log").chmod(0o755)
    assert modes(tmp_path)[2] == "640"


@pytest.mark.usefixtures("_usual_umask")
def test_folders_above_the_journal_are_made_as_by_any_program(tmp_path: Path) -> None:
    # df.write makes its location itself, maybe in a folder that others share: a table's, that of all locations.
    tmp_path.chmod(0o755)
    location = tmp_path / "shared" / "writes"
    CheckpointLocation(str(location)).files.journal_store("barrier").create("batch-writer.json", b"{}")
    made = [location.parent, location, location / "barrier"]
    assert [f"{each.stat().st_mode & 0o777:o}" for each in made] == ["775", "775", "770"]


def test_a_file_system_that_cant_sync_a_folder_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        sync_folder("/proc")
    [record] = [each for each in caplog.records if each.name == "transactional.journal.folders"]
    assert "/proc: the file system can't sync a folder" in record.getMessage()
