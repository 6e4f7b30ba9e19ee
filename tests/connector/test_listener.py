"""What a listener is told, without Spark."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from connector import CheckpointListener
from connector.location.location import CheckpointLocation
from connector.operations.listener import Listening
from tests.connector.cli_place import CliPlace
from transactional.entry import EntryKind
from transactional.stats import CheckpointHistory, Restored


class Told(CheckpointListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        self.events.append(("completed", checkpoint.id))

    def onCheckpointFailed(self, checkpoint: CheckpointHistory) -> None:
        self.events.append(("failed", checkpoint.id))

    def onCheckpointDeclined(self, checkpoint: CheckpointHistory) -> None:
        self.events.append(("declined", checkpoint.id))

    def onCheckpointSubsumed(self, checkpoint: CheckpointHistory) -> None:
        self.events.append(("subsumed", checkpoint.id))

    def onRestored(self, restored: Restored) -> None:
        self.events.append(("restored", restored.run))

    def taken(self) -> list[tuple[str, int]]:
        """What was told since the last call."""
        found, self.events = self.events, []
        return found


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    return CliPlace(tmp_path)


def listening(place: CliPlace, told: CheckpointListener, since: int | None = None) -> Listening:
    return Listening(CheckpointLocation(str(place.path)), told, since)


def decline(place: CliPlace, batch: int) -> int:
    body = {"run": place.ledger().newest_run.token, "batch": batch, "reason": "HOOK_FAILED", "detail": "asleep"}  # type: ignore[union-attr]
    return place.append(EntryKind.DECLINED, body)


def test_each_event_is_told_once_and_in_order_however_much_happened_between_two_looks(place: CliPlace) -> None:
    told = Told()
    found = listening(place, told)
    assert found.poll() == 0
    run = place.run()
    first = place.decided(0)
    assert found.poll() == 1
    assert (told.taken(), found.poll()) == ([("completed", first)], 0)

    failed = place.append(EntryKind.ABORTED, {"run": run, "batch": 1})
    again = place.run(driver="e")
    second = place.decided(1)
    place.prepared(2)
    declined = decline(place, 2)
    third = place.decided(3)
    assert found.poll() == 6
    assert told.taken() == [
        ("failed", failed),
        ("restored", again),
        ("completed", second),
        ("declined", declined),
        ("subsumed", declined),
        ("completed", third),
    ]
    assert (found.poll(), told.taken()) == (0, [])


def test_a_decision_is_told_when_it_is_settled_also_by_a_recovery(place: CliPlace) -> None:
    place.run()
    decided = place.decided(0, settle=False)
    told = Told()
    found = listening(place, told)
    assert found.poll() == 0
    again = place.run(driver="e")
    assert (found.poll(), told.taken()) == (1, [("restored", again)])
    place.append(EntryKind.SETTLED, {"checkpoint": decided, "run": again, "output": {}})
    assert (found.poll(), told.taken()) == (1, [("completed", decided)])


def test_a_decision_that_becomes_void_has_failed(place: CliPlace) -> None:
    run = place.run()
    told = Told()
    found = listening(place, told)
    decided = place.decided(0, settle=False)
    assert found.poll() == 0
    void = place.append(EntryKind.VOID, {"checkpoint": decided, "run": run, "evidence": []})
    assert (found.poll(), told.taken()) == (1, [("failed", void)])


def test_what_was_there_before_is_told_only_where_it_is_asked_for(place: CliPlace) -> None:
    place.run()
    first, second = place.decided(0), place.decided(1)
    told = Told()
    assert listening(place, told).poll() == 0
    assert listening(place, told, since=0).poll() == 2
    assert told.taken() == [("completed", first), ("completed", second)]
    assert listening(place, told, since=first).poll() == 1
    assert told.taken() == [("completed", second)]


def test_an_exception_of_the_listener_is_logged_and_hurts_nothing(
    place: CliPlace, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Told):
        def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
            super().onCheckpointCompleted(checkpoint)
            raise RuntimeError("the pager is asleep")

    place.run()
    told = Broken()
    found = listening(place, told)
    first, second = place.decided(0), place.decided(1)
    with caplog.at_level(logging.ERROR):
        assert found.poll() == 2
    assert told.taken() == [("completed", first), ("completed", second)]
    assert caplog.text.count("RuntimeError: the pager is asleep") == 2
    assert "onCheckpointCompleted of" in caplog.text


def test_only_events_of_the_query_at_the_location_are_a_reason_to_look(
    place: CliPlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    found = listening(place, told)
    place.run()
    first = place.decided(0)
    found._look("another")
    assert told.taken() == []
    found._look("q")
    assert told.taken() == [("completed", first)]
    second = place.decided(1)

    def broken(self: object) -> Any:
        raise PermissionError("not yours")

    with monkeypatch.context() as patch:
        patch.setattr("transactional.journal.Journal.load", broken)
        found._look("q")
    assert "tries again at the next event" in caplog.text
    found._look("q")
    assert told.taken() == [("completed", second)]
    (place.path / "metadata").unlink()
    found._look("q")


def test_who_was_stopped_hears_nothing(place: CliPlace) -> None:
    told = Told()
    found = listening(place, told)
    found.stop()
    found.stop()
    place.run()
    place.decided(0)
    assert (found.poll(), told.taken()) == (0, [])


def test_a_listener_that_overrides_nothing_is_told_everything_all_the_same(place: CliPlace) -> None:
    found = listening(place, CheckpointListener())
    run = place.run()
    place.decided(0)
    place.append(EntryKind.ABORTED, {"run": run, "batch": 1})
    place.run(driver="e")
    place.prepared(1)
    decline(place, 1)
    place.decided(2)
    assert found.poll() == 6
