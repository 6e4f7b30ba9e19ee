"""Spark's logs in an object store and on a filesystem of pyarrow's, taken back by the code that does it on a disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from connector.location import log_rewind, offset_log
from connector.location.location import CheckpointLocation
from connector.location.single_driver import FilesystemFiles
from integration.object_store import BUCKET
from tests.connector.test_offset_log import Place
from transactional.errors import LocationError

CHANGES: dict[str, Callable[[CheckpointLocation], None]] = {
    "after 5": lambda location: log_rewind.delete_after(location, 5),
    "to the beginning": lambda location: log_rewind.replay(location, 0, 0),
    "4 to 7 again": lambda location: log_rewind.replay(location, 4, 7),
}


@pytest.fixture(params=["s3", "filesystem"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointLocation:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return CheckpointLocation(f"s3a://{BUCKET}/{tmp_path.name}")
    return on_a_filesystem(tmp_path)


def on_a_filesystem(folder: Path) -> CheckpointLocation:
    """What HDFS is served by, on a file system that is here."""
    found = CheckpointLocation("hdfs://nowhere/place", single_driver=True)
    found.files = FilesystemFiles(f"file://{folder}/remote")
    return found


def spread(place: Place, location: CheckpointLocation) -> None:
    """Copy a place of a disk to the store."""
    for path in place.path.rglob("*"):
        if path.is_file():
            location.files.put(str(path.relative_to(place.path)), path.read_bytes())


def held(location: CheckpointLocation) -> dict[str, bytes]:
    """All files of Spark's at the store."""
    files = location.files
    return {name: files.read(name) for folder in ("offsets", "commits", "state") for name in files.tree(folder)}


def on_disk(place: Place) -> dict[str, bytes]:
    """All files of Spark's on the disk."""
    found = {str(path.relative_to(place.path)): path for path in place.path.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "metadata"}


class Interrupted(Exception):
    """What changes the files is killed."""


class Changes:
    """Counts the changes of a location's files, and lets through no more than `limit`."""

    def __init__(self, location: CheckpointLocation) -> None:
        self.made, self.limit = 0, cast("int | None", None)
        self._lock = threading.Lock()
        self._put, self._delete = location.files.put, location.files.delete
        location.files.put = self.put  # type: ignore[method-assign]
        location.files.delete = self.delete  # type: ignore[method-assign]

    def _count(self) -> None:
        with self._lock:
            if self.made == self.limit:
                raise Interrupted
            self.made += 1

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        self._count()
        self._put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._count()
            self._delete([name])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "local").log(0, 9, committed=8, sources=2)
    place.state(*(f"{version}.delta" for version in range(1, 11)), "3.snapshot", "9.snapshot")
    return place.state(*(f"{version}.delta" for version in range(1, 11)), store="0/1")


@pytest.mark.parametrize("change", CHANGES)
def test_logs_that_are_no_local_files_are_taken_back_as_those_are(
    place: Place, location: CheckpointLocation, change: str
) -> None:
    spread(place, location)
    CHANGES[change](place.location)
    for _ in range(2):
        CHANGES[change](location)
        assert held(location) == on_disk(place), "run again it changes nothing"
    for log in ("offsets", "commits"):
        assert offset_log.newest(location, log) == offset_log.newest(place.location, log)


@pytest.mark.parametrize("change", ["after 5", "4 to 7 again"])
def test_it_can_be_interrupted_before_every_change_and_run_again(place: Place, tmp_path: Path, change: str) -> None:
    step = CHANGES[change]
    location = on_a_filesystem(tmp_path)
    spread(place, location)
    shutil.copytree(tmp_path / "remote", tmp_path / "begun")
    before = on_disk(place)
    step(place.location)
    wanted = on_disk(place)
    changes = Changes(location)
    step(location)
    assert held(location) == wanted
    everything, changes.made = changes.made, 0
    assert everything >= len(before) - len(wanted)
    for limit in range(everything):
        shutil.copytree(tmp_path / "begun", tmp_path / "remote", dirs_exist_ok=True)
        changes.made, changes.limit = 0, limit
        with pytest.raises(Interrupted):
            step(location)
        changes.limit = None
        offsets, commits = (offset_log.newest(location, log) for log in ("offsets", "commits"))
        assert commits <= offsets <= commits + 1, "Spark could read this"
        step(location)
        assert held(location) == wanted, limit


def test_what_is_too_far_back_is_refused_with_the_location_s_own_name(
    place: Place, location: CheckpointLocation
) -> None:
    for batch in range(3):
        (place.path / "offsets" / str(batch)).unlink()
    spread(place, location)
    before = held(location)
    with pytest.raises(LocationError, match=r"REWIND_TOO_FAR.*files are missing \(offsets/1"):
        log_rewind.delete_after(location, 1)
    assert held(location) == before


def test_a_replaced_file_is_put_back(place: Place, location: CheckpointLocation) -> None:
    spread(place, location)
    text = (place.path / "offsets" / "7").read_text()
    late = text.replace('"10": 70', '"10": 71')
    assert late != text
    assert not log_rewind.is_replaced(location, 7, text)
    location.files.put("offsets/7", late.encode())
    assert log_rewind.is_replaced(location, 7, text)
    log_rewind.put_back(location, 7, text)
    assert not log_rewind.is_replaced(location, 7, text)
