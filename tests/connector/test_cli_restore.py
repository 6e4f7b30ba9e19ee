"""``barrier restore`` on locations made by hand, with the file sink: copies, claims, and deaths in between."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.operations.supervision import record_restart
from connector.spark.exchange import exchange
from connector.spark.location import CheckpointLocation
from connector.spark.offset_log import newest, spark_view
from connector.spark.process import this_process
from connector.spark.restore import NewLocation
from connector.spark.savepoint import Savepoint, take
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, answer, dead_process
from tests.transactional.bodies import run_body
from transactional import faults
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError, RetriableError
from transactional.failure import failure_of
from transactional.ledger import Ledger
from transactional.recovery import check_account, check_location
from transactional.restore import FAR_ABOVE
from transactional.sink import Options

Capture = pytest.CaptureFixture[str]


def ledger(path: Path) -> Ledger:
    return CheckpointLocation(str(path)).journal().load()


def restore(capsys: Capture, saved: Savepoint, new: Path, *how: str) -> tuple[int, dict[str, Any], str]:
    return answer(capsys, "restore", saved.path, str(new), *how, "--yes")


def goes_on(path: Path, driver: str, prefix: str, batch: int = 3, output: Path | None = None) -> Ledger:
    """A query is started at the place: it plans its next micro-batch."""
    location = CheckpointLocation(str(path))
    text = (path / "offsets" / str(batch - 1)).read_text()
    (path / "offsets" / str(batch)).write_text(text.replace(f"line {batch - 1}", f"line {batch}"))
    view = spark_view(location, batch)
    options = {"path": str(output or path.parent / "output"), "transactionalIdPrefix": prefix}
    sink = FileSink(Options(options), pa.schema([]))
    settings = RunSettings(driver, FileSink.name(), "options", prefix)
    CheckpointCoordinator(location.journal(), sink, settings, view).plan()
    return ledger(path)


# -- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_is_another_query_and_needs_nothing_of_the_old_place(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    shutil.rmtree(place.path)
    status, document, said = restore(capsys, saved, new, "--no-claim")
    assert (status, document["status"], document["batch"], document["emitted"]) == (0, "done", 2, [])
    assert "give it an output of its own" in said
    location = CheckpointLocation(str(new))
    assert location.query_id() == document["query"] != saved.query
    assert sorted(os.listdir(new)) == ["barrier", "commits", "metadata", "offsets"]
    assert (newest(location, "offsets"), newest(location, "commits")) == (2, 2)
    found = ledger(new)
    assert (found.accounted, found.originals, found.position) == (2, ["p"], saved.position)
    found = goes_on(new, "other", document["query"])
    assert (found.query, found.location) == (document["query"], str(new))


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_what_is_restored_of_read_only_files_can_be_written(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, how: str
) -> None:
    for file in Path(saved.path).rglob("*"):
        if file.is_file():
            file.chmod(0o440)
    assert restore(capsys, saved, new, how)[0] == 0
    for file in (path for path in new.rglob("*") if path.is_file()):
        assert file.stat().st_mode & 0o200, file
    assert (Path(saved.path) / "checkpoint" / "metadata").stat().st_mode & 0o777 == 0o440


def test_a_copy_that_names_its_originals_prefix_is_refused(saved: Savepoint, new: Path, capsys: Capture) -> None:
    restore(capsys, saved, new, "--no-claim")
    with pytest.raises(Exception, match="PREFIX_OF_THE_ORIGINAL"):
        goes_on(new, "other", "p")


def test_paths_in_the_state_s_metadata_name_the_new_place(
    place: CliPlace, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Spark writes them whole; those of a place before the old one, too."""
    folder = place.path / "state" / "0" / "_metadata" / "v2"
    folder.mkdir(parents=True)
    text = (
        '{"stateSchemaFilePaths":["file:%s/state/0/_stateSchema/default/0_a","file:/was/state/0/_stateSchema/x/0_b"]}'
    )
    (folder / "0").write_text(text % place.path)
    saved = take(str(place), str(tmp_path / "saved"))
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    names = [f"file:{new}/state/0/_stateSchema/{name}" for name in ("default/0_a", "x/0_b")]
    assert json.loads((new / "state/0/_metadata/v2/0").read_text()) == {"stateSchemaFilePaths": names}


@pytest.mark.parametrize("name", ["a\\1b", 'a"b', 'a\\"/state/0/_stateSchema'])
def test_a_place_with_an_odd_name_is_named_whole_in_the_state_s_metadata(
    place: CliPlace, tmp_path: Path, capsys: Capture, name: str
) -> None:
    """A backslash before a digit, or a quotation mark: as the new place's name, then as the old one's."""
    folder = place.path / "state" / "0" / "_metadata" / "v2"
    folder.mkdir(parents=True)
    (folder / "0").write_text(json.dumps({"paths": [f"file:{place}/state/0/_stateSchema/default/0_a", "beside"]}))
    origin = place.path
    for number, new in enumerate([tmp_path / name / "place", tmp_path / "third"]):
        saved = take(str(origin), str(tmp_path / f"saved-{number}"))
        assert restore(capsys, saved, new, "--no-claim")[0] == 0
        named = json.loads((new / "state/0/_metadata/v2/0").read_text())
        assert named == {"paths": [f"file:{new}/state/0/_stateSchema/default/0_a", "beside"]}
        origin = new


def test_what_the_original_has_prepared_is_its_own_when_a_copy_starts(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.prepared(3)
    restore(capsys, saved, new, "--no-claim")
    goes_on(new, "other", ledger(new).query or "copy")
    assert (place.files("pending"), place.files("aborted")) == ([3], [])


# -- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_closes_the_old_place_and_goes_on_above_its_numbers(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    status, document, said = restore(capsys, saved, new, "--claim")
    assert (status, document["status"], document["query"]) == (0, "done", saved.query)
    assert "is closed for ever" in said
    old = place.ledger()
    assert old.moved is not None
    assert (old.moved.location, old.moved.entry, old.rewinding) == (str(new), old.position, None)
    begun = ledger(new)
    assert (begun.position, begun.query, begun.accounted) == (old.position, "q", 2)
    found = goes_on(new, "other", "p")
    assert min(run.token for run in found.runs.values() if not run.ended) == old.position + 2 - 1
    with pytest.raises(FencedError, match=rf"LOCATION_MOVED_ON.*{new}"):
        goes_on(place.path, "d", "p")
    assert place.ledger() == old


@pytest.mark.parametrize(
    "command",
    [
        ["checkpoints", "trigger", "HERE"],
        ["rewind", "HERE", "--yes"],
        ["rewind", "HERE", "--resume", "--yes"],
        ["adopt", "HERE", "--claim", "--yes"],
        ["adopt", "HERE", "--no-claim", "--yes"],
        ["savepoint", "take", "HERE", "TARGET"],
    ],
    ids=" ".join,
)
def test_every_command_says_where_a_query_has_gone(
    place: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, command: list[str]
) -> None:
    restore(capsys, saved, new, "--claim")
    words = [{"HERE": str(place), "TARGET": str(tmp_path / "more")}.get(word, word) for word in command]
    status, document, said = answer(capsys, *words)
    assert (status, document["condition"]) == (1, "LOCATION_MOVED_ON")
    assert str(new) in said
    _, shown, _ = answer(capsys, "checkpoints", "show", str(place))
    assert shown["stats"]["moved"]["location"] == str(new)
    _, shown, _ = answer(capsys, "checkpoints", "show", str(new))
    assert shown["stats"]["restored"]["origin"] == str(place)


def test_what_is_prepared_at_the_old_place_is_aborted_and_what_is_decided_is_settled_first(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    decided = place.decided(3, settle=False)
    (place.path / "commits" / "3").write_text("v1\n{}")
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "OUTPUT_COMMITTED"), "the store may have committed it"
    place.prepared(4)
    status, document, said = restore(capsys, saved, new, "--claim", "--allow-reemit")
    assert (status, document["emitted"][0]["checkpoint"]) == (0, decided)
    assert "Micro-batches 4 are prepared there, not decided: aborted" in said
    assert (place.files("committed"), place.files("aborted"), place.files("pending")) == ([0, 1, 2, 3], [4], [])
    assert place.ledger().unsettled() == []
    assert ledger(new).accounted == 2


def test_what_was_committed_after_the_savepoint_is_named_and_has_to_be_allowed(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.decided(3, rows=7, output={"orders-0": 99})
    before = place.ledger()
    status, document, said = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "OUTPUT_COMMITTED", False)
    assert "7 rows of 1 checkpoints after" in document["message"]
    assert "orders-0: 99" in said
    assert place.ledger() == before
    status, document, _ = restore(capsys, saved, new, "--claim", "--allow-reemit")
    assert (status, [each["rows"] for each in document["emitted"]]) == (0, [7])
    assert ledger(new).accounted == 2


def test_a_checkpoint_that_the_old_journal_has_forgotten_has_to_be_allowed_too(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": place.checkpoints[0]})
    place.append(EntryKind.REWIND_DONE, {"begun": 8, "batch": 0, "keep": None})
    status, document, said = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "OUTPUT_COMMITTED")
    assert "does not hold checkpoint" in said
    assert restore(capsys, saved, new, "--claim", "--allow-reemit")[0] == 0


@pytest.mark.parametrize("went_on", [False, True])
def test_where_an_older_backup_was_put_back_no_number_comes_again(
    place: CliPlace, new: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, went_on: bool
) -> None:
    """With `went_on` a query has run at the place that was put back, so that its journal is longer than the savepoint's."""
    shutil.copytree(place.path, tmp_path / "backup")
    for batch in range(3, 6):
        place.decided(batch)
    saved = take(str(place), str(tmp_path / "saved"))
    shutil.rmtree(place.path)
    shutil.copytree(tmp_path / "backup", place.path)
    for batch in range(3, 8 if went_on else 3):
        place.decided(batch)
    status, document, said = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "OUTPUT_COMMITTED", False)
    assert ("put back from an older backup" in said) is not went_on
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", Dies("restore.moved"))
        restore(capsys, saved, new, "--claim", "--allow-reemit")
    assert place.ledger().moved is not None
    for _ in range(2):
        assert restore(capsys, saved, new, "--claim")[0] == 0
        assert ledger(new).position >= saved.position + FAR_ABOVE
    goes_on(new, "other", "p", batch=saved.batch + 1)


@pytest.mark.parametrize("lost", ["deleted", "another query's", "without a journal"])
def test_an_old_place_that_is_lost_is_claimed_by_force_only(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, lost: str
) -> None:
    if lost == "deleted":
        shutil.rmtree(place.path)
    elif lost == "without a journal":
        shutil.rmtree(place.path / "barrier")
    else:
        (place.path / "metadata").write_text('{"id":"r"}')
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_UNREACHABLE", False)
    status, document, said = restore(capsys, saved, new, "--claim", "--force")
    assert status == 0
    assert "DOUBLED, and nobody can say how much" in said
    assert ledger(new).position >= saved.position + FAR_ABOVE
    goes_on(new, "other", "p")


@pytest.mark.parametrize("adopted", [False, True])
def test_a_copy_that_lies_where_the_query_was_is_not_taken_for_the_query(
    place: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture, adopted: bool
) -> None:
    """The query was moved by hand, and goes on there; its former place was filled from it."""
    there = tmp_path / "there"
    os.rename(place.path, there)
    assert answer(capsys, "adopt", str(there), "--claim", "--yes")[0] == 0
    goes_on(there, "the query's", "p")
    shutil.copytree(there, place.path)
    if adopted:
        assert answer(capsys, "adopt", str(place), "--no-claim", "--yes")[0] == 0
        place.run(process=dead_process(), driver="the copy's", prefix="q-copy")
    before = place.ledger()
    status, document, _ = restore(capsys, saved, new, "--claim", "--query-stopped")
    assert (status, document["condition"], new.exists()) == (1, "ORIGIN_UNREACHABLE", False)
    assert ("is a copy with an identity of its own" if adopted else f"the journal of {there}") in document["message"]
    assert place.ledger() == before


def test_a_query_that_runs_is_not_taken_away(place: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    place.run(process=this_process())
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "QUERY_RUNS", False)
    assert restore(capsys, saved, new, "--claim", "--query-stopped")[0] == 0


def test_a_rewind_that_was_begun_is_finished_first(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None, "process": dict(dead_process())})
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "REWIND_BEGUN")


def test_a_checkpoint_that_was_committed_in_part_is_repaired_at_the_old_place_first(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    place.prepared(3)
    place.decided(4, settle=False)
    [three] = [path for path in (place.output / "pending").iterdir() if "~3~" in path.name]
    [four] = [path for path in (place.output / "pending").iterdir() if "~4~" in path.name]
    three.unlink()
    four.rename(place.output / "committed" / four.name)
    status, document, said = restore(capsys, saved, new, "--claim", "--allow-reemit")
    assert (status, document["condition"], new.exists()) == (1, "PART_COMMITTED", False)
    assert f"`barrier rewind {place} --resume`" in said
    assert place.ledger().rewinding is not None


@pytest.mark.parametrize("made", [True, False])
def test_where_the_query_goes_on_no_copy_takes_its_place(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    with monkeypatch.context() as patch:
        if not made:
            patch.setattr(faults, "reach", Dies("restore.moved"))
        restore(capsys, saved, new, "--claim")
    status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (status, document["condition"], new.exists()) == (1, "LOCATION_CLAIMED", made)
    assert restore(capsys, saved, new.parent / "copy", "--no-claim")[0] == 0
    assert restore(capsys, saved, new, "--claim")[0] == 0


# -- deaths ----------------------------------------------------------------------------------------------------------


def killed(monkeypatch: pytest.MonkeyPatch, death: int, step: Callable[[], Any]) -> list[str]:
    """Run a step until it passes a fault point for the n-th time; what it has passed. Nothing is tidied after it."""
    passed: list[str] = []

    def reach(point: str) -> None:
        passed.append(point)
        if len(passed) == death:
            raise faults.InjectedFault(point)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        patch.setattr(NewLocation, "drop", lambda new: new._folder.release())
        step()
    return passed


def test_a_claim_that_is_killed_at_any_step_is_finished_by_the_same_command(
    place: CliPlace, saved: Savepoint, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is killed, either the old place is the query still, or it is moved and the new one whole or to be made."""
    place.decided(3, settle=False)
    (place.path / "commits" / "3").write_text("v1\n{}")
    place.prepared(4)
    points: list[str] = []
    for death in range(1, 30):
        folder = tmp_path / f"death-{death}"
        (folder / "aside").mkdir(parents=True)
        former = Copied(place, tmp_path, folder)
        new = folder / "new"

        def again() -> int:
            return restore(capsys, saved, new, "--claim", "--allow-reemit")[0]  # noqa: B023

        with former:
            points = killed(monkeypatch, death, again)
            old = place.ledger()
            assert old.moved is None or old.moved.location == str(new)
            assert old.moved is not None or not new.exists()
            if new.exists():
                assert old.moved is not None
                assert ledger(new).position == old.moved.entry
            else:
                refused = pytest.raises((FencedError, LocationError)) if old.moved or old.rewinding else None
                if refused is not None:
                    with refused:
                        goes_on(place.path, "new driver", "p", batch=5)
                    (place.path / "offsets" / "5").unlink()
            assert again() == 0
            assert again() == 0, "nothing began there: it is made anew"
            assert [name for name in os.listdir(folder) if name.startswith(".")] == []
            assert (place.files("committed"), place.files("pending")) == ([0, 1, 2, 3], [])
            found = goes_on(new, "other", "p")
            assert found.position > place.ledger().position
        if len(points) < death:
            break
    assert {"restore.copied", "rewind.begun", "rewind.settled", "rewind.aborted", "restore.moved"} <= set(points)
    assert {"restore.whole", "restore.named"} <= set(points)


def test_a_claim_that_is_interrupted_says_how_the_old_place_stands_and_what_to_say_next(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(at: str) -> str:
        def reach(point: str) -> None:
            if point == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", reach)
            status, _, said = restore(capsys, saved, new, "--claim")
        assert (status, new.exists()) == (130, False)
        return said

    again = f"`barrier restore {saved.path} {new} --claim`"
    assert again not in interrupted("restore.copied")
    said = interrupted("rewind.begun")
    assert again in said
    assert f"`barrier rewind {place} --resume`" in said
    for point in ("restore.moved", "restore.copied", "restore.whole"):
        said = interrupted(point)
        assert "is closed for ever" in said
        assert again in said
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_a_closed_place_sends_nobody_to_a_place_that_is_not_there_yet(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who started a query there would begin at its first offsets."""
    for death in range(1, 30):
        killed(monkeypatch, death, lambda: restore(capsys, saved, new, "--claim"))
        if place.ledger().moved:
            break
    assert not new.exists()
    with pytest.raises(FencedError) as told:
        goes_on(place.path, "old", "p")
    assert "Start the query at the new location, if it is there" in told.value.message
    assert f"`barrier restore SAVEPOINT {new} --claim`, with the savepoint {saved.id}" in told.value.message


class Copied:
    """The place and its output as they were, again after every attempt."""

    def __init__(self, place: CliPlace, folder: Path, aside: Path) -> None:
        self.kept = [(folder / name, aside / "aside" / name) for name in ("place", "output")]

    def __enter__(self) -> None:
        for path, aside in self.kept:
            shutil.copytree(path, aside)

    def __exit__(self, *problem: object) -> None:
        for path, aside in self.kept:
            shutil.rmtree(path)
            shutil.copytree(aside, path)


def test_a_claim_that_was_begun_can_be_given_up(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.prepared(3)
    for death in range(1, 30):
        if killed(monkeypatch, death, lambda: restore(capsys, saved, new, "--claim"))[-1] == "rewind.begun":
            break
    assert place.ledger().rewinding is not None
    assert answer(capsys, "rewind", str(place), "--resume", "--yes")[0] == 0
    assert (place.ledger().rewinding, place.ledger().moved, place.files("aborted")) == (None, None, [3])
    goes_on(place.path, "new driver", "p")


def test_two_claims_of_one_savepoint_have_one_winner(
    place: CliPlace, saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    status, document, _ = restore(capsys, saved, tmp_path / "elsewhere", "--claim")
    assert (status, document["condition"], (tmp_path / "elsewhere").exists()) == (1, "LOCATION_MOVED_ON", False)
    (tmp_path / "two").mkdir()
    assert restore(capsys, saved, tmp_path / "two", "--no-claim")[0] == 0, "a copy can still be made"


# -- where to --------------------------------------------------------------------------------------------------------


def test_a_place_is_made_anew_as_long_as_no_query_has_begun_there(saved: Savepoint, new: Path, capsys: Capture) -> None:
    restore(capsys, saved, new, "--no-claim")
    (new / "offsets" / "3").write_text("of a query whose first planning was refused")
    assert restore(capsys, saved, new, "--no-claim", "--allow-non-restored-state")[0] == 0
    assert not (new / "offsets" / "3").exists()
    found = ledger(new)
    assert found.restored is not None
    assert found.restored.allowed
    goes_on(new, "other", "copy")
    status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")


def replaces(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any], able: bool = True) -> None:
    """Something happens at the moment when a place is replaced, on a disk that can or can't exchange two folders."""

    def exchanged(one: str, other: str) -> bool:
        before()
        return able and exchange(one, other)

    monkeypatch.setattr("connector.spark.restore.exchange", exchanged)


@pytest.mark.parametrize("able", [True, False])
def test_a_query_that_is_started_while_its_place_is_made_anew_does_not_begin(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    """The restore stands still between its last look and the rename."""
    restore(capsys, saved, new, "--claim")
    told: list[str] = []

    def start() -> None:
        with pytest.raises(FencedError, match=r"REWIND_NOT_DONE.*Run the same `barrier restore` again") as caught:
            goes_on(new, "early", "p")
        told.append(caught.value.condition)

    with monkeypatch.context() as patch:
        replaces(patch, start, able)
        assert restore(capsys, saved, new, "--claim")[0] == 0
    assert told
    assert goes_on(new, "other", "p").accounted == 2


def test_a_query_that_has_begun_when_its_place_is_to_be_made_anew_keeps_it(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore(capsys, saved, new, "--claim")
    real = NewLocation._fence

    def fence(*arguments: Any) -> int:
        goes_on(new, "early", "p")
        return real(*arguments)

    monkeypatch.setattr(NewLocation, "_fence", fence)
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    run = ledger(new).newest_run
    assert run is not None
    assert (run.driver, run.ended) == ("early", None)


def test_a_query_that_has_read_the_former_journal_takes_no_number_of_the_new_one(
    saved: Savepoint, new: Path, capsys: Capture
) -> None:
    restore(capsys, saved, new, "--claim")
    late = CheckpointLocation(str(new)).journal()
    late.load()
    assert restore(capsys, saved, new, "--claim")[0] == 0
    before = ledger(new)
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        late.append(EntryKind.RUN, run_body(location=str(new), prefix="p"), lambda _: None)
    assert ledger(new) == before


def test_two_restores_do_not_make_one_place_anew_at_once(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore(capsys, saved, new, "--no-claim")
    with monkeypatch.context() as patch:
        patch.setattr("connector.spark.restore.this_process", lambda: {"somewhere": "else"})
        patch.setattr(faults, "reach", Dies("restore.whole"))
        restore(capsys, saved, new, "--no-claim")
    status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (status, document["condition"]) == (1, "REWIND_UNKNOWN")
    assert restore(capsys, saved, new, "--no-claim", "--query-stopped")[0] == 0


class Dies:
    """At a fault point."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __call__(self, point: str) -> None:
        if point == self.at:
            raise faults.InjectedFault(point)


def test_a_restore_deletes_no_files_of_another_that_is_at_work(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = NewLocation(CheckpointLocation(str(new)), saved, False)
    other.copy()
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    assert Path(other.draft.path, "metadata").exists()
    other.drop()
    assert not Path(other.draft.path).exists()


@pytest.mark.parametrize("entry", ["restarted", "a stop that was asked for", "a stop that was done"])
def test_what_others_journal_where_no_query_has_begun_does_not_hold_a_restore_back(
    place: CliPlace, new: Path, tmp_path: Path, capsys: Capture, entry: str
) -> None:
    """The first start met a broker that was away; the second is refused with STATE_NOT_RESTORED."""
    if entry == "a stop that was asked for":
        place.run(process=this_process())
        place.decided(3)
    saved = take(str(place), str(tmp_path / "saved"))
    assert restore(capsys, saved, new, "--claim", "--query-stopped")[0] == 0
    begun = ledger(new).position
    if entry == "restarted":
        why = failure_of(RetriableError("BROKERS_UNREACHABLE", "away"))
        record_restart(CheckpointLocation(str(new)), "supervise", 1, 1.0, why, False)
    else:
        answer(capsys, "stop", str(new), "--timeout", "0")
    journalled = ledger(new).position
    assert journalled > begun
    how = ("--claim", "--query-stopped", "--allow-non-restored-state")
    status, _, said = restore(capsys, saved, new, *how)
    assert status == 0, said
    assert ledger(new).position > journalled, "no number comes back"
    goes_on(new, "other", "p", batch=saved.batch + 1)


def test_where_a_job_was_started_at_the_new_place_too_early_the_claim_says_how_to_go_on(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(at: str) -> Callable[[str], None]:
        def reach(point: str) -> None:
            if point == at:
                (new / "offsets").mkdir(parents=True)
                (new / "metadata").write_text('{"id":"early"}')

        return reach

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", starts("rewind.begun"))
        status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], place.ledger().moved) == (1, "LOCATION_NOT_EMPTY", None)
    shutil.rmtree(new)
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", starts("restore.moved"))
        restore(capsys, saved, new, "--claim")
    for _ in range(2):
        status, document, _ = restore(capsys, saved, new, "--claim")
        assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
        assert "move this folder away" in document["message"]
    shutil.rmtree(new)
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_a_place_that_is_not_empty_is_left_alone(place: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    new.mkdir()
    (new / "kept").write_text("something")
    for target in (new, new / "kept", place.path):
        status, document, _ = restore(capsys, saved, target, "--claim")
        assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    assert place.ledger().moved is None


def test_no_place_is_made_inside_a_savepoint_or_the_old_place(
    place: CliPlace, saved: Savepoint, tmp_path: Path, capsys: Capture
) -> None:
    for how in ("--claim", "--no-claim"):
        status, document, _ = restore(capsys, saved, tmp_path / "saved" / "more" / "new", how)
        assert (status, document["condition"]) == (1, "INSIDE_A_SAVEPOINT")
        status, document, _ = restore(capsys, saved, place.path / "new", how)
        assert (status, document["condition"]) == (1, "INSIDE_THE_ORIGIN")
    assert place.ledger().moved is None
    assert restore(capsys, saved, tmp_path / "place-2", "--claim")[0] == 0


@pytest.mark.parametrize("seen", [True, False], ids=["another disk", "of the same disk"])
def test_a_claim_into_a_mount_point_is_refused_before_anything_is_closed(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """An empty volume of Kubernetes. A bind mount of a disk's folder is told by the system only, when it is removed."""
    new.mkdir()

    def rmdir(path: str) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", path)

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: seen and path == str(new))
        patch.setattr(os, "rmdir", rmdir)
        status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "LOCATION_IS_MOUNTED")
    assert f"Name a folder inside it ({new}/checkpoint)" in document["message"]
    assert (place.ledger().moved, place.ledger().rewinding) == (None, None)
    assert restore(capsys, saved, new / "checkpoint", "--claim")[0] == 0


def test_a_damaged_savepoint_changes_nothing(place: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    path = Path(saved.path) / "checkpoint" / "commits" / "2"
    path.write_text("v1\n[]")
    before = place.ledger()
    for how in ("--claim", "--no-claim"):
        status, document, _ = restore(capsys, saved, new, how)
        assert (status, document["condition"]) == (1, "SAVEPOINT_DAMAGED")
        assert "checkpoint/commits/2" in document["message"]
    assert (place.ledger(), new.exists()) == (before, False)


def test_a_query_without_state_has_no_partitions_to_cut_anew(saved: Savepoint, new: Path, capsys: Capture) -> None:
    status, document, _ = restore(capsys, saved, new, "--no-claim", "--shuffle-partitions", "3")
    assert (status, document["condition"], new.exists()) == (1, "NO_STATE", False)


@pytest.mark.parametrize("how", [[], ["--claim", "--no-claim"], ["--no-claim", "--force"]])
def test_it_has_to_be_said_which(saved: Savepoint, new: Path, capsys: Capture, how: list[str]) -> None:
    assert restore(capsys, saved, new, *how)[0] == 2


def test_nothing_is_done_without_a_yes(place: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    for how in ("--claim", "--no-claim"):
        assert answer(capsys, "restore", saved.path, str(new), how)[0] == 3
    assert (new.exists(), place.ledger().moved) == (False, None)


def test_a_restored_place_can_be_saved_and_restored_again(
    saved: Savepoint, new: Path, tmp_path: Path, capsys: Capture
) -> None:
    restore(capsys, saved, new, "--claim")
    second = take(str(new), str(tmp_path / "second"))
    assert (second.checkpoint, second.query) == (saved.checkpoint, saved.query)
    assert restore(capsys, second, tmp_path / "third", "--claim")[0] == 0
    location = CheckpointLocation(str(tmp_path / "third"))
    check_location(ledger(tmp_path / "third"), spark_view(location))
    check_account(goes_on(tmp_path / "third", "other", "p"), spark_view(location))


def test_a_restore_that_is_killed_leaves_a_place_whole_or_none(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for death in (1, 2):
        killed(monkeypatch, death, lambda: restore(capsys, saved, new, "--no-claim"))
        assert not new.exists()
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    assert not [name for name in os.listdir(new.parent) if name.startswith(".")]
