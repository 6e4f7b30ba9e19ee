"""Going back: one behaviour of the real rewinder a test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.transactional.bodies import fact_of
from tests.transactional.state_machine import PARTITIONS, Execution, Interference, Violation, World
from tests.transactional.state_stores import LIFETIME, Offset
from tests.transactional.test_steps import SCHEMA, Query
from transactional import faults
from transactional.checkpoint import Mode
from transactional.entry import EntryKind
from transactional.errors import AmbiguousOutcomeError, FencedError, LocationError
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.rewind import Rewinder, out_of_step
from transactional.sink import Options
from transactional.testing import RecordingSink

LANES = 10
STEPS = ("rewind.begun", "rewind.settled", "rewind.aborted", "rewind.restored", "rewind.deleted")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A query without maxBatchesPerCheckpoint in its way, whose Spark keeps enough."""
    world = World(max_batches=50, retained=10)
    monkeypatch.setattr(faults, "reach", world.reach)
    return world


def five_checkpoints(world: World) -> list[int]:
    """Over two micro-batches each; micro-batch 0 is a sixth, the first."""
    execution = world.start()
    world.run(execution)
    for _ in range(5):
        world.run(execution, 1, 3, "none")
        assert world.run(execution, 1, 3)
    return sorted(world.book.decisions)


def two_prepared(world: World) -> Execution:
    execution = world.start()
    world.run(execution)
    assert world.run(execution, 2, 3, "none")
    return execution


def prepared_lost(world: World) -> None:
    """Two micro-batches are prepared, the first of them is lost, and the query has stopped."""
    two_prepared(world)
    world.kill()
    world.transactions.expire(world.book.prepared[1][0, ""])
    again = world.start()
    assert not world.run(again)
    assert again.condition == "PREPARED_LOST"


def decided_and_lost(world: World, committed: int) -> None:
    """A checkpoint over ten micro-batches: so many of its transactions were committed, the others expired."""
    execution = world.start()
    world.run(execution)
    assert world.run(execution, LANES - 1, 3, "none")
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("commit.one", "die", skip=committed - 1)
    if not committed:
        world.armed = Interference("decision.written", "die")
    world.commit(execution)
    world.kill()
    world.clock.advance(LIFETIME)


def visible(world: World) -> list[int]:
    return sorted(+world.visible)


def once(world: World) -> Counter[int]:
    return Counter(dict.fromkeys(range(world.read), 1))


def rewinder(world: World) -> Rewinder:
    world.kill()
    return world.rewinder()[0]


# -- R1: what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [1, 10_000])
def test_a_checkpoint_that_the_journal_does_not_keep_is_refused_with_those_that_it_keeps(
    world: World, checkpoint: int
) -> None:
    known = five_checkpoints(world)
    with pytest.raises(LocationError, match=f"UNKNOWN_CHECKPOINT.*{known[0]} to {known[-1]}"):
        rewinder(world).preview(checkpoint)


def test_a_micro_batch_that_was_planned_without_an_order_is_taken_back_as_its_error_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = five_checkpoints(world)
    monkeypatch.setattr(world.parts.sink, "replacesRows", True)
    with monkeypatch.context() as once_more:
        to_json = Offset.to_json
        once_more.setattr(Offset, "to_json", lambda self: {**to_json(self), "reordered": True})
        execution = world.start()
        world.offset(execution)
        with suppress(Violation):
            world.plan(execution)
    assert execution.condition == "INVALID_OPTION"
    assert "rewind the query to the newest checkpoint" in str(execution.errors[0])
    world.kill()
    assert world.rewind(known[-1]) == "", "it raises nothing"
    assert world.run(world.start())
    assert Counter(world.visible) == once(world)


def test_one_that_is_not_settled_is_no_target(world: World) -> None:
    decided_and_lost(world, committed=0)
    with pytest.raises(LocationError, match="UNKNOWN_CHECKPOINT"):
        rewinder(world).preview(max(world.book.decisions))


def test_where_all_is_committed_there_is_nothing_to_rewind(world: World) -> None:
    five_checkpoints(world)
    with pytest.raises(LocationError, match=r"NOTHING_TO_REWIND.*micro-batch 10.*barrier checkpoints list"):
        rewinder(world).preview()


def test_a_rewind_that_was_begun_has_to_be_finished_first(world: World) -> None:
    prepared_lost(world)
    world.armed = Interference("rewind.begun", "die")
    assert world.rewind() == "died"
    with pytest.raises(FencedError, match=r"REWIND_NOT_DONE.*barrier recover"):
        rewinder(world).preview()


def test_where_none_was_begun_there_is_none_to_finish(world: World) -> None:
    five_checkpoints(world)
    with pytest.raises(LocationError, match=r"NOTHING_TO_REWIND"):
        rewinder(world).finish()


def test_a_location_on_which_somebody_works_is_busy(world: World) -> None:
    prepared_lost(world)
    work = rewinder(world)
    preview = work.preview()
    world.ask()
    with pytest.raises(LocationError, match=r"LOCATION_BUSY.*If the query is running, stop the query"):
        work.begin(preview, {})
    assert world.book.rewinding == 0


def test_it_goes_back_only_as_far_as_spark_remembers(world: World) -> None:
    known = five_checkpoints(world)
    del world.files.offsets[2]
    with pytest.raises(LocationError, match="SPARK_LOGS_GONE"):
        rewinder(world).preview(known[1])
    assert rewinder(world).preview(known[2]).batch == 4
    assert world.book.rewinding == 0


# -- R1: what is told beforehand ------------------------------------------------------------------------------------------


def test_what_is_committed_and_would_be_written_again_is_named(world: World) -> None:
    known = five_checkpoints(world)
    preview = rewinder(world).preview(known[3])
    assert [checkpoint.id for checkpoint in preview.emitted] == known[4:]
    assert preview.restored is not None
    assert (preview.batch, list(preview.rewritten), preview.restored.id) == (6, [7, 8, 9, 10], known[3])


def test_without_a_target_nothing_is_emitted_again(world: World) -> None:
    prepared_lost(world)
    preview = rewinder(world).preview()
    assert (preview.checkpoint, preview.batch, list(preview.rewritten), preview.emitted) == (None, 0, [1, 2], [])


def test_a_preview_changes_nothing(world: World) -> None:
    prepared_lost(world)
    before = dict(world.store.files), dict(world.files.offsets), set(world.files.commits)
    rewinder(world).preview()
    assert before == (world.store.files, world.files.offsets, world.files.commits)


# -- to where nothing is written twice ------------------------------------------------------------------------------------


def test_prepared_transactions_that_were_lost_are_written_again(world: World) -> None:
    prepared_lost(world)
    assert world.rewind() == ""
    assert (max(world.files.offsets), max(world.files.commits)) == (0, 0)
    assert world.transactions.unfinished() == []
    world.run_out()
    assert +world.visible == once(world)


def test_the_micro_batches_after_it_may_be_cut_otherwise(world: World) -> None:
    prepared_lost(world)
    world.rewind()
    execution = world.start()
    assert world.run(execution, 3, 2, "none")
    assert [world.files.offsets[n].end for n in (1, 2, 3)] == [4, 6, 8]
    world.run_out()
    assert +world.visible == once(world)


def test_a_query_whose_first_micro_batch_was_lost_goes_back_to_its_beginning(world: World) -> None:
    execution = world.start()
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("decision.written", "die")
    world.commit(execution)
    world.clock.advance(LIFETIME)
    begin = world.files.offsets[0]
    assert world.rewind() == ""
    assert (world.files.offsets, world.files.commits) == ({0: begin}, set())
    world.run_out()
    assert +world.visible == once(world)


def test_a_decided_checkpoint_of_which_nothing_was_committed_is_void_and_written_anew(world: World) -> None:
    decided_and_lost(world, committed=0)
    assert world.rewind() == ""
    assert (world.seen["void: decided"], world.seen["rewound: auto"], max(world.files.offsets)) == (1, 1, 0)
    world.run_out()
    assert +world.visible == once(world)
    assert world.seen["mode: repair"] == 0


def test_a_decided_checkpoint_of_which_all_was_committed_is_settled_and_kept(world: World) -> None:
    decided_and_lost(world, committed=LANES * PARTITIONS)
    before = set(world.files.offsets)
    assert world.rewind() == ""
    assert (set(world.files.offsets), world.book.unsettled()) == (before, [])
    world.run_out()
    assert +world.visible == once(world)
    assert world.seen["mode: repair"] == 0


@pytest.mark.parametrize("committed", [1, 4, 14, LANES * PARTITIONS - 1])
def test_of_a_decided_checkpoint_that_was_committed_in_part_exactly_the_lost_parts_are_written_again(
    world: World, committed: int
) -> None:
    decided_and_lost(world, committed)
    [decision] = world.book.unsettled()
    lost = [key for key in decision.chains if world.is_lost(decision.chains[key][-1])]
    assert len(lost) == LANES * PARTITIONS - committed
    assert world.rewind() == ""
    first = min(batch for batch, _ in lost)
    assert (max(world.files.offsets), len(world.files.offsets[first].planned)) == (first, LANES - first)
    began = max(world.rows_of)
    world.run_out()
    assert +world.visible == once(world)
    repaired = sorted(key for key, chain in decision.chains.items() if len(chain) > 1)
    assert repaired == sorted(lost)
    again = [
        number for number in world.rows_of if began < number and world.transactions.context(number).batchId <= LANES
    ]
    assert len(again) == len(lost)


def test_its_micro_batches_have_the_ends_that_they_had(world: World) -> None:
    decided_and_lost(world, committed=7)
    ends = [world.files.offsets[batch].end for batch in range(1, LANES + 1)]
    world.rewind()
    execution = world.start()
    assert world.run(execution, LANES - 2, 1, "barrier")
    assert [world.files.offsets[batch].end for batch in range(1, LANES + 1)] == ends
    assert world.book.unsettled() == []


def test_what_was_committed_behind_a_lost_part_stays_and_the_verdict_says_that_it_is_out_of_order(world: World) -> None:
    execution = two_prepared(world)
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    [first, *_], [last, *_] = (list(world.book.prepared[batch].values()) for batch in (1, 2))
    world.armed = Interference("decision.written", "die")
    world.commit(execution)
    world.transactions.expire(first)
    world.kill()
    [decision] = world.book.unsettled()
    world.ordered = False
    assert world.commit_one(last, decision.id)  # by an older version, whose commits went out together
    world.rewind()
    again = world.start()
    modes = []
    for _ in range(3):
        world.offset(again)
        world.plan(again)
        assert again.plan is not None
        modes.append(again.plan.mode)
        world.tasks(again)
        world.commit(again)
        world.done(again)
    assert modes == [Mode.REPAIR, Mode.REPAIR, Mode.REPAIR]
    entries = [json.loads(world.store.read(name)) for name in world.store.names() if "snapshot" not in name]
    assert [2] in [entry["body"].get("outOfOrder") for entry in entries if entry["kind"] == EntryKind.VERDICT]
    assert +world.visible == once(world)


@pytest.mark.parametrize("crashes", [1, 3])
def test_replays_in_a_row_with_a_crash_in_between_go_on_where_they_were(world: World, crashes: int) -> None:
    decided_and_lost(world, committed=2)
    world.rewind()
    for crash in range(crashes):
        execution = world.start()
        world.run(execution, 2)
        world.armed = Interference(("repair.handles", "commit.one", "journal.created")[crash], "die")
        world.run(execution)
        assert not execution.alive
    world.run_out()
    assert +world.visible == once(world)
    assert world.seen["rewound: kept"] == 1


def test_repairs_that_are_lost_again_need_a_second_rewind_and_a_replay_of_their_own(world: World) -> None:
    decided_and_lost(world, committed=2)
    world.rewind()
    execution = world.start()
    world.run(execution, 3)
    world.offset(execution)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("repair.handles", "die")
    world.commit(execution)
    world.clock.advance(LIFETIME)
    world.run_out()
    assert +world.visible == once(world)
    [decision] = [d for d in world.book.decisions.values() if len(d.batches) == LANES]
    assert {len(chain) for (batch, _), chain in decision.chains.items() if batch == 4} == {3}


def test_going_back_in_the_middle_of_a_replay_is_allowed_and_changes_no_row(world: World) -> None:
    decided_and_lost(world, committed=2)
    world.rewind()
    world.run(world.start(), 3)  # nothing of what Spark has run again is lost; what is lost it has not come to
    assert world.rewind() == ""
    world.run_out()
    assert +world.visible == once(world)


def test_a_rewind_in_the_middle_of_a_replay_lets_the_rest_run_again_too(world: World) -> None:
    execution = two_prepared(world)
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("decision.written", "expire")  # one of its parts; the others are committed
    world.commit(execution)
    world.run(world.start())
    assert world.rewind() == ""
    world.armed = Interference("repair.handles", "die")
    world.run(world.start())
    assert world.rewind() == ""  # settles the checkpoint, of which Spark has run the first micro-batch only
    assert max(world.files.offsets) < max(world.truth.checkpoints[max(world.truth.checkpoints)].batches)
    world.run_out()
    assert +world.visible == once(world)


# -- to a checkpoint that was named ---------------------------------------------------------------------------------------


def test_what_a_named_target_writes_again_is_what_was_named(world: World) -> None:
    known = five_checkpoints(world)
    assert world.rewind(known[3]) == ""
    position = world.files.offsets[6].end
    assert sorted(world.named) == list(range(position, world.read))
    world.run_out()
    assert +world.visible == Counter({row: 1 + (row >= position) for row in range(world.read)})


def test_a_checkpoint_id_that_was_rewound_away_never_comes_back(world: World) -> None:
    known = five_checkpoints(world)
    world.rewind(known[3])
    assert world.run(world.start(), 2)
    assert sorted(world.truth.checkpoints)[:4] == known[:4]
    assert min(sorted(world.truth.checkpoints)[4:]) > known[-1]


def test_a_table_that_goes_back_with_it_has_every_row_once(world: World) -> None:
    known = five_checkpoints(world)
    assert world.rewind(known[2], restore=True) == ""
    assert visible(world) == list(range(world.files.offsets[4].end))
    world.run_out()
    assert +world.visible == once(world)


def test_an_unsettled_checkpoint_behind_the_target_is_settled_first_and_its_rows_are_named(world: World) -> None:
    execution = world.start()
    world.run(execution, 2)
    first = min(world.book.decisions)
    world.run(execution, 2, 3, "none")
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    world.armed = Interference("commit.one", "die", skip=2)
    world.commit(execution)
    world.kill()
    [unsettled] = world.book.unsettled()
    preview = rewinder(world).preview(first)
    assert unsettled.id in [checkpoint.id for checkpoint in preview.emitted]
    world.rewind(first)
    assert visible(world) == list(range(world.read))  # settled: it was decided
    world.run_out()


# -- killed between its steps ---------------------------------------------------------------------------------------------


def part_committed(world: World) -> None:
    decided_and_lost(world, committed=5)


def named(world: World) -> None:
    five_checkpoints(world)


BEFORE = {"lost": prepared_lost, "part committed": part_committed, "named": named}
DELETIONS = ("rewind.commit-deleted", "rewind.offset-deleted")
PASSED = [
    *(("lost", step) for step in (*STEPS, *DELETIONS) if step != "rewind.restored"),
    *(("part committed", step) for step in (*STEPS, *DELETIONS, "rewind.planned") if step != "rewind.restored"),
    *(("named", step) for step in (*STEPS, *DELETIONS)),
]


def goes_back(world: World, before: str) -> str:
    target = sorted(world.book.decisions)[2] if before == "named" else None
    return world.rewind(target, restore=before == "named")


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize(("before", "step"), PASSED)
def test_a_rewind_that_was_killed_is_finished(world: World, before: str, step: str, kills: int) -> None:
    BEFORE[before](world)
    world.armed = Interference(step, "die")
    assert goes_back(world, before) == "died"
    for _ in range(kills - 1):  # it is killed there again, or deletes what is left
        world.armed = Interference(step, "die")
        world.resume()
    world.armed = None
    if world.book.rewinding:
        half_done = world.start()
        assert not world.run(half_done)
        assert half_done.condition == "REWIND_NOT_DONE"
        assert world.resume() == ""
    world.run_out()
    assert +world.visible == once(world)
    assert world.book.kinds.count(EntryKind.REWIND_DONE) == 1


def test_offsets_that_a_driver_writes_after_the_rewind_are_found_and_taken_away(world: World) -> None:
    execution = two_prepared(world)
    late = replace(world.files.offsets[2])
    world.kill()
    assert world.rewind() == ""  # to micro-batch 0; the driver stood still before it wrote offsets/3
    world.files.offsets[3] = late
    again = world.start()
    world.plan(again)
    assert again.condition == "LOGS_AHEAD"
    assert world.rewind() == ""
    assert sorted(world.files.offsets) == [0]
    world.run_out()
    assert +world.visible == once(world)
    assert execution.batch == 3


@pytest.mark.parametrize("point", ["rewind.settled", "rewind.aborted"])
def test_the_end_of_a_rewind_that_was_killed_is_not_journalled_under_the_one_that_resumes_it(
    world: World, point: str
) -> None:
    prepared_lost(world)
    world.store.how, world.store.kind, world.store.times = "late", "rewind done", 1
    assert world.rewind() == "JOURNAL_STORE_FAILED"

    def lands() -> None:
        world.wake()
        assert not world.run(world.start())  # the rewind is in progress still

    world.meanwhile = lambda action, arg: lands()  # type: ignore[method-assign]
    world.armed = Interference(point, "land")
    assert world.resume() == ""
    world.run_out()
    assert +world.visible == once(world)


# -- who is fenced --------------------------------------------------------------------------------------------------------


def half_done(world: World) -> None:
    prepared_lost(world)
    world.armed = Interference("rewind.begun", "die")
    assert world.rewind() == "died"


def test_a_query_that_starts_on_a_half_done_rewind_stops_and_touches_nothing(world: World) -> None:
    half_done(world)
    files, unfinished = dict(world.store.files), world.transactions.unfinished()
    assert unfinished
    execution = world.start()
    assert not world.run(execution)
    assert isinstance(execution.errors[0], FencedError)
    assert execution.condition == "REWIND_NOT_DONE"
    assert "barrier recover" in str(execution.errors[0])
    assert (world.store.files, world.transactions.unfinished()) == (files, unfinished)


@pytest.mark.parametrize("messages", ["all", "none"])
def test_the_former_run_s_commit_and_abort_touch_nothing_while_it_is_rewound(world: World, messages: str) -> None:
    execution = two_prepared(world)
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    former = world._coordinator(execution, world._journal())
    told = execution.messages if messages == "all" else [None] * PARTITIONS
    world.armed = Interference("rewind.begun", "die")
    world.rewind()
    files, unfinished = dict(world.store.files), world.transactions.unfinished()
    with pytest.raises(FencedError, match="REWIND_NOT_DONE"):
        former.commit(execution.messages, execution.batch)
    former.abort(told, execution.batch)
    assert (world.store.files, world.transactions.unfinished()) == (files, unfinished)
    world.run_out()
    assert +world.visible == once(world)


def test_after_the_rewind_the_former_run_is_over_too(world: World) -> None:
    execution = two_prepared(world)
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    former = world._coordinator(execution, world._journal())
    world.rewind()
    with pytest.raises(FencedError, match="RUN_ENDED"):
        former.commit(execution.messages, execution.batch)
    world.run_out()


def test_a_commit_that_stood_still_since_its_decision_commits_nothing_of_what_was_voided(world: World) -> None:
    execution = two_prepared(world)
    world.offset(execution, 3)
    world.plan(execution)
    world.tasks(execution)
    lost = world.book.prepared[1][0, ""]

    def rewound() -> None:
        world.transactions.expire(lost)
        assert world.rewind() == ""

    world.meanwhile = lambda action, arg: rewound()  # type: ignore[method-assign]
    world.armed = Interference("decision.written", "rewind")
    world.commit(execution)
    assert (execution.condition, world.seen["void: decided"]) == ("LOST_AFTER_DECISION", 1)
    world.run_out()
    assert +world.visible == once(world)


def test_the_number_of_a_micro_batch_that_was_rewound_is_recorded_anew_with_other_rows(world: World) -> None:
    known = five_checkpoints(world)
    assert world.rewind(known[3]) == ""
    assert world.run(world.start(), 1, 5, "none")
    assert sorted(world.book.prepared) == [7]
    assert world.truth.batches[7].sources == world.files.view(7).sources


@pytest.mark.parametrize("point", [*DELETIONS, "rewind.deleted"])
@pytest.mark.parametrize("before", BEFORE)
def test_a_query_that_is_started_while_spark_s_logs_are_rewritten_does_no_harm(
    world: World, before: str, point: str
) -> None:
    BEFORE[before](world)
    world.armed = Interference(point, "rival")
    assert goes_back(world, before) == ""
    world.run_out()
    assert +world.visible == once(world)


# -- what drains is compared ----------------------------------------------------------------------------------------------


def one_part_lost(world: World) -> Execution:
    """A replay of a micro-batch of which one part is lost; the others, which are committed, drain."""
    decided_and_lost(world, committed=2)
    world.rewind()
    execution = world.start()
    world.offset(execution)
    world.plan(execution)
    world.tasks(execution)
    assert [message.drained for message in execution.messages if message] == [True, True, False]
    return execution


def drained_with(execution: Execution, **changed: Any) -> None:
    first = execution.messages[0]
    assert first is not None
    execution.messages[0] = replace(first, parts=[replace(first.parts[0], **changed)])


@pytest.mark.parametrize("changed", [{"rows": 2}, {"bytes": 9}, {"digest": "others"}], ids=str)
def test_a_replay_whose_drained_rows_are_others_than_the_committed_ones_is_refused(
    world: World, changed: dict[str, Any]
) -> None:
    """A source that is not deterministic would leave out rows behind them, or have some twice."""
    execution = one_part_lost(world)
    drained_with(execution, **changed)
    before = visible(world)
    with pytest.raises(Violation, match=r"REPLAY_DIFFERS.*the committed partition 0"):
        world.commit(execution)  # no failure of a process or a store may lead there
    assert visible(world) == before
    assert EntryKind.REPAIR not in world.book.kinds


def test_the_same_rows_are_not(world: World) -> None:
    execution = one_part_lost(world)
    world.commit(execution)
    assert execution.errors == []


# -- what somebody else has done ------------------------------------------------------------------------------------------


def test_a_prepared_transaction_that_somebody_else_has_committed_stops_the_rewind(world: World) -> None:
    """Going back would write its rows again; nothing goes back before an operator has said so."""
    two_prepared(world)
    number = world.book.prepared[2][1, ""]
    work = rewinder(world)
    work.begin(work.preview(), {})
    world.transactions.commit(number)
    before = dict(world.files.offsets)
    with pytest.raises(
        AmbiguousOutcomeError, match=r"COMMITTED_UNDECIDED.*micro-batch 2, partition 1 .*barrier resolve"
    ):
        work.finish()
    assert (world.files.offsets, world.book.kinds[-1]) == (before, EntryKind.REWIND_BEGUN)
    body = {"checkpoint": None, "batch": 2, "partition": 1, "decision": "accept-duplicates"}
    journal = world._journal()
    journal.load()
    journal.append(fact_of(EntryKind.RESOLVE, body), lambda ledger: None)
    again, _ = world.rewinder()
    again.again({})
    assert again.finish() == 0


@pytest.mark.parametrize(
    ("offsets", "commits", "added", "late"),
    [
        (5, 4, (), False),
        (5, 5, (), False),
        (6, 5, (), False),
        (7, 5, (), True),
        (5, 6, (), True),
        (7, 7, (), True),
        (8, 8, (), False),  # no rewind has deleted it: the journal is older
        (6, 6, (6,), False),
        (7, 7, (6,), True),
    ],
)
def test_what_a_driver_that_stood_still_has_written_is_told_from_what_the_engine_has(
    offsets: int, commits: int, added: Sequence[int], late: bool
) -> None:
    """The journal accounts for micro-batches up to 5, and did so up to 7 before a rewind."""

    class Logs(ReplacedFile):
        def highest(self) -> tuple[int, int]:
            return offsets, commits

        def repartitions(self, before: int) -> Sequence[int]:
            return [number for number in added if number == before - 1]

    assert out_of_step(Ledger(base=5, reached=7), Logs()) is late


class ReplacedFile:
    """Spark's logs, of which a driver that stood still has written ``offsets/0`` late."""

    def __init__(self) -> None:
        self.offsets = {0: "late"}

    def highest(self) -> tuple[int, int]:
        return 0, 0

    def repartitions(self, before: int) -> Sequence[int]:
        raise AssertionError("nothing is ahead")

    def check_can_go_back(self, batch: int) -> None:
        assert batch == 0

    def delete_after(self, batch: int) -> None:
        assert batch == 0

    def replay(self, first: int, last: int) -> None:
        raise AssertionError("nothing is kept")

    def is_replaced(self, batch: int, text: str) -> bool:
        return self.offsets[batch] != text

    def put_back(self, batch: int, text: str) -> None:
        self.offsets[batch] = text


def test_a_rewind_that_is_killed_when_it_has_put_a_file_back_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    view = query.view
    query.view = lambda batch: replace(view(batch), text=f"text {batch}")  # type: ignore[method-assign]
    query.run(0)
    logs, reached = ReplacedFile(), list[str]()

    def reach(point: str) -> None:
        reached.append(point)
        if point == "rewind.put-back" and reached.count(point) == 1:
            raise KeyboardInterrupt(point)

    monkeypatch.setattr(faults, "reach", reach)

    def started() -> Rewinder:
        journal = Journal(query.journal_store)
        journal.load()
        sink = RecordingSink(Options({"transactionalIdPrefix": "p"}), SCHEMA, query.transactions)
        return Rewinder(journal, sink, logs, "q", "p")

    work = started()
    work.begin(work.preview(), {})
    with pytest.raises(KeyboardInterrupt):
        work.finish()
    assert (logs.offsets, query.kinds()[-1]) == ({0: "text 0"}, EntryKind.REWIND_BEGUN)
    with pytest.raises(FencedError, match="REWIND_NOT_DONE"):
        query.plan(1)
    again = started()
    again.again({})
    assert again.finish() == 0
    assert (logs.offsets, query.kinds()[-1]) == ({0: "text 0"}, EntryKind.REWIND_DONE)
    query.run(1)
    assert query.rows() == [0, 1, 10, 11]
