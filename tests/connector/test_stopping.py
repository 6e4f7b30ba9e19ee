"""How a query is ended from outside, and whose it may be: journals on disk, no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.operations.stopping import request_stop, standing
from connector.operations.supervision import Supervision, record_restart
from connector.spark.process import this_process
from connector.spark.recorded_sink import fitting, recorded_run
from integration.file_sink import FileSink
from tests.connector.cli_place import CliPlace, dead_process
from transactional.entry import EntryKind
from transactional.errors import FencedError, JournalError, RetriableError
from transactional.failure import failure_of
from transactional.restart import NoRestart
from transactional.testing import FakeClock

OTHER_CONTAINER = {**this_process(), "namespace": "pid:[4026530001]", "host": "pod-a", "pid": 77}


class AwayTwice(FileSink):
    """Its store does not answer the first two times that something is looked for."""

    asked = 0

    def inspect(self, handles: Sequence[Any]) -> Any:
        type(self).asked += 1
        if self.asked < 3:
            raise RetriableError("NO_COORDINATOR", "no broker answers")
        return super().inspect(handles)


def prepared_place(folder: Path, sink: type[FileSink] = FileSink, **run: Any) -> CliPlace:
    place = CliPlace(folder, sink)
    place.run(**run)
    place.decided(0)
    place.prepared(1)
    return place


def end(
    place: CliPlace, drivers: Sequence[str] = (), single_driver: bool = False, said: list[str] | None = None
) -> list[str]:
    """What is said when it is ended."""
    said = [] if said is None else said
    ended = Supervision("test", NoRestart(), {}, said.append, single_driver, clock=FakeClock())
    for driver in drivers or (None,):
        ended.meet(CheckpointLocation(str(place)), driver)
    ended.wish.ask()
    ended.run(lambda: None)
    return said


def test_a_stop_where_the_query_was_moved_away_is_refused_at_once(tmp_path: Path) -> None:
    place = prepared_place(tmp_path)
    place.append(EntryKind.MOVED, {"begun": 0, "location": "/there", "savepoint": "s", "checkpoint": 2})
    with pytest.raises(FencedError, match="LOCATION_MOVED_ON"):
        request_stop(CheckpointLocation(str(place)))
    assert "the query was moved to another location" in end(place)[0]


def test_a_stop_is_asked_of_the_named_driver_s_run_only_and_not_counted_again_once_it_was_obeyed(
    tmp_path: Path,
) -> None:
    place = CliPlace(tmp_path)
    place.run(driver="new pod")
    location = CheckpointLocation(str(place))
    assert request_stop(location, "old pod") is None
    assert not place.ledger().stop_asked
    assert request_stop(location, "new pod") == 1
    assert standing(location).ledger.stop_asked
    place.append(EntryKind.STOPPED, {"run": 1})
    assert not standing(location).ledger.stop_asked


@pytest.mark.parametrize(
    ("run", "drivers"),
    [
        ({"driver": "ours", "process": OTHER_CONTAINER}, ["ours"]),
        ({"driver": "a dead one's"}, []),
        ({"driver": "another's", "process": {}}, []),
    ],
    ids=["ours", "dead", "single driver"],
)
def test_what_a_driver_of_ours_or_one_that_is_gone_has_left_is_ended(
    tmp_path: Path, run: dict[str, Any], drivers: list[str]
) -> None:
    place = prepared_place(tmp_path, **{"process": dead_process(), **run})
    assert end(place, drivers, single_driver=run["driver"] == "another's") == []
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


def test_a_run_of_another_host_is_not_touched_where_it_has_taken_over(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(driver="ours", process=dead_process())
    place.decided(0)
    new = place.run(driver="another's", process=OTHER_CONTAINER)
    place.prepared(1)
    assert "has taken over the query" in end(place, ["ours"])[0]
    run = place.ledger().newest_run
    assert run is not None
    assert (run.token, run.ended) == (new, None)


def test_what_a_driver_has_left_that_nobody_can_see_is_named_and_not_called_ended(tmp_path: Path) -> None:
    place = prepared_place(tmp_path, driver="a former container's", process=OTHER_CONTAINER)
    said: list[str] = []
    with pytest.raises(FencedError, match=r"host pod-a, pid 77.*--query-stopped .*single_driver=True") as found:
        end(place, said=said)
    assert found.value.condition == "DRIVER_UNKNOWN"
    assert "micro-batches [1] are prepared but not committed" in said[-2]
    assert "could not be ended" in said[-1]
    assert place.files("pending") == [1]


def test_an_end_is_tried_again_where_a_store_does_not_answer(tmp_path: Path) -> None:
    AwayTwice.asked = 0
    place = prepared_place(tmp_path, AwayTwice, process=dead_process())
    end(place)
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


def test_a_journal_that_does_not_answer_keeps_no_query_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(self: CheckpointLocation) -> None:
        raise JournalError("JOURNAL_STORE_FAILED", "connection reset")

    monkeypatch.setattr(CheckpointLocation, "journal", away)
    record_restart(CheckpointLocation(str(tmp_path)), "supervise", 1, 0.0, failure_of("it failed"), False)
    assert "connection reset" in caplog.text


def test_of_options_for_several_queries_each_sink_gets_its_own_secrets(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(setup={"class": "x:Y", "options": {}, "schema": {}, "hidden": ["kafka.sasl.password"]})
    given = {"kafka.sasl.password": "one", "Kafka.SSL.key.password": "other", "topic": "t"}
    assert fitting(recorded_run(place.ledger()), given) == {"kafka.sasl.password": "one", "topic": "t"}
