"""`recover` and ``barrier recover`` on locations made by hand: what a dead query has left, and who may touch it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations.recovery import Recovery, Upkeep, recover
from connector.spark.batch_writer import WHOSE
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace, answer, dead_process
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError

Capture = pytest.CaptureFixture[str]


class Killed(BaseException):
    """In place of a SIGKILL."""


def left(folder: Path, **run: Any) -> CliPlace:
    """Micro-batch 0 is settled; 1 is decided, 2 is prepared."""
    place = CliPlace(folder)
    place.run(**{"process": dead_process(), "driver": "d", **run})
    place.decided(0)
    place.decided(1, settle=False)
    (place.path / "commits" / "1").write_text("v1\n{}")
    place.prepared(2)
    return place


def lose(place: CliPlace, batch: int) -> None:
    next((place.output / "pending").glob(f"p~{batch}~*")).unlink()


def recovered(place: CliPlace, upkeep: Upkeep | None = None, **how: bool) -> Recovery:
    return recover(CheckpointLocation(str(place)), upkeep or Upkeep({}), **how)


def is_whole(place: CliPlace) -> None:
    """Nothing is open, nothing is doubled, and Spark goes on where the journal does."""
    ledger = place.ledger()
    assert (ledger.undecided(), ledger.unsettled(), ledger.rewinding, place.files("pending")) == ([], [], None, [])
    assert place.files("committed") == list(range(ledger.decided + 1))
    assert max(place.spark("offsets")) == ledger.decided


def test_what_is_decided_is_settled_and_what_is_prepared_is_committed(tmp_path: Path) -> None:
    place = left(tmp_path)
    (place.output / "pending" / "p~3~0~left").touch()  # of a task that was killed
    assert str(recovered(place)) == "all prepared rows are committed, and no transaction is open"
    assert place.files("committed") == [0, 1, 2]
    is_whole(place)
    position = place.ledger().position
    assert not recovered(place)
    assert place.ledger().position == position


@pytest.mark.parametrize("lost", [1, 2])
def test_what_was_prepared_and_is_lost_is_read_again(tmp_path: Path, lost: int) -> None:
    """Also what was decided, if nothing of it was committed."""
    place = left(tmp_path)
    lose(place, lost)
    assert recovered(place) == Recovery(batch=lost - 1)
    assert place.files("committed") == list(range(lost))
    is_whole(place)


@pytest.mark.parametrize("lost", [False, True])
def test_a_recovery_that_is_killed_anywhere_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    points: list[str] = []
    for number in range(1000):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = left(folder)
        if lost:
            lose(place, 2)
        points.clear()

        def reach(point: str, number: int = number) -> None:
            points.append(point)
            if len(points) > number:
                raise Killed(point)

        monkeypatch.setattr(faults, "reach", reach)
        try:
            recovered(place)
        except Killed:
            monkeypatch.setattr(faults, "reach", lambda point: None)
            recovered(place)
            is_whole(place)
            assert place.files("committed") == ([0, 1] if lost else [0, 1, 2])
        else:
            break
    assert {"rewind.begun" if lost else "decision.written", "recovery.claimed"} <= set(points)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rewind_that_was_begun_is_finished(tmp_path: Path, stopped: bool) -> None:
    place = left(tmp_path)
    if stopped:
        recovered(place)
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None, "process": dict(dead_process())})
    assert recovered(place) == Recovery(batch=2 if stopped else 1)
    is_whole(place)


@pytest.mark.parametrize(
    ("process", "condition"), [("this", "QUERY_RUNS"), ("another container's", "DRIVER_UNKNOWN"), ("dead", "")]
)
@pytest.mark.parametrize("lost", [False, True])
def test_nothing_is_touched_beside_a_driver_that_lives_or_may(
    tmp_path: Path, process: str, condition: str, lost: bool
) -> None:
    known = {"this": this_process(), "dead": dead_process()}
    place = left(tmp_path, process=known.get(process, {**this_process(), "namespace": "pid:[4026530001]"}))
    if lost:
        lose(place, 2)
    position = place.ledger().position
    if condition:
        with pytest.raises(FencedError, match=condition):
            recovered(place)
        assert place.ledger().position == position
    assert recovered(place, Upkeep({}, ["d"]))
    is_whole(place)


def test_an_earlier_driver_that_lives_keeps_the_query_from_going_back_and_from_nothing_else(tmp_path: Path) -> None:
    """It stood still, and does not know that it was superseded: its next write would tear Spark's logs."""
    folders = [tmp_path / "whole", tmp_path / "lost"]
    for folder in folders:
        folder.mkdir()
    whole, lost = (left(folder, process=this_process(), driver="e") for folder in folders)
    for place in (whole, lost):
        place.run(process=dead_process(), driver="d")
    lose(lost, 2)
    assert recovered(whole).committed
    is_whole(whole)
    position = lost.ledger().position
    with pytest.raises(FencedError, match=r"QUERY_RUNS.*run 1 "):
        recovered(lost)
    assert lost.ledger().rewinding is None
    assert lost.ledger().position > position, "only the try to commit"
    assert recovered(lost, Upkeep({}, ["e"])) == Recovery(batch=1)
    is_whole(lost)


def test_a_driver_that_holds_state_keeps_its_query_from_going_back_and_from_nothing_else(tmp_path: Path) -> None:
    """A forced stop under `supervise`: the query has stopped, its JVM lives, and with it the state."""
    folders = [tmp_path / "whole", tmp_path / "lost"]
    for folder in folders:
        folder.mkdir()
    whole, lost = (left(folder, process=this_process()) for folder in folders)
    for place in (whole, lost):
        (place.path / "state").mkdir()
    lose(lost, 2)
    assert recovered(whole, Upkeep({}, ["d"])).committed
    is_whole(whole)
    with pytest.raises(FencedError, match=r"DRIVER_HOLDS_STATE.*`barrier recover LOCATION`"):
        recovered(lost, Upkeep({}, ["d"]))
    assert (lost.ledger().rewinding, [record.batch for record in lost.ledger().undecided()]) == (None, [2])


def test_a_query_that_failed_so_that_only_going_back_mends_it_is_not_committed_first(tmp_path: Path) -> None:
    place = left(tmp_path)
    assert recovered(place, go_back=True) == Recovery(batch=1)
    assert place.files("committed") == [0, 1]
    is_whole(place)


def test_what_another_program_has_committed_is_resolved_and_the_recovery_goes_on(
    tmp_path: Path, capsys: Capture
) -> None:
    place = left(tmp_path)
    [file] = (place.output / "pending").glob("p~2~*")
    file.rename(place.output / "committed" / file.name)
    status, document, _ = answer(capsys, "recover", str(place))
    assert (status, document["condition"]) == (1, "COMMITTED_UNDECIDED")
    assert "Run `barrier resolve LOCATION --part PART --as accept-duplicates`" in document["message"]
    [part] = answer(capsys, "resolve", str(place))[1]["parts"]
    assert (part["batch"], part["partition"]) == (2, 0)
    chosen = ("--part", "2/0", "--as", "accept-duplicates", "--yes")
    assert "finish the rewind (`barrier recover LOCATION`)" in answer(capsys, "resolve", str(place), *chosen)[2]
    status, document, _ = answer(capsys, "recover", str(place))
    assert (status, document["batch"], place.ledger().rewinding) == (0, 1, None)


def test_where_no_query_has_run_there_is_nothing_to_do(tmp_path: Path, capsys: Capture) -> None:
    status, document, _ = answer(capsys, "recover", str(tmp_path / "new"))
    assert (status, document["condition"]) == (1, "LOCATION_NOT_A_FOLDER"), "a wrong path, as a rule"
    assert "new does not exist (if the query has never started, pass --first-start)" in document["message"]
    status, document, said = answer(capsys, "recover", str(tmp_path / "new"), "--first-start")
    assert (status, document["status"], document["batch"]) == (0, "nothing to do", None)
    assert "so there is nothing to do" in said
    (tmp_path / "file").touch()
    assert answer(capsys, "recover", str(tmp_path / "file"))[1]["condition"] == "LOCATION_NOT_A_FOLDER"


def test_a_location_that_goes_on_elsewhere_or_is_of_batch_writes_is_refused(tmp_path: Path) -> None:
    for name in ("moved", "batches"):
        (tmp_path / name).mkdir()
    moved, batches = left(tmp_path / "moved"), left(tmp_path / "batches")
    moved.append(EntryKind.MOVED, {"begun": 0, "location": "/there", "savepoint": "s", "checkpoint": 2})
    with pytest.raises(FencedError, match="LOCATION_MOVED_ON"):
        recovered(moved)
    (batches.path / "barrier" / WHOSE).touch()
    with pytest.raises(LocationError, match="LOCATION_TAKEN"):
        recovered(batches)


def test_the_command_recovers_what_a_driver_has_left_that_it_can_not_see(tmp_path: Path, capsys: Capture) -> None:
    """An init container: the former pod is gone."""
    place = left(tmp_path, process={**this_process(), "namespace": "pid:[4026530001]"})
    lose(place, 2)
    assert answer(capsys, "recover", str(place))[1]["condition"] == "DRIVER_UNKNOWN"
    status, document, said = answer(capsys, "recover", str(place), "--query-stopped")
    assert (status, document["status"], document["batch"]) == (0, "done", 1)
    assert "the query was rewound, and continues after micro-batch 1" in said
    is_whole(place)


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_torn_newest_offset_file_of_which_nothing_was_decided_is_deleted(
    tmp_path: Path, cut: int, stopped: bool
) -> None:
    place = left(tmp_path)
    if stopped:
        recovered(place)
    torn = place.path / "offsets" / "3"
    torn.write_text("v1\n{}\nline 3"[:cut])
    recovered(place)
    assert not torn.exists()
    assert place.files("committed") == [0, 1, 2]
    is_whole(place)


@pytest.mark.parametrize("batch", [1, 2])  # Spark never reads older ones
def test_a_torn_offset_file_that_the_journal_has_is_put_back(tmp_path: Path, batch: int) -> None:
    place = CliPlace(tmp_path)
    place.keeps_logs = True
    place.run(process=dead_process(), driver="d")
    for number in range(3):
        place.decided(number)
    file = place.path / "offsets" / str(batch)
    whole = file.read_text()
    file.write_text(whole[:3])
    recovered(place)
    assert file.read_text() == whole
    assert place.files("committed") == [0, 1, 2]


def test_a_torn_first_offset_file_stays_as_nothing_says_where_it_began(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process(), driver="d")
    torn = place.path / "offsets" / "0"
    torn.write_text("")
    with pytest.raises(LocationError, match="SPARK_OFFSETS_TORN"):
        recovered(place)
    assert torn.exists()


def test_the_logs_of_a_query_without_its_journal_are_no_new_location(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    (place.path / "offsets" / "0").write_text("v1\n{}\nline 0")
    assert not recovered(place)  # a driver that was killed before it planned its first micro-batch
    (place.path / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(LocationError, match="NO_JOURNAL"):
        recovered(place)


def test_a_folder_of_other_files_is_no_new_location(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part-0.parquet").write_text("rows")
    status, document, _ = answer(capsys, "recover", str(tmp_path / "table"))
    assert (status, document["condition"]) == (1, "LOCATION_NOT_A_FOLDER")
