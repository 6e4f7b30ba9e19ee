"""``barrier restore`` while others are at work on the same places, on disks with moods, and for two users."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main
from connector.spark.draft import Draft
from connector.spark.exchange import exchange
from connector.spark.savepoint import Savepoint, take
from tests.connector.cli_place import CliPlace, another_user, answer, shared_folder, two_users
from tests.connector.test_cli_restore import ledger, replaces, restore
from tests.connector.test_restored_place import at, dies, lost, meanwhile, runs_on
from transactional.entry import EntryKind

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_a_dry_run_opens_no_place_again(saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0
    dies(monkeypatch, "restore.whole", lambda: restore(capsys, saved, new, "--claim"))
    before = ledger(new)
    assert answer(capsys, "rewind", str(new), "--resume", "--dry-run")[1]["status"] == "dry run"
    assert ledger(new) == before


def test_a_place_that_is_opened_again_keeps_its_number_of_shuffle_partitions(
    place: CliPlace, new: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    for batch in (0, 1, 2):
        meta = json.dumps({"batchTimestampMs": batch, "conf": {"spark.sql.shuffle.partitions": "1"}})
        (place.path / "offsets" / str(batch)).write_text(f"v1\n{meta}\nline {batch}")
    store = place.path / "state" / "0" / "0"
    store.mkdir(parents=True)
    for version in (1, 2, 3):
        (store / f"{version}.changelog").write_text("x")
    saved = take(str(place), str(tmp_path / "stateful"))

    def repartition(draft: Any, partitions: int) -> int:
        root = Path(draft.path)
        text = (root / "offsets" / "2").read_text().replace('partitions": "1"', f'partitions": "{partitions}"')
        (root / "offsets" / "3").write_text(text)
        (root / "commits" / "3").write_text("v1\n{}")
        for number in range(partitions):
            folder = root / "state" / "0" / str(number)
            folder.mkdir(exist_ok=True)
            (folder / "4.zip").write_text("x")
        return 3

    monkeypatch.setattr("connector.cli.restore.repartition", repartition)
    how = ("--no-claim", "--shuffle-partitions", "4")
    status, document, said = restore(capsys, saved, new, *how)
    assert status == 0, (document, said)
    kept = sorted(
        str(path.relative_to(new)) for path in new.rglob("*") if path.is_file() and "barrier" not in path.parts
    )
    dies(monkeypatch, "restore.whole", lambda: restore(capsys, saved, new, *how))
    status, document, said = answer(capsys, "rewind", str(new), "--resume", "--yes")
    assert status == 0, (document, said)
    now = sorted(
        str(path.relative_to(new)) for path in new.rglob("*") if path.is_file() and "barrier" not in path.parts
    )
    assert now == kept, (said, sorted(set(kept) ^ set(now)))


def test_a_waiting_copy_that_deletes_the_claim_s_draft_shuts_nobody_out(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    def claim() -> None:
        dies(monkeypatch, "restore.whole", lambda: main(["restore", saved.path, str(new), "--claim", "--yes"]))
        capsys.readouterr()

    with meanwhile(monkeypatch, claim):
        assert restore(capsys, saved, new, "--no-claim")[1]["condition"] == "LOCATION_CLAIMED"
    status, document, _ = restore(capsys, saved, new, "--claim")
    assert status == 0, document


@pytest.mark.parametrize("how", ["Ctrl-C", "NFS says ENOENT of a rename that it did"])
def test_a_rename_that_was_done_and_is_not_known_to_be_keeps_the_note(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch, how: str
) -> None:
    real = os.rename

    def rename(one: str, other: str) -> None:
        real(one, other)
        if other == str(new):
            raise KeyboardInterrupt if how == "Ctrl-C" else FileNotFoundError(2, "gone", one)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        restore(capsys, saved, new, "--claim")
    assert new.exists()
    lost(place, new)
    assert restore(capsys, saved, new, "--claim")[1].get("condition") == "CLAIMED_PLACE_GONE"


def test_a_forced_claim_while_the_closed_old_place_is_away_is_not_made_again_silently(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    dies(monkeypatch, "restore.moved", lambda: restore(capsys, saved, new, "--claim"))
    os.rename(place.path, new.parent / "unmounted")
    assert restore(capsys, saved, new, "--claim", "--force")[0] == 0
    os.rename(new.parent / "unmounted", place.path)
    runs_on(place, new)
    assert "nothing is left to do" in restore(capsys, saved, new, "--claim")[1]["message"]
    shutil.rmtree(new)
    assert restore(capsys, saved, new, "--claim")[1].get("condition") == "CLAIMED_PLACE_GONE"


def test_the_former_place_under_the_draft_s_name_is_no_leftover_while_its_fence_is_looked_at(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """Another copy to the same place begins in that moment."""
    assert restore(capsys, saved, new, "--no-claim")[0] == 0
    other = Draft(str(new), "restoring")

    def exchanged(one: str, two: str) -> bool:
        found = exchange(one, two)
        other.begin()
        return found

    with monkeypatch.context() as patch:
        patch.setattr("connector.spark.restore.exchange", exchanged)
        assert restore(capsys, saved, new, "--no-claim")[0] == 0
    other.drop()
    assert (new / "metadata").exists()
    assert ledger(new).rewinding is None


def test_anew_whose_draft_vanished_says_busy(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert restore(capsys, saved, new, "--claim")[0] == 0

    def cleaner() -> None:
        for draft in new.parent.glob(".new.restoring-*"):
            shutil.rmtree(draft)

    with monkeypatch.context() as patch:
        replaces(patch, cleaner)
        _, document, _ = restore(capsys, saved, new, "--claim")
    assert document["condition"] == "LOCATION_BUSY"


@two_users
def test_a_savepoint_that_may_be_entered_and_not_be_listed_is_restored(capsys: Capture) -> None:
    with shared_folder() as base:
        place = CliPlace(base)
        place.run()
        place.decided(0)
        saved = take(str(place), str(base / "saved"))
        restore(capsys, saved, base / "warm", "--no-claim")  # imports what is imported late
        (base / "saved").chmod(0o711)
        (base / "saved" / "journal.json").chmod(0o644)
        with another_user():
            status, document, said = restore(capsys, saved, base / "new", "--no-claim")
        assert status == 0, (document, said)


def test_a_query_s_place_that_can_t_be_put_back_is_not_deleted_as_a_leftover(
    place: CliPlace, saved: Savepoint, new: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """No exchange; the fence was ended and a query committed; its next write makes the folder again while the place is away."""
    assert restore(capsys, saved, new, "--claim")[0] == 0
    real = os.rename

    def ended() -> None:
        begun = ledger(new).rewinding
        assert begun is not None
        at(place, new).append(EntryKind.REWIND_DONE, {"begun": begun.token, "batch": 2, "keep": None})
        runs_on(place, new)

    def rename(one: str, other: str) -> None:
        real(one, other)
        if one == str(new):
            (new / "offsets").mkdir(parents=True)
            (new / "offsets" / "4").write_text("v1\n{}\nline 4")

    with monkeypatch.context() as patch:
        replaces(patch, ended, False)
        patch.setattr(os, "rename", rename)
        _, document, _ = restore(capsys, saved, new, "--claim")
    assert document["condition"] == "LOCATION_NOT_EMPTY"
    shutil.rmtree(new)
    restore(capsys, saved, new, "--claim", "--force")
    held_it = [path for path in new.parent.rglob("offsets/3") if place.path not in path.parents]
    assert held_it, "the journal of what was committed is deleted"
    assert ".new.former-" in document["message"], "nobody is told where it is"
