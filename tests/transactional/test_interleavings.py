"""Drivers interleaved at random keep every invariant, and every planted bug is found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.transactional.interleaving import LAST, FoldingJournal, Parts, Violation, World, run
from tests.transactional.planted import AbortIgnoresTheDecision, CommitsBeforeTheDecision
from transactional.checkpoint import Acknowledgement
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.journal import Journal, MemoryJournalStore
from transactional.ownership import newest_run
from transactional.recovery import QueryView
from transactional.settlement import Settlement
from transactional.sink import TwoPhaseCommitSink

SEARCHED = 1500  # schedules within which each planted bug has to be found; most take a few dozen


pytestmark = pytest.mark.usefixtures("quiet")


# All bytes 0: one driver, undisturbed. 140: another one's turn. 236: a driver starts. 230: a transaction expires.
@given(schedule=st.binary(min_size=40, max_size=300), spans=st.booleans())
@example(schedule=bytes(200), spans=False)
@example(schedule=bytes(200), spans=True)
@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_in_every_interleaving_each_part_is_committed_once(schedule: bytes, spans: bool) -> None:
    run(schedule, spans)


@pytest.mark.parametrize(("seed", "spans"), [(3305, True)], ids=["two plannings of one driver void one micro-batch"])
def test_a_schedule_that_once_broke_an_invariant_does_not_any_more(seed: int, spans: bool) -> None:
    run(schedule_of(seed), spans)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("spans", [False, True], ids=["single", "spans"])
def test_in_very_many_interleavings_each_part_is_committed_once(spans: bool) -> None:
    for seed in range(8_000):
        run(schedule_of(seed), spans)


def schedule_of(seed: int) -> bytes:
    chance = random.Random(seed)
    return chance.randbytes(chance.choice([60, 150, 300]))


def loss_of(seed: int) -> bytes:
    """One driver alone up to its decision; a transaction expires; another driver takes turns with it."""
    chance = random.Random(seed)
    return bytes(
        [*bytes(chance.randrange(18, 21)), chance.choice([230, 231]), 232, *(chance.randrange(200) for _ in range(60))]
    )


def stale_of(seed: int) -> bytes:
    """A prepared micro-batch's driver dies; the next one's planning is about to look when its query starts again.

    The new start moves on; a transaction expires; the old planning takes a few steps more.
    """
    chance = random.Random(seed)
    dies, looks, moves_on = chance.randrange(48, 51), chance.randrange(10, 13), chance.randrange(26, 36)
    expires, goes_on = 222 + chance.randrange(10), chance.randrange(1, 4)
    return bytes(
        [*bytes(dies), 200, *bytes(looks), 240, 141, *bytes(moves_on), expires, 140, *bytes(goes_on), 141, *bytes(40)]
    )


def test_a_planning_that_outlives_its_query_loses_nothing() -> None:
    for seed in range(100):
        run(stale_of(seed), spans=True)


def test_one_undisturbed_driver_commits_all_its_micro_batches() -> None:
    world = run(bytes(200))
    assert world.commits == set(range(LAST + 1))
    assert not any("ended by" in step for step in world.trace)


@pytest.mark.matrix
def test_the_schedules_reach_what_they_should() -> None:
    seen: dict[str, int] = {}
    wanted = (
        " decided ",
        " prepared ",
        " void ",
        " verdict ",
        " repair ",
        " aborted ",
        " fenced ",
        " snapshot ",
        "sweep",
    )
    for seed in range(150):
        for step in run(schedule_of(seed), spans=seed % 2 == 1).trace:
            for word in wanted:
                seen[word] = seen.get(word, 0) + (word in step)
    assert {word for word in wanted if seen[word] < 3} == set()


# -- planted bugs -------------------------------------------------------------------------------------------------------


class AbortIsNotJournalled(CheckpointCoordinator):
    def abort(self, messages: Sequence[Acknowledgement | None], batch: int) -> None:
        ledger = self._journal.load()
        if batch not in ledger.batches:
            self._sink.abort([handle for m in messages if m is not None for handle in m.handles])


class CommitAsksNobody(CheckpointCoordinator):
    """It takes whatever run is the newest for its own."""

    def _token(self, *args: Any) -> int:
        return newest_run(self._journal.ledger).token


class RenamingStore(MemoryJournalStore):
    def create(self, name: str, data: bytes) -> bool:
        self.files[name] = data
        return True


class NeverListsAfterACreate(FoldingJournal):
    def _check_not_folded(self, number: int) -> None:
        pass


class SettlesWithoutProof(Settlement):
    """A decision is void as soon as one handle is lost; the living are left to the sweep."""

    def settle(self, identifier: int, token: int) -> None:
        sink = self._sink
        sink.abort, former = (lambda handles: []), sink.abort  # type: ignore[method-assign]
        try:
            super().settle(identifier, token)
        finally:
            sink.abort = former  # type: ignore[method-assign]


class VoidsWithoutProof(CheckpointCoordinator):
    def __init__(
        self, journal: Journal, sink: TwoPhaseCommitSink[Any, Any], settings: RunSettings, view: QueryView, **more: Any
    ) -> None:
        super().__init__(journal, sink, settings, view, **more)
        self._session.settlement = SettlesWithoutProof(journal, sink, view.queryId, settings.prefix, view.batch)


PLANTED = {
    "commit before the decision": Parts(coordinator=CommitsBeforeTheDecision),
    "abort that ignores the decision": Parts(coordinator=AbortIgnoresTheDecision),
    "abort that is not journalled": Parts(coordinator=AbortIsNotJournalled),
    "commit that asks nobody": Parts(coordinator=CommitAsksNobody),
    "decision by rename": Parts(store=RenamingStore),
    "no listing after a create": Parts(journal=NeverListsAfterACreate),
    "void without proof": Parts(coordinator=VoidsWithoutProof),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    make = loss_of if bug == "void without proof" else schedule_of
    schedules = map(make, range(SEARCHED))
    assert any(violates(schedule, PLANTED[bug]) for schedule in schedules), f"no schedule shows: {bug}"


def violates(schedule: bytes, parts: Parts) -> bool:
    try:
        run(schedule, parts=parts)
    except Violation:
        return True
    return False


def test_a_world_ends_its_threads() -> None:
    world = World()
    world.start()
    world.play(bytes(20))
    assert all(actor.over for actor in world.actors)
