"""Whatever happens to a query, the promise holds; one seed is one run; and every planted bug is found."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.__main__ import first_seed, search
from tests.simulation.choices import Choices, shrink
from tests.simulation.planted import PLANTED, UNSEEN, planted
from tests.simulation.product import IN_KAFKA, IN_MEMORY, play, violation

SECONDS = 120.0
"""For which `make test` plays seeds; `make simulate` goes on."""

RUNS = 500
"""Within which everything of `MET` is met."""

SEARCHED = 150  # runs within which a planted bug has to be found; most take a few

SEARCHED_IN_KAFKA = 20  # a run has more steps

RARE = {
    "a create request without an answer counts as failed": 125,
    "a COMMIT whose answer is lost counts as successful": 150,
    "a transactional id is reused while its transaction is prepared": 20,
    "a savepoint contains entries that are newer than its checkpoint": 150,
    "checkpoint numbers that an accepted table contains are used again": 125,
}
"""Bugs that one run in hundreds shows: where the search for them begins, as the schedules of this version are."""

MET = (
    *("request: late", "request: repeated", "request: answer lost", "request: all refused", "hook fails", "rival"),
    *(
        "kill a process",
        "kill a driver",
        "freeze a process",
        "freeze a driver",
        "start again",
        "recover",
        "ask to stop",
    ),
    *("broker: freeze", "broker: kill", "broker: elect", "broker: slow", "request: a broker that stands still"),
    *("database: restart", "database: fail over", "table: another writer", "table: the log is cleaned up"),
    *(
        "the query is moved",
        "a copy is made",
        "a query is rewound",
        "ended by LOCATION_MOVED_ON",
        "a location is adopted",
    ),
    *("ended by PREPARED_LOST", "ended by RUN_SUPERSEDED", "ended by STOP_REQUESTED", "ended by HANDLE_NOT_ALIVE"),
)
"""What these meet, so that their silence says something."""


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_whatever_happens_every_row_is_visible_once_in_order_and_every_reason_is_true() -> None:
    first, met = first_seed(), Counter[str]()
    runs, steps, world = search(first, SECONDS, met)
    while world is None and runs < RUNS and not all(met[what] for what in MET):  # a machine that does other work, too
        more, further, world = search(first + runs, SECONDS / 10, met)
        runs, steps = runs + more, steps + further
    assert world is None, f"python -m tests.simulation 1 --seed {first + runs - 1}: {world.broken}"
    assert not [what for what in MET if not met[what]], f"{runs} runs, {steps} steps, seeds from {first} on"


def test_one_seed_is_one_run_in_every_process() -> None:
    program = (
        "import logging; logging.disable(50); from tests.simulation.product import play; "
        "print(*[(w.scheduler.digest, w.scheduler.steps) for w in map(play, range(6))])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    mine = " ".join(str((world.scheduler.digest, world.scheduler.steps)) for world in map(play, range(6)))
    assert said == {f"{mine}\n".encode()}


def test_the_choices_of_a_run_are_the_run() -> None:
    world = play(3)
    assert play(world.choices.taken).scheduler.digest == world.scheduler.digest


def test_without_any_choice_one_driver_does_everything() -> None:
    world = play([])
    assert not world.broken
    assert not [what for what in world.seen if what.startswith("ended by")]


@pytest.mark.parametrize("bug", [bug for bug in PLANTED if bug not in UNSEEN])
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug) as setups:
        searched = SEARCHED_IN_KAFKA if setups is IN_KAFKA else SEARCHED
        first = RARE.get(bug, 0)
        assert any(play(seed, setups).broken for seed in range(first, first + searched)), f"no run shows: {bug}"


def test_what_is_found_is_made_small() -> None:
    with planted("rows are committed before the decision"):
        worlds = (play(seed, IN_MEMORY) for seed in range(SEARCHED))
        world = next(world for world in worlds if world.broken and len(world.choices.taken) > 500)
        kind, taken = violation(world.broken), world.choices.taken
        small = shrink(taken, lambda choices: violation(play(choices, IN_MEMORY).broken) == kind, tries=150)
        assert violation(play(small, IN_MEMORY).broken) == kind
        assert len(small) < len(taken) / 2


def test_what_is_left_out_is_what_does_not_matter() -> None:
    assert shrink([5, 0, 7, 1, 9, 2], lambda choices: 7 in choices and 9 in choices) == [7, 9]


def test_choices_that_have_run_out_disturb_nothing() -> None:
    choices = Choices([9, 1])
    assert [choices.below(4), choices.below(4), choices.below(4)] == [3, 1, 0]
    assert choices.taken == [3, 1, 0]
