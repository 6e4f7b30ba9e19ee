"""``barrier recover`` reads Spark's logs, then claims a run. It must notice what the query does in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.transactional.state_machine import Execution, Parts, World
from tests.transactional.state_stores import Offset, WatchedSink
from transactional import faults
from transactional.capabilities import MarksCheckpoints
from transactional.checkpoint import CheckpointMark
from transactional.errors import LocationError
from transactional.recovery import QueryView
from transactional.testing import MemoryHandle

MARKS: list[CheckpointMark] = []


class MarkingSink(MarksCheckpoints, WatchedSink):
    publishesMarks = True

    def publishMark(self, mark: CheckpointMark, handles: Sequence[MemoryHandle], confirm: Callable[[], None]) -> None:
        MARKS.append(mark)


def stopped_view(world: World) -> QueryView:
    """As `connector.location.offset_log.stopped_view`."""
    newest = world.files.newest
    view = world.files.view(newest)
    return replace(view, batch=newest + 1, lines=(), previous=view.lines) if newest in world.files.commits else view


def close(world: World, view: QueryView, position: int) -> None:
    run = world.truth.newest_run
    assert run is not None
    world._coordinator(Execution("ending", view.batch, ""), world._journal(), view).close(run.token, position)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A query that follows another one: its offsets lie between two cuts, so nothing closes a checkpoint."""
    world = World(Parts(sink=MarkingSink), max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    to_json = Offset.to_json
    cut = {"lineage": {"other": 7}, "exact": False}
    monkeypatch.setattr(Offset, "to_json", lambda self: {**to_json(self), "cut": cut})
    MARKS.clear()
    return world


def test_the_mark_of_a_final_checkpoint_has_the_cut_of_its_last_micro_batch(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 3, 3, "none")
    assert world.truth.undecided()
    position, view = world.book.position, stopped_view(world)
    assert world.run(execution, 1, 3, "none")  # the query runs on: one micro-batch is prepared
    with pytest.raises(LocationError, match="LOCATION_BUSY"):
        close(world, view, position)
    assert not MARKS[1:]
    close(world, stopped_view(world), world.book.position)
    assert (MARKS[-1].exact, MARKS[-1].lineage.get("other")) == (False, 7)


def test_a_query_that_ran_on_is_not_told_that_its_files_contradict_the_journal(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 2, 3, "none")
    world.offset(execution, 3, "none")
    position, view = world.book.position, stopped_view(world)
    world.plan(execution)
    world.tasks(execution)
    world.commit(execution)
    world.done(execution)
    assert world.run(execution, 1, 3, "none")
    with pytest.raises(LocationError, match="LOCATION_BUSY"):
        close(world, view, position)
    close(world, stopped_view(world), world.book.position)
