"""Any interleaving of what can happen to a query keeps every invariant, and every planted bug is found."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.transactional.planted import AbortIgnoresTheDecision, CommitsBeforeTheDecision
from tests.transactional.state_machine import (
    PARTITIONS,
    Execution,
    Interference,
    Parts,
    Violation,
    World,
)
from tests.transactional.state_stores import WatchedSink
from transactional import faults
from transactional.checkpoint import Acknowledgement, Mode, TaskPlan
from transactional.coordinator import CheckpointCoordinator
from transactional.entries import RewindDone
from transactional.entry import EntryKind
from transactional.ledger import Ledger, fold
from transactional.sink import Cutoff
from transactional.testing import MemoryHandle

EXAMPLES = 2000
QUARTERS = 4  # a test each; in every second the sink is two
STEPS = 50
BUNDLE = 10
SEARCHED = 100  # examples within which each planted bug has to be found; most take a few

PLAN_POINTS = (
    *("create", "journal.created", "recovery.claimed", "recovery.settling", "commit.one", "commit.done"),
    *("abort.one", "repair.verdict", "recovery.swept", "hooks.restored"),
)
COMMIT_POINTS = (
    *("commit.called", "commit.looked", "hooks.triggered", "create", "journal.created", "prepared.written"),
    *("decision.written", "commit.one", "commit.done", "settled.written", "declined.prepared"),
)
REPAIR_POINTS = ("repair.handles", "recovery.settling", "commit.one", "repair.verdict", "create", "journal.created")
ABORT_POINTS = ("create", "abort.journalled", "abort.one")
REWIND_POINTS = (
    *("create", "journal.created", "rewind.begun", "recovery.settling", "commit.one", "repair.verdict", "abort.one"),
    *("rewind.settled", "rewind.aborted", "rewind.restored", "rewind.planned", "rewind.commit-deleted"),
    *("rewind.offset-deleted", "rewind.deleted"),
)
ACTIONS = ("die", "die", "raise", "raise", "rival", "again", "rewind", "expire", "later", "wake")
KINDS = ("none", "none", "barrier", "none", "nodata", "barrier", "none", "final")

KEPT = {
    "KEPT_BATCHES": 12,
    "KEPT_RUNS": 8,
    "KEPT_FAILURES": 3,
}  # so that a run of 50 steps forgets as one of months does

NEED_A_REWIND = ("PREPARED_LOST",)

small = st.integers(0, 3)
bits = st.integers(0, 7)
delays = st.sampled_from([1, 5, 30, 55, 95, 130])
kinds = st.sampled_from(KINDS)


class CheckpointMachine(RuleBasedStateMachine):
    """Draws what happens to a `World`; a rule is a moment of one query's life, or a trouble."""

    parts = Parts()
    seen: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.parts, self.seen)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(faults, "reach", self.world.reach)
        for name, kept in KEPT.items():
            self._patch.setattr(fold, name, kept)
        self._former: list[TaskPlan] = []
        self._stuck = self._told_wrong = 0

    @property
    def current(self) -> Execution:
        """The query's newest start; a new driver starts it where it has ended."""
        world = self.world
        last = world.executions[-1]
        if last.alive:
            return last
        if last.condition in ("REWIND_NOT_DONE", *NEED_A_REWIND):
            self._stuck += 1
        if self._stuck > 1:  # else the rules that disturb a rewind have had their chance
            self._stuck = 0
            _ignored(world.resume() if world.book.rewinding else world.rewind())
        return world.start()

    @initialize(batches=small, kind=kinds)
    def begins(self, batches: int, kind: str) -> None:
        self.world.run(self.world.start(), batches, 2, kind)

    # -- the way of a micro-batch -----------------------------------------------------------------------------------

    @rule(batches=st.integers(1, 2), rows=small, kind=kinds)
    def runs_on(self, batches: int, rows: int, kind: str) -> None:
        self.world.run(self.current, batches, rows, kind)

    @precondition(lambda self: len(self.world.book.prepared) < 2)
    @rule(batches=st.integers(1, 2))
    def piles_up(self, batches: int) -> None:
        self.world.run(self.current, batches, 2, "none")

    @rule(rows=small, kind=kinds)
    def comes_to_its_planning(self, rows: int, kind: str) -> None:
        execution = self.current
        self.world.commit(execution)
        self.world.done(execution)
        self.world.offset(execution, rows, kind)

    @rule(twice=bits, kind=kinds)
    def comes_to_its_commit(self, twice: int, kind: str) -> None:
        execution = self.current
        self.world.offset(execution, 3, kind)
        self.world.plan(execution)
        self.world.tasks(execution, twice)
        if execution.plan is not None:
            self._former = [*self._former, execution.plan][-3:]

    @rule(
        after=st.sampled_from(["", "a kill", "a half done commit", "a half done commit"]),
        point=st.sampled_from(PLAN_POINTS),
        action=st.sampled_from(ACTIONS),
        skip=small,
        arg=delays,
        kind=kinds,
    )
    def is_disturbed_at_its_planning(self, after: str, point: str, action: str, skip: int, arg: int, kind: str) -> None:
        if after == "a half done commit":
            self.fails_in_its_commit(skip % 2, "commit.one", skip // 2, arg, "barrier")
        elif after:
            self.world.kill()
        self.comes_to_its_planning(2, kind)
        self._disturbed(lambda: self.world.plan(self.world.executions[-1]), point, action, skip % 2, arg)

    @rule(
        lanes=st.integers(0, 2),
        done=st.integers(0, 4),
        point=st.sampled_from(REPAIR_POINTS),
        action=st.sampled_from(ACTIONS),
        skip=small,
        arg=delays,
    )
    def is_disturbed_at_its_repair(self, lanes: int, done: int, point: str, action: str, skip: int, arg: int) -> None:
        """A part of a checkpoint was committed; the others expired."""
        self.fails_in_its_commit(lanes, "commit.one", done, 130, "barrier")
        self.comes_to_its_commit(0, "none")
        if self.world.needs_rewind and not self.world.book.rewinding:
            self.world.rewind()
            self.comes_to_its_commit(0, "none")
        self._disturbed(lambda: self.world.commit(self.world.executions[-1]), point, action, skip // 2, arg)

    @rule(point=st.sampled_from(COMMIT_POINTS), action=st.sampled_from(ACTIONS), skip=small, arg=delays, kind=kinds)
    def is_disturbed_at_its_commit(self, point: str, action: str, skip: int, arg: int, kind: str) -> None:
        self.comes_to_its_commit(0, kind)
        self._disturbed(lambda: self.world.commit(self.world.executions[-1]), point, action, skip, arg)

    @rule(
        lanes=small,
        point=st.sampled_from(["decision.written", "commit.one", "commit.one", "commit.done", "prepared.written"]),
        skip=st.integers(0, 6),
        seconds=st.sampled_from([0, 0, 1, 60, 130, 130]),
        kind=st.sampled_from(["barrier", "barrier", "none"]),
    )
    def fails_in_its_commit(self, lanes: int, point: str, skip: int, seconds: int, kind: str) -> None:
        """It raises, or it is killed and stays down for so long: what is prepared may expire meanwhile."""
        execution = self.current
        self.world.run(execution, lanes, 3, "none")
        self.world.offset(execution, 3, kind)
        self.world.plan(execution)
        self.world.tasks(execution)
        skip = skip if point == "commit.one" else 0
        self._disturbed(lambda: self.world.commit(execution), point, "die" if seconds else "raise", skip, 0)
        if seconds:
            self.world.kill()
            self.world.clock.advance(seconds)

    @rule(keep=bits, point=st.sampled_from(ABORT_POINTS), action=st.sampled_from(ACTIONS), missing=bits)
    def gives_a_micro_batch_up(self, keep: int, point: str, action: str, missing: int) -> None:
        execution = self.current
        self.world.offset(execution, 3, "none")
        self.world.plan(execution)
        self.world.tasks(execution, missing=missing)
        self._disturbed(lambda: self.world.abort(execution, keep), point, action, 0, 30)

    def _disturbed(self, act: Callable[[], object], point: str, action: str, skip: int, arg: int) -> None:
        self.world.armed = Interference(point, action, skip, arg)
        try:
            act()
        finally:
            self.world.armed = None

    @precondition(lambda self: self._told_wrong < 2)
    @rule(how=st.sampled_from(["twice", "former", "none", "other"]))
    def gets_wrong_acknowledgements(self, how: str) -> None:
        self.comes_to_its_commit(0, "none")
        execution = self.world.executions[-1]
        if execution.stage != "commit" or execution.plan is None or execution.plan.mode is not Mode.WRITE:
            return
        told: list[Acknowledgement | None] = list(execution.messages)
        self._told_wrong += 1
        first = told[0]
        assert first is not None
        if how == "twice":
            told.append(first)
        elif how == "none":
            told[1] = None
        elif how == "former" and first.token > 1:
            told[0] = replace(first, token=first.token - 1)
        else:
            told[0] = replace(first, batch=first.batch + 1)
        self.world.commit(execution, told)

    # -- troubles ---------------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["start", "start again", "kill", "wake", "ask", "late task", "late task"]), which=bits)
    def has_some_trouble(self, what: str, which: int) -> None:
        world = self.world
        if what == "start":
            world.start()
        elif what == "start again":
            world.start(world.executions[-1].driver)
        elif what == "kill":
            world.kill()
        elif what == "wake":
            world.wake()
        elif what == "ask" and world.book.run:
            world.ask()
        elif what == "late task" and self._former:
            world.task(self._former[which % len(self._former)], which % PARTITIONS)

    @rule(
        prepared=st.integers(0, 2),
        how=st.sampled_from(["asked", "asked at its commit", "killed", "said to be killed"]),
        point=st.sampled_from(["", "", *PLAN_POINTS, *COMMIT_POINTS]),
        action=st.sampled_from(ACTIONS),
        skip=small,
    )
    def is_stopped(self, prepared: int, how: str, point: str, action: str, skip: int) -> None:
        """By itself, because it was asked to; or from outside, because it was killed, or somebody thought so."""
        execution = self.current
        self.world.run(execution, prepared, 2, "none")
        if how.startswith("asked"):
            self.world.offset(execution, 2, "none")
            if how != "asked":
                self.world.plan(execution)
            self.world.ask_to_stop()
            self.world.run(execution, 2, 2, "none")
            return
        if how == "killed":
            self.world.kill()
        self._disturbed(lambda: _ignored(self.world.close()), point, action, skip, 30)

    @rule(seconds=delays, which=small)
    def loses_time_or_a_transaction(self, seconds: int, which: int) -> None:
        if seconds % 2:
            self.world.clock.advance(seconds)
        else:
            self.world.expire(which)

    @precondition(lambda self: len(self.world.executions) > 1)
    @rule(which=st.integers(2, 3), rounds=st.integers(1, 2))
    def has_a_driver_that_was_overtaken(self, which: int, rounds: int) -> None:
        execution = self.world.executions[-min(which, len(self.world.executions))]
        self.world.plan(execution)
        self.world.tasks(execution)
        self.world.commit(execution)
        self.world.done(execution)
        self.world.run(execution, rounds)

    @rule(
        seconds=st.sampled_from([0.3, 1.5, 60]),
        kind=st.sampled_from(["barrier", "barrier", "final"]),
        action=st.sampled_from(["", "", *ACTIONS]),
    )
    def has_a_hook_that_raises(self, seconds: float, kind: str, action: str) -> None:
        execution = self.current
        self.world.offset(execution, 2, kind)
        self.world.hook_fails_until = self.world.clock.now() + seconds
        self._disturbed(lambda: self.world.run(execution, 1, 2, kind), "declined.prepared", action, 0, 30)

    @rule(
        how=st.sampled_from(["refuse", "lost", "hidden", "late"]),
        kind=st.sampled_from(["", "", "decided", "decided", "prepared", "settled", "run", "void", "verdict", "repair"]),
        times=st.sampled_from([1, 2, 7]),
        seconds=st.sampled_from([0, 0, 3, 60]),
    )
    def has_a_store_that_fails(self, how: str, kind: str, times: int, seconds: int) -> None:
        store, execution = self.world.store, self.current
        store.how, store.kind, store.times = how, kind, times if how == "refuse" else 1
        store.until = self.world.clock.now() + seconds if how == "refuse" else 0.0
        self.world.run(execution, 1, 2, "barrier")
        store.well()

    # -- going back -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.needs_rewind and not self.world.book.rewinding)
    @rule(
        point=st.sampled_from(["", "rewind.planned", *REWIND_POINTS]),
        action=st.sampled_from(ACTIONS),
        skip=small,
        arg=delays,
    )
    def goes_back(self, point: str, action: str, skip: int, arg: int) -> None:
        self._disturbed(lambda: _ignored(self.world.rewind()), point, action, skip, arg)

    @rule(
        back=st.integers(0, 4),
        restore=st.booleans(),
        reemit=st.booleans(),
        point=st.sampled_from(["", "", *REWIND_POINTS]),
        action=st.sampled_from(["die", "raise", "rival", "expire"]),
    )
    def goes_back_to(self, back: int, restore: bool, reemit: bool, point: str, action: str) -> None:
        known = sorted(self.world.book.decisions)
        target = known[-min(back, len(known))] if back and known else None
        self._disturbed(lambda: _ignored(self.world.rewind(target, restore, reemit)), point, action, 0, 20)

    @precondition(lambda self: self.world.book.rewinding)
    @rule(point=st.sampled_from(["", *REWIND_POINTS]), action=st.sampled_from(ACTIONS), skip=small)
    def goes_on_going_back(self, point: str, action: str, skip: int) -> None:
        self._disturbed(lambda: _ignored(self.world.resume()), point, action, skip, 20)

    def teardown(self) -> None:
        try:
            self.world.run_out()
        finally:
            self._patch.undo()


def _ignored(_: object) -> None:
    return None


def machine(parts: Parts, seen: Counter[str]) -> type[CheckpointMachine]:
    """A machine over some parts."""
    return type("CheckpointMachine", (CheckpointMachine,), {"parts": parts, "seen": seen})


def explore(parts: Parts, examples: int, first: int = 0) -> Counter[str]:
    """Run a machine; what it has met.

    In bundles, each from a seed of its own: from its eleventh example on Hypothesis mutates, and five in six resemble one
    that was there before.
    """
    seen: Counter[str] = Counter()
    for number in range(first // BUNDLE, (first + examples) // BUNDLE):
        run_state_machine_as_test(  # type: ignore[no-untyped-call, unused-ignore]  # typed from some version on
            seed(number)(machine(parts, seen)),
            settings=settings(
                max_examples=BUNDLE,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    return seen


pytestmark = pytest.mark.usefixtures("quiet")


# -- planted bugs -------------------------------------------------------------------------------------------------------


class SweepForgets(WatchedSink):
    def sweep(self, known: Sequence[MemoryHandle], before: Cutoff) -> int:
        return super().sweep((), before)


class WritesAPreparedBatchAgain(CheckpointCoordinator):
    def plan(self) -> TaskPlan:
        plan = super().plan()
        undecided = {record.batch for record in self._journal.ledger.undecided()}
        return replace(plan, mode=Mode.WRITE) if plan.batch in undecided else plan


def forgets_to_drop(self: Ledger, entry: Any, fact: RewindDone) -> None:
    """`rewind done` without its effect on entries about later micro-batches."""
    self.rewinding = None
    self.replay = fact.batch + 1 if fact.keep else None


PLANTED = {
    "commit before the decision": Parts(coordinator=CommitsBeforeTheDecision),
    "abort after the decision, by abort": Parts(coordinator=AbortIgnoresTheDecision),
    "abort after the decision, by a sweep that forgets": Parts(sink=SweepForgets),
    "a prepared micro-batch is written again": Parts(coordinator=WritesAPreparedBatchAgain),
    "entries about later micro-batches after a rewind": Parts(compare=False),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug.startswith("entries"):
        monkeypatch.setitem(cast("Any", fold._FOLDS), RewindDone, forgets_to_drop)
    with pytest.raises(Violation):
        explore(PLANTED[bug], SEARCHED)


# -- the machine --------------------------------------------------------------------------------------------------------

UNMET = {
    EntryKind.ADOPT,
    EntryKind.RESOLVE,
    EntryKind.RESTARTED,
    EntryKind.MOVED,
    EntryKind.RESTORING,
    EntryKind.OPENED,
}  # of commands, and of who keeps it up

# What a search has to meet, so that its silence says something.
MET = (
    *(f"closed by {reason}" for reason in ("AGE", "BARRIER", "ENOUGH", "FINAL", "NO_DATA", "REQUEST", "STOP")),
    *("decided with lanes", "void: decided", "void: prepared", "a create that counts for nothing"),
    *("mode: drain", "mode: repair", "mode: write", "declined: HOOK_FAILED", "declined: JOURNAL_REFUSED"),
    *(f"entry: {kind}" for kind in sorted(EntryKind.ALL - UNMET)),
    *(
        "store: late",
        "store: lost",
        "store: refuse",
        "rewound: auto",
        "rewound: kept",
        "rewound: named",
        "resume: done",
        "close: done",
        "close: PREPARED_LOST",
    ),
    *(
        "ended by PREPARED_LOST",
        "ended by PREPARED_LOST of a decision",
        "ended by REWIND_NOT_DONE",
        "ended by RUN_SUPERSEDED",
        "ended by STOP_REQUESTED",
    ),
)


class TwoSinks(WatchedSink):
    """Of each task a part in both."""

    routes = ("left", "right")


@functools.cache
def explored(quarter: int) -> Counter[str]:
    """What a quarter of the examples has met."""
    parts = Parts(sink=TwoSinks) if quarter % 2 else Parts()
    return explore(parts, EXAMPLES // QUARTERS, quarter * EXAMPLES // QUARTERS)


@pytest.mark.matrix  # `make test` has the simulation
@pytest.mark.timeout(900)  # 65 s of CPU; so long on a machine that has other work
@pytest.mark.parametrize("quarter", range(QUARTERS))
def test_in_whatever_happens_each_row_is_committed_by_one_checkpoint(quarter: int) -> None:
    """500 lives of 50 steps.

    `World` checks after every entry and every call, and after the last step runs it out.
    """
    assert explored(quarter)["mode: write"]


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_lives_met_what_they_should() -> None:
    seen = sum(map(explored, range(2)), Counter[str]())
    assert not [what for what in MET if not seen[what]]
    points = {*PLAN_POINTS, *COMMIT_POINTS, *REPAIR_POINTS, *ABORT_POINTS, *REWIND_POINTS}
    assert not [point for point in points if not any(seen[f"{action} at {point}"] for action in ACTIONS)]
