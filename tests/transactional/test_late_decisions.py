"""A decision whose create times out and takes effect late, while the process tries it again or declines the checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.transactional.state_machine import Execution, Interference, World
from tests.transactional.state_stores import FoldingJournal
from tests.transactional.test_many_batches import declined, piled_up, to_commit, visible
from transactional import faults
from transactional.entry import EntryKind


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A query whose journal folds no entries: a fold would end a process that finds its own decision late."""
    world = World(max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    monkeypatch.setattr(FoldingJournal, "fold", lambda self, every=0: None)
    return world


def at_commit(world: World, replayed: bool) -> Execution:
    """Micro-batch 1 is prepared, and micro-batch 2 is about to be decided; if replayed, it is prepared as well."""
    execution = piled_up(world, 1)
    if not replayed:
        to_commit(world, execution)
        return execution
    world.armed = Interference("declined.prepared", "die")
    declined(world, execution)
    execution = world.start()
    world.plan(execution)
    world.tasks(execution)
    return execution


def delay_decision(
    world: World, patch: pytest.MonkeyPatch, declines: bool, meanwhile: Callable[[], None] = lambda: None
) -> list[tuple[str, bytes]]:
    """Let the next create of a decision time out. It takes effect in the pause, or before the decline's first create.

    Return a list that gets the name and the data of this create.
    """
    store, create, sleep, sent = world.store, world.store.create, world.clock.sleep, list[tuple[str, bytes]]()
    store.how, store.kind, store.times = "late", "decided", 1

    def arrive() -> None:
        if store.late:
            world.wake()
            meanwhile()

    def created(name: str, data: bytes) -> bool:
        if declines:
            arrive()
        try:
            return create(name, data)
        except OSError:
            sent.append((name, data))
            world.hook_fails_until = world.clock.now() + (60 if declines else 0)
            raise

    def slept(seconds: float) -> None:
        sleep(seconds)
        if not declines:
            arrive()

    patch.setattr(store, "create", created)
    patch.setattr(world.clock, "sleep", slept)
    return sent


@pytest.mark.parametrize("declines", [False, True])
@pytest.mark.parametrize("replayed", [False, True])
def test_it_is_the_decision(world: World, monkeypatch: pytest.MonkeyPatch, replayed: bool, declines: bool) -> None:
    execution = at_commit(world, replayed)
    sent = delay_decision(world, monkeypatch, declines)
    world.commit(execution)
    world.done(execution)
    [(name, data)] = sent
    assert (execution.errors, world.store.files[name]) == ([], data)
    assert world.book.kinds[-2:] == [EntryKind.DECIDED, EntryKind.SETTLED]
    assert visible(world) == list(range(world.read))


@pytest.mark.parametrize("declines", [False, True])
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("who", ["the same driver", "another driver"])
def test_its_process_settles_nothing_that_the_next_start_is_repairing(
    world: World, monkeypatch: pytest.MonkeyPatch, who: str, replayed: bool, declines: bool
) -> None:
    execution, started = at_commit(world, replayed), list[Execution]()

    def repair() -> None:
        """One transaction is lost, and the query is started again: the tasks write the lost part once more."""
        of_batch = [
            n for n in world.transactions.unfinished() if world.transactions.context(n).batchId == execution.batch
        ]
        world.transactions.expire(of_batch[0])
        world.hook_fails_until = 0.0
        started.append(world.start(execution.driver if who == "the same driver" else None))
        world.plan(started[0])
        world.tasks(started[0])

    with monkeypatch.context() as patch:
        delay_decision(world, patch, declines, repair)
        world.commit(execution)
    assert execution.condition == ("CONCURRENT_COMMIT" if who == "the same driver" else "RUN_SUPERSEDED")
    assert EntryKind.SETTLED not in world.book.kinds[world.book.kinds.index(EntryKind.VERDICT) :]
    world.commit(started[0])
    world.done(started[0])
    assert (started[0].errors, visible(world)) == ([], list(range(world.read)))
