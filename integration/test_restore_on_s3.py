"""Savepoints and restores from S3 to S3, without Spark: killed before any request, finished by the same command."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connector.location.location import CheckpointLocation
from connector.location.offset_log import spark_view
from connector.savepoints.manifest import Savepoint, read
from connector.savepoints.take import take
from integration.file_sink import FileSink
from integration.object_store import BUCKET, ObjectStoreServer
from tests.connector.cli_place import CliPlace, answer, dead_process
from tests.connector.killed_command import killed_before
from tests.transactional.bodies import fact_of, lines
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import LocationError
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.sink import Options

Capture = pytest.CaptureFixture[str]


class RemotePlace(CliPlace):
    """A stopped query whose location is in the store; its files are made on a disk, and put there."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.location = CheckpointLocation(url)
        self.run(process=dead_process(), location=self.location.path)
        for batch in range(3):
            self.decided(batch)
        self.append(EntryKind.STOPPED, {"run": 1})
        for path in self.path.rglob("*"):
            if path.is_file():
                self.location.files.put(str(path.relative_to(self.path)), path.read_bytes())

    def __str__(self) -> str:
        return self.location.path

    def append(self, kind: str, body: object) -> int:
        """See `CliPlace`."""
        journal = self.location.journal()
        journal.load()
        return journal.append(fact_of(kind, body), lambda ledger: None).number  # type: ignore[arg-type]

    def ledger(self) -> Ledger:
        """See `CliPlace`."""
        return self.location.journal().load()


def coordinator(url: str, output: Path, prefix: str, view: QueryView) -> CheckpointCoordinator:
    sink = FileSink(Options({"path": str(output), "transactionalIdPrefix": prefix}), pa.schema([]))
    settings = RunSettings("other", FileSink.name(), "options", prefix)
    return CheckpointCoordinator(CheckpointLocation(url).journal(), sink, settings, view)


def goes_on(url: str, output: Path, prefix: str) -> Ledger:
    """A query is started at the location: it plans micro-batch 3."""
    location = CheckpointLocation(url)
    location.files.put("offsets/3", location.files.read("offsets/2").replace(b"line 2", b"line 3"))
    coordinator(url, output, prefix, spark_view(location, 3)).plan()
    return location.journal().load()


def is_refused(url: str, output: Path) -> None:
    view = QueryView("early", CheckpointLocation(url).path, 0, -1, lines("line 0"), None)
    with pytest.raises(LocationError, match=r"RESTORE_UNFINISHED.*Run the same command again"):
        coordinator(url, output, "p", view).plan()


def test_a_savepoint_from_s3_to_s3_is_taken_listed_and_disposed_of(
    s3: ObjectStoreServer, tmp_path: Path, capsys: Capture
) -> None:
    here = f"s3a://{BUCKET}/taken"
    place = RemotePlace(tmp_path, f"{here}/place")
    for target in (f"{here}/saved/one", str(tmp_path / "saved" / "two")):
        status, _, said = answer(capsys, "savepoint", "take", str(place), target)
        assert status == 0, said
        read(target).verify()
        assert answer(capsys, "savepoint", "take", str(place), target)[1]["condition"] == "LOCATION_NOT_EMPTY"
    _, listed, _ = answer(capsys, "savepoint", "list", f"{here}/saved")
    assert [each["path"] for each in listed["savepoints"]] == [f"s3://{BUCKET}/taken/saved/one"]
    assert answer(capsys, "savepoint", "dispose", f"{here}/saved/one", "--yes")[0] == 0
    assert CheckpointLocation(f"{here}/saved").files.tree("") == []


@pytest.mark.matrix
def test_a_savepoint_whose_take_is_killed_before_any_of_its_requests_is_none_and_is_taken_again(
    s3: ObjectStoreServer, tmp_path: Path
) -> None:
    here = f"s3a://{BUCKET}/killed-take"
    place = RemotePlace(tmp_path, f"{here}/place")
    death = 0
    while True:
        death += 1
        target = f"{here}/saved-{death}"
        if not killed_before(death, ["savepoint", "take", str(place), target]):
            break
        with pytest.raises(LocationError, match="SAVEPOINT_NOT_FOUND"):
            read(target)
        take(str(place), target).verify()
    assert death > 5


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_restore_that_is_killed_before_any_of_its_requests_is_finished_by_the_same_command(
    s3: ObjectStoreServer, tmp_path: Path, capsys: Capture, how: str
) -> None:
    death = 0
    while True:
        death += 1
        here = f"s3a://{BUCKET}/restored{how}-{death}"
        place = RemotePlace(tmp_path / str(death), f"{here}/place")
        saved: Savepoint = take(str(place), f"{here}/saved")
        new = f"{here}/new"
        output = tmp_path / str(death) / "output"
        if not killed_before(death, ["restore", saved.path, new, how, "--yes"]):
            break
        begun, moved = CheckpointLocation(new).journal().load(), place.ledger().moved
        assert moved is None or moved.location == CheckpointLocation(new).path
        if begun.restoring is not None:
            is_refused(new, output)
        if begun.restored is not None:
            assert (moved is not None) is (how == "--claim")
        status, document, said = answer(capsys, "restore", saved.path, new, how, "--yes")
        assert status == 0, (death, document, said)
        assert (place.ledger().moved is not None) is (how == "--claim")
        found = goes_on(new, output, "p" if how == "--claim" else "of the copy")
        assert found.position > (place.ledger().position if how == "--claim" else saved.position)
    assert death > (9 if how == "--claim" else 7)


@pytest.mark.parametrize("origin", ["s3", "disk"])
def test_a_savepoint_of_one_store_is_restored_on_another(
    s3: ObjectStoreServer, tmp_path: Path, capsys: Capture, origin: str
) -> None:
    """Operators' metadata names files of the state by the location's own name, as Spark knows it."""
    here = f"s3a://{BUCKET}/across-{origin}"
    place = RemotePlace(tmp_path, f"{here}/place" if origin == "s3" else str(tmp_path / "location"))
    former = f"{here}/place" if origin == "s3" else f"file:{place.location.path}"
    place.location.files.put("state/0/_metadata/v2/0", f'{{"a": "{former}/state/0/_stateSchema/x/0_b"}}'.encode())
    new = str(tmp_path / "new") if origin == "s3" else f"{here}/new"
    status, document, said = answer(capsys, "stop", str(place), "--savepoint", f"{here}/saved")
    assert status == 0, (document, said)
    assert answer(capsys, "restore", f"{here}/saved", new, "--claim", "--yes")[0] == 0
    named = f"file:{new}" if origin == "s3" else new
    data = CheckpointLocation(new).files.read("state/0/_metadata/v2/0")
    assert data.decode() == f'{{"a": "{named}/state/0/_stateSchema/x/0_b"}}'
    goes_on(new, tmp_path / "output", "p")
