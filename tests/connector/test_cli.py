"""The ways out, on locations made by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from connector.cli import main
from connector.spark.location import CheckpointLocation
from transactional.barrier import sources_digest
from transactional.ledger import Ledger
from transactional.metadata import EntryKind

HANDLE = {"file": "f"}


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Micro-batch 0 is settled; 1 is decided with two parts, and Spark has not committed it."""
    place = tmp_path / "place"
    (place / "offsets").mkdir(parents=True)
    (place / "commits").mkdir()
    (place / "metadata").write_text('{"id":"q"}')
    (place / "commits" / "0").write_text("v1\n{}")
    journal = CheckpointLocation(str(place)).journal()
    run = {
        "driver": "d",
        "settings": "s",
        "sink": "x",
        "location": str(place),
        "prefix": "p",
        "identity": {},
        "queryId": "q",
    }
    journal.append(EntryKind.RUN, run, lambda ledger: None)
    for batch in (0, 1):
        (place / "offsets" / str(batch)).write_text(f"v1\n{{}}\nline {batch}")
        parts = [{"partition": p, "handle": HANDLE, "rows": 5, "bytes": 1, "digest": "1:0"} for p in (0, 1)]
        sources = sources_digest([f"line {batch}"])
        body = {"run": 1, "batch": batch, "sources": sources, "writers": 2, "covers": [], "parts": parts}
        decided = journal.append(EntryKind.DECIDED, body, lambda ledger: None)
        if batch == 0:
            journal.append(EntryKind.SETTLED, {"checkpoint": decided.number, "run": 1}, lambda ledger: None)
    return place


def ledger(place: Path) -> Ledger:
    return CheckpointLocation(str(place)).journal().load()


def test_a_moved_location_is_claimed_with_all_that_is_unsettled(location: Path, tmp_path: Path) -> None:
    moved = location.rename(tmp_path / "moved")
    assert main(["adopt", str(moved), "--claim", "--yes"]) == 0
    found = ledger(moved)
    assert (found.location, found.identity_suffix, found.accounted) == (str(moved), "", 1)
    assert len(found.known_handles()) == 2
    assert found.newest_run is not None
    assert found.newest_run.ended


def test_a_copy_gets_an_identity_and_no_handle_of_the_original(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", str(location), "--no-claim", "--yes"]) == 0
    found = ledger(location)
    assert len(found.identity_suffix) == 9
    assert found.originals == ["p"]
    assert found.known_handles() == []
    assert found.accounted == 0
    assert "the original commits it" in capsys.readouterr().out


def test_a_location_without_spark_logs_starts_again_and_says_what_is_doubled(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (location / "commits" / "0").unlink()
    assert main(["adopt", str(location), "--claim", "--yes"]) == 0
    assert ledger(location).accounted == -1
    said = capsys.readouterr().out
    assert "Micro-batches 0 to 1" in said
    assert "DOUBLED" in said
    assert "LOST" in said


def test_a_restored_journal_takes_sparks_word_for_what_it_lacks(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (location / "commits" / "7").write_text("v1\n{}")
    assert main(["adopt", str(location), "--claim", "--yes"]) == 1
    assert "commits/7 exists without its offsets/7" in capsys.readouterr().err
    (location / "offsets" / "7").write_text("v1\n{}\nline 7")
    assert main(["adopt", str(location), "--claim", "--yes"]) == 0
    assert ledger(location).accounted == 7


def test_resolve_lists_and_takes_each_decision(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", str(location)]) == 0
    assert "--checkpoint 4 --part 1/1" in capsys.readouterr().out
    chosen = ["--checkpoint", "4", "--part", "1/1", "--as", "accept-difference"]
    assert main(["resolve", str(location), *chosen, "--yes"]) == 1
    assert "may be committed: start the query" in capsys.readouterr().err
    verdict = {"checkpoint": 4, "run": 1, "parts": [{"batch": 1, "partition": 1, "handle": 0, "verdict": "lost"}]}
    journal = CheckpointLocation(str(location)).journal()
    journal.load()
    journal.append(EntryKind.VERDICT, verdict, lambda ledger: None)
    for part, decision in (("1/0", "accept-loss"), ("1/1", "accept-difference")):
        chosen = ["--checkpoint", "4", "--part", part, "--as", decision]
        assert main(["resolve", str(location), *chosen, "--yes"]) == 0
    found = ledger(location)
    assert found.part(1, 0).committed
    assert found.part(1, 1).lost
    assert found.part(1, 1).free


def append(place: Path, kind: str, batch: int, handles: list[dict[str, str] | None]) -> None:
    parts = [{"partition": p, "handle": h, "rows": 5, "bytes": 1, "digest": "1:0"} for p, h in enumerate(handles)]
    body = {"run": 1, "batch": batch, "sources": "s", "writers": 2, "covers": [], "parts": parts}
    CheckpointLocation(str(place)).journal().append(kind, body, lambda ledger: None)


def test_a_part_without_rows_is_nothing_to_resolve(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(location, EntryKind.DECIDED, 2, [None, HANDLE])
    assert main(["resolve", str(location)]) == 0
    shown = capsys.readouterr().out
    assert "--part 2/1" in shown
    assert "--part 2/0" not in shown


@pytest.mark.parametrize(("how", "said"), [("--claim", "and LOST"), ("--no-claim", "the copy does not")])
def test_what_is_prepared_behind_spark_is_not_dropped_in_silence(
    location: Path, capsys: pytest.CaptureFixture[str], how: str, said: str
) -> None:
    append(location, EntryKind.PREPARED, 2, [HANDLE])
    (location / "commits" / "3").write_text("v1\n{}")
    (location / "offsets" / "3").write_text("v1\n{}\nline 3")
    assert main(["adopt", str(location), how, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "Micro-batch 2 (5 rows) is prepared" in shown
    assert said in shown
    assert ledger(location).accounted == 3


def test_an_adoption_that_is_unlike_what_was_shown_is_refused(
    location: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(options: object) -> bool:
        append(location, EntryKind.PREPARED, 2, [HANDLE])
        return True

    monkeypatch.setattr("connector.cli._confirmed", busy)
    assert main(["adopt", str(location), "--claim"]) == 1
    assert "LOCATION_BUSY" in capsys.readouterr().err


def test_nothing_is_done_without_a_yes_a_journal_or_a_known_part(location: Path, tmp_path: Path) -> None:
    before = ledger(location)
    assert main(["adopt", str(location), "--claim"]) == 1
    assert main(["resolve", str(location), "--checkpoint", "9", "--part", "0/0", "--as", "accept-loss", "--yes"]) == 1
    assert main(["adopt", str(tmp_path), "--claim", "--yes"]) == 1
    assert json.dumps(ledger(location).to_json()) == json.dumps(before.to_json())
    with pytest.raises(SystemExit, match="2"):
        main(["adopt", str(location)])


def test_a_query_that_had_another_sink_so_far_is_adopted(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(location / "barrier")
    assert main(["adopt", str(location), "--claim", "--yes"]) == 0
    assert "the query had another sink so far" in capsys.readouterr().out
    assert ledger(location).accounted == 0
    assert main(["adopt", str(location / "nowhere"), "--claim", "--yes"]) == 1
    assert "NO_SPARK_METADATA" in capsys.readouterr().err
