"""The end of a query that was asked for: its final checkpoint, `stopped`, and what is ended from outside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transactional.bodies import fact_of
from tests.transactional.state_machine import Interference, World
from tests.transactional.state_stores import LIFETIME
from tests.transactional.test_steps import Query
from transactional import faults
from transactional.checkpoint import ClosingReason, Mode
from transactional.entry import EntryKind
from transactional.errors import FencedError, QueryStoppedError
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.ownership import may_stop
from transactional.sink import HandleState, Outcome
from transactional.testing import RecordingSink


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A query without maxBatchesPerCheckpoint in its way."""
    world = World(max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    return world


def calls_the_third_prepared(inspect: Any) -> Any:
    def changed(self: RecordingSink, handles: Any) -> list[HandleState]:
        prepared = HandleState(Outcome.PREPARED)
        states = zip(handles, inspect(self, handles), strict=True)
        return [prepared if handle["transaction"] == 3 else state for handle, state in states]

    return changed


def killed(number: int) -> Outcome:
    raise KeyboardInterrupt(number)


def test_a_run_that_was_asked_to_stop_ends_at_its_next_planning_before_any_task_starts() -> None:
    query = Query()
    query.run(0)
    ask(query)
    with pytest.raises(QueryStoppedError, match=r"\[STOP_REQUESTED\].*not a failure.*up to micro-batch 0 is committed"):
        query.plan(1)
    assert query.kinds()[-2:] == ["request", "stopped"]
    assert query.transactions.unfinished() == []


def test_a_query_that_is_started_again_is_not_stopped_again() -> None:
    query = Query()
    query.run(0)
    ask(query)
    with pytest.raises(QueryStoppedError):
        query.plan(1)
    query.run(1)
    query.run(2)
    assert query.rows() == [0, 1, 10, 11, 20, 21]


def test_a_stop_that_was_asked_of_an_older_run_counts_for_nothing() -> None:
    query = Query()
    query.run(0)
    ask(query)
    query.run(1, "B")  # the former driver died before it came to its next planning
    assert not query.ledger().stopping
    query.run(2, "B")


def test_what_is_prepared_goes_into_the_final_checkpoint_with_the_micro_batch_at_work(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 3, 3, "none")
    world.offset(execution, 3, "none")
    world.plan(execution)
    world.ask_to_stop()
    world.tasks(execution)
    world.commit(execution)
    world.done(execution)
    assert world.book.reasons[1:] == [ClosingReason.STOP.name]
    assert sorted(+world.visible) == list(range(12))
    world.run(execution, 1, 3, "none")
    assert (execution.condition, world.book.kinds[-1]) == ("STOP_REQUESTED", "stopped")
    assert world.transactions.unfinished() == []
    world.run_out()


def test_with_something_prepared_one_more_micro_batch_is_run(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 2, 3, "none")
    world.ask_to_stop()
    assert world.run(execution, 1, 3, "none")
    assert not world.run(execution, 1, 3, "none")
    assert world.book.kinds[-3:] == ["decided", "settled", "stopped"]


def test_a_repair_that_is_due_comes_before_the_end(world: World) -> None:
    execution = world.start()
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("commit.one", "raise")
    world.commit(execution)
    world.expire(0)
    world.armed = None
    again = world.start()
    world.plan(again)
    assert again.plan is not None
    assert again.plan.mode is Mode.REPAIR
    world.ask_to_stop()
    assert world.run(again, 1)
    world.run(again, 1)
    assert again.condition == "STOP_REQUESTED"
    assert sorted(+world.visible) == [0, 1, 2]


def test_a_final_checkpoint_that_is_declined_fails_the_query_rather_than_wait_for_another() -> None:
    world = World(max_batches=50, tolerable=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "reach", world.reach)
        execution = world.start()
        assert world.run(execution, 1, 3, "none")
        world.ask_to_stop()
        world.hook_fails_until = world.clock.now() + 10_000
        assert not world.run(execution, 1, 3, "none")
        assert "declined" not in world.book.kinds
        world.run_out()


def test_the_end_is_not_journalled_while_something_is_open(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 2, 3, "none")
    journal = Journal(world.store)
    run = journal.load().newest_run
    assert run is not None
    with pytest.raises(FencedError, match=r"CONCURRENT_COMMIT.*micro-batches: \[1\]"):
        journal.append(fact_of(EntryKind.STOPPED, {"run": run.token}), may_stop(run.token))


# -- from outside -------------------------------------------------------------------------------------------------------


def test_a_query_that_was_killed_is_ended_from_outside_with_all_that_it_had_prepared(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 3, 3, "none")
    world.offset(execution, 3, "none")
    world.plan(execution)
    world.tasks(execution)  # prepared at the store, and in no journal
    world.kill()
    assert world.close() == ""
    assert sorted(+world.visible) == list(range(9))
    assert world.transactions.unfinished() == []
    assert world.book.kinds[-3:] == ["decided", "settled", "stopped"]
    assert world.book.reasons[1:] == [ClosingReason.STOP.name]
    assert world.run(world.start(), 2, 3)
    assert sorted(+world.visible) == list(range(15))


def test_a_decision_that_was_not_settled_is_committed_from_outside(world: World) -> None:
    execution = world.start()
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("decision.written", "die")
    world.commit(execution)
    world.armed = None
    assert world.close() == ""
    assert sorted(+world.visible) == [0, 1, 2]
    assert world.book.kinds[-2:] == ["settled", "stopped"]


@pytest.mark.parametrize("inspects", [True, False])
def test_beside_a_part_to_be_repaired_what_is_ended_from_outside_is_journalled_as_committed(
    inspects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay comes at the next start, however late: the store may have forgotten the others by then.

    Or, of one of several sinks, it never knew: without `inspect` a transaction is prepared for ever.
    """
    if not inspects:
        monkeypatch.setattr(RecordingSink, "inspect", calls_the_third_prepared(RecordingSink.inspect))
    query = Query()
    run_of_killed = query.plan(0)
    messages = query.tasks(run_of_killed, partitions=3)
    transactions = query.transactions
    commit, transactions.commit = transactions.commit, killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        query.commit(messages, 0)
    transactions.commit = commit  # type: ignore[method-assign]
    transactions.commit(1)
    transactions.expire(2)
    query.coordinator(0, "closer").close(run_of_killed.token)
    [checkpoint] = query.ledger().unsettled()
    verdicts = {part.partition: part.verdicts[-1] for part in query.ledger().parts_of(checkpoint)}
    assert verdicts == {0: "committed", 1: "lost", 2: "committed"}
    assert query.rows() == [0, 2]
    query.commit(query.tasks(query.plan(0, "B"), partitions=3), 0, "B")
    assert query.rows() == [0, 1, 2]


def test_who_lost_what_it_had_prepared_is_taken_back_before_it_is_ended(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 2, 3, "none")
    world.kill()
    world.clock.advance(LIFETIME + 1)
    assert world.close() == "PREPARED_LOST"
    assert world.rewind() == ""
    assert world.close() == ""
    assert world.book.kinds[-1] == "stopped"
    world.run_out()


def test_a_commit_that_was_on_its_way_meets_the_end_and_changes_nothing(world: World) -> None:
    execution = world.start()
    assert world.run(execution, 1, 3, "none")
    world.offset(execution, 3, "barrier")
    world.plan(execution)
    world.tasks(execution)
    assert world.close() == ""
    world.commit(execution)
    assert execution.condition == "RUN_SUPERSEDED"
    assert sorted(+world.visible) == [0, 1, 2]
    world.run_out()


def test_a_newer_run_is_not_ended_for_an_older_one() -> None:
    query = Query()
    query.run(0)
    former = newest(query.ledger())
    query.plan(1, "B")
    before = query.kinds()
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        query.coordinator(1, "closer").close(former)
    assert query.kinds() == before


def newest(ledger: Ledger) -> int:
    assert ledger.newest_run is not None
    return ledger.newest_run.token


def ask(query: Query) -> None:
    """As `barrier stop` does."""
    journal = Journal(query.journal_store)
    token = newest(journal.load())
    journal.append(fact_of(EntryKind.REQUEST, {"what": "stop", "run": token}), lambda _: None)
    assert journal.ledger.stopping
