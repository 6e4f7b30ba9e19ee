"""``barrier restore`` on locations made by hand, with the file sink: copies, claims, refusals, and deaths in between."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, spark_view
from connector.savepoints.manifest import Savepoint
from connector.savepoints.restore import Restore
from connector.savepoints.take import take
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, answer, dead_process
from tests.connector.killed_command import killed_before
from tests.transactional.bodies import lines, settled
from transactional import faults
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError
from transactional.ledger import Ledger
from transactional.recovery import check_account, check_location
from transactional.restore import FAR_ABOVE
from transactional.sink import Options

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def ledger(path: Path) -> Ledger:
    return CheckpointLocation(str(path)).journal().load()


def restore(capsys: Capture, saved: Savepoint, new: Path, *how: str) -> tuple[int, dict[str, Any], str]:
    return answer(capsys, "restore", saved.path, str(new), *how, "--yes")


class NoIdsSink(FileSink):
    """Compares nothing with the journal: these tests settle their checkpoints by hand, beside the sink."""

    def newestCheckpoint(self, queryId: str, route: str = "") -> None:  # type: ignore[override]
        return None


def goes_on(path: Path, driver: str, prefix: str, batch: int = 3, **settings: Any) -> Ledger:
    """A query is started at the location: it plans its next micro-batch."""
    location = CheckpointLocation(str(path))
    text = (path / "offsets" / str(batch - 1)).read_text()
    (path / "offsets" / str(batch)).write_text(text.replace(f"line {batch - 1}", f"line {batch}"))
    view = spark_view(location, batch)
    options = {"path": str(path.parent / "output"), "transactionalIdPrefix": prefix}
    sink = NoIdsSink(Options(options), pa.schema([]))
    run = RunSettings(driver, FileSink.name(), "options", prefix, **settings)
    CheckpointCoordinator(location.journal(), sink, run, view).plan()
    return ledger(path)


class Reached(Exception):
    """A restore stands still at a fault point."""


def until(monkeypatch: Patch, at: str, step: Callable[[], Any]) -> None:
    """Run a step until it passes a fault point: nothing is tidied after it."""

    def reach(point: str) -> None:
        if point == at:
            raise Reached

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        with pytest.raises(Reached):
            step()


def beside(monkeypatch: Patch, at: str, step: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """Run a step, and another while it stands still at a fault point."""

    def reach(point: str) -> None:
        if point == at:
            monkeypatch.undo()
            other()

    monkeypatch.setattr(faults, "reach", reach)
    return step()


# -- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_is_another_query_and_needs_nothing_of_the_origin(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    shutil.rmtree(place.path)
    status, document, said = restore(capsys, saved, new, "--no-claim")
    assert (status, document["status"], document["batch"]) == (0, "done", 2)
    assert "give the copy its own output" in said
    location = CheckpointLocation(str(new))
    assert location.query_id() == document["query"] != saved.query
    assert sorted(os.listdir(new)) == ["barrier", "commits", "metadata", "offsets"]
    assert (newest(location, "offsets"), newest(location, "commits")) == (2, 2)
    found = ledger(new)
    assert (found.accounted, found.originals, found.position) == (2, ["p"], saved.position)
    found = goes_on(new, "other", document["query"])
    assert (found.query, found.location) == (document["query"], str(new))


def test_what_is_restored_of_read_only_files_can_be_written(saved: Savepoint, new: Path, capsys: Capture) -> None:
    for file in Path(saved.path).rglob("*"):
        if file.is_file():
            file.chmod(0o440)
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    for file in (path for path in new.rglob("*") if path.is_file()):
        assert file.stat().st_mode & 0o200, file


def test_a_copy_that_names_its_originals_prefix_is_refused(saved: Savepoint, new: Path, capsys: Capture) -> None:
    restore(capsys, saved, new, "--no-claim")
    with pytest.raises(Exception, match="PREFIX_OF_THE_ORIGINAL"):
        goes_on(new, "other", "p")


@pytest.mark.parametrize("name", ["plain", "a\\1b", 'a"b', 'a\\"/state/0/_stateSchema'])
def test_paths_in_the_state_s_metadata_name_the_new_location(
    place: CliPlace, tmp_path: Path, capsys: Capture, name: str
) -> None:
    """Spark writes them whole; a backslash before a digit, or a quotation mark, in the new name, then in the old one."""
    folder = place.path / "state" / "0" / "_metadata" / "v2"
    folder.mkdir(parents=True)
    paths = [f"file:{place}/state/0/_stateSchema/default/0_a", "file:/was/state/0/_stateSchema/x/0_b", "beside"]
    (folder / "0").write_text(json.dumps({"paths": paths}))
    origin = place.path
    for number, new in enumerate([tmp_path / name / "place", tmp_path / "third"]):
        saved = take(str(origin), str(tmp_path / f"saved-{number}"))
        assert restore(capsys, saved, new, "--no-claim")[0] == 0
        named = json.loads((new / "state/0/_metadata/v2/0").read_text())
        here = [f"file:{new}/state/0/_stateSchema/{path}" for path in ("default/0_a", "x/0_b")]
        assert named == {"paths": [*here, "beside"]}
        origin = new


def test_what_the_original_has_prepared_is_its_own_when_a_copy_starts(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.prepared(3)
    restore(capsys, saved, new, "--no-claim")
    goes_on(new, "other", ledger(new).query or "copy")
    assert (place.files("pending"), place.files("aborted")) == ([3], [])


# -- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_closes_the_origin_and_goes_on_above_its_numbers(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    status, document, said = restore(capsys, saved, new, "--claim")
    assert (status, document["status"], document["query"]) == (0, "done", saved.query)
    assert "is closed for good" in said
    old = stopped.ledger()
    assert old.moved is not None
    assert (old.moved.location, old.moved.entry) == (str(new), old.position)
    begun = ledger(new)
    assert (begun.position, begun.query, begun.accounted) == (old.position, "q", 2)
    check_location(begun, spark_view(CheckpointLocation(str(new))))
    found = goes_on(new, "other", "p")
    check_account(found, spark_view(CheckpointLocation(str(new))))
    assert min(run.token for run in found.runs.values() if not run.ended) == old.position + 1
    with pytest.raises(FencedError, match=rf"LOCATION_MOVED_ON.*{new}"):
        goes_on(stopped.path, "d", "p")
    assert stopped.ledger() == old


@pytest.mark.parametrize(
    "command",
    [
        ["checkpoints", "trigger", "HERE"],
        ["rewind", "HERE", "--to", "2", "--yes"],
        ["restore", "--as-is", "HERE", "--claim", "--yes"],
        ["savepoint", "take", "HERE", "TARGET"],
        ["stop", "HERE"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("opened", [True, False])
def test_every_command_refuses_a_location_that_is_closed(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, command: list[str], opened: bool
) -> None:
    """The origin of a claim, for ever; a new location, until it is opened."""
    here, condition = stopped.path, "LOCATION_MOVED_ON"
    if opened:
        restore(capsys, saved, new, "--claim")
    else:
        here, condition = new, "RESTORE_UNFINISHED"
        with pytest.MonkeyPatch.context() as patch:
            until(patch, "restore.copied", lambda: Restore(saved.path, CheckpointLocation(str(new)), True).run())
    words = [{"HERE": str(here), "TARGET": str(tmp_path / "more")}.get(word, word) for word in command]
    status, document, said = answer(capsys, *words)
    assert (status, document["condition"]) == (1, condition)
    assert str(new) in said


def test_where_a_query_came_from_and_went_is_shown(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    restore(capsys, saved, new, "--claim")
    _, shown, _ = answer(capsys, "checkpoints", "show", str(stopped))
    assert shown["stats"]["moved"]["location"] == str(new)
    _, shown, _ = answer(capsys, "checkpoints", "show", str(new))
    assert shown["stats"]["restored"]["origin"] == str(stopped)


def test_an_origin_whose_run_has_not_ended_is_stopped_first(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_NOT_AT_SAVEPOINT", False)
    assert f"`barrier stop {place}`" in document["message"]
    assert answer(capsys, "stop", str(place))[0] == 0
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_an_origin_that_went_on_is_rewound_or_saved_again_first(
    place: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    place.decided(3, rows=7)
    place.prepared(4)
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_NOT_AT_SAVEPOINT", False)
    assert "micro-batches [4] are not settled there" in document["message"]
    assert answer(capsys, "stop", str(place))[0] == 0
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "ORIGIN_NOT_AT_SAVEPOINT")
    assert f"`barrier rewind {place} --to {saved.checkpoint}`" in document["message"]
    rewind = ("rewind", str(place), "--to", str(saved.checkpoint), "--yes")
    assert answer(capsys, *rewind)[1]["condition"] == "OUTPUT_COMMITTED", "a rewind names what is written again"
    assert answer(capsys, *rewind, "--allow-reemit")[0] == 0
    assert restore(capsys, saved, new, "--claim")[0] == 0
    assert ledger(new).accounted == 2


def test_an_origin_that_counts_rows_behind_the_savepoint_as_handled_is_not_claimed(
    place: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Its journal was put back alone, and `restore --as-is --claim` took over what Spark's logs hold: no checkpoint says so."""
    shutil.copytree(place.path / "barrier", tmp_path / "barrier")
    place.decided(3)
    place.decided(4)
    shutil.rmtree(place.path / "barrier")
    shutil.copytree(tmp_path / "barrier", place.path / "barrier")
    assert answer(capsys, "restore", "--as-is", str(place), "--claim", "--yes")[0] == 0
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "ORIGIN_NOT_AT_SAVEPOINT")
    assert "but the location ends at 4" in document["message"]
    assert place.ledger().moved is None


@pytest.mark.parametrize("state", ["decided", "rewinding"])
def test_an_origin_that_is_not_settled_is_left_alone(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, state: str
) -> None:
    if state == "decided":
        place.decided(3, settle=False)
    else:
        place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None, "process": dict(dead_process())})
    before = place.ledger()
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_NOT_AT_SAVEPOINT", False)
    assert place.ledger() == before


def test_an_origin_that_goes_on_while_it_is_claimed_keeps_its_query(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    with pytest.raises(LocationError, match="ORIGIN_NOT_AT_SAVEPOINT"):
        beside(monkeypatch, "restore.copied", claim.run, lambda: goes_on(stopped.path, "d", "p"))
    assert stopped.ledger().moved is None
    with pytest.raises(LocationError, match="RESTORE_UNFINISHED"):
        goes_on(new, "other", "p")


@pytest.mark.parametrize("lost", ["deleted", "another query's", "without a journal"])
def test_an_origin_that_is_lost_is_claimed_by_force_only(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, lost: str
) -> None:
    if lost == "deleted":
        shutil.rmtree(stopped.path)
    elif lost == "without a journal":
        shutil.rmtree(stopped.path / "barrier")
    else:
        (stopped.path / "metadata").write_text('{"id":"r"}')
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_UNREACHABLE", False)
    status, document, said = restore(capsys, saved, new, "--claim", "--force")
    assert status == 0
    assert "DUPLICATED. Their number is unknown" in said
    assert ledger(new).position >= saved.position + FAR_ABOVE
    goes_on(new, "other", "p")


def test_two_forced_claims_of_one_savepoint_give_no_number_twice(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.rmtree(stopped.path)
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    first = goes_on(new, "other", "p").position
    assert restore(capsys, saved, tmp_path / "second", "--claim", "--force")[0] == 0
    assert ledger(tmp_path / "second").position > first


def test_an_origin_that_was_put_back_from_an_older_backup_is_not_claimed(
    place: CliPlace, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(place.path, tmp_path / "backup")
    place.decided(3)
    saved = take(str(place), str(tmp_path / "saved"))
    shutil.rmtree(place.path)
    shutil.copytree(tmp_path / "backup", place.path)
    place.decided(3)
    place.append(EntryKind.STOPPED, {"run": 1})
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_NOT_AT_SAVEPOINT", False), (
        "another of its number"
    )


@pytest.mark.parametrize("adopted", [False, True])
def test_a_copy_that_lies_where_the_query_was_is_not_taken_for_the_query(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, adopted: bool
) -> None:
    """The query was moved by hand, and goes on there; its former location was filled from it."""
    there = tmp_path / "there"
    os.rename(stopped.path, there)
    assert answer(capsys, "restore", "--as-is", str(there), "--claim", "--yes")[0] == 0
    shutil.copytree(there, stopped.path)
    if adopted:
        assert answer(capsys, "restore", "--as-is", str(stopped), "--no-claim", "--yes")[0] == 0
    before = stopped.ledger()
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_UNREACHABLE", False)
    assert ("is now a copy with its own identity" if adopted else f"the journal of {there}") in document["message"]
    assert stopped.ledger() == before


def test_two_claims_of_one_savepoint_have_one_winner(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    status, document, _ = restore(capsys, saved, tmp_path / "elsewhere", "--claim")
    assert (status, document["condition"], (tmp_path / "elsewhere").exists()) == (1, "LOCATION_MOVED_ON", False)
    assert restore(capsys, saved, tmp_path / "copy", "--no-claim")[0] == 0, "a copy can still be made"


def test_two_claims_that_meet_have_one_winner(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    late = Restore(saved.path, CheckpointLocation(str(tmp_path / "late")), True)
    with pytest.raises(FencedError, match=f"LOCATION_MOVED_ON.*{new}"):
        beside(monkeypatch, "restore.copied", late.run, lambda: restore(capsys, saved, new, "--claim"))
    with pytest.raises(LocationError, match="RESTORE_UNFINISHED"):
        goes_on(tmp_path / "late", "other", "p")
    goes_on(new, "other", "p")


def test_a_claimed_location_that_is_gone_is_made_again_by_force_only_and_far_above(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    shutil.rmtree(new)
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_UNREACHABLE", False)
    assert f"was moved to {new}, which no longer exists" in document["message"]
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    assert ledger(new).position >= saved.position + FAR_ABOVE
    goes_on(new, "other", "p")


def test_a_forced_claim_that_is_killed_is_not_taken_for_the_one_that_closed_the_origin(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    shutil.rmtree(new)
    forced = Restore(saved.path, CheckpointLocation(str(new)), True, force=True)
    until(monkeypatch, "restore.begun", forced.run)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "ORIGIN_UNREACHABLE"
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    goes_on(new, "other", "p")


def test_a_lost_location_is_restored_where_it_was(stopped: CliPlace, saved: Savepoint, capsys: Capture) -> None:
    shutil.rmtree(stopped.path)
    assert restore(capsys, saved, stopped.path, "--claim")[1]["condition"] == "ORIGIN_UNREACHABLE"
    assert restore(capsys, saved, stopped.path, "--claim", "--force")[0] == 0
    goes_on(stopped.path, "other", "p")


def test_a_restored_location_can_be_saved_and_restored_again(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    restore(capsys, saved, new, "--claim")
    second = take(str(new), str(tmp_path / "second"))
    assert (second.checkpoint, second.query) == (saved.checkpoint, saved.query)
    assert restore(capsys, second, tmp_path / "third", "--claim")[0] == 0
    location = CheckpointLocation(str(tmp_path / "third"))
    check_location(ledger(tmp_path / "third"), spark_view(location))
    check_account(goes_on(tmp_path / "third", "other", "p"), spark_view(location))


# -- where to --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_restore_that_is_run_again_when_it_is_done_changes_nothing(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, how: str
) -> None:
    restore(capsys, saved, new, how)
    before = goes_on(new, "other", "p" if how == "--claim" else "copy")
    files = {path: path.read_bytes() for path in new.rglob("*") if path.is_file()}
    status, document, _ = restore(capsys, saved, new, how)
    assert (status, document["status"]) == (0, "nothing to do")
    assert (ledger(new), {path: path.read_bytes() for path in new.rglob("*") if path.is_file()}) == (before, files)


def test_a_location_that_is_not_empty_is_left_alone(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    new.mkdir()
    (new / "kept").write_text("something")
    other = take(str(stopped), str(tmp_path / "other"))
    restore(capsys, other, tmp_path / "used", "--no-claim")
    for target in (new, new / "kept", stopped.path, tmp_path / "used"):
        for how in ("--claim", "--no-claim"):
            status, document, _ = restore(capsys, saved, target, how)
            assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    assert stopped.ledger().moved is None


def test_an_unfinished_restore_is_finished_by_its_own_command_only(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    until(monkeypatch, "restore.begun", claim.run)
    assert answer(capsys, "checkpoints", "show", str(new))[1]["condition"] == "RESTORE_UNFINISHED"
    other = take(str(stopped), str(tmp_path / "other"))
    for savepoint, how in ((saved, "--no-claim"), (other, "--claim"), (other, "--no-claim")):
        status, document, _ = restore(capsys, savepoint, new, how)
        assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
        assert f"{saved.id} --claim: run that command again, or delete the location" in document["message"]
    assert restore(capsys, saved, new, "--claim")[0] == 0


@pytest.mark.parametrize("point", ["restore.begun", "restore.copied", "restore.moved"])
def test_a_query_that_starts_before_the_location_is_opened_is_refused(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, point: str
) -> None:
    """Spark begins a new query where nothing is copied yet, and leaves its own files."""
    told: list[str] = []

    def start() -> None:
        (new / "offsets").mkdir(exist_ok=True)
        if point == "restore.begun":
            (new / "metadata").write_text('{"id":"early"}')
            (new / "offsets" / "0").write_text("v1\n{}\nline 0")
            (new / "offsets" / "-1").unlink(missing_ok=True)
        with pytest.raises(LocationError, match=r"RESTORE_UNFINISHED.*Run the same command again") as caught:
            goes_on(new, "early", "p", batch=1 if point == "restore.begun" else 3)
        told.append(caught.value.condition)

    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    beside(monkeypatch, point, claim.run, start)
    assert told
    assert min((new / "offsets").iterdir()).name == "1", "what it has left is gone"
    found = goes_on(new, "other", "p")
    assert found.newest_run is not None
    assert (found.accounted, found.newest_run.driver) == (2, "other")


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
@pytest.mark.parametrize("point", ["restore.begun", "restore.copied", "restore.moved", "restore.opened"])
def test_two_runs_of_one_command_do_the_same(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, point: str, how: str
) -> None:
    """The first stands still while the second does it all, and a query begins."""
    late = Restore(saved.path, CheckpointLocation(str(new)), how == "--claim")
    statuses: list[int] = []

    def whole() -> None:
        statuses.append(restore(capsys, saved, new, how)[0])

    query = beside(monkeypatch, point, late.run, whole)
    assert statuses == ([] if (point, how) == ("restore.moved", "--no-claim") else [0])
    assert CheckpointLocation(str(new)).query_id() == query
    found = goes_on(new, "other", "p" if how == "--claim" else "copy")
    assert found.accounted == 2


@pytest.mark.parametrize("point", ["restore.moved", "restore.opened"])
def test_a_claim_that_the_same_command_does_while_it_looks_is_its_own(
    stopped: CliPlace, saved: Savepoint, new: Path, monkeypatch: Patch, point: str
) -> None:
    place, judge = CheckpointLocation(str(new)), Restore._judge_origin

    def late(claim: Restore, *named: Any) -> None:
        monkeypatch.setattr(Restore, "_judge_origin", judge)
        until(monkeypatch, point, Restore(saved.path, place, True).run)
        judge(claim, *named)

    monkeypatch.setattr(Restore, "_judge_origin", late)
    assert Restore(saved.path, place, True).run() == saved.query
    goes_on(new, "other", "p")


def test_a_location_that_is_deleted_while_it_is_restored_closes_nothing(
    stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    with pytest.raises(LocationError, match=r"LOCATION_BUSY.*repeat your command"):
        beside(monkeypatch, "restore.copied", claim.run, lambda: shutil.rmtree(new))
    assert stopped.ledger().moved is None
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_a_query_that_began_at_the_location_first_keeps_it(
    stopped: CliPlace, saved: Savepoint, new: Path, monkeypatch: Patch
) -> None:
    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    shutil.copytree(stopped.path, new)
    with pytest.raises(LocationError, match="LOCATION_NOT_EMPTY"):
        claim.run()
    assert stopped.ledger().moved is None


def test_no_location_is_made_inside_its_origin(stopped: CliPlace, saved: Savepoint, capsys: Capture) -> None:
    for how in ("--claim", "--no-claim"):
        status, document, _ = restore(capsys, saved, stopped.path / "new", how)
        assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
        assert "would be deleted together with that location" in document["message"]
    assert stopped.ledger().moved is None


def test_a_damaged_savepoint_changes_nothing(stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    path = Path(saved.path) / saved.id / "checkpoint" / "commits" / "2"
    path.write_text("v1\n[]")
    before = stopped.ledger()
    for how in ("--claim", "--no-claim"):
        status, document, _ = restore(capsys, saved, new, how)
        assert (status, document["condition"]) == (1, "SAVEPOINT_DAMAGED")
        assert "checkpoint/commits/2" in document["message"]
    assert (stopped.ledger(), new.exists()) == (before, False)


def test_a_savepoint_that_is_disposed_of_meanwhile_closes_nothing_and_is_not_needed_once_it_is_closed(
    stopped: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    aside = tmp_path / "aside"
    early = Restore(saved.path, CheckpointLocation(str(tmp_path / "early")), True)
    with pytest.raises(LocationError, match="SAVEPOINT_DAMAGED"):
        beside(monkeypatch, "restore.begun", early.run, lambda: os.rename(saved.path, aside))
    assert stopped.ledger().moved is None
    os.rename(aside, saved.path)
    claim = Restore(saved.path, CheckpointLocation(str(new)), True)
    until(monkeypatch, "restore.moved", claim.run)
    assert answer(capsys, "savepoint", "dispose", saved.path, "--yes")[0] == 0
    assert restore(capsys, saved, new, "--claim")[0] == 0
    goes_on(new, "other", "p")


def test_a_query_without_state_has_no_partitions_to_cut(saved: Savepoint, new: Path, capsys: Capture) -> None:
    status, document, _ = restore(capsys, saved, new, "--no-claim", "--shuffle-partitions", "3")
    assert (status, document["condition"], new.exists()) == (1, "REPARTITION_REFUSED", False)


@pytest.mark.parametrize("how", [[], ["--claim", "--no-claim"], ["--no-claim", "--force"]])
def test_it_has_to_be_said_which(saved: Savepoint, new: Path, capsys: Capture, how: list[str]) -> None:
    assert restore(capsys, saved, new, *how)[0] == 2


def test_nothing_is_done_without_a_yes(stopped: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    for how in ("--claim", "--no-claim"):
        assert answer(capsys, "restore", saved.path, str(new), how)[0] == 3
    assert (new.exists(), stopped.ledger().moved) == (False, None)


def test_a_query_that_takes_less_than_the_savepoint_holds_says_so_as_an_option_of_its_start(
    place: CliPlace, tmp_path: Path, new: Path, capsys: Capture
) -> None:
    place.append(EntryKind.REQUEST, {"what": "checkpoint"})
    body = {**place._body(3, 5, [], reason="BARRIER", barrier=1_000, began=3_000), "hooks": {"m:H": "c3RhdGU="}}
    checkpoint = place.append(EntryKind.DECIDED, body)
    for part in place.ledger().parts_of(place.ledger().checkpoints[checkpoint]):
        place._move(part.handles[-1], "committed")
    place.append(EntryKind.SETTLED, settled(checkpoint))
    (place.path / "commits" / "3").write_text("v1\n{}")
    saved = take(str(place), str(tmp_path / "saved"))
    restore(capsys, saved, new, "--no-claim")
    with pytest.raises(LocationError, match=r"STATE_NOT_RESTORED.*hook m:H.*allowNonRestoredState=true"):
        goes_on(new, "other", "copy", batch=4)
    goes_on(new, "other", "copy", batch=4, allow_non_restored=True)


# -- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--claim", pytest.param("--no-claim", marks=pytest.mark.matrix)])
def test_a_restore_that_is_killed_before_any_of_its_changes_is_finished_by_the_same_command(
    stopped: CliPlace, saved: Savepoint, tmp_path: Path, capsys: Capture, how: str
) -> None:
    """Whenever it is killed, either the origin is the query still, or it is moved; the new location is closed until the end."""
    kept = tmp_path / "kept"
    shutil.copytree(stopped.path, kept)
    death = 0
    while True:
        death += 1
        new = tmp_path / f"death-{death}" / "new"
        shutil.rmtree(stopped.path)
        shutil.copytree(kept, stopped.path)
        shutil.rmtree(tmp_path / f"death-{death}" / "output", ignore_errors=True)
        shutil.copytree(stopped.output, tmp_path / f"death-{death}" / "output")
        if not killed_before(death, ["restore", saved.path, str(new), how, "--yes"]):
            break
        moved = stopped.ledger().moved
        assert moved is None or moved.location == str(new)
        begun = ledger(new)
        if begun.restoring is not None:
            with pytest.raises(LocationError, match="RESTORE_UNFINISHED"):
                goes_on_at(new)
        if begun.restored is not None:
            assert (moved is not None) is (how == "--claim")
        status, document, said = restore(capsys, saved, new, how)
        assert status == 0, (death, document, said)
        assert (stopped.ledger().moved is not None) is (how == "--claim")
        found = goes_on(new, "other", "p" if how == "--claim" else "of the copy")
        assert found.position > (stopped.ledger().position if how == "--claim" else saved.position)
    assert death > (15 if how == "--claim" else 10)


def goes_on_at(path: Path) -> None:
    """A query starts at a closed location, where Spark's files may not be there."""
    location = CheckpointLocation(str(path))
    sink = NoIdsSink(Options({"path": str(path.parent / "output"), "transactionalIdPrefix": "p"}), pa.schema([]))
    from transactional.recovery import QueryView

    view = QueryView("early", location.path, 0, -1, lines("line 0"), None)
    CheckpointCoordinator(location.journal(), sink, RunSettings("e", FileSink.name(), "o", "p"), view).plan()
