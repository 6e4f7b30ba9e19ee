"""Rows of a key become visible in the order of the input, whatever is lost, killed or rewound.

`World` holds every commit against that: no row of an input partition may be committed after a later one, nor lie behind
one in a store whose readers follow the order in which transactions were written (`World.ordered`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transactional.state_machine import Execution, Interference, Parts, Violation, World
from tests.transactional.state_stores import WatchedSink
from transactional import faults
from transactional.checkpoint import DecidedCheckpoint
from transactional.entry import EntryKind
from transactional.testing.memory import MemoryHandle

POINTS = (
    *("decision.written", "commit.one", "commit.done", "create", "abort.one", "recovery.settling", "repair.verdict"),
    *("repair.handles", "rewind.begun", "rewind.settled", "rewind.aborted", "rewind.offset-deleted", "rewind.deleted"),
)
ACTIONS = ("lose", "lose", "lose", "die", "raise", "rival", "again", "rewind")

troubles = st.lists(
    st.builds(
        Interference,
        point=st.sampled_from(POINTS),
        action=st.sampled_from(ACTIONS),
        skip=st.integers(0, 7),
        arg=st.integers(0, 1 << 12),
    ),
    max_size=3,
)

losses = st.builds(
    Interference,
    point=st.sampled_from(("decision.written", "commit.one")),
    action=st.just("lose"),
    arg=st.integers(1, (1 << 9) - 1),
)
"""Of the open transactions of a checkpoint that is being committed, those whose bit is set."""


def closing(world: World, batches: int) -> Execution:
    """A checkpoint over so many micro-batches is about to be committed."""
    execution = world.start()
    world.run(execution)
    if batches > 1:
        assert world.run(execution, batches - 1, 4, "none")
    world.offset(execution, 4)
    world.plan(execution)
    world.tasks(execution)
    return execution


@settings(max_examples=80, deadline=None)
@given(batches=st.integers(2, 4), lost=losses, troubles=troubles)
def test_rows_of_a_key_are_visible_in_the_order_of_the_input(
    batches: int, lost: Interference, troubles: list[Interference]
) -> None:
    world = World(max_batches=50, retained=10)
    with mock.patch.object(faults, "reach", world.reach):
        execution = closing(world, batches)
        for trouble in [lost, *troubles]:
            world.armed = replace(trouble)
            if execution.alive and execution.stage == "commit":
                world.commit(execution)
                world.done(execution)
            elif world.book.rewinding:
                world.resume()
            elif world.needs_rewind:
                world.rewind()
            else:
                execution = world.start()
                world.run(execution, 2, 3, "none")
        world.run_out()
    assert +world.visible == Counter(dict.fromkeys(range(world.read), 1))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(max_batches=50, retained=10)
    monkeypatch.setattr(faults, "reach", world.reach)
    return world


def test_behind_a_lost_part_nothing_is_committed_and_all_is_written_again_in_order(world: World) -> None:
    """Of micro-batches 1, 2, 3 the first is lost between the decision and the commit."""
    execution = closing(world, 3)
    [first] = [n for n in world.transactions.unfinished() if world.rows_of[n][0] == 3]
    world.armed = Interference("decision.written", "lose", arg=1 << world.transactions.unfinished().index(first))
    world.commit(execution)
    seen = [0, 1, 2, 4, 5]  # also the living parts of micro-batch 1, which hold other keys
    assert sorted(+world.visible) == seen
    again = world.start()
    assert not world.run(again)
    assert again.condition == "PREPARED_LOST"
    assert sorted(+world.visible) == seen
    assert world.rewind() == ""
    assert sorted(+world.visible) == seen
    world.run_out()
    assert world.book.kinds.count(EntryKind.REPAIR) == 3


class TogetherSink(WatchedSink):
    """All of a checkpoint's handles in one call, and all or none."""

    commitsTogether: ClassVar[bool] = True


def test_a_sink_that_commits_together_gets_all_handles_of_a_checkpoint_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Parts(sink=TogetherSink), max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    execution = closing(world, 3)
    world.commits_called.clear()
    world.commit(execution)
    assert [len(call) for call in world.commits_called] == [9]


def test_only_the_last_commit_of_a_checkpoint_completes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a backup of the store between two calls would hold the checkpoint's id, and not all of its rows."""
    world = World(Parts(sink=WatchedSink), max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    execution = closing(world, 3)
    commit, completed = WatchedSink.commit, list[bool]()

    def watched(sink: WatchedSink, handles: Sequence[MemoryHandle], at: DecidedCheckpoint) -> None:
        completed.append(at.completed == at.id)
        assert at.completed in (at.id, at.after)
        commit(sink, handles, at)

    monkeypatch.setattr(WatchedSink, "commit", watched)
    world.commit(execution)
    assert completed == [False, False, True]


def test_the_world_sees_rows_that_are_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of this file can fail: a sink that commits the last micro-batch first."""
    world = World(Parts(sink=TogetherSink), max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    commit = TogetherSink.commit
    monkeypatch.setattr(TogetherSink, "commit", lambda sink, handles, at: commit(sink, handles[::-1], at))
    execution = closing(world, 2)
    with pytest.raises(Violation, match="is committed after row"):
        world.commit(execution)
