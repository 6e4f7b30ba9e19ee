"""`barrier stop` between two lives under `barrier run`, where the journal was away when the life began."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.cli import main
from connector.location.location import CheckpointLocation
from connector.operations import supervision
from connector.operations.stopping import Standing, standing
from tests.connector.cli_place import CliPlace, dead_process
from tests.connector.test_driver_program import Program, Watched, tell
from transactional.restart import FixedDelay, Restarts


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """A settled checkpoint, and a prepared micro-batch; the driver is dead."""
    found = CliPlace(tmp_path)
    found.run(process=dead_process(), driver="dead")
    found.decided(0)
    found.prepared(1)
    return found


def away_while_it_runs(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journals do not answer before the program waits for its next life."""

    def away(location: CheckpointLocation) -> Standing:
        if program.told()["state"] in ("starting", "running"):
            raise OSError("no route to host")
        return standing(location)

    monkeypatch.setattr(supervision, "standing", away)


class Stopping(Watched):
    """Somebody stops queries while the restart after a life is waited for."""

    def __init__(self, program: Program, life: int, *places: CliPlace) -> None:
        super().__init__()
        self.program, self.life, self.places = program, life, list(places)
        self.answers: list[int] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if (self.program.started(), self.program.told()["state"]) == (self.life, "waiting"):
            self.answers += [main(["stop", str(place)]) for place in self.places]
            self.places = []


def test_a_stop_between_two_lives_is_obeyed_though_the_journal_was_away_when_the_life_began(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path, f"{tell(place)}\nif number < 3: raise ValueError(number)")
    away_while_it_runs(program, monkeypatch)
    clock = Stopping(program, 1, place)
    assert program.keeper(FixedDelay(9, 30), clock).run() is None
    assert (clock.answers, program.started()) == ([0], 1)
    assert standing(CheckpointLocation(str(place))).stopped


def test_a_stop_is_obeyed_for_each_query_though_the_others_go_on_for_a_while(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second").mkdir()
    second = CliPlace(tmp_path / "second")
    second.run(process=dead_process())
    second.decided(0)
    program = Program(tmp_path, f"{tell(place)}\n{tell(second)}\nif number < 3: raise ValueError(number)")
    away_while_it_runs(program, monkeypatch)
    clock = Stopping(program, 1, second, place)
    assert program.keeper(FixedDelay(9, 30), clock).run() is None
    assert (clock.answers, program.started()) == ([0, 0], 1)


@pytest.mark.parametrize("began", ["in this life", "yesterday"])
def test_a_stop_that_was_done_before_the_journal_answered_counts_where_it_ended_a_run_of_ours(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """Of a driver that has no run in the journal nobody can tell: it is started again."""
    assert main(["stop", str(place)]) == 0
    driver = "dead" if began == "in this life" else "of today"
    program = Program(tmp_path, f"{tell(place, driver)}\nif number < 3: raise ValueError(number)")
    away_while_it_runs(program, monkeypatch)
    assert program.keeper(FixedDelay(9, 30), Watched()).run() is None
    assert program.started() == (1 if began == "in this life" else 3)


@pytest.mark.slow
def test_what_was_noted_for_an_earlier_life_counts_for_no_later_one(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two queries one is stopped between two lives, the other after the next, at whose begin the journals were away."""
    (tmp_path / "second").mkdir()
    second = CliPlace(tmp_path / "second")
    second.run(process=dead_process())
    second.decided(0)
    program = Program(tmp_path, f"{tell(place)}\n{tell(second)}\nif number < 4: raise ValueError(number)")
    lives: list[int] = []

    def began(_: Restarts) -> None:
        lives.append(program.started())

    def away(location: CheckpointLocation) -> Standing:
        if len(lives) == 2 and program.told()["state"] == "waiting" and program.started() == 1:
            raise OSError("no route to host")
        return standing(location)

    monkeypatch.setattr(Restarts, "began", began)
    monkeypatch.setattr(supervision, "standing", away)
    clocks = Stopping(program, 1, place), Stopping(program, 2, second)

    class Both(Watched):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            for clock in clocks:
                clock.sleep(0)

    assert program.keeper(FixedDelay(9, 30), Both()).run() is None
    assert ([clock.answers for clock in clocks], program.started()) == ([[0], [0]], 4)
