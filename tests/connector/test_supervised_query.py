"""`supervise` over real journals, with a query that is none of Spark's, and a journal's store that is away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations import recovery, stopping, supervision
from connector.operations.supervised_query import StopRequest, supervise
from connector.spark import internals
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace
from transactional.entry import EntryKind
from transactional.errors import FencedError, JournalError, OptionError, StoreError
from transactional.restart import FixedDelay, NoRestart

DRIVER = "d"


class FakeQuery:
    """Runs until it is stopped, or fails at once."""

    id = "q"

    def __init__(self, error: Exception | None = None, ended: bool = False) -> None:
        self.stops = 0
        self._error = error
        self._end = threading.Event()
        if error is not None or ended:
            self._end.set()

    @property
    def isActive(self) -> bool:
        """As PySpark's."""
        return not self._end.is_set()

    def awaitTermination(self, seconds: float) -> bool:
        """As PySpark's."""
        ended = self._end.wait(seconds)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """As PySpark's."""
        self.stops += 1
        self._end.set()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliPlace:
    """Of a query of this process."""
    monkeypatch.setattr(internals, "driver_of", lambda query: DRIVER)
    monkeypatch.setattr(supervision, "JOURNAL_SECONDS", 0.1)
    found = CliPlace(tmp_path)
    found.run(process=this_process(), driver=DRIVER)
    found.decided(0)
    return found


def journal_fails(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    real = CheckpointLocation.journal

    def journal(self: CheckpointLocation) -> Any:
        if when():
            raise JournalError("JOURNAL_STORE_FAILED", "listing: connection reset")
        return real(self)

    monkeypatch.setattr(CheckpointLocation, "journal", journal)


def test_a_failure_is_mended_while_the_journal_s_store_is_away(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[FakeQuery] = []
    journal_fails(monkeypatch, lambda: len(queries) == 1)

    def start() -> Any:
        failed = JournalError("JOURNAL_STORE_FAILED", "writing 7.json failed: connection reset")
        queries.append(FakeQuery(None if queries else failed, ended=True))
        return queries[-1]

    supervise(start, FixedDelay(5, 0.1), location=str(place))
    assert len(queries) == 2


def test_a_look_into_the_journal_that_fails_starts_no_second_query(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    wish = StopRequest()
    queries: list[FakeQuery] = []

    def when() -> bool:
        nonlocal looks
        looks += 1
        if looks == 4:
            wish.ask()
        return looks in (2, 5)  # while it runs, and while it is stopped

    journal_fails(monkeypatch, when)

    def start() -> Any:
        queries.append(FakeQuery())
        return queries[-1]

    supervise(start, FixedDelay(5, 0.1), location=str(place), stop=wish)
    assert [query.stops for query in queries] == [1]
    run = place.ledger().newest_run
    assert run is not None
    assert run.ended == EntryKind.STOPPED


def test_a_query_is_stopped_before_it_is_ended_from_outside(place: CliPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.prepared(1, in_spark=False)  # a task is at work
    wish, query = StopRequest(), FakeQuery()
    ran: list[bool] = []
    real = recovery._commit

    def commit(*arguments: Any) -> None:
        ran.append(query.isActive)
        real(*arguments)

    monkeypatch.setattr(recovery, "_commit", commit)
    journal_fails(monkeypatch, lambda: wish.asked() and query.isActive)
    threading.Timer(0.3, wish.ask).start()
    supervise(lambda: query, NoRestart(), location=str(place), stop=wish, stop_timeout=1)  # type: ignore[arg-type, return-value]
    assert ran == [False]
    assert place.files("pending") == []


def test_a_location_that_can_not_be_found_leaves_no_query_that_nobody_keeps_up(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = FakeQuery()
    monkeypatch.setattr(internals, "checkpoint_location", lambda found: "viewfs://cluster/orders")
    with pytest.raises(OptionError, match=r"NO_EXCLUSIVE_CREATE.*For supervise, pass singleDriver in options"):
        supervise(lambda: query, FixedDelay(3, 0.1))  # type: ignore[arg-type, return-value]
    assert not query.isActive


def test_a_request_that_was_obeyed_does_not_stop_the_query_that_is_started_again(place: CliPlace) -> None:
    location = CheckpointLocation(str(place))
    stopping.request_stop(location)
    stopping.end_run(location)
    queries: list[FakeQuery] = []

    def start() -> Any:
        queries.append(FakeQuery(None if queries else StoreError("BROKERS_UNREACHABLE", "away"), ended=True))
        return queries[-1]

    supervise(start, FixedDelay(5, 1.0), location=str(place))
    assert len(queries) == 2


def test_a_query_whose_jvm_is_gone_is_not_started_in_this_program_again(
    place: CliPlace, caplog: pytest.LogCaptureFixture
) -> None:
    queries: list[FakeQuery] = []

    def start() -> Any:
        queries.append(FakeQuery(ConnectionRefusedError("Connection refused")))
        return queries[-1]

    with pytest.raises(ConnectionRefusedError):
        supervise(start, FixedDelay(5, 0.1), location=str(place))
    assert len(queries) == 1
    assert "start the program again" in caplog.text


@pytest.mark.parametrize("single_driver", [False, True])
def test_what_a_former_container_has_left_is_named_or_ended(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch, single_driver: bool
) -> None:
    """A stop that comes before the new driver's first planning."""
    monkeypatch.setattr(internals, "driver_of", lambda query: "a new driver")
    place.run(process={**this_process(), "namespace": "pid:[4026530001]"}, driver="the former")
    place.prepared(1)
    wish = StopRequest()
    wish.ask()
    more: dict[str, Any] = {"location": str(place), "stop": wish, "single_driver": single_driver}
    if single_driver:
        supervise(FakeQuery, NoRestart(), **more)  # type: ignore[arg-type]
    else:
        with pytest.raises(FencedError, match="DRIVER_UNKNOWN"):
            supervise(FakeQuery, NoRestart(), **more)  # type: ignore[arg-type]
    assert place.files("pending") == ([] if single_driver else [1])


@pytest.mark.parametrize(
    ("problem", "starts"), [(OptionError("UNKNOWN_OPTION", "no"), 1), (StoreError("BROKERS_UNREACHABLE", "away"), 2)]
)
def test_what_start_itself_raises_is_started_again_only_if_that_can_help(
    place: CliPlace, problem: Exception, starts: int
) -> None:
    calls: list[int] = []

    def start() -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise problem
        return FakeQuery(ended=True)

    with nullcontext() if starts == 2 else pytest.raises(OptionError):
        supervise(start, FixedDelay(5, 0.1), location=str(place))
    assert len(calls) == starts
