"""Checkpoints over many micro-batches: one behaviour of the real coordinator a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.transactional.bodies import lines, recorded, run_body, settled
from tests.transactional.state_machine import COMMIT_SECONDS, Execution, Interference, Violation, World
from tests.transactional.state_stores import LIFETIME, MARGIN, Offset
from transactional import faults
from transactional.barrier import SourceLine
from transactional.capabilities import WritesTopics
from transactional.checkpoint import (
    Acknowledgement,
    AcknowledgeResult,
    ClosingReason,
    Mode,
    Part,
    PendingCheckpoint,
)
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import Entry, EntryKind, encode
from transactional.errors import (
    AmbiguousOutcomeError,
    JournalError,
    OptionError,
    ReplayMismatchError,
    RetriableError,
    RewindRequiredError,
)
from transactional.journal import Journal, MemoryJournalStore
from transactional.journal.journal import SNAPSHOT_EVERY
from transactional.recovery import QueryView, check_schedule
from transactional.sink import Options
from transactional.testing import RecordingSink


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A query without maxBatchesPerCheckpoint in its way."""
    world = World(max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    return world


def piled_up(world: World, batches: int = 3) -> Execution:
    """Micro-batch 0 is a checkpoint of its own; so many are prepared after it."""
    execution = world.start()
    assert world.run(execution, 1, 3)
    assert world.run(execution, batches, 3, "none")
    return execution


def visible(world: World) -> list[int]:
    return sorted(+world.visible)


def to_commit(world: World, execution: Execution, rows: int = 3, kind: str = "barrier") -> None:
    """The next micro-batch, up to its commit."""
    world.offset(execution, rows, kind)
    world.plan(execution)
    world.tasks(execution)
    assert execution.stage == "commit"


# -- lanes --------------------------------------------------------------------------------------------------------------


def test_five_prepared_micro_batches_are_committed_with_the_sixth_one_after_the_other(world: World) -> None:
    execution = piled_up(world, 5)
    assert (visible(world), sorted(world.book.prepared)) == ([0, 1, 2], [1, 2, 3, 4, 5])
    world.commits_called.clear()
    assert world.run(execution, 1, 3)
    assert [[world.transactions.context(handle).batchId for handle in call] for call in world.commits_called] == [
        [batch] * 3 for batch in range(1, 7)
    ]
    assert visible(world) == list(range(21))
    assert world.book.kinds[-2:] == [EntryKind.DECIDED, EntryKind.SETTLED]
    assert world.truth.checkpoints[max(world.truth.checkpoints)].batches == [1, 2, 3, 4, 5, 6]


def test_prepared_is_in_the_journal_before_spark_moves_on(world: World) -> None:
    execution = piled_up(world, 1)
    world.armed = Interference("prepared.written", "die")
    to_commit(world, execution, kind="none")
    world.commit(execution)
    assert (world.book.kinds[-1], max(world.files.commits), sorted(world.book.prepared)) == ("prepared", 1, [1, 2])
    again = world.start()
    world.plan(again)
    assert again.plan is not None
    assert again.plan.mode is Mode.DRAIN
    world.tasks(again)
    world.commit(again)
    world.done(again)
    assert world.run(again, 1, 1)
    assert visible(world) == list(range(10))
    assert world.book.kinds.count(EntryKind.PREPARED) == 2


@pytest.mark.parametrize("kind", ["none", "barrier"])
def test_a_late_commit_of_a_former_start_of_the_query_is_refused_by_name(world: World, kind: str) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution, kind=kind)
    world.armed = Interference("commit.called", "again")  # the same driver starts the query again and runs it
    world.commit(execution)
    errors = [getattr(error, "condition", error) for error in execution.errors]
    assert errors == (["CONCURRENT_COMMIT"] if kind == "none" else [])  # of a decided one there is nothing left to do
    assert world.run(world.executions[-1], 1, 1)
    assert visible(world) == list(range(10))


def test_an_abort_that_the_journal_s_store_refuses_does_not_hide_what_went_wrong_first(world: World) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution)
    world.store.how, world.store.kind, world.store.times = "refuse", "aborted", 7
    world.store.until = world.clock.now() + 60
    world.abort(execution, 7)
    assert [str(error) for error in execution.errors] == ["a task failed"]
    world.store.well()
    world.run_out()
    assert visible(world) == list(range(max(visible(world)) + 1))


# -- among other queries' barriers --------------------------------------------------------------------------------------


def test_a_checkpoint_is_asked_for_and_there_are_enough_but_its_cut_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(max_batches=2)
    monkeypatch.setattr(faults, "reach", world.reach)
    cut = '{"lineage": {}, "exact": false, "toward": {"m": 1}}'
    logs = [
        lines(f'{{"source": "barrier-kafka", "topics": {{"t": {{"0": {batch}}}}}, "cut": {cut}}}') for batch in range(9)
    ]
    view = world.files.view
    monkeypatch.setattr(
        world.files, "view", lambda n: replace(view(n), lines=logs[n], previous=logs[n - 1] if n else None)
    )
    execution = world.start()
    assert world.run(execution, 1, 3, "none")
    world.ask()
    assert world.run(execution, 3, 3, "none")
    assert EntryKind.DECIDED not in world.book.kinds


def test_two_streams_are_refused_if_one_follows_other_queries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    follows = '{"source": "barrier-kafka", "cut": {"lineage": {}, "exact": true}}'
    other_lines(world, monkeypatch, lines=lines(follows, '{"source": "barrier-kafka"}'))
    execution = world.start()
    assert not world.run(execution, 1, 1)
    assert [getattr(error, "condition", error) for error in execution.errors] == ["NOT_ALIGNED"]
    assert visible(world) == []


def test_sources_that_agree_on_cuts_name_their_query_and_a_copy_s_do_when_they_move() -> None:
    def follows(end: int, query: str) -> SourceLine:
        cut = {"lineage": {}, "exact": True, "query": query}
        return SourceLine.parse(json.dumps({"source": "barrier-kafka", "topics": {"t": {"0": end}}, "cut": cut}))

    check_schedule([follows(1, "q"), follows(2, "q")], (), None, query="q")
    before = [follows(1, "origin"), follows(2, "origin")]
    check_schedule([follows(1, "origin"), follows(3, "q")], (), None, query="q", previous=before)
    for now in ([follows(3, "origin"), follows(3, "q")], [follows(1, "origin")], [follows(1, "q"), follows(2, "")]):
        with pytest.raises(OptionError, match="NOT_ALIGNED"):
            check_schedule(now, (), None, query="q")


# -- why a checkpoint closes --------------------------------------------------------------------------------------------


def other_lines(world: World, monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> None:
    """The query's source is not ours, or it is a batch write."""
    view = world.files.view
    monkeypatch.setattr(world.files, "view", lambda batch: replace(view(batch), **replaced))


def closes_by(reason: ClosingReason, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let one checkpoint close for that reason; what the journal says."""
    world = World(max_batches=3 if reason is ClosingReason.ENOUGH else 50)
    monkeypatch.setattr(faults, "reach", world.reach)
    if reason is ClosingReason.WRITE:
        other_lines(world, monkeypatch, gaps=True)
    if reason is ClosingReason.RETAINED:
        other_lines(world, monkeypatch, oldest=1)
    if reason is ClosingReason.OTHER_SOURCE:
        view = world.files.view
        logs = [lines(f"line {batch}") for batch in range(3)]
        monkeypatch.setattr(
            world.files, "view", lambda n: replace(view(n), lines=logs[n], previous=logs[n - 1] if n else None)
        )
    if reason is ClosingReason.FIRST:
        other_lines(world, monkeypatch, lines=lines('{"source": "barrier-kafka"}'), previous=None)
        world.run(world.start(), 1, 3)
        return world.book.reasons[-1]
    execution = piled_up(world, 0)
    if reason in (ClosingReason.BARRIER, ClosingReason.FINAL):
        world.run(execution, 1, 3, {"BARRIER": "barrier"}.get(reason.name, "final"))
    elif reason is ClosingReason.NO_DATA:
        world.run(execution, 1, 3, "none")
        world.run(execution, 1, 3, "nodata")
    elif reason is ClosingReason.ENOUGH:
        world.run(execution, 3, 3, "none")
    elif reason is ClosingReason.AGE:
        world.run(execution, 1, 3, "none")
        world.clock.advance(LIFETIME / 2)
        world.run(execution, 1, 3, "none")
    elif reason is ClosingReason.STOP:
        world.run(execution, 1, 3, "none")
        world.ask_to_stop()
        world.run(execution, 1, 3, "none")
    elif reason is ClosingReason.REQUEST:
        world.ask()
        world.run(execution, 2, 3, "none")
    else:
        world.run(execution, 1, 3, "none")
    return world.book.reasons[-1]


@pytest.mark.parametrize("reason", sorted(set(ClosingReason) - {ClosingReason.REPARTITION, ClosingReason.STOP}))
def test_a_checkpoint_closes_for_each_reason(reason: ClosingReason, monkeypatch: pytest.MonkeyPatch) -> None:
    assert closes_by(reason, monkeypatch) == reason.name


def test_a_wish_closes_one_checkpoint_only(world: World) -> None:
    execution = piled_up(world, 1)
    world.ask()
    assert world.run(execution, 2, 3, "none")
    assert (world.book.reasons[-1], sorted(world.book.prepared)) == ("REQUEST", [3])


@pytest.mark.parametrize(("seconds", "closes"), [(LIFETIME / 2 - 2, False), (LIFETIME / 2 - 1, True)])
def test_the_age_of_the_oldest_transaction_closes_not_that_of_the_newest(
    world: World, seconds: float, closes: bool
) -> None:
    execution = piled_up(world, 1)
    world.run(execution, 1, 3, "none")
    world.clock.advance(seconds - 1)
    world.run(execution, 1, 3, "none")
    assert (sorted(world.book.prepared) == []) is closes


def test_an_empty_prepared_micro_batch_does_not_hide_the_age_of_the_one_before(world: World) -> None:
    execution = piled_up(world, 1)
    before = world.files.offsets[1]
    to_commit(world, execution, kind="none")
    world.commit(execution)
    world.done(execution)
    world.files.offsets[3] = Offset(12, 12, before.barrier)  # an empty one: Spark makes it where limits leave no row
    execution.stage = "plan"
    world.clock.advance(LIFETIME / 2)
    world.plan(execution)
    world.tasks(execution)
    world.commit(execution)
    assert world.book.reasons[-1] in ("AGE", "NO_DATA")


# -- transactions that are lost before the decision ---------------------------------------------------------------------


def test_the_last_prepared_micro_batch_is_void_where_it_was_lost_and_is_written_anew(world: World) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution, kind="none")
    world.commit(execution)
    world.kill()  # before commits/2
    world.transactions.expire(max(world.rows_of))
    again = world.start()
    assert world.run(again, 2, 1)
    assert (world.seen["void: prepared"], world.seen["ended by PREPARED_LOST"]) == (1, 0)
    assert visible(world) == list(range(world.read))


def test_one_that_spark_has_moved_past_is_not_voided_and_the_way_out_is_named(world: World) -> None:
    piled_up(world, 2)
    world.kill()
    world.transactions.expire(4)  # of micro-batch 1
    again = world.start()
    assert not world.run(again)
    assert isinstance(again.errors[0], RewindRequiredError)
    assert "barrier recover" in str(again.errors[0])
    assert (again.condition, EntryKind.VOID in world.book.kinds, visible(world)) == ("PREPARED_LOST", False, [0, 1, 2])


def test_the_same_driver_finds_it_lost_at_the_decision(world: World) -> None:
    execution = piled_up(world, 2)
    world.transactions.expire(4)
    assert not world.run(execution)
    assert isinstance(execution.errors[0], RewindRequiredError)
    assert "barrier recover" in str(execution.errors[0])
    assert sorted(world.book.prepared) == [1, 2]


def test_one_with_too_little_time_left_is_as_good_as_lost(world: World) -> None:
    piled_up(world, 2)
    world.kill()
    world.clock.advance(LIFETIME - MARGIN)
    again = world.start()
    assert not world.run(again)
    assert again.condition == "PREPARED_LOST"


def test_a_drained_micro_batch_whose_transaction_is_lost_at_the_decision_is_written_anew(world: World) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution, kind="none")
    world.commit(execution)
    world.kill()
    world.ask()
    again = world.start()
    world.plan(again)
    world.tasks(again)
    assert again.plan is not None
    assert again.plan.mode is Mode.DRAIN
    world.transactions.expire(max(world.rows_of))
    world.commit(again)
    assert isinstance(again.errors[0], RetriableError)
    assert (again.condition, world.book.kinds[-1]) == ("HANDLE_NOT_ALIVE", EntryKind.RESTORED)
    assert world.run(world.start(again.driver))
    assert world.book.kinds[-3:] == [EntryKind.VOID, EntryKind.DECIDED, EntryKind.SETTLED]
    assert visible(world) == list(range(world.read))


# -- declined checkpoints -----------------------------------------------------------------------------------------------


def declined(world: World, execution: Execution, seconds: float = 60, kind: str = "barrier") -> None:
    """One micro-batch while the hook raises for so long."""
    to_commit(world, execution, kind=kind)
    world.hook_fails_until = world.clock.now() + seconds
    world.commit(execution)
    world.done(execution)
    world.hook_fails_until = 0.0


def test_a_decision_that_is_declined_is_tried_again_until_it_succeeds(world: World) -> None:
    execution = piled_up(world, 2)
    declined(world, execution, seconds=0.5)
    assert world.seen["hook: raised"] > 2
    assert (world.book.reasons[-1], world.seen["declined: HOOK_FAILED"]) == ("BARRIER", 0)


def test_after_the_timeout_its_micro_batch_is_prepared_and_the_next_checkpoint_subsumes_it(world: World) -> None:
    execution = piled_up(world, 2)
    before = world.clock.now()
    declined(world, execution)
    assert world.clock.now() - before >= 1.0 + COMMIT_SECONDS  # the first: of the micro-batch itself
    assert world.book.kinds[-2:] == [EntryKind.PREPARED, EntryKind.DECLINED]
    assert (sorted(world.book.prepared), visible(world), max(world.files.commits)) == ([1, 2, 3], [0, 1, 2], 3)
    assert world.run(execution, 1, 0)  # the source lets an empty barrier follow
    newest = world.truth.checkpoints[max(world.truth.checkpoints)]
    assert (newest.batches, newest.subsumed) == ([1, 2, 3, 4], [3])
    assert visible(world) == list(range(12))
    assert world.truth.counts["declined"] == 1


def test_a_store_that_refuses_the_decision_declines_it_too(world: World) -> None:
    execution = piled_up(world, 1)
    world.store.how, world.store.kind, world.store.times = "refuse", "decided", 100
    assert world.run(execution)
    assert (world.seen["declined: JOURNAL_REFUSED"], sorted(world.book.prepared)) == (1, [1, 2])
    world.store.well()
    assert world.run(execution)
    assert visible(world) == list(range(world.read))


def test_a_store_that_refuses_everything_ends_the_query_and_loses_nothing(world: World) -> None:
    execution = piled_up(world, 1)
    world.store.how, world.store.until = "refuse", world.clock.now() + 60
    assert not world.run(execution)
    assert isinstance(execution.errors[0], JournalError)
    world.store.well()
    world.run_out()


def test_a_decision_whose_answer_was_lost_is_no_declined_one(world: World) -> None:
    execution = piled_up(world, 1)
    world.store.how, world.store.kind, world.store.times = "lost", "decided", 1
    assert world.run(execution)
    assert (world.seen["store: lost"], EntryKind.DECLINED in world.book.kinds) == (1, False)


def test_a_declined_micro_batch_that_was_prepared_before_is_not_prepared_again(world: World) -> None:
    execution = piled_up(world, 1)
    world.armed = Interference("declined.prepared", "die")
    declined(world, execution)
    assert (world.book.kinds[-1], sorted(world.book.prepared)) == (EntryKind.PREPARED, [1, 2])
    again = world.start()
    world.plan(again)
    world.tasks(again)
    world.hook_fails_until = world.clock.now() + 60
    world.commit(again)
    assert again.stage == "done"
    assert world.book.kinds[-1] == EntryKind.DECLINED
    assert world.book.kinds.count(EntryKind.PREPARED) == 2


def test_so_many_in_a_row_as_are_tolerable_then_commit_raises_and_the_query_goes_on_where_it_was(world: World) -> None:
    execution = piled_up(world, 0)
    for _ in range(2):
        declined(world, execution)
        assert execution.alive
    declined(world, execution)
    assert (execution.condition, world.book.kinds[-1]) == ("HOOK_FAILED", EntryKind.ABORTED)
    assert sorted(world.book.prepared) == [1, 2]
    assert world.run(world.start())
    assert visible(world) == list(range(world.read))


def test_a_decision_starts_the_count_of_declined_ones_anew(world: World) -> None:
    execution = piled_up(world, 0)
    for _ in range(3):
        declined(world, execution)
        declined(world, execution)
        assert world.run(execution)
    assert world.seen["declined: HOOK_FAILED"] == 6


def test_a_final_barrier_is_never_declined_softly(world: World) -> None:
    execution = piled_up(world, 1)
    declined(world, execution, kind="final")
    assert (execution.condition, world.book.kinds[-1]) == ("HOOK_FAILED", EntryKind.ABORTED)


def test_nor_is_a_checkpoint_of_a_source_after_which_no_barrier_is_sure_to_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, fewer = (SourceLine.parse(text) for text in ("rows", "fewer rows"))
    other_lines(world, monkeypatch, lines=[rows], previous=[fewer])
    execution = world.start()
    declined(world, execution)
    assert (execution.condition, world.book.kinds[-1]) == ("HOOK_FAILED", EntryKind.ABORTED)


def test_what_is_lost_while_a_decision_is_tried_again_is_not_decided(world: World) -> None:
    execution = piled_up(world, 0)
    to_commit(world, execution)
    world.hook_fails_until = world.clock.now() + 0.5
    hook_raised = world.seen["hook: raised"]
    sleep = world.clock.sleep

    def sleeps(seconds: float) -> None:
        world.transactions.expire(max(world.rows_of))
        sleep(seconds)

    world.clock.sleep = sleeps  # type: ignore[method-assign]
    world.commit(execution)
    assert (execution.condition, world.seen["hook: raised"] - hook_raised) == ("HANDLE_NOT_ALIVE", 1)
    assert visible(world) == [0, 1, 2]


# -- decided, and then ---------------------------------------------------------------------------------------------------


def test_a_decision_over_five_micro_batches_is_committed_by_the_next_start_after_a_kill(world: World) -> None:
    execution = piled_up(world, 4)
    to_commit(world, execution)
    world.armed = Interference("commit.one", "die", skip=6)
    world.commit(execution)
    assert len(visible(world)) == 3 + 7
    world.plan(world.start())
    assert visible(world) == list(range(18))


def test_parts_that_were_lost_behind_spark_stop_the_query_and_name_the_micro_batches(world: World) -> None:
    execution = piled_up(world, 4)
    to_commit(world, execution)
    world.armed = Interference("commit.one", "die", skip=6)
    world.commit(execution)
    world.clock.advance(LIFETIME)
    again = world.start()
    assert not world.run(again)
    assert again.condition == "PREPARED_LOST"
    assert "barrier recover" in str(again.errors[0])
    assert "[3, 4, 5]" in str(again.errors[0])


def test_nothing_of_a_decided_checkpoint_is_aborted_where_spark_gives_its_micro_batch_up(world: World) -> None:
    execution = piled_up(world, 3)
    to_commit(world, execution)
    world.armed = Interference("commit.one", "raise", skip=2)
    world.commit(execution)
    assert (execution.condition, world.book.kinds[-1]) == ("StepFails", EntryKind.DECIDED)
    assert world.run(world.start(execution.driver))
    assert visible(world) == list(range(world.read))


# -- acknowledgements ---------------------------------------------------------------------------------------------------


def acknowledged(token: int, batch: int, partition: int) -> Acknowledgement:
    return Acknowledgement(token, batch, partition, 0, False, [Part(partition, None, 0, 0, "")])


def test_late_and_repeated_acknowledgements_have_names() -> None:
    pending = PendingCheckpoint(7, 3)
    assert pending.acknowledge(acknowledged(7, 3, 0)) is AcknowledgeResult.SUCCESS
    assert pending.acknowledge(acknowledged(7, 3, 0)) is AcknowledgeResult.DUPLICATE
    assert pending.acknowledge(acknowledged(7, 2, 1)) is AcknowledgeResult.UNKNOWN
    assert pending.acknowledge(acknowledged(6, 3, 1)) is AcknowledgeResult.UNKNOWN
    pending.finish()
    assert pending.acknowledge(acknowledged(7, 3, 1)) is AcknowledgeResult.DISCARDED
    assert [part.partition for part in pending.parts] == [0]


@pytest.mark.parametrize("change", ["twice", "another micro-batch", "an older run", "missing"])
def test_wrong_acknowledgements_harm_nothing(world: World, change: str) -> None:
    execution = piled_up(world, 2)
    to_commit(world, execution)
    told = list(execution.messages)
    first = told[0]
    assert first is not None
    if change == "twice":
        told.append(first)
    elif change == "missing":
        told[1] = None
    else:
        told[0] = replace(first, batch=1) if change == "another micro-batch" else replace(first, token=0)
    world.commit(execution, told)
    assert execution.errors
    assert sorted(world.book.prepared) == [1, 2]
    assert visible(world) == [0, 1, 2]
    world.run_out()


def test_a_task_that_ends_after_its_micro_batch_was_decided_is_swept(world: World) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution)
    plan = execution.plan
    assert plan is not None
    world.commit(execution)
    world.done(execution)
    world.task(plan, 0)
    late = max(world.rows_of)
    assert world.run(execution)
    assert world.is_lost(late)
    assert visible(world) == list(range(world.read))


# -- what a schedule may not be -----------------------------------------------------------------------------------------


def planned_with(world: World, monkeypatch: pytest.MonkeyPatch, **of_line: Any) -> Execution:
    """A planning whose offset line has other keys; a second line where `foreign` is set."""
    foreign = lines("another source's") if of_line.pop("foreign", False) else []
    to_json = Offset.to_json
    monkeypatch.setattr(Offset, "to_json", lambda self: {**to_json(self), **of_line})
    view = world.files.view
    monkeypatch.setattr(world.files, "view", lambda batch: replace(view(batch), lines=[*view(batch).lines, *foreign]))
    execution = world.start()
    world.offset(execution)
    with suppress(Violation):  # the world holds that no failure leads there: an option does
        world.plan(execution)
    return execution


@pytest.mark.parametrize("option", ["interval", "minPause"])
def test_an_interval_that_does_not_fit_the_timeout_is_refused_with_both_numbers(
    world: World, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    execution = planned_with(world, monkeypatch, **{option: 50_001})
    assert isinstance(execution.errors[0], OptionError)
    assert execution.condition == "INTERVAL_NOT_POSSIBLE"
    assert "50001 ms" in str(execution.errors[0])
    assert "100 s" in str(execution.errors[0])


def test_an_interval_of_half_the_timeout_is_not_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_with(world, monkeypatch, interval=50_000).stage == "tasks"


def test_an_interval_beside_a_source_that_is_not_ours_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_with(world, monkeypatch, foreign=True).condition == "INTERVAL_NOT_POSSIBLE"


def test_without_an_interval_it_is_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_with(world, monkeypatch, foreign=True, interval=0).stage == "tasks"


def test_rows_that_are_not_in_order_are_refused_where_rows_replace_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.parts.sink, "replacesRows", True)
    execution = planned_with(world, monkeypatch, reordered=True)
    assert execution.condition == "INVALID_OPTION"
    assert "allowReordering" in str(execution.errors[0])
    assert visible(world) == []


def test_rows_that_are_not_in_order_may_be_appended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_with(world, monkeypatch, reordered=True).stage == "tasks"


@pytest.mark.parametrize("known", ["at the planning", "at the commit"])
def test_an_interval_of_a_query_that_reads_a_topic_which_it_writes_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    sink = world.parts.sink
    if known == "at the planning":
        monkeypatch.setattr(sink, "identify", lambda self: {"topicId": "T1"})
    else:
        written = type("Written", (WritesTopics, sink), {"targets": lambda self, handles: {"T1"} if handles else ()})
        world.parts = replace(world.parts, sink=written)
    execution = planned_with(world, monkeypatch, ids={"flights": "T1", "others": "T2"})
    world.tasks(execution)
    world.commit(execution)
    assert execution.condition == "INTERVAL_NOT_POSSIBLE"
    assert "flights" in str(execution.errors[0])
    assert visible(world) == []


# -- the journal stays short --------------------------------------------------------------------------------------------


class CountingStore(MemoryJournalStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, name: str) -> bytes:
        self.reads += 1
        return super().read(name)


@pytest.mark.parametrize("checkpoints", [800, pytest.param(10_000, marks=pytest.mark.matrix)])
def test_planning_reads_a_bounded_number_of_files_after_any_number_of_checkpoints(checkpoints: int) -> None:
    """The last quarter of them does not add to it."""
    store = CountingStore()
    journal = Journal(store)
    number, reads, names, sizes = 0, [0], [0], [0]

    def append(kind: str, body: dict[str, Any]) -> None:
        nonlocal number
        number += 1
        assert store.create(f"{number}.json", encode(Entry(number, kind, f"n{number}", 0, body)))

    append(EntryKind.RUN, run_body(driver="A", settings="options", sink="2pc-recording", location="/place"))
    for checkpoint in range(checkpoints):
        parts = [{"partition": 0, "handle": {"transaction": checkpoint}, "rows": 1, "bytes": 8, "digest": "d"}]
        append(EntryKind.DECIDED, recorded(checkpoint, parts, [], sources=view(checkpoint).sources))
        append(EntryKind.SETTLED, settled(number))
        if number % SNAPSHOT_EVERY < 2:  # as a planning does
            journal.load()
            journal.fold()
        if checkpoint % 37 == 0:
            store.reads = 0
            Journal(store).load()
            reads.append(store.reads)
            names.append(len(store.names()))
            sizes.append(sum(map(len, store.files.values())))
    sink = RecordingSink(Options({"transactionalIdPrefix": "p"}), None)
    settings = RunSettings("A", sink.name(), "options", "p")
    store.reads = 0
    plan = CheckpointCoordinator(Journal(store), sink, settings, view(checkpoints)).plan()
    assert (plan.mode, plan.batch) == (Mode.WRITE, checkpoints)
    assert max(store.reads, *reads) <= 2 * SNAPSHOT_EVERY + 1
    assert max(names) <= 3 * SNAPSHOT_EVERY
    settling = 3 * len(sizes) // 4
    assert max(sizes[settling:]) < 1.25 * max(sizes[:settling])
    assert max(sizes) < 1_000_000


def view(batch: int) -> QueryView:
    return QueryView("q", "/place", batch, batch - 1, lines(f"line {batch}"), lines(f"line {batch - 1}"))


# -- another parallelism ------------------------------------------------------------------------------------------------


def replayed_with(world: World, execution: Execution, told: Sequence[Acknowledgement | None]) -> Execution:
    world.commit(execution, told)
    return execution


def test_a_repair_on_another_number_of_cores_is_refused_with_both(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution)
    world.armed = Interference("commit.one", "die", skip=4)  # all of micro-batch 1, a part of 2
    world.commit(execution)
    world.clock.advance(LIFETIME)
    again = world.start()
    world.plan(again)
    world.tasks(again)
    extra = again.messages[0]
    assert extra is not None
    with pytest.raises(Violation, match="writer tasks: recorded 3, now 4"):
        replayed_with(world, again, [*again.messages, replace(extra, partition=3)])
    assert isinstance(again.errors[0], ReplayMismatchError)


def test_an_outcome_that_nobody_can_tell_stops_the_query_and_names_resolve(world: World) -> None:
    execution = piled_up(world, 1)
    to_commit(world, execution)
    world.armed = Interference("decision.written", "die")
    world.commit(execution)
    with pytest.MonkeyPatch.context() as patch:
        from transactional.sink import HandleState, Outcome

        unknown = HandleState(Outcome.UNKNOWN, evidence="its topic was recreated")
        patch.setattr(world.parts.sink, "inspect", lambda self, handles: [unknown for _ in handles])
        again = world.start()
        with pytest.raises(Violation, match="resolve"):
            world.run(again)
        assert isinstance(again.errors[0], AmbiguousOutcomeError)
