"""``barrier checkpoints list|show|trigger`` on locations made by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connector.cli import main
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace, answer, dead_process
from transactional.entry import EntryKind


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """Checkpoint 3 is settled; micro-batch 1 was declined and prepared, checkpoint 7 took it in and is not settled."""
    found = CliPlace(tmp_path)
    found.run(lifetime=900.0)
    found.decided(0, rows=3, output={"orders-0": 17, "orders-1": 4})
    found.prepared(1)
    declined = {"run": 1, "batch": 1, "reason": "HOOK_FAILED", "detail": "[HOOK_FAILED] the hook [red] raised"}
    found.append(EntryKind.DECLINED, declined)
    found.decided(2, settle=False)
    return found


def test_a_list_has_every_checkpoint_and_failure_in_order(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    status, document, said = answer(capsys, "checkpoints", "list", str(place))
    assert (status, document["status"], said) == (0, "done", "")
    told = [(each["id"], each["status"], each["batches"]) for each in document["checkpoints"]]
    assert told == [(2, "settled", [0]), (5, "declined", [1]), (6, "decided", [1, 2])]
    assert (document["total"], document["location"]) == (3, str(place))
    assert document["counts"] == {
        "triggered": 3,
        "completed": 1,
        "failed": 0,
        "declined": 1,
        "restored": 0,
        "restarts": 0,
    }
    first = document["checkpoints"][0]
    assert (first["rows"], first["handles"], first["bytes"]) == (3, 1, 24)
    assert (first["barrier"], first["prepared"], first["preparing_ms"]) == (1_000, 3_000, 2_000)
    assert first["committed"] >= first["decided"] > 1_700_000_000_000
    assert first["output"] == {"orders-0": 17, "orders-1": 4}


def test_a_list_for_people_says_the_same(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "list", str(place)]) == 0
    head, first, declined, newest = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["ID", "STATUS", "BATCHES"]
    assert first.startswith("2")
    assert re.search(r" 2\.0\d\d s +barrier", first), "how long from the barrier on, and why"
    assert "declined, subsumed by 6" in declined
    assert "hook failed" in declined
    assert re.search(r"decided +1 to 2", newest)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of xdist has a width of its own."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_list_is_read_on_a_terminal_of_80_columns(
    place: CliPlace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line a checkpoint; only what was declined takes two or three."""
    place.append(EntryKind.SETTLED, {"checkpoint": 6, "run": 1, "output": {}})
    for batch in range(3, 40):
        place.prepared(batch, rows=0)
    place.decided(40, rows=12_345)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["checkpoints", "list", str(place)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "STATUS", "BATCHES", "ROWS", "AT", "TOOK", "WHY"]
    assert max(map(len, lines)) <= 80
    numbered = [line for line in lines if line[0].isdigit()]
    assert [line.split()[:2] for line in numbered] == [
        ["2", "settled"],
        ["5", "declined,"],
        ["6", "settled"],
        ["45", "settled"],
    ]
    assert all(re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", line) for line in numbered), "no time is cut"
    assert len(lines) <= len(numbered) + 3


def test_a_list_can_be_short_and_of_failures_only(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    _, document, said = answer(capsys, "checkpoints", "list", str(place), "--limit", "2")
    assert [each["id"] for each in document["checkpoints"]] == [5, 6]
    assert "1 older checkpoints are not shown; to see them, pass --limit 3" in said
    _, document, _ = answer(capsys, "checkpoints", "list", str(place), "--failed")
    assert [each["id"] for each in document["checkpoints"]] == [5]
    assert document["checkpoints"][0]["detail"] == "[HOOK_FAILED] the hook [red] raised"


def test_the_newest_is_shown_with_how_the_query_stands(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.prepared(3, rows=4)
    _, document, _ = answer(capsys, "checkpoints", "show", str(place))
    assert document["checkpoint"]["id"] == 6
    stats = document["stats"]
    assert (stats["accounted"], stats["decided"], stats["completed"]["id"]) == (3, 2, 2)
    assert (stats["pending"]["batches"], stats["pending"]["rows"], stats["pending"]["lifetime"]) == ([3], 4, 900.0)
    assert 0 <= stats["pending"]["oldest_age"] < 60
    (unsettled,) = stats["unsettled"]
    assert (unsettled["checkpoint"], unsettled["open"], unsettled["lost"]) == (6, 2, 0)
    assert (stats["run"]["token"], stats["run"]["prefix"], stats["run"]["alive"]) == (1, "p", None)
    assert main(["checkpoints", "show", str(place)]) == 0
    shown = capsys.readouterr().out
    for told in (
        "Checkpoint 6: decided, not settled",
        "micro-batches 3: 4 rows in 1 transactions",
        "s old, timeout 900 s",
        "checkpoint 6, micro-batches 1 to 2, 10 rows: parts open 2, lost 0, committed 0",
        "may be running, but can't be seen from here",
    ):
        assert told in shown


def test_one_is_shown_by_its_number_or_refused(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "show", str(place), "2"]) == 0
    shown = capsys.readouterr().out
    assert "orders-0: 17, orders-1: 4" in shown
    assert "BARRIER: a barrier of the source" in shown
    assert main(["checkpoints", "show", str(place), "5"]) == 0
    assert "the hook [red] raised" in capsys.readouterr().out
    status, document, said = answer(capsys, "checkpoints", "show", str(place), "4")
    assert (status, document["condition"]) == (1, "UNKNOWN_CHECKPOINT")
    assert "checkpoint 4" in said


def test_a_settled_one_says_what_it_took_in(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.append(EntryKind.SETTLED, {"checkpoint": 6, "run": 1, "output": {"orders-0": 21}})
    assert main(["checkpoints", "show", str(place)]) == 0
    assert "Checkpoint 6: settled, subsumes micro-batches 1" in capsys.readouterr().out


def test_one_says_which_barriers_it_contains_and_who_has_waited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = CliPlace(tmp_path)
    place.run(lifetime=900.0)
    cut = {"lineage": {"s/1": 4, "q": 7}, "exact": True, "waited": {"a-marks": 5200}}
    number = place.decided(0, cut=cut)
    _, document, _ = answer(capsys, "checkpoints", "show", str(place), str(number))
    assert document["checkpoint"]["cut"] == cut
    assert main(["checkpoints", "show", str(place), str(number)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"barriers +q: 7, s/1: 4", said), said
    assert re.search(r"marks waited +a-marks 5\.2\d* s", said), said


def test_a_driver_is_seen_to_run_or_to_be_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    assert answer(capsys, "checkpoints", "show", str(place))[1]["stats"]["run"]["alive"] is True
    assert main(["checkpoints", "show", str(place)]) == 0
    assert f"pid {os.getpid()}: running" in capsys.readouterr().out
    place.run(process=dead_process())
    _, document, _ = answer(capsys, "checkpoints", "show", str(place))
    assert document["stats"]["run"]["alive"] is False
    assert document["checkpoint"] is None


def test_a_rewind_in_progress_is_shown(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    begun = place.append(EntryKind.REWIND_BEGUN, {"checkpoint": 2, "process": this_process()})
    _, document, _ = answer(capsys, "checkpoints", "show", str(place))
    rewind = document["stats"]["rewinding"]
    assert (rewind["token"], rewind["checkpoint"], rewind["alive"]) == (begun, 2, True)
    assert main(["checkpoints", "show", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "to checkpoint 2, started but not finished" in shown
    assert "ended (rewind begun)" in shown


def test_a_checkpoint_is_asked_for_once(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    status, document, said = answer(capsys, "checkpoints", "trigger", str(place))
    assert (status, document["status"], document["request"]) == (0, "done", place.ledger().position)
    assert "the next micro-batch closes a checkpoint" in said
    assert place.ledger().request == document["request"]
    status, again, _ = answer(capsys, "checkpoints", "trigger", str(place))
    assert (status, again["status"], again["request"]) == (0, "nothing to do", document["request"])
    assert place.ledger().position == document["request"]
    assert main(["checkpoints", "show", str(place)]) == 0
    assert "the next micro-batch closes a checkpoint" in capsys.readouterr().out


def test_no_checkpoint_is_asked_for_where_none_can_come(place: CliPlace, capsys: pytest.CaptureFixture[str]) -> None:
    (place.path / "barrier" / "batch-writer.json").write_text("{}")
    assert answer(capsys, "checkpoints", "trigger", str(place))[1]["condition"] == "LOCATION_TAKEN"
    (place.path / "barrier" / "batch-writer.json").unlink()
    for gone in ("its driver is gone", "stopped", "aborted"):
        token = place.run(process=dead_process() if gone == "its driver is gone" else this_process())
        if gone == "stopped":
            place.append(EntryKind.STOPPED, {"run": token})
        elif gone == "aborted":
            place.append(EntryKind.ABORTED, {"run": token, "batch": 3})
        before = place.ledger().position
        status, document, _ = answer(capsys, "checkpoints", "trigger", str(place))
        assert (status, document["condition"], place.ledger().position) == (1, "RUN_ENDED", before)
        why = gone if gone.startswith("its") else f"journal entry `{gone}`"
        assert f"Run {token} of the query has already ended ({why}). Start the query again." in document["message"]
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": 2})
    assert answer(capsys, "checkpoints", "trigger", str(place))[1]["condition"] == "REWIND_NOT_DONE"


def test_what_only_reads_changes_nothing(place: CliPlace) -> None:
    before = {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()}
    for command in ("list", "show"):
        assert main(["checkpoints", command, str(place)]) == 0
    assert {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("buffered", ["1", ""], ids=["line by line", "in one piece"])
@pytest.mark.parametrize("command", [("list",), ("show",), ("list", "--json")], ids=" ".join)
def test_a_reader_that_goes_away_as_head_does_gets_no_traceback(
    place: CliPlace, command: tuple[str, ...], buffered: str
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "connector.cli", "checkpoints", *command, str(place)],
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    finally:
        os.close(writes)
    assert (ran.returncode, ran.stderr) == (141, "")


def run_shell(command: str) -> subprocess.CompletedProcess[str]:
    line = f"set -o pipefail; {sys.executable} -m connector.cli {command}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


def test_without_a_standard_output_a_command_does_its_work(place: CliPlace) -> None:
    ran = run_shell(f"checkpoints list {place} >&-")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_refusal_stays_one_also_if_the_reader_has_gone(tmp_path: Path) -> None:
    ran = run_shell(f"checkpoints list {tmp_path / 'nowhere'} | true")
    assert ran.returncode == 1
    assert "LOCATION_NOT_A_FOLDER" in ran.stderr


def test_what_was_written_before_the_reader_went_is_a_success(place: CliPlace) -> None:
    ran = run_shell(f"checkpoints list {place} | grep -q STATUS")
    assert (ran.returncode, ran.stderr) == (0, "")
