"""``barrier restore`` said again: places that are made anew, that have gone, or that others have come to meanwhile."""

from __future__ import annotations

import copy
import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main
from connector.cli.place import load_journal
from connector.cli.report import Report
from connector.operations.recovery import Upkeep, recover
from connector.spark import restore as restoring
from connector.spark.draft import Draft
from connector.spark.exchange import exchange
from connector.spark.location import CheckpointLocation
from connector.spark.restore import NewLocation
from connector.spark.savepoint import Savepoint, take
from tests.connector.cli_place import CliPlace, another_user, answer, dead_process, shared_folder, two_users
from tests.connector.test_cli_restore import Copied, Dies, goes_on, ledger, replaces, restore
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import FencedError

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def at(place: CliPlace, path: Path) -> CliPlace:
    """The query at another place."""
    found = copy.copy(place)
    found.path = path
    return found


def runs_on(place: CliPlace, path: Path) -> None:
    """The query is started there, and commits micro-batch 3."""
    there = at(place, path)
    there.run(process=dead_process(), driver="at the new place")
    there.decided(3)


@contextmanager
def meanwhile(monkeypatch: Patch, happens: Callable[[], Any]) -> Iterator[None]:
    """Something happens while a command waits for a yes."""
    asked: list[bool] = []

    def confirm(report: Report, yes: bool) -> None:
        if not asked:
            asked.append(True)
            happens()

    with monkeypatch.context() as patch:
        patch.setattr(Report, "confirm", confirm)
        yield
    assert asked


def dies(monkeypatch: Patch, point: str, step: Callable[[], Any]) -> None:
    """A step is killed at a point: nothing is tidied after it."""
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", Dies(point))
        patch.setattr(NewLocation, "drop", lambda new: new._folder.release())
        step()


# -- a claim that is said again --------------------------------------------------------------------------------------


def test_a_claim_said_again_when_its_query_has_run_says_that_nothing_is_left_to_do(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    """Who moved the place away would have all of it written again."""
    assert restore(capsys, saved, new, "--claim")[0] == 0
    runs_on(place, new)
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    assert "nothing is left to do" in document["message"]
    assert "move" not in document["message"]
    (new / "barrier" / "log" / "9999.json").write_text("torn")
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    assert "journal can't be read" in document["message"]


@pytest.mark.parametrize(
    "deaths",
    [[], ["restore.moved"], ["restore.moved", "restore.copied", "restore.whole"], ["restore.whole", "restore.whole"]],
)
def test_a_claimed_place_that_is_gone_is_made_again_by_force_only_and_far_above(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, deaths: list[str]
) -> None:
    """Its query may have committed, and nobody can see what. Deaths on the way leave no note that it has been there."""
    for point in deaths:
        dies(monkeypatch, point, lambda: restore(capsys, saved, new, "--claim"))
        assert (place.ledger().moved is not None, new.exists()) == (True, False)
    assert restore(capsys, saved, new, "--claim")[0] == 0
    assert restore(capsys, saved, new, "--claim")[0] == 0, "made anew"
    runs_on(place, new)
    last = ledger(new).position
    os.rename(new, new.parent / "away")
    for point in ("", "restore.copied", "restore.whole"):
        status, document, said = restore(capsys, saved, new, "--claim")
        assert (status, document["condition"], new.exists()) == (1, "CLAIMED_PLACE_GONE", False)
        assert "say the same command again" not in said
        dies(monkeypatch, point, lambda: restore(capsys, saved, new, "--claim", "--force"))
        if not point:
            assert ledger(new).position > last + 1_000_000
            shutil.rmtree(new)
    os.rename(new.parent / "away", new)
    assert "nothing is left to do" in restore(capsys, saved, new, "--claim")[1]["message"]


def test_a_claim_that_fails_when_it_is_nearly_done_leaves_no_note(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", Dies("restore.whole"))
        restore(capsys, saved, new, "--claim")
    assert place.ledger().moved is not None
    assert not os.listdir(place.path / "barrier" / "arrivals")
    assert restore(capsys, saved, new, "--claim")[0] == 0
    assert len(os.listdir(place.path / "barrier" / "arrivals")) == 1


def test_a_place_restored_of_its_own_savepoint_is_made_anew_and_not_closed_on_itself(
    place: CliPlace, saved: Savepoint, capsys: Capture
) -> None:
    """The same command again, as STATE_NOT_RESTORED asks for."""
    shutil.rmtree(place.path)
    assert restore(capsys, saved, place.path, "--claim", "--force")[0] == 0
    assert restore(capsys, saved, place.path, "--claim")[1]["condition"] == "ORIGIN_UNREACHABLE"
    assert restore(capsys, saved, place.path, "--claim", "--force", "--allow-non-restored-state")[0] == 0
    found = place.ledger()
    assert found.restored is not None
    assert (found.moved, found.restored.allowed) == (None, True)
    runs_on(place, place.path)
    _, document, _ = restore(capsys, saved, place.path, "--claim", "--force")
    assert "nothing is left to do" in document["message"]
    assert "delete" not in document["message"]


def test_two_forced_claims_of_one_savepoint_give_no_number_twice(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    shutil.rmtree(place.path)
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    runs_on(place, new)
    last = ledger(new).position
    shutil.rmtree(new)
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    assert ledger(new).position > last


def test_a_claim_that_takes_up_a_begun_one_is_refused_where_that_was_given_up_meanwhile(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """While it asks, the query commits a micro-batch, and another claim is begun and killed."""
    dies(monkeypatch, "rewind.begun", lambda: restore(capsys, saved, new, "--claim"))

    def happens() -> None:
        assert answer(capsys, "rewind", str(place), "--resume", "--yes")[0] == 0
        place.run(process=dead_process(), driver="meanwhile")
        place.decided(3)
        begun = {"checkpoint": None, "moving": {"location": "/elsewhere", "savepoint": "another"}}
        place.append(EntryKind.REWIND_BEGUN, {**begun, "process": dict(dead_process())})

    with meanwhile(monkeypatch, happens):
        status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], place.ledger().moved) == (1, "LOCATION_BUSY", None)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "OUTPUT_COMMITTED"


@pytest.mark.parametrize("file", ["savepoint.json", "journal.json", "checkpoint/commits/2"])
def test_a_claim_whose_savepoint_vanishes_meanwhile_closes_nothing_for_ever(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, file: str
) -> None:
    """It was copied, and the copy is whole; but the same command could not be run again, if it died now."""

    def reach(point: str) -> None:
        if point == "rewind.begun":
            (Path(saved.path) / file).unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], new.exists()) == (1, "SAVEPOINT_DAMAGED", False)
    assert place.ledger().moved is None


# -- a place that is made anew ---------------------------------------------------------------------------------------


def test_what_else_lies_in_a_place_that_is_made_anew_is_not_deleted(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    other = take(str(place), str(new / "saves" / "other"))
    status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (status, document["condition"]) == (1, "LOCATION_NOT_EMPTY")
    assert "saves would be deleted with it" in document["message"]
    os.rename(new / "saves", new.parent / "saves")
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    replace(other, path=str(new.parent / "saves" / "other")).verify()


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_place_that_is_made_anew_is_there_at_every_moment(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, how: str
) -> None:
    """A job that is started by somebody meanwhile would begin as a new query."""
    assert restore(capsys, saved, new, how)[0] == 0
    seen: list[bool] = []

    def looked(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            seen.append(new.exists())
            answer = real(*given, **more)
            seen.append(new.exists())
            return answer

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "rmdir", "unlink", "replace"):
            patch.setattr(os, name, looked(getattr(os, name)))
        patch.setattr("connector.spark.restore.exchange", looked(exchange))
        assert restore(capsys, saved, new, how)[0] == 0
    assert len(seen) > 4
    assert all(seen)


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
@pytest.mark.parametrize("started", [False, True])
def test_on_a_disk_that_exchanges_no_folders_a_death_between_the_renames_is_mended_by_the_same_command(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, how: str, started: bool
) -> None:
    """The place is away then; a job that is started there begins as a new query, and has to be moved away."""
    assert restore(capsys, saved, new, how)[0] == 0
    before = ledger(new).position

    def publish(draft: Draft) -> bool:
        raise faults.InjectedFault("killed")

    with monkeypatch.context() as patch:
        patch.setattr("connector.spark.restore.exchange", lambda one, other: False)
        patch.setattr(Draft, "publish", publish)
        patch.setattr(NewLocation, "drop", lambda new: new._folder.release())
        restore(capsys, saved, new, how)
    assert not new.exists()
    if started:
        (new / "offsets").mkdir(parents=True)
        (new / "metadata").write_text('{"id":"another"}')
        assert restore(capsys, saved, new, how)[1]["condition"] == "LOCATION_NOT_EMPTY"
        shutil.rmtree(new)
    assert restore(capsys, saved, new, how)[0] == 0
    assert [name for name in os.listdir(new.parent) if name.startswith(".")] == []
    assert ledger(new).position >= (before if how == "--claim" else 0)
    goes_on(new, "other", "p" if how == "--claim" else "of the copy")


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("ended", [False, True])
def test_a_place_whose_fence_was_ended_is_not_replaced_under_its_query(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, able: bool, ended: bool
) -> None:
    """The restore stands still before its rename; somebody ends what it has begun (of another host), and the query commits."""
    assert restore(capsys, saved, new, "--claim")[0] == 0
    ends = [ended]

    def happens() -> None:
        if not ends:
            return
        with pytest.raises(FencedError, match=r"REWIND_NOT_DONE.*Say the same `barrier restore` again"):
            recover(CheckpointLocation(str(new)), Upkeep({}, single_driver=True))
        status, document, _ = answer(capsys, "rewind", str(new), "--resume", "--yes")
        assert (status, document["condition"]) == (1, "REWIND_RUNS")
        if ends.pop():
            begun = ledger(new).rewinding
            assert begun is not None
            at(place, new).append(EntryKind.REWIND_DONE, {"begun": begun.token, "batch": 2, "keep": None})
            runs_on(place, new)

    with monkeypatch.context() as patch:
        replaces(patch, happens, able)
        status, document, _ = restore(capsys, saved, new, "--claim")
    if ended:
        assert (status, document["condition"], ledger(new).accounted) == (1, "LOCATION_NOT_EMPTY", 3)
        assert "may have begun there" in document["message"]
    else:
        assert (status, ledger(new).rewinding) == (0, None)
    assert [name for name in os.listdir(new.parent) if name.startswith(".")] == []


@pytest.mark.parametrize("how", ["--claim", "--no-claim"])
def test_a_place_that_is_being_made_anew_is_left_to_the_same_restore_or_opened_again(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, how: str
) -> None:
    assert restore(capsys, saved, new, how)[0] == 0
    dies(monkeypatch, "restore.whole", lambda: restore(capsys, saved, new, how))
    with pytest.raises(FencedError, match="REWIND_NOT_DONE"):
        goes_on(new, "refused", "p" if how == "--claim" else "of the copy")
    for command in ("stop", "rewind"):
        status, document, _ = answer(capsys, command, str(new), *(["--yes"] if command == "rewind" else []))
        assert (status, document["condition"]) == (1, "REWIND_NOT_DONE")
        assert "Run the same `barrier restore` again" in document["message"]
    assert main(["checkpoints", "show", str(new)]) == 0
    assert "The same `barrier restore` finishes it" in " ".join(capsys.readouterr().out.split())
    if how == "--claim":
        assert restore(capsys, saved, new, how)[0] == 0
        dies(monkeypatch, "restore.whole", lambda: restore(capsys, saved, new, how))
    shutil.rmtree(saved.path)  # nothing but the place is left
    status, document, _ = answer(capsys, "rewind", str(new), "--resume", "--yes")
    assert (status, document["batch"], ledger(new).rewinding) == (0, 2, None)
    goes_on(new, "other", "p" if how == "--claim" else "of the copy")


# -- others ----------------------------------------------------------------------------------------------------------


def test_no_claim_takes_the_place_of_a_copy(place: CliPlace, saved: Savepoint, new: Path, capsys: Capture) -> None:
    """A death after `moved` would leave a place that is closed for a copy that can be started."""
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert (status, document["condition"], place.ledger().moved) == (1, "LOCATION_NOT_EMPTY", None)
    assert (place.ledger().rewinding, ledger(new).rewinding) == (None, None)
    goes_on(new, "the copy", "its own prefix")


@pytest.mark.parametrize("killed_at", ["", "restore.moved"])
def test_a_copy_that_waits_for_a_yes_takes_no_place_that_was_claimed_meanwhile(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, killed_at: str
) -> None:
    def claim() -> None:
        dies(monkeypatch, killed_at, lambda: main(["restore", saved.path, str(new), "--claim", "--yes"]))
        capsys.readouterr()

    with meanwhile(monkeypatch, claim):
        status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (status, document["condition"]) == (1, "LOCATION_CLAIMED")
    assert restore(capsys, saved, new, "--claim")[0] == 0
    found = ledger(new).restored
    assert found is not None
    assert found.claim


def test_of_two_restores_to_one_place_the_later_says_that_it_was_made(
    saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    asked: list[int] = []

    def reach(point: str) -> None:
        if point == "restore.whole" and not asked:
            asked.append(0)
            asked.append(main(["restore", saved.path, str(new), "--no-claim", "--yes"]))
            capsys.readouterr()

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        status, document, _ = restore(capsys, saved, new, "--no-claim")
    assert (asked, status, document["condition"]) == ([0, 0], 1, "LOCATION_NOT_EMPTY")
    assert "made by another restore" in document["message"]


@two_users
def test_an_empty_place_that_is_another_user_s_is_refused_before_anything_is_closed(capsys: Capture) -> None:
    """In a folder with the sticky bit (/tmp, a shared scratch) it can't be replaced."""
    with shared_folder() as base:
        place = CliPlace(base)
        place.run(process=dead_process())
        place.decided(0)
        saved = take(str(place), str(base / "saved"))
        new = base / "new"
        new.mkdir()
        restore(capsys, saved, base / "warm", "--no-claim")  # imports what is imported late
        with another_user(base / "place", base / "output", base / "saved"):
            status, document, _ = restore(capsys, saved, new, "--claim", "--query-stopped")
        assert (status, document["condition"], place.ledger().moved) == (1, "LOCATION_NOT_OURS", None)


# -- whether a claimed place was there -------------------------------------------------------------------------------


def lost(place: CliPlace, new: Path) -> None:
    """The query goes on at the claimed place, and that is lost."""
    runs_on(place, new)
    shutil.rmtree(new)


@pytest.mark.parametrize("how", ["killed", "files that can't be deleted"])
def test_what_is_left_of_a_former_place_is_not_taken_for_one_that_never_was_there(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, how: str
) -> None:
    os.rename(place.path, new.parent / "unmounted")
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    os.rename(new.parent / "unmounted", place.path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, *given, **more: None)
        if how == "killed":
            patch.setattr(NewLocation, "drop", lambda new: new._folder.release())
        assert restore(capsys, saved, new, "--claim")[0] == 0
    assert place.ledger().moved is not None
    lost(place, new)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "CLAIMED_PLACE_GONE"


def test_a_note_stays_where_a_claim_that_is_said_again_is_interrupted(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    for point in ("restore.copied", "restore.whole"):
        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", Dies(point))
            restore(capsys, saved, new, "--claim")
    lost(place, new)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "CLAIMED_PLACE_GONE"


def test_a_place_is_noted_though_the_old_one_does_not_answer_for_a_moment(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    real = load_journal

    def away(location: CheckpointLocation) -> Any:
        if place.ledger().moved is not None:
            raise OSError("Stale file handle")
        return real(location)

    with monkeypatch.context() as patch:
        patch.setattr("connector.cli.old_place.load_journal", away)
        assert restore(capsys, saved, new, "--claim")[0] == 0
    lost(place, new)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "CLAIMED_PLACE_GONE"


@pytest.mark.parametrize("dies_too", [True, False])
def test_where_nothing_can_be_locked_a_second_claim_leaves_the_note_of_the_first(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, dies_too: bool
) -> None:
    dies(monkeypatch, "restore.moved", lambda: restore(capsys, saved, new, "--claim"))
    seen: list[str] = []

    def reach(point: str) -> None:
        seen.append(point)
        if point == "restore.copied" and seen.count(point) == 2 and dies_too:
            raise faults.InjectedFault("killed")
        if point == "restore.whole" and seen.count(point) == 1:
            main(["restore", saved.path, str(new), "--claim", "--yes"])
            capsys.readouterr()

    def flock(*given: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        patch.setattr(faults, "reach", reach)
        assert restore(capsys, saved, new, "--claim")[0] == (0 if dies_too else 1)
    lost(place, new)
    assert restore(capsys, saved, new, "--claim")[1]["condition"] == "CLAIMED_PLACE_GONE"


def test_a_claim_whose_temporary_folder_vanished_is_said_again(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """A cleaner of /tmp takes it."""

    def reach(point: str) -> None:
        if point == "restore.whole":
            for draft in new.parent.glob(".new.restoring-*"):
                shutil.rmtree(draft)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        assert restore(capsys, saved, new, "--claim")[1]["condition"] == "LOCATION_BUSY"
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_where_the_query_is_to_go_on_no_copy_is_made_of_another_savepoint(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    other = take(str(place), str(new.parent / "other"))
    dies(monkeypatch, "restore.whole", lambda: restore(capsys, saved, new, "--claim"))
    assert restore(capsys, other, new, "--no-claim")[1]["condition"] == "LOCATION_CLAIMED"
    assert restore(capsys, saved, new, "--claim")[0] == 0


def test_a_claim_that_is_done_names_the_old_place_where_that_is_open(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture
) -> None:
    """The old disk was away, the claim forced; it is back, and a query could start there with the same identity."""
    os.rename(place.path, new.parent / "unmounted")
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    runs_on(place, new)
    os.rename(new.parent / "unmounted", place.path)
    _, document, _ = restore(capsys, saved, new, "--claim")
    assert (
        f"{place}, of which it was taken, is not closed: where it is there, start nothing there" in document["message"]
    )


def test_a_query_that_was_moved_by_hand_to_where_its_claim_was_to_go_can_be_resumed(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    dies(monkeypatch, "rewind.begun", lambda: restore(capsys, saved, new, "--claim"))
    os.rename(place.path, new)
    assert answer(capsys, "adopt", str(new), "--claim", "--yes")[0] == 0
    assert answer(capsys, "rewind", str(new), "--resume", "--yes")[0] == 0
    assert ledger(new).rewinding is None


def test_temporary_folders_of_a_place_whose_name_begins_alike_are_left_alone(
    saved: Savepoint, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    other = tmp_path / "orders.restoring-2025"
    dies(monkeypatch, "restore.copied", lambda: restore(capsys, saved, other, "--no-claim"))
    drafts = list(tmp_path.glob(".orders.restoring-2025.*"))
    assert len(drafts) == 1
    assert restore(capsys, saved, tmp_path / "orders", "--no-claim")[0] == 0
    assert list(tmp_path.glob(".orders.restoring-2025.*")) == drafts
    assert restore(capsys, saved, other, "--no-claim")[0] == 0
    assert list(tmp_path.glob(".orders.*")) == []


@two_users
def test_a_claimed_place_is_made_anew_though_the_old_one_is_read_only_by_now(capsys: Capture) -> None:
    """Closed for ever, and archived."""
    with shared_folder() as base:
        place = CliPlace(base)
        place.run(process=dead_process())
        place.decided(0)
        saved = take(str(place), str(base / "saved"))
        assert restore(capsys, saved, base / "new", "--claim")[0] == 0
        journal = place.path / "barrier"
        for path in (journal, *journal.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with another_user(base / "new", base / "saved"):
            status, _, said = restore(capsys, saved, base / "new", "--claim", "--allow-non-restored-state")
        assert status == 0, said


# -- kill -9 ---------------------------------------------------------------------------------------------------------

BROKEN = 70
"""With what a child ends that raised."""

DURABLE = ("chmod", "fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


def killed_before(death: int, arguments: list[str], able: bool) -> bool:
    """Run the command in a process that dies before its n-th call that changes a disk; False if it came to its end.

    Raises
    ------
    AssertionError
        It ended in any other way.
    """
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), f"the command ended with {code}"
        return code != 0
    try:
        os._exit(until_killed(death, arguments, able))
    finally:  # whatever was raised: the rest of pytest is the parent's
        os._exit(BROKEN)


def until_killed(death: int, arguments: list[str], able: bool) -> int:
    """See `killed_before`, of which this is the child."""
    calls = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == death:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **more)

        return call

    for name in DURABLE:
        setattr(os, name, counted(getattr(os, name)))
    vars(restoring)["exchange"] = counted(exchange) if able else lambda one, other: False
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        return main(arguments)


def test_a_command_that_fails_in_any_other_way_than_by_the_kill_is_no_death_and_no_end(
    saved: Savepoint, new: Path, monkeypatch: Patch
) -> None:
    command = ["restore", saved.path, str(new), "--no-claim", "--yes"]
    assert killed_before(3, command, True)
    with pytest.raises(AssertionError, match="ended with 1"):
        killed_before(10_000, [*command[:2], saved.path, *command[3:]], True)

    def breaks(*given: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("tests.connector.test_restored_place.until_killed", breaks)
    with pytest.raises(AssertionError, match=f"ended with {BROKEN}"):
        killed_before(1, command, True)


@pytest.mark.parametrize(
    ("how", "anew", "able"),
    [
        ("--claim", False, True),
        ("--claim", True, True),
        pytest.param("--no-claim", True, True, marks=pytest.mark.matrix),
        pytest.param("--claim", True, False, marks=pytest.mark.matrix),
        pytest.param("--no-claim", True, False, marks=pytest.mark.matrix),
    ],
)
def test_a_restore_that_is_killed_before_any_of_its_changes_is_finished_by_the_same_command(
    place: CliPlace, saved: Savepoint, tmp_path: Path, capsys: Capture, how: str, anew: bool, able: bool
) -> None:
    place.prepared(3)
    death = 0
    while True:
        death += 1
        folder = tmp_path / f"death-{death}"
        (folder / "aside").mkdir(parents=True)
        new = folder / "new"
        with Copied(place, tmp_path, folder):
            if anew:
                assert restore(capsys, saved, new, how)[0] == 0
            closed = place.ledger().moved is not None
            if not killed_before(death, ["restore", saved.path, str(new), how, "--yes"], able):
                break
            old = place.ledger()
            if how == "--no-claim":
                assert (old.moved, old.rewinding) == (None, None)
            elif old.moved is None:
                assert not closed
                assert not new.exists()
            assert new.exists() or not anew or not able
            status, document, said = restore(capsys, saved, new, how)
            if (
                not able and document.get("condition") == "CLAIMED_PLACE_GONE"
            ):  # too careful, where no exchange can be had
                status, document, said = restore(capsys, saved, new, how, "--force")
            assert status == 0, (death, document, said)
            assert [name for name in os.listdir(folder) if name.startswith(".")] == []
            assert (place.ledger().moved is not None) is (how == "--claim")
            goes_on(new, "other", "p" if how == "--claim" else "of the copy")
    assert death > (20 if how == "--claim" else 10)
