"""Starts of one query that take turns at every point keep every invariant, and every planted bug is found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.transactional.several_starts import play
from tests.transactional.state_machine import Violation
from transactional import ownership, settlement
from transactional.coordinator import coordinator, decision, planning

PLAYED = 600
PIECES = 4
VERY_MANY = 10_000
SEARCHED = 60  # seeds within which each planted bug has to be found


pytestmark = pytest.mark.usefixtures("quiet")


def play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        play(seed)


@pytest.mark.parametrize("piece", range(PIECES))
def test_whoever_takes_turns_each_row_is_visible_once(piece: int) -> None:
    play_all(range(piece, PLAYED, PIECES))


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_very_many_turns_each_row_is_visible_once() -> None:
    play_all(range(PLAYED, PLAYED + VERY_MANY))


def test_a_seed_is_always_the_same_play() -> None:
    assert play(7).trace == play(7).trace


# -- planted bugs -------------------------------------------------------------------------------------------------------


def owns(token: int, *unread: Any) -> ownership.Judge:
    """Ask only whether the run is the newest, which it is for each start of its driver."""
    return ownership.must_own(token)


def settles(token: int, checkpoint: int, unread: Any) -> ownership.Judge:
    """Ask only whether the checkpoint is unsettled."""
    return ownership.may_settle(token, checkpoint)


PLANTED = {
    "a checkpoint is settled while another start repairs it": (settlement, "may_finish", settles, 90),
    "an outdated planning restores the hooks": (planning, "may_restore", owns, 0),
    "a micro-batch is recorded twice": (decision, "may_record", owns, 0),
    "a recorded micro-batch is aborted": (coordinator, "may_abort", owns, 0),
    "an outdated planning finds rows that were committed undecided": (planning, "may_keep", owns, 300),
    "a run stops with micro-batches that are undecided": (planning, "may_stop", owns, 0),
}
"""The module, its judge, the judge that replaces it, and the seed where the search begins, as the plays are now."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    module, judge, replaced, first = PLANTED[bug]
    monkeypatch.setattr(module, judge, replaced)
    with pytest.raises(Violation, match=r"seed \d+\n.+\nd0: starts at 0, offset\n"):
        play_all(range(first, first + SEARCHED))
