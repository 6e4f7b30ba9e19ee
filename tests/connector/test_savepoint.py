"""Savepoints of locations made by hand: what goes into one, what is refused, and that a damaged one is."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from connector.location.files import LocationFiles
from connector.location.location import CheckpointLocation
from connector.location.log_rewind import check_can_go_back
from connector.location.offset_log import repartitions_before, source_lines
from connector.savepoints.dispose import dispose
from connector.savepoints.manifest import SavedFile, Savepoint, copy_file, find, read
from connector.savepoints.take import take
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace, answer, dead_process
from transactional import faults
from transactional.barrier import SourceLine
from transactional.entry import EntryKind, checksum
from transactional.errors import FencedError, LocationError, RewindRequiredError
from transactional.testing.clock import FakeClock


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """Micro-batches 0 to 2 are three settled checkpoints; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process())
    for batch in range(3):
        found.decided(batch, output={"orders-0": batch})
    return found


def state(place: CliPlace, *names: str, store: str = "0/0") -> None:
    folder = place.path / "state" / store
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{store} {name}")


def files(saved: Savepoint) -> list[str]:
    return [path for path in saved.checkpoint_files() if path.startswith("state/")]


def data(saved: Savepoint) -> Path:
    """The folder of its files."""
    return Path(saved.path) / saved.id


def refusal(call: Callable[[], Any]) -> LocationError:
    with pytest.raises(LocationError) as caught:
        call()
    return caught.value


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_a_savepoint_is_the_newest_completed_checkpoint_and_nothing_later(place: CliPlace, tmp_path: Path) -> None:
    place.prepared(3)
    place.prepared(4, in_spark=False)
    before = {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()}
    saved = take(str(place), str(tmp_path / "saved" / "one"))
    assert (saved.checkpoint, saved.batch, saved.query, saved.location) == (place.checkpoints[-1], 2, "q", str(place))
    assert [*saved.checkpoint_files()] == ["commits/2", "metadata", "offsets/1", "offsets/2"]
    ledger = saved.ledger()
    assert (ledger.accounted, ledger.undecided(), sorted(ledger.checkpoints)) == (2, [], place.checkpoints)
    assert read(saved.path) == saved
    saved.verify()
    assert os.listdir(tmp_path / "saved") == ["one"]
    assert {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()} == before


def test_of_the_state_it_takes_what_the_next_version_needs(place: CliPlace, tmp_path: Path) -> None:
    state(place, "1.delta", "2.delta", "2.snapshot", "3.delta", "4.delta", "4.snapshot", "5.delta")
    state(place, "1.delta", "2.delta", "3.delta", store="0/1/left-keys")
    state(place, "schema", store="0/0/_metadata")
    state(place, "v2/0", "v2/2", "v2/3", store="0/_metadata")
    saved = take(str(place), str(tmp_path / "saved"))
    assert files(saved) == [
        "state/0/0/2.snapshot",
        "state/0/0/3.delta",
        "state/0/0/_metadata/schema",
        "state/0/1/left-keys/1.delta",
        "state/0/1/left-keys/2.delta",
        "state/0/1/left-keys/3.delta",
        "state/0/_metadata/v2/0",
        "state/0/_metadata/v2/2",
    ]


def test_of_a_rocksdb_snapshot_it_takes_the_shared_files_that_it_lists(place: CliPlace, tmp_path: Path) -> None:
    listed = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": "8-a.sst", "sizeBytes": 3}], "logFiles": []}
    for version, text in ((2, "{}"), (3, json.dumps(listed))):
        state(place, "SSTs/8-a.sst", "SSTs/9-b.sst")
        with zipfile.ZipFile(place.path / "state/0/0" / f"{version}.zip", "w") as archive:
            archive.writestr("metadata", f"v1\n{text}")
    assert files(take(str(place), str(tmp_path / "one"))) == ["state/0/0/3.zip", "state/0/0/SSTs/8-a.sst"]
    (place.path / "state/0/0/3.zip").write_text("of a format to come")
    assert files(take(str(place), str(tmp_path / "two"))) == [
        "state/0/0/3.zip",
        "state/0/0/SSTs/8-a.sst",
        "state/0/0/SSTs/9-b.sst",
    ]


def test_of_files_with_an_id_it_takes_all_up_to_the_version(place: CliPlace, tmp_path: Path) -> None:
    state(place, "1_a.changelog", "2_a.changelog", "2_a.zip", "2_lost.zip", "3_a.changelog", "4_a.changelog")
    assert len(files(take(str(place), str(tmp_path / "saved")))) == 5


def test_folders_of_partitions_that_there_were_before_a_repartition_are_left_out(
    place: CliPlace, tmp_path: Path
) -> None:
    head = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
    (place.path / "offsets/2").write_text(f"v1\n{head}\nline 2")
    for partition in ("0", "1"):
        state(place, "3.zip", store=f"0/{partition}")
    state(place, "1.zip", "2.zip", store="0/2")
    check_can_go_back(CheckpointLocation(str(place)), 2)
    assert files(take(str(place), str(tmp_path / "saved"))) == ["state/0/0/3.zip", "state/0/1/3.zip"]


# -- a query that runs -----------------------------------------------------------------------------------------------


class Waiting(FakeClock):
    """Every wait is an occasion for the query to do something."""

    def __init__(self, *done: Callable[[], Any]) -> None:
        super().__init__()
        self.done = list(done)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.done:
            self.done.pop(0)()


@pytest.fixture
def running(tmp_path: Path) -> CliPlace:
    """A checkpoint, and a prepared micro-batch; the driver is this process."""
    found = CliPlace(tmp_path)
    found.run(process=this_process())
    found.decided(0)
    found.prepared(1)
    return found


def test_a_running_query_is_asked_to_close_a_checkpoint_first(running: CliPlace, tmp_path: Path) -> None:
    clock = Waiting(lambda: None, lambda: running.decided(2))
    saved = take(str(running), str(tmp_path / "saved"), clock=clock)
    assert (saved.batch, saved.checkpoint) == (2, running.checkpoints[-1])
    assert [*saved.checkpoint_files()] == ["commits/2", "metadata", "offsets/1", "offsets/2"]
    assert saved.ledger().checkpoints[saved.checkpoint].batches == [1, 2]


def test_where_no_checkpoint_comes_in_time_it_is_refused_unless_the_newest_will_do(
    running: CliPlace, tmp_path: Path
) -> None:
    error = refusal(lambda: take(str(running), str(tmp_path / "saved"), timeout=9, clock=Waiting()))
    assert error.condition == "SAVEPOINT_NOT_READY"
    assert "micro-batches [1] are prepared" in error.message
    assert running.ledger().request is not None
    assert take(str(running), str(tmp_path / "saved"), newest=True).batch == 0


def test_a_decision_that_a_dead_query_has_not_settled_has_to_be_settled_first(place: CliPlace, tmp_path: Path) -> None:
    place.decided(3, settle=False)
    error = refusal(lambda: take(str(place), str(tmp_path / "saved")))
    assert error.condition == "SAVEPOINT_NOT_READY"
    assert "micro-batches [3] are decided but not settled" in error.message
    assert take(str(place), str(tmp_path / "saved"), newest=True).batch == 2


def test_it_waits_for_sparks_commit_of_the_checkpoint(place: CliPlace, tmp_path: Path) -> None:
    commit = place.path / "commits" / "2"
    commit.unlink()
    place.run(process=this_process())
    error = refusal(lambda: take(str(place), str(tmp_path / "saved"), timeout=9, clock=Waiting()))
    assert (error.condition, error.parameters["batches"]) == ("SAVEPOINT_NOT_READY", [2])
    assert "Spark has no commits/2" in error.message
    clock = Waiting(lambda: commit.write_text("v1\n{}"))
    assert take(str(place), str(tmp_path / "saved"), clock=clock).batch == 2


@pytest.mark.parametrize("change", ["deleted", "replaced", "rewound", "a newer checkpoint"])
def test_what_changes_under_the_copy_makes_it_begin_anew(
    place: CliPlace, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(place, "3.delta", "2.snapshot")
    times: list[str] = []

    def reach(point: str) -> None:
        if point != "savepoint.copied" or times:
            return
        times.append(point)
        if change == "deleted":
            (place.path / "state/0/0/2.snapshot").unlink()
            state(place, "3.snapshot")
        elif change == "replaced":
            (place.path / "state/0/0/new").write_text("0/0 3.delto")
            (place.path / "state/0/0/new").rename(place.path / "state/0/0/3.delta")
        elif change == "rewound":
            place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None})
        else:
            state(place, "4.delta")
            place.decided(3)

    monkeypatch.setattr(faults, "reach", reach)
    if change == "rewound":
        assert refusal(lambda: take(str(place), str(tmp_path / "saved"))).condition == "REWIND_NOT_DONE"
        assert not any((tmp_path / "saved").rglob("*"))
        return
    saved = take(str(place), str(tmp_path / "saved"))
    saved.verify()
    assert times
    if change == "deleted":
        assert files(saved) == ["state/0/0/3.snapshot"]
    elif change == "replaced":
        assert (data(saved) / "checkpoint/state/0/0/3.delta").read_text() == "0/0 3.delto"
    else:
        assert saved.batch == 2, "a newer checkpoint does no harm to the copy"


@pytest.mark.parametrize("how", ["written over", "replaced", "replaced at the same time and size", "deleted"])
def test_a_file_that_changes_while_it_is_copied_makes_it_begin_anew(
    place: CliPlace, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its last byte was read, and before anything else happens: a look that comes after the copy would be too late."""
    state(place, "3.delta", "2.snapshot")
    changing = place.path / "state/0/0/3.delta"
    copied: list[str] = []

    def copy(source: LocationFiles, name: str, target: LocationFiles, path: str) -> SavedFile:
        found = copy_file(source, name, target, path)
        copied.append(name)
        if Path(source.shown(name)) == changing and copied.count(name) == 1:
            if how == "deleted":
                changing.unlink()
                state(place, "3.snapshot")
            elif how == "written over":
                changing.write_text("0/0 3.delta, and more")
            else:
                times = (changing.stat().st_atime_ns, changing.stat().st_mtime_ns)
                (place.path / "state/0/0/new").write_text("0/0 3.delto")
                (place.path / "state/0/0/new").rename(changing)
                if how != "replaced":
                    os.utime(changing, ns=times)
        return found

    monkeypatch.setattr("connector.savepoints.take.copy_file", copy)
    saved = take(str(place), str(tmp_path / "saved"))
    saved.verify()
    assert copied.count("metadata") == 2, "it began again"
    if how != "deleted":
        held = (data(saved) / "checkpoint/state/0/0/3.delta").read_text()
        assert held == changing.read_text() != "0/0 3.delta"


def test_a_checkpoint_that_a_rewind_takes_back_under_the_copy_is_not_saved(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(point: str) -> None:
        if point == "savepoint.copied" and place.ledger().accounted == 2:
            begun = place.append(EntryKind.REWIND_BEGUN, {"checkpoint": place.checkpoints[1]})
            place.append(EntryKind.REWIND_DONE, {"begun": begun, "batch": 1, "keep": None})

    monkeypatch.setattr(faults, "reach", reach)
    saved = take(str(place), str(tmp_path / "saved"))
    assert (saved.batch, saved.checkpoint) == (1, place.checkpoints[1])


def test_a_checkpoint_that_spark_purges_before_the_copy_gives_way_to_a_newer_one(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command stood still meanwhile."""
    chosen: list[int] = []

    def look(at: CheckpointLocation, batch: int) -> None:
        chosen.append(batch)
        if batch == 2:
            place.decided(3)
            (place.path / "offsets/1").unlink()
        check_can_go_back(at, batch)

    monkeypatch.setattr("connector.savepoints.take.check_can_go_back", look)
    saved = take(str(place), str(tmp_path / "saved"))
    assert (chosen, saved.batch, saved.checkpoint) == ([2, 3], 3, place.checkpoints[-1])


def test_offsets_that_spark_deletes_once_they_are_copied_make_it_begin_anew(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []

    def gone_once(location: CheckpointLocation, batch: int) -> Sequence[SourceLine]:
        times.append(batch)
        path = place.path / f"offsets/{batch}"
        path.rename(away := path.with_name("away") if len(times) == 1 else path)
        try:
            return source_lines(location, batch)
        finally:
            away.rename(path)

    monkeypatch.setattr("connector.savepoints.take.source_lines", gone_once)
    saved = take(str(place), str(tmp_path / "saved"))
    saved.verify()
    assert (times, saved.batch) == ([2, 2], 2)


def test_a_place_that_never_stands_still_is_refused(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[str] = []

    def reach(point: str) -> None:
        times.append(point)
        os.utime(place.path / "commits/2", (1, len(times)))

    monkeypatch.setattr(faults, "reach", reach)
    assert refusal(lambda: take(str(place), str(tmp_path / "saved"))).condition == "SAVEPOINT_UNSTABLE"
    assert not any((tmp_path / "saved").rglob("*"))


# -- refusals --------------------------------------------------------------------------------------------------------


def test_places_of_which_no_savepoint_can_be_taken_say_why(place: CliPlace, tmp_path: Path) -> None:
    target = str(tmp_path / "saved")
    assert refusal(lambda: take(str(place), str(place.path / "in"))).condition == "LOCATION_NOT_EMPTY"
    assert refusal(lambda: take(str(place), str(tmp_path))).condition == "LOCATION_NOT_EMPTY"
    empty = refusal(lambda: take(str(tmp_path / "none"), target))
    assert (empty.condition, "no checkpoint is settled yet" in empty.message) == ("SAVEPOINT_NOT_READY", True)
    copy = tmp_path / "copy"
    shutil.copytree(place.path, copy)
    assert refusal(lambda: take(str(copy), target)).condition == "LOCATION_MOVED"
    (place.path / "offsets/2").write_text("v1\n{}\nanother line")
    assert refusal(lambda: take(str(place), target)).condition == "BATCHES_NOT_ACCOUNTED"
    (place.path / "offsets/1").unlink()
    assert refusal(lambda: take(str(place), target)).condition == "REWIND_TOO_FAR"
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None})
    moved = {"begun": 8, "location": "/there", "savepoint": "s", "checkpoint": 6}
    place.append(EntryKind.MOVED, moved)
    with pytest.raises(FencedError, match=r"LOCATION_MOVED_ON.*/there"):
        take(str(place), target)
    (place.path / "barrier" / "batch-writer.json").write_text("{}")
    assert refusal(lambda: take(str(place), target)).condition == "LOCATION_TAKEN"
    assert not os.path.exists(target)


def test_a_damaged_savepoint_is_refused_by_the_name_of_the_file(place: CliPlace, tmp_path: Path) -> None:
    state(place, "3.delta", "3.snapshot")
    whole = take(str(place), str(tmp_path / "saved"))
    for number, recorded in enumerate(whole.files):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(whole.path, folder)
        path = folder / recorded.path
        data = path.read_bytes()
        for damage in (bytes([data[0] ^ 1]) + data[1:], data[:-1], None):
            path.unlink() if damage is None else path.write_bytes(damage)
            error = refusal(lambda: read(str(folder)).verify())  # noqa: B023
            assert (error.condition, error.parameters["path"]) == ("SAVEPOINT_DAMAGED", recorded.path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../saved/offsets/2", "offsets/../../2"])
def test_a_manifest_that_names_files_outside_of_its_folder_is_refused(
    place: CliPlace, tmp_path: Path, path: str
) -> None:
    """Whoever made it can have made its checksum, too: else a restore would copy what lies elsewhere."""
    manifest = Path(take(str(place), str(tmp_path / "saved")).path) / "savepoint.json"
    value = json.loads(manifest.read_text())
    del value["checksum"]
    value["files"][0]["path"] = path
    manifest.write_text(json.dumps({**value, "checksum": checksum(value)}))
    error = refusal(lambda: read(str(tmp_path / "saved")))
    assert error.condition == "SAVEPOINT_DAMAGED"
    assert path in str(error)


def test_a_manifest_that_was_changed_or_comes_from_the_future_is_refused(place: CliPlace, tmp_path: Path) -> None:
    manifest = Path(take(str(place), str(tmp_path / "saved")).path) / "savepoint.json"
    text = manifest.read_text()
    value = json.loads(text)
    for other, condition in (
        (text.replace('"batch":2', '"batch":1'), "SAVEPOINT_DAMAGED"),
        (text[:-9], "SAVEPOINT_DAMAGED"),
        ("[]", "SAVEPOINT_DAMAGED"),
        (json.dumps({**value, "format": 3}), "FORMAT_UNKNOWN"),
    ):
        manifest.write_text(other)
        error = refusal(lambda: read(str(tmp_path / "saved")))
        assert error.condition == condition
        assert "savepoint.json" in error.message
    manifest.unlink()
    assert refusal(lambda: read(str(tmp_path / "saved"))).condition == "SAVEPOINT_NOT_FOUND"


def test_a_savepoint_that_is_killed_leaves_nothing_that_looks_like_one(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(point: str) -> None:
        raise faults.InjectedFault(point)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as after a kill
        with pytest.raises(faults.InjectedFault):
            take(str(place), str(tmp_path / "folder" / "saved"))
    assert find(str(tmp_path / "folder")) == []
    [left] = os.listdir(tmp_path / "folder" / "saved")
    saved = take(str(place), str(tmp_path / "folder" / "saved"))
    saved.verify()
    assert sorted(os.listdir(saved.path)) == sorted([left, saved.id, "savepoint.json"])
    dispose(saved)
    assert os.listdir(tmp_path / "folder") == []


def test_of_two_savepoints_that_are_taken_into_one_folder_at_once_the_later_is_refused(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "saved")
    taken: list[Savepoint] = []

    def reach(point: str) -> None:
        if point == "savepoint.copied" and not taken:
            monkeypatch.undo()
            taken.append(take(str(place), target))

    monkeypatch.setattr(faults, "reach", reach)
    assert refusal(lambda: take(str(place), target)).condition == "LOCATION_NOT_EMPTY"
    assert read(target) == taken[0]
    taken[0].verify()
    assert sorted(os.listdir(target)) == sorted([taken[0].id, "savepoint.json"])


def test_a_savepoint_is_not_taken_of_copies_that_somebody_deletes(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(point: str) -> None:
        if point == "savepoint.copied":
            [copies] = (tmp_path / "saved").iterdir()
            (copies / "checkpoint" / "metadata").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        assert refusal(lambda: take(str(place), str(tmp_path / "saved"))).condition == "SAVEPOINT_UNSTABLE"
    take(str(place), str(tmp_path / "saved")).verify()


def test_a_late_file_is_put_back_by_a_recovery_before_a_savepoint_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = CliPlace(tmp_path)
    place.keeps_logs = True
    place.run(process=dead_process())
    for batch in range(3):
        place.decided(batch)
    (place.path / "offsets" / "2").write_text("v1\n{}\na late line")
    with pytest.raises(
        RewindRequiredError,
        match=r"OFFSETS_REPLACED.*`barrier recover LOCATION`: the command puts the recorded file back",
    ):
        take(str(place), str(tmp_path / "saved"))
    assert answer(capsys, "recover", str(place))[0] == 0
    saved = take(str(place), str(tmp_path / "saved"))
    assert (data(saved) / "checkpoint" / "offsets" / "2").read_text() == "v1\n{}\nline 2"


def test_a_savepoint_s_folder_may_be_a_file_uri_or_have_a_colon(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for target, name in (
        ("orders-12:30", "orders-12:30"),
        (f"file://{tmp_path}/one", "one"),
        (f"file:{tmp_path}/two", "two"),
    ):
        saved = take(str(place), target)
        assert saved.path == str(tmp_path / name)
        assert read(target) == saved


def test_a_savepoint_is_taken_into_a_folder_of_its_own(place: CliPlace, tmp_path: Path) -> None:
    take(str(place), str(tmp_path / "saved"))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "kept").write_text("something")
    for target in ("saved", "used", "used/kept", "place", "place/saved"):
        assert refusal(lambda: take(str(place), str(tmp_path / target))).condition == "LOCATION_NOT_EMPTY"  # noqa: B023
    take(str(place), str(tmp_path / "beside"))


# -- the commands ----------------------------------------------------------------------------------------------------


def test_the_commands_take_list_show_and_dispose(
    place: CliPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "savepoints"
    for name in ("one", "two"):
        status, taken, _ = answer(capsys, "savepoint", "take", str(place), str(folder / name))
        assert (status, taken["status"], taken["batch"], taken["path"]) == (0, "done", 2, str(folder / name))
    (folder / "two" / "savepoint.json").write_text("{}")
    (folder / "other").mkdir()
    status, listed, _ = answer(capsys, "savepoint", "list", str(folder))
    assert (status, [each["path"] for each in listed["savepoints"]]) == (0, [str(folder / "one")])
    assert [each["condition"] for each in listed["unreadable"]] == ["SAVEPOINT_DAMAGED"]
    status, shown, said = answer(capsys, "savepoint", "list", str(folder), "one", "--verify")
    assert (status, shown["sink"], shown["prefix"], shown["stateful"]) == (0, "2pc-testfile", "p", False)
    assert "files match their recorded hashes" in said
    (data(read(str(folder / "one"))) / "checkpoint" / "commits" / "2").write_text("v1\n{ }")
    status, shown, _ = answer(capsys, "savepoint", "list", str(folder), "one", "--verify")
    assert (status, shown["condition"]) == (1, "SAVEPOINT_DAMAGED")
    status, disposed, _ = answer(capsys, "savepoint", "dispose", str(folder / "one"))
    assert (status, disposed["status"]) == (3, "not answered")
    status, disposed, _ = answer(capsys, "savepoint", "dispose", str(folder / "one"), "--yes")
    assert (status, disposed["status"], (folder / "one").exists()) == (0, "done", False)
    status, disposed, _ = answer(capsys, "savepoint", "dispose", str(folder / "other"), "--yes")
    assert (status, disposed["condition"], (folder / "other").exists()) == (1, "SAVEPOINT_NOT_FOUND", True)


# -- Spark's repartition ---------------------------------------------------------------------------------------------


def offsets(place: CliPlace, batch: int, partitions: str, line: str = "a line", time: int = 1, **other: Any) -> None:
    head = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": time,
        "conf": {"spark.sql.shuffle.partitions": partitions, **other},
    }
    (place.path / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(head)}\n{line}")
    (place.path / "commits" / str(batch)).write_text("v1\n{}")


def test_only_spark_s_repartition_makes_a_micro_batch_that_changes_the_number_of_partitions_alone(
    tmp_path: Path,
) -> None:
    place = CliPlace(tmp_path)
    location = CheckpointLocation(str(place))
    for batch, partitions in enumerate("2235"):
        offsets(place, batch, partitions)
    assert repartitions_before(location, 4) == [2, 3]
    assert repartitions_before(location, 3) == [2]
    assert repartitions_before(location, 2) == []
    offsets(place, 3, "5", time=2)  # a micro-batch of a query has a time of its own
    assert repartitions_before(location, 4) == []
    offsets(place, 3, "5", line="another line")
    assert repartitions_before(location, 4) == []
    offsets(place, 3, "5", another="setting")
    assert repartitions_before(location, 4) == []
    offsets(place, 3, "5")
    (place.path / "commits" / "3").unlink()
    assert repartitions_before(location, 4) == [], "it was not done"
    (place.path / "offsets" / "3").write_text("v1\n{}\na line")
    assert repartitions_before(location, 4) == []


def test_a_savepoint_s_journal_is_its_owner_s(place: CliPlace, tmp_path: Path) -> None:
    saved = take(str(place), str(tmp_path / "saved"))
    folder, journal = Path(saved.path), data(saved) / "journal.json"
    assert f"{folder.stat().st_mode & 0o777:o} {journal.stat().st_mode & 0o777:o}" == "700 600"


def test_it_does_not_wait_for_a_commit_that_no_process_writes(place: CliPlace, tmp_path: Path) -> None:
    (place.path / "commits" / "2").unlink()
    place.append(EntryKind.STOPPED, {"run": place.ledger().newest_run.token})  # type: ignore[union-attr]
    clock = Waiting(lambda: pytest.fail("it waits"))
    error = refusal(lambda: take(str(place), str(tmp_path / "saved"), clock=clock))
    assert (error.condition, error.parameters["batches"]) == ("SAVEPOINT_NOT_READY", [2])
    assert "The query is not running: start it" in str(error)
