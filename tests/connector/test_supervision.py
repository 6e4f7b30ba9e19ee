"""The restart loop of a query: what is started again, how often, and what is said and journalled about it. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connector.cli import main
from connector.location.location import CheckpointLocation
from connector.operations import supervision
from connector.operations.stopping import Standing, end_run, request_stop, standing
from connector.operations.supervision import Supervision
from connector.spark.process import this_process
from tests.connector.cli_place import CliPlace, dead_process
from transactional.errors import (
    FencedError,
    OptionError,
    QueryStoppedError,
    ReplayMismatchError,
    RewindRequiredError,
    StoreError,
    TwoPhaseCommitError,
)
from transactional.failure import Failure, failure_of
from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from transactional.testing import FakeClock

Ends = Callable[[int], Exception | None]


class KeptUp(FakeClock):
    """A query that is kept up, and its clock. `ends` says how each life ends, from the first on: well, or with an error.

    ``while_waiting`` is called whenever the loop sleeps before the next life.
    """

    def __init__(self, place: CliPlace, strategy: RestartStrategy, ends: Ends, single_driver: bool = False) -> None:
        super().__init__()
        self.lives = 0
        self.driver: str | None = None
        self.waits = False
        self.said: list[str] = []
        self.while_waiting: Callable[[], object] = lambda: None
        self.location = CheckpointLocation(str(place))
        self._ends = ends
        self.loop = Supervision(
            "supervise", strategy, {}, self.said.append, single_driver, clock=self, chance=lambda: 0.5
        )

    def run(self) -> Failure | None:
        return self.loop.run(self._live)

    def _live(self) -> Failure | None:
        self.waits = False
        self.lives += 1
        self.loop.meet(self.location, self.driver)
        problem = self._ends(self.lives)
        self.waits = problem is not None
        return None if problem is None else failure_of(problem)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.waits:
            self.while_waiting()


def fails(times: int) -> Ends:
    """So many lives end with an error."""
    return lambda life: ValueError(f"failure {life}") if life <= times else None


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """A settled checkpoint, and a prepared micro-batch; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process(), driver="dead")
    found.decided(0)
    found.prepared(1)
    return found


@pytest.mark.parametrize(
    ("strategy", "restarts"),
    [(NoRestart(), 0), (FixedDelay(2, 30), 2), (FailureRate(3, 3600, 5), 3), (FixedDelay(0, 1), 0)],
    ids=str,
)
def test_a_query_that_always_fails_is_started_as_often_as_its_strategy_says(
    place: CliPlace, strategy: RestartStrategy, restarts: int
) -> None:
    kept = KeptUp(place, strategy, fails(99))
    failure = kept.run()
    assert failure is not None
    assert f"failure {restarts + 1}" in failure.text
    assert kept.lives == restarts + 1
    assert f"the restart strategy allows no more restarts, after {restarts} restarts" in kept.said[-1]


def test_delays_between_lives_are_those_of_the_strategy(place: CliPlace) -> None:
    kept = KeptUp(place, ExponentialDelay(10, 50, 2, 1e9, 0), fails(4))
    assert kept.run() is None
    delays = [said.split(" s:")[0].split("in ")[1] for said in kept.said]
    assert (kept.lives, delays) == (5, ["10.0", "20.0", "40.0", "50.0"])


@pytest.mark.parametrize(
    "error",
    [
        OptionError("UNKNOWN_OPTION", "no such option"),
        StoreError("MISSING_RIGHT", "no right"),
        ReplayMismatchError("REPLAY_DIFFERS", "other rows"),
    ],
    ids=lambda error: error.condition,
)
def test_what_no_restart_fixes_is_not_started_again(place: CliPlace, error: TwoPhaseCommitError) -> None:
    kept = KeptUp(place, FixedDelay(9, 0), lambda _: error)
    assert kept.run() is not None
    assert kept.lives == 1
    assert "a restart can't help" in kept.said[-1]


@pytest.mark.parametrize("error", [None, QueryStoppedError("STOP_REQUESTED", "by its journal")], ids=["well", "asked"])
def test_a_query_that_ends_well_or_as_it_was_asked_to_leaves_nothing_prepared(
    place: CliPlace, error: Exception | None
) -> None:
    assert KeptUp(place, FixedDelay(9, 0), lambda _: error).run() is None
    assert (place.files("committed"), place.files("pending")) == ([0, 1], [])


def test_a_rewind_that_a_query_asked_for_is_done_between_two_lives_and_each_restart_leaves_its_reason(
    place: CliPlace,
) -> None:
    place.prepared(2, in_spark=False)
    next((place.output / "pending").glob("p~1~*")).unlink()
    lost = RewindRequiredError("PREPARED_LOST", "micro-batch 1 is lost")
    kept = KeptUp(place, FixedDelay(3, 0), lambda life: lost if life == 1 else None)
    assert kept.run() is None
    assert (kept.lives, place.spark("offsets"), place.files("pending")) == (2, [0], [])
    assert f"{place}: the query was rewound, and continues after micro-batch 0" in kept.said
    [restart] = place.ledger().restarts
    assert (restart.by, restart.number, restart.condition, restart.rewound) == ("supervise", 1, "PREPARED_LOST", True)


@pytest.mark.parametrize("single_driver", [False, True])
def test_a_rewind_after_a_container_that_is_gone_is_done_where_nothing_else_starts_the_query(
    place: CliPlace, single_driver: bool
) -> None:
    place.run(driver="the former", process={**this_process(), "namespace": "pid:[4026530001]"})
    place.prepared(2, in_spark=False)
    next((place.output / "pending").glob("p~1~*")).unlink()
    lost = RewindRequiredError("PREPARED_LOST", "lost")
    kept = KeptUp(place, FixedDelay(5, 0), lambda life: lost if life == 1 else None, single_driver)
    if single_driver:
        assert kept.run() is None
        assert f"{place}: the query was rewound" in kept.said[1]
    else:
        with pytest.raises(FencedError, match="single_driver=True"):
            kept.run()
    assert kept.lives == 1 + single_driver


def test_a_wish_to_stop_asks_no_run_of_another_driver(tmp_path: Path) -> None:
    """A rolling update: the new pod has taken the query over, and the old one gets SIGTERM."""
    place = CliPlace(tmp_path)
    place.run(process=dead_process(), driver="old pod")
    place.decided(0)
    kept = KeptUp(place, FixedDelay(9, 0), lambda _: None)
    kept.driver = "old pod"
    new = place.run(process=this_process(), driver="new pod")
    kept.loop.meet(kept.location, "old pod")
    kept.loop.wish.ask()
    assert kept.run() is None
    run = place.ledger().newest_run
    assert run is not None
    assert (run.token, run.ended, place.ledger().stop_asked) == (new, None, False)
    assert "has taken over the query" in kept.said[-1]


def test_a_stop_before_the_first_planning_says_that_it_knows_of_no_query(place: CliPlace) -> None:
    kept = KeptUp(place, FixedDelay(9, 0), fails(99))
    kept.loop.wish.ask()
    assert kept.run() is None
    assert (kept.lives, kept.said[-1][:20]) == (0, "no query was started")


# -- `barrier stop` between two lives ---------------------------------------------------------------------------------


def test_a_query_that_is_stopped_between_two_lives_stays_so_and_yesterday_s_stop_counts_for_nothing(
    tmp_path: Path,
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dead_process())
    place.decided(0)
    location = CheckpointLocation(str(place))
    request_stop(location)
    assert end_run(location)
    place.prepared(1)
    kept = KeptUp(place, FixedDelay(9, 30), fails(9))

    def stop() -> None:
        if kept.lives == 2 and not standing(location).stopped:
            main(["stop", str(place)])

    kept.while_waiting = stop
    assert kept.run() is None
    assert kept.lives == 2


def away_while(monkeypatch: pytest.MonkeyPatch, away: Callable[[], bool]) -> None:
    """Let the journal not answer sometimes."""

    def look(location: CheckpointLocation) -> Standing:
        if away():
            raise OSError("no route to host")
        return standing(location)

    monkeypatch.setattr(supervision, "standing", look)


def test_a_stop_between_two_lives_is_obeyed_though_the_journal_was_away_when_the_life_began(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptUp(place, FixedDelay(9, 30), fails(3))
    away_while(monkeypatch, lambda: not kept.waits)
    answers: list[int] = []

    def stop() -> None:
        if not answers:
            answers.append(main(["stop", str(place)]))

    kept.while_waiting = stop
    failure = kept.run()
    assert (failure, answers, kept.lives) == (None, [0], 1)


@pytest.mark.parametrize("began", ["in this life", "yesterday"])
def test_a_stop_that_was_done_before_the_journal_answered_counts_where_it_ended_a_run_of_ours(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """A driver without a run in the journal can't know whose stop it was: it is started again."""
    assert main(["stop", str(place)]) == 0
    kept = KeptUp(place, FixedDelay(9, 30), fails(2))
    kept.driver = "dead" if began == "in this life" else "of today"
    away_while(monkeypatch, lambda: kept.lives > 0 and not kept.waits and kept.lives < 3)
    assert kept.run() is None
    assert kept.lives == (1 if began == "in this life" else 3)


def test_a_journal_that_does_not_answer_between_two_lives_is_asked_seldom_and_said_once(
    place: CliPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, looks = KeptUp(place, FixedDelay(1, 20), fails(1)), list[float]()

    def away() -> bool:
        if not kept.waits:
            return False
        looks.append(kept.monotonic())
        return len(looks) <= 10

    away_while(monkeypatch, away)
    assert kept.run() is None
    assert 15 <= len(looks) <= 22
    assert sum("can't be read now: no route to host" in said for said in kept.said) == 1
