"""The ways out, on locations made by hand."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connector.cli import main
from connector.cli.report import EXIT_STATUS, Report, Status
from connector.location.location import CheckpointLocation
from connector.spark.batch_writer import WHOSE
from tests.connector.cli_place import answer
from tests.transactional.bodies import fact_of, lines, recorded, run_body, settled
from transactional.barrier import sources_digest
from transactional.entry import EntryKind
from transactional.errors.catalogue import catalogue
from transactional.ledger import Ledger

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
    run = run_body(location=str(place))
    journal.append(fact_of(EntryKind.RUN, run), lambda ledger: None)
    for batch in (0, 1):
        (place / "offsets" / str(batch)).write_text(f"v1\n{{}}\nline {batch}")
        parts = [{"partition": p, "handle": HANDLE, "rows": 5, "bytes": 1, "digest": "1:0"} for p in (0, 1)]
        sources = sources_digest(lines(f"line {batch}"))
        body = recorded(batch, parts, covers=[], sources=sources)
        decided = journal.append(fact_of(EntryKind.DECIDED, body), lambda ledger: None)
        if batch == 0:
            journal.append(fact_of(EntryKind.SETTLED, settled(decided.number)), lambda ledger: None)
    return place


def ledger(place: Path) -> Ledger:
    return CheckpointLocation(str(place)).journal().load()


def test_a_moved_location_is_claimed_with_all_that_is_unsettled(location: Path, tmp_path: Path) -> None:
    moved = location.rename(tmp_path / "moved")
    assert main(["restore", "--as-is", str(moved), "--claim", "--yes"]) == 0
    found = ledger(moved)
    assert (found.location, found.identity_suffix, found.accounted) == (str(moved), "", 1)
    assert len(found.known_handles()) == 2
    assert found.newest_run is not None
    assert found.newest_run.ended


def test_a_copy_gets_an_identity_and_no_handle_of_the_original(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restore", "--as-is", str(location), "--no-claim", "--yes"]) == 0
    found = ledger(location)
    assert len(found.identity_suffix) == 9
    assert found.originals == ["p"]
    assert found.known_handles() == []
    assert found.accounted == 0
    assert "the original query commits its rows" in capsys.readouterr().out


def test_a_location_without_spark_logs_starts_again_and_says_what_is_doubled(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (location / "commits" / "0").unlink()
    assert main(["restore", "--as-is", str(location), "--claim", "--yes"]) == 0
    assert ledger(location).accounted == -1
    said = capsys.readouterr().out
    assert "Micro-batches 0 to 1" in said
    assert "DUPLICATED" in said
    assert "If the store is an older copy, rows that were committed after the copy was made are LOST" in said


def test_a_restored_journal_takes_sparks_word_for_what_it_lacks(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (location / "commits" / "7").write_text("v1\n{}")
    assert main(["restore", "--as-is", str(location), "--claim", "--yes"]) == 1
    assert "commits/7 exists without its offsets/7" in capsys.readouterr().err
    (location / "offsets" / "7").write_text("v1\n{}\nline 7")
    assert main(["restore", "--as-is", str(location), "--claim", "--yes"]) == 0
    assert ledger(location).accounted == 7


def test_resolve_lists_and_takes_each_decision(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", str(location)]) == 0
    assert "--checkpoint 4 --part 1/1" in capsys.readouterr().out
    chosen = ["--checkpoint", "4", "--part", "1/1", "--as", "accept-difference"]
    assert main(["resolve", str(location), *chosen, "--yes"]) == 1
    assert "the store shows the outcome, no decision is needed" in capsys.readouterr().err
    verdict = {"checkpoint": 4, "run": 1, "parts": [{"batch": 1, "partition": 1, "handle": 0, "verdict": "lost"}]}
    journal = CheckpointLocation(str(location)).journal()
    journal.load()
    journal.append(fact_of(EntryKind.VERDICT, verdict), lambda ledger: None)
    for part, decision in (("1/0", "accept-loss"), ("1/1", "accept-difference")):
        chosen = ["--checkpoint", "4", "--part", part, "--as", decision, "--unchecked"]
        assert main(["resolve", str(location), *chosen, "--yes"]) == 0
    found = ledger(location)
    assert found.part(1, 0).committed
    assert found.part(1, 1).lost
    assert found.part(1, 1).free


def test_a_decision_about_a_journal_that_has_gone_on_meanwhile_is_not_recorded(
    location: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was shown, and said yes to, need not be so any more."""

    def confirm(report: Report, yes: bool) -> None:
        journal = CheckpointLocation(str(location)).journal()
        journal.load()
        journal.append(fact_of(EntryKind.REQUEST, {"what": "checkpoint"}), lambda ledger: None)

    monkeypatch.setattr(Report, "confirm", confirm)
    chosen = ["--checkpoint", "4", "--part", "1/0", "--as", "accept-loss", "--unchecked"]
    assert main(["resolve", str(location), *chosen, "--yes"]) == 1
    assert "LOCATION_BUSY" in capsys.readouterr().err
    assert ledger(location).part(1, 0).open


def append(place: Path, kind: str, batch: int, handles: list[dict[str, str] | None]) -> None:
    parts = [{"partition": p, "handle": h, "rows": 5, "bytes": 1, "digest": "1:0"} for p, h in enumerate(handles)]
    covers: list[int] | None = [] if kind == EntryKind.DECIDED else None
    CheckpointLocation(str(place)).journal().append(fact_of(kind, recorded(batch, parts, covers)), lambda ledger: None)


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
    assert main(["restore", "--as-is", str(location), how, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "Micro-batch 2 (5 rows) is prepared" in shown
    assert said in shown
    assert ledger(location).accounted == 3


def test_an_adoption_that_is_unlike_what_was_shown_is_refused(
    location: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(report: object, yes: bool) -> None:
        append(location, EntryKind.PREPARED, 2, [HANDLE])

    monkeypatch.setattr(Report, "confirm", busy)
    assert main(["restore", "--as-is", str(location), "--claim"]) == 1
    assert "LOCATION_BUSY" in capsys.readouterr().err


def test_nothing_is_done_without_a_yes_a_journal_or_a_known_part(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ledger(location)
    chosen = ["--checkpoint", "4", "--part", "1/0", "--as", "accept-loss", "--unchecked"]
    assert main(["restore", "--as-is", str(location), "--claim"]) == 3
    assert main(["resolve", str(location), *chosen]) == 3
    assert capsys.readouterr().err.count("pass --yes") == 2
    assert main(["resolve", str(location), "--checkpoint", "9", "--part", "0/0", "--as", "accept-loss", "--yes"]) == 1
    refused = (
        "NOT_RESOLVABLE] This decision can't be applied to this part (one partition of one micro-batch): --checkpoint"
    )
    assert refused in capsys.readouterr().err
    assert main(["restore", "--as-is", str(tmp_path), "--claim", "--yes"]) == 1
    assert main(["resolve", str(tmp_path)]) == 1
    assert "[NO_JOURNAL]" in capsys.readouterr().err
    assert json.dumps(ledger(location).to_json()) == json.dumps(before.to_json())


@pytest.mark.parametrize(
    "arguments",
    [
        ["restore", "--as-is", "HERE"],
        ["restore", "--as-is", "HERE", "--claim", "--no-claim", "--yes"],
        ["restore", "HERE", "--claim", "--yes"],
        ["restore", "HERE", "HERE", "--as-is", "--claim", "--yes"],
        ["restore", "HERE", "--as-is", "--claim", "--force", "--yes"],
        ["restore", "HERE", "--as-is", "--claim", "--shuffle-partitions", "2", "--yes"],
        ["savepoint", "list", "HERE", "--verify"],
        ["resolve", "HERE", "--as", "accept-all"],
        ["checkpoints", "list", "HERE", "--limit", "0"],
        ["go"],
        ["restore", "--as-is"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage_has_a_status_of_its_own(location: Path, arguments: list[str]) -> None:
    assert main([str(location) if word == "HERE" else word for word in arguments]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["restore", "--as-is", "HERE", "--output", "json"], "--no-claim"),
        (["restore", "--as-is", "HERE", "--claim", "--no-claim", "--output=json"], "--no-claim"),
        (["checkpoints", "list", "--output", "json", "HERE", "--limit", "0"], "--limit"),
        (["checkpoints", "go", "--output", "json"], "go"),
        (["go", "--output", "json"], "go"),
        (["resolve", "--output", "json"], "LOCATION"),
        (["--such", "--output", "json"], "--such"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_told_in_the_document_too(
    location: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(location) if word == "HERE" else word for word in arguments]) == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["status"] == "wrong usage"
    assert said in document["message"]
    assert shown.err


@pytest.mark.parametrize("more", [[], ["--output", "json", "--output", "table"], ["--", "--output", "json"]])
def test_wrong_usage_leaves_standard_output_empty_for_people(
    location: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restore", "--as-is", str(location), *more]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("answered", "status"), [("y\n", 0), ("Yes\n", 0), ("n\n", 3), ("\n", 3), ("", 3)], ids=repr)
def test_an_answer_counts_where_somebody_is_there_to_ask(
    location: Path, monkeypatch: pytest.MonkeyPatch, answered: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.StringIO(answered)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    before = ledger(location).position
    assert main(["restore", "--as-is", str(location), "--claim"]) == status
    assert ledger(location).position == before + (status == 0)
    assert "Continue? [y/N]" in capsys.readouterr().err


def test_adopt_and_resolve_answer_in_one_document(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, listed, _ = answer(capsys, "resolve", str(location))
    assert (status, listed["status"], len(listed["parts"])) == (0, "done", 2)
    assert listed["parts"][0] == {
        "checkpoint": 4,
        "batch": 1,
        "partition": 0,
        "rows": 5,
        "state": "open",
        "handle": HANDLE,
    }
    chosen = ["--checkpoint", "4", "--part", "1/0", "--as", "accept-loss", "--unchecked"]
    status, refused, said = answer(capsys, "resolve", str(location), *chosen)
    assert (status, refused["status"], "pass --yes" in said) == (3, "not answered", True)
    status, done, said = answer(capsys, "resolve", str(location), *chosen, "--yes")
    assert (status, done["status"], done["decision"]) == (0, "done", "accept-loss")
    assert "LOST" in done["consequence"]
    status, accepted, said = answer(capsys, "restore", "--as-is", str(location), "--no-claim", "--yes")
    assert (status, accepted["status"], accepted["dropped"], accepted["committed"]) == (0, "done", True, 0)
    assert accepted["suffix"] == ledger(location).identity_suffix
    assert any("the original query commits its rows" in line for line in accepted["consequences"])
    assert "accepted: start the query" in said


def test_a_refusal_is_a_document_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, refused, said = answer(capsys, "checkpoints", "list", str(tmp_path))
    assert (status, refused["status"], refused["condition"]) == (1, "refused", "NO_JOURNAL")
    assert said.startswith("refused: [NO_JOURNAL]")


def test_an_error_that_is_none_of_ours_has_a_status_of_its_own(
    location: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object, name: str) -> bytes:
        raise ZeroDivisionError("not yours")

    monkeypatch.setattr("transactional.journal.LocalJournalStore.read", broken)
    status, failed, said = answer(capsys, "checkpoints", "show", str(location))
    assert (status, failed) == (4, {"status": "failed", "error": "ZeroDivisionError"})
    assert "not yours" in said


@pytest.mark.parametrize(
    "arguments",
    [[], ["checkpoints"], ["checkpoints", "list"], ["rewind"], ["restore", "--as-is"], ["resolve"], ["import-offsets"]],
)
def test_help_names_the_exit_status(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit status: 0 = done, or nothing to do; 1 = refused" in shown
    assert all(f"{status.value} " in EXIT_STATUS for status in Status)


def test_the_program_starts_as_a_module_and_without_spark(location: Path) -> None:
    program = "import sys; from connector.cli import main; main(sys.argv[1:]); print('pyspark' in sys.modules, file=sys.stderr)"
    for command in (["-m", "connector.cli"], ["-c", program]):
        asked = [sys.executable, *command, "checkpoints", "show", str(location), "--output", "json"]
        run = subprocess.run(asked, capture_output=True, text=True, check=True)
        assert json.loads(run.stdout)["checkpoint"]["id"] == 4
    assert run.stderr == "False\n"


def test_a_location_that_was_moved_in_the_middle_of_a_rewind_is_adopted_and_a_copy_is_not(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = CheckpointLocation(str(location)).journal()
    journal.load()
    journal.append(fact_of(EntryKind.REWIND_BEGUN, {"checkpoint": 2}), lambda ledger: None)
    moved = location.rename(tmp_path / "moved")
    assert main(["restore", "--as-is", str(moved), "--no-claim", "--yes"]) == 1
    assert "REWIND_NOT_DONE" in capsys.readouterr().err
    assert main(["restore", "--as-is", str(moved), "--claim", "--yes"]) == 0
    assert "accepted: finish the rewind (`barrier recover LOCATION`)" in capsys.readouterr().out
    assert ledger(moved).rewinding is not None


def test_a_rewind_that_finds_what_nobody_decided_committed_has_a_way_out(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [{"batch": 1, "partition": p, "handle": 0, "verdict": "committed"} for p in (0, 1)]
    journal = CheckpointLocation(str(location)).journal()
    journal.load()
    journal.append(fact_of(EntryKind.VERDICT, {"checkpoint": 4, "run": 1, "parts": verdicts}), lambda ledger: None)
    append(location, EntryKind.PREPARED, 2, [HANDLE])
    assert answer(capsys, "resolve", str(location))[1]["parts"] == []
    journal.load()
    journal.append(fact_of(EntryKind.REWIND_BEGUN, {"checkpoint": 2}), lambda ledger: None)
    (part,) = answer(capsys, "resolve", str(location))[1]["parts"]
    assert (part["checkpoint"], part["batch"], part["partition"]) == (None, 2, 0)
    assert main(["resolve", str(location), "--part", "2/0", "--as", "accept-loss", "--yes"]) == 1
    assert "this part belongs to no decided checkpoint" in capsys.readouterr().err
    assert main(["resolve", str(location), "--part", "2/0", "--as", "accept-duplicates", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "DUPLICATED" in said
    assert "finish the rewind" in said
    assert not ledger(location).part(2, 0).open


def test_a_query_that_had_another_sink_so_far_is_adopted(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(location / "barrier")
    assert main(["restore", "--as-is", str(location), "--claim", "--yes"]) == 0
    assert "the query used another sink before" in capsys.readouterr().out
    assert ledger(location).accounted == 0
    (location / "below").mkdir()
    assert main(["restore", "--as-is", str(location / "below"), "--claim", "--yes"]) == 1
    assert "LOGS_INCONSISTENT" in capsys.readouterr().err


def test_adopt_of_a_location_of_df_write_names_a_new_one(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said to restore files of Spark's that were never there; a store that is gone, or went back, sends people here."""
    (location / "barrier" / WHOSE).write_text("{}")
    (location / "metadata").unlink()
    status, _, said = answer(capsys, "restore", "--as-is", str(location), "--claim", "--yes")
    assert (status, "LOCATION_TAKEN" in said, "a new checkpointLocation" in said) == (1, True, True)
    for condition in ("STORE_GONE", "STORE_WENT_BACK"):
        assert "or a batch write (df.write), use a new checkpointLocation" in catalogue[condition].remedy
