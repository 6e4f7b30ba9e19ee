"""``barrier stop`` on locations made by hand, with the file sink."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations.stopping import Standing, end_run, standing
from connector.savepoints.manifest import read
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace, answer, dead_process
from transactional.entry import EntryKind

Capture = pytest.CaptureFixture[str]


def two_prepared(folder: Path, in_spark: bool = True, **run: Any) -> CliPlace:
    """Micro-batch 0 is a checkpoint, 1 and 2 are prepared."""
    place = CliPlace(folder)
    place.run(**{"process": dead_process(), **run})
    place.decided(0)
    place.prepared(1)
    place.prepared(2, in_spark=in_spark)
    return place


@pytest.mark.parametrize("in_spark", [True, False])
def test_what_a_dead_driver_has_prepared_is_committed_and_nothing_is_open(
    tmp_path: Path, capsys: Capture, in_spark: bool
) -> None:
    place = two_prepared(tmp_path, in_spark)
    (place.output / "pending" / "p~3~0~left").touch()  # of a task that was killed
    status, document, said = answer(capsys, "stop", str(place))
    assert (status, document["status"]) == (0, "done"), said
    assert (place.files("committed"), place.files("pending"), place.files("aborted")) == ([0, 1, 2], [], [3])
    ledger = place.ledger()
    newest = ledger.newest_run
    assert newest is not None
    assert (newest.ended, ledger.undecided(), ledger.unsettled()) == ("stopped", [], [])
    assert ledger.checkpoints[max(ledger.checkpoints)].reason == "STOP"
    assert newest.process == dead_process(), "it is still the driver's process that counts"
    status, document, _ = answer(capsys, "stop", str(place))
    assert (status, document["status"], place.ledger().position) == (0, "nothing to do", ledger.position)


def test_the_final_checkpoint_becomes_a_savepoint_where_it_was_asked_for(tmp_path: Path, capsys: Capture) -> None:
    place = two_prepared(tmp_path)
    status, document, said = answer(capsys, "stop", str(place), "--savepoint", str(tmp_path / "saved"))
    assert (status, document["savepoint"]) == (0, str(tmp_path / "saved")), said
    saved = read(str(tmp_path / "saved"))
    assert (saved.batch, saved.checkpoint) == (2, max(place.ledger().checkpoints))


@pytest.mark.parametrize(
    ("target", "condition"), [("saved", "LOCATION_NOT_EMPTY"), ("viewfs://name/orders", "NO_EXCLUSIVE_CREATE")]
)
def test_a_savepoint_that_can_t_be_made_is_refused_before_the_query_is_stopped(
    tmp_path: Path, capsys: Capture, target: str, condition: str
) -> None:
    place = two_prepared(tmp_path)
    (tmp_path / "saved" / "other").mkdir(parents=True)
    before = place.ledger()
    status, document, _ = answer(
        capsys, "stop", str(place), "--savepoint", target.replace("saved", f"{tmp_path}/saved")
    )
    assert (status, document["condition"]) == (1, condition)
    assert place.ledger() == before


def test_a_query_that_runs_is_asked_once_and_waited_for(tmp_path: Path, capsys: Capture) -> None:
    place = two_prepared(tmp_path, process=this_process())
    for _ in range(2):
        status, document, said = answer(capsys, "stop", str(place), "--timeout", "0")
        assert (status, document["status"]) == (5, "asked for")
        assert (document["prepared"], document["idle"]) == ([1, 2], True)
        assert "These micro-batches are prepared and wait for the final checkpoint: 1 to 2" in said
    ledger = place.ledger()
    assert ledger.stopping
    assert place.files("pending") == [1, 2], "the query commits them itself"
    assert ledger.position == 6


def test_an_idle_query_with_all_committed_is_told_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    place.decided(0)
    status, document, said = answer(capsys, "stop", str(place), "--timeout", "0")
    assert (status, document["status"], document["prepared"]) == (5, "asked for", [])
    assert "Everything is committed and no micro-batch is running, but the query has not ended" in said


def test_the_end_of_the_query_is_the_end_of_the_waiting(tmp_path: Path, capsys: Capture) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    place.decided(0)
    location = CheckpointLocation(str(place))

    def query() -> None:
        while not location.journal().load().stopping:
            pass
        assert end_run(location)

    thread = threading.Thread(target=query)
    thread.start()
    status, document, said = answer(capsys, "stop", str(place), "--timeout", "60")
    thread.join()
    assert (status, document["status"]) == (0, "done")
    assert "stopped: everything is committed" in said
    assert standing(location).stopped


def test_a_query_that_failed_and_whose_driver_lives_is_asked_and_told_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    place = two_prepared(tmp_path, process=this_process())
    place.append(EntryKind.ABORTED, {"run": 1, "batch": 3})
    status, document, said = answer(capsys, "stop", str(place), "--timeout", "0")
    assert (status, document["status"]) == (5, "asked for")
    assert "Run 1 failed (aborted) before its final checkpoint, but its driver is still alive" in said
    assert place.ledger().stop_asked, "for who keeps it up"


def test_a_query_that_is_started_again_while_it_is_waited_for_is_asked_again(tmp_path: Path, capsys: Capture) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    place.decided(0)
    location = CheckpointLocation(str(place))

    def again() -> None:
        while not place.ledger().stopping:
            pass
        second = place.run(process=this_process(), driver="another")
        while place.ledger().stop != second:
            pass
        assert end_run(location)

    thread = threading.Thread(target=again)
    thread.start()
    assert answer(capsys, "stop", str(place), "--timeout", "60")[0] == 0
    thread.join()


def test_a_stop_that_waits_while_the_query_is_moved_away_says_so(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    place.decided(0)
    looks: list[Standing] = []

    def looked(location: CheckpointLocation) -> Standing:
        if len(looks) == 2:
            place.append(EntryKind.MOVED, {"begun": 0, "location": "/elsewhere", "savepoint": "s", "checkpoint": 1})
        looks.append(standing(location))
        return looks[-1]

    monkeypatch.setattr("connector.cli.stop.standing", looked)
    status, document, _ = answer(capsys, "stop", str(place), "--timeout", "60")
    assert (status, document["condition"], len(looks)) == (1, "LOCATION_MOVED_ON", 3)
    assert "/elsewhere" in document["message"]


def test_what_was_prepared_and_is_lost_is_read_again(tmp_path: Path, capsys: Capture) -> None:
    place = two_prepared(tmp_path)
    next((place.output / "pending").glob("p~1~*")).unlink()
    status, _, said = answer(capsys, "stop", str(place))
    assert status == 0
    assert "the query was rewound, and continues after micro-batch 0" in said
    assert (place.files("committed"), place.files("pending"), place.spark("offsets")) == ([0], [], [0])
    assert answer(capsys, "stop", str(place))[0] == 0


def test_a_rewind_that_is_not_done_is_finished(tmp_path: Path, capsys: Capture) -> None:
    place = two_prepared(tmp_path)
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": None, "process": {}})
    status, document, _ = answer(capsys, "stop", str(place))
    assert (status, document["condition"]) == (1, "REWIND_UNKNOWN")
    assert answer(capsys, "stop", str(place), "--query-stopped")[0] == 0
    assert (place.ledger().rewinding, place.files("pending"), place.spark("offsets")) == (None, [], [0])


def test_secrets_that_are_missing_are_named(tmp_path: Path, capsys: Capture) -> None:
    setup = {"class": "integration.file_sink:FileSink", "options": {}, "schema": {"type": "struct", "fields": []}}
    place = CliPlace(tmp_path)
    place.run(process=dead_process(), setup={**setup, "hidden": ["some.password"]})
    place.decided(0)
    status, document, _ = answer(capsys, "stop", str(place))
    assert (status, document["condition"]) == (1, "MISSING_OPTION")
    assert "the sink had some.password: pass them with --options-file" in document["message"]
    given = ("--option", f"path={place.output}")
    assert answer(capsys, "stop", str(place), *given)[0] == 0


def test_where_nobody_ever_ran_there_is_nothing_to_stop(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "place").mkdir()
    status, document, _ = answer(capsys, "stop", str(tmp_path / "place"))
    assert (status, document["condition"]) == (1, "NO_JOURNAL")
