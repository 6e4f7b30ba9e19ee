"""Names that others may have written, in journals, notes, snapshots and object stores: none leads out of its folder."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from connector.delta.storage import TableFolder
from connector.delta.write_options import parse_write_options
from connector.location import log_rewind
from connector.location.location import CheckpointLocation
from connector.location.state_files import files_of_snapshot, state_files
from connector.savepoints.take import _logs
from transactional.errors import StoreError

NAMES = ["../victim", "a/../../victim", "{absolute}"]


class Objects:
    """An object store's files: an object may have any name."""

    def __init__(self, *names: str) -> None:
        self._names = ["metadata", "offsets/0", "commits/0", *names]

    def tree(self, folder: str) -> list[str]:
        return [name for name in self._names if name.startswith(f"{folder}/")]

    def read(self, name: str) -> bytes:
        return b"v1\n{}\n{}"


@pytest.mark.parametrize("name", ["../_x/victim", "_x/../../victim", "_x//victim", "0/../0/1.delta", "0/0/../1.zip"])
def test_a_savepoint_copies_no_object_whose_name_leads_out_of_the_location(name: str) -> None:
    location = CheckpointLocation("hdfs://nowhere/l", single_driver=True)
    location.files = Objects(f"state/{name}", f"sources/{name}", "sources/0/0")  # type: ignore[assignment]
    assert list(state_files(location, 0)) == []
    assert [path for path in _logs(location, 0) if path.startswith("sources")] == ["sources/0/0"]


@pytest.mark.parametrize("name", NAMES)
def test_a_delta_sink_touches_no_file_outside_of_its_table(name: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "a").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = TableFolder(parse_write_options({"path": str(table)}))
    path = name.format(absolute=victim)
    calls: list[Callable[[], object]] = [
        lambda: folder.delete(["a/file", path]),
        lambda: folder.put(path, b"lost"),
        lambda: folder.read(path),
        lambda: folder.sizes([path]),
        lambda: folder.create(path),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="FILE_OUTSIDE"):
            call()
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("name", ["../../../victim", "/etc/victim", "..", ""])
def test_a_snapshot_of_rocksdb_names_files_of_its_own_store_only(name: str, tmp_path: Path) -> None:
    """A savepoint copies what it names, to the same names in the savepoint."""
    listed = {"sstFiles": [{"dfsSstFileName": "1.sst"}, {"dfsSstFileName": name}], "logFiles": []}
    with zipfile.ZipFile(tmp_path / "1.zip", "w") as archive:
        archive.writestr("metadata", json.dumps(listed))
    assert files_of_snapshot((tmp_path / "1.zip").read_bytes()) is None


def test_what_a_journal_calls_a_micro_batch_is_a_number_before_it_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "location" / "offsets").mkdir(parents=True)
    (tmp_path / "victim").write_text("kept")
    with pytest.raises(ValueError, match="format code 'd'"):
        log_rewind.put_back(CheckpointLocation(str(tmp_path / "location")), "../../victim", "lost")  # type: ignore[arg-type]
    assert (tmp_path / "victim").read_text() == "kept"
