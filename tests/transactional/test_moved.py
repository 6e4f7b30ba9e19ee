"""A claim meets the old place's driver at any step of either: the real code, on a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.transactional.bodies import fact_of, lines, restore_begun
from tests.transactional.test_steps import SCHEMA, Query
from transactional import faults
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.restore import begins_at, cut, may_move
from transactional.rewind import Preview, Rewinder
from transactional.sink import Options
from transactional.testing import RecordingSink

STOPPED = (
    "LOCATION_MOVED_ON",
    "REWIND_NOT_DONE",
    "RUN_ENDED",
    "RUN_SUPERSEDED",
    "TRANSACTION_LOST",
    "HANDLE_NOT_ALIVE",
)
"""How the old driver ends; the last two where the rewind has swept what it was writing."""


class Logs:
    """Spark's logs; what a rewind does to them is tested elsewhere."""

    def highest(self) -> tuple[int, int]:
        return 1, 0

    def repartitions(self, before: int) -> Sequence[int]:
        raise AssertionError

    def check_can_go_back(self, batch: int) -> None:
        """It can."""

    def delete_after(self, batch: int) -> None:
        """Done."""

    def replay(self, first: int, last: int) -> None:
        raise AssertionError

    def is_replaced(self, batch: int, text: str) -> bool:
        return False

    def put_back(self, batch: int, text: str) -> None:
        raise AssertionError


class Claim:
    """A claim of the checkpoint of micro-batch 0, which the origin is taken back to as often as it goes on."""

    def __init__(self, query: Query, saved: Ledger) -> None:
        self.query = query
        self.saved = saved
        self.checkpoint = max(saved.checkpoints)

    def __call__(self) -> None:
        journal = Journal(self.query.journal_store)
        judge = may_move(self.saved, "s", self.checkpoint, "/there")
        body = {"location": "/there", "savepoint": "s", "checkpoint": self.checkpoint}
        while not journal.load().moved:
            sink = RecordingSink(Options({"transactionalIdPrefix": "p"}), SCHEMA, self.query.transactions)
            rewinder = Rewinder(journal, sink, Logs(), "q", "p")
            try:
                if journal.ledger.rewinding is None:
                    rewinder.begin(Preview(self.checkpoint, -1, [], [], None), {})
                else:
                    rewinder.again({})
                rewinder.finish()
                journal.append(fact_of(EntryKind.MOVED, body), judge)
            except TwoPhaseCommitError as problem:
                known = ("LOCATION_BUSY", "REWIND_NOT_DONE", "ORIGIN_NOT_AT_SAVEPOINT")
                assert problem.condition in known, problem  # noqa: PT017


def other_place(query: Query, saved: Ledger) -> Query:
    """The query at its new location, which goes on above the old journal's numbers."""
    moved = query.ledger().moved
    assert moved is not None
    there = Query(MemoryJournalStore())
    journal = Journal(there.journal_store)
    journal.append(restore_begun(saved, max(saved.checkpoints), True, "/there"), lambda _: None)
    journal.append(fact_of(EntryKind.OPENED, {"position": begins_at(moved.entry, saved)}), lambda _: None)
    there.transactions, there.committed = query.transactions, 0
    there.view = lambda batch: QueryView(  # type: ignore[method-assign]
        "q", "/there", batch, there.committed, lines(f"line {batch}"), lines(f"line {batch - 1}")
    )
    return there


def meet(monkeypatch: pytest.MonkeyPatch, at: int, outer: Callable[[], Any], inner: Callable[[], Any]) -> int:
    """Run one; the other takes place at its n-th fault point or call of the sink, or after it. How many it has passed."""
    passed = 0

    def reach(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed == at:
            try:
                inner()
            except TwoPhaseCommitError:
                return

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        patch.setattr(RecordingSink, "_called", lambda self, method, numbers: reach(method))
        try:
            outer()
        except TwoPhaseCommitError as problem:
            assert problem.condition in STOPPED, problem  # noqa: PT017
    return passed


def check_whole(query: Query, saved: Ledger) -> None:
    """What is committed at the old place is in its journal; the rest is written at the new one, once."""
    old = query.ledger()
    assert old.moved is not None
    assert (old.unsettled(), old.undecided()) == ([], [])
    again = 2 if 11 in query.rows() else 1  # the rewind has named it
    there = other_place(query, saved)
    plan = there.plan(1, driver="B")
    assert query.transactions.unfinished() == [], "what the old driver has left is swept"
    assert plan.token > old.position
    there.commit(there.tasks(plan), 1, driver="B")
    assert query.rows() == sorted([0, 1] + again * [10, 11])
    assert query.ledger() == old, "nothing follows `moved`"


def prepared() -> tuple[Query, Ledger]:
    query = Query()
    query.run(0)
    return query, cut(query.ledger(), max(query.ledger().checkpoints))


def test_a_claim_meets_the_old_driver_at_any_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = 0
    for at in range(1, 60):
        query, saved = prepared()
        claim = Claim(query, saved)
        reached = meet(monkeypatch, at, lambda: query.run(1), claim)  # noqa: B023
        claim()
        check_whole(query, saved)
        if reached < at:
            break
    assert reached > 8


def test_the_old_driver_goes_on_at_any_step_of_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a micro-batch that is planned, one that is written, and one that is decided and not committed."""
    for begun in range(3):
        for at in range(1, 60):
            query, saved = prepared()
            plan = query.plan(1)
            messages = query.tasks(plan) if begun else None
            claim = Claim(query, saved)

            def go_on() -> None:
                found = messages if messages is not None else query.tasks(plan)  # noqa: B023
                query.commit(found, 1)  # noqa: B023

            if begun == 2:
                with monkeypatch.context() as patch:
                    patch.setattr(RecordingSink, "commit", die)
                    with pytest.raises(KeyboardInterrupt):
                        query.commit(messages or [], 1)
            reached = meet(monkeypatch, at, claim, go_on)
            check_whole(query, saved)
            if reached < at:
                break


def die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_new_driver_at_the_old_place_claims_nothing_at_any_step_of_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(1, 60):
        query, saved = prepared()
        query.tasks(query.plan(1))
        reached = meet(monkeypatch, at, Claim(query, saved), lambda: query.run(1, driver="Z"))  # noqa: B023
        check_whole(query, saved)
        if reached < at:
            break


def test_the_new_place_is_not_touched_by_the_old_drivers_late_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    query, saved = prepared()
    plan = query.plan(1)
    messages = query.tasks(plan)
    Claim(query, saved)()
    there = other_place(query, saved)
    begun = there.tasks(there.plan(1, driver="B"))
    sink = RecordingSink(Options({"transactionalIdPrefix": "p"}), SCHEMA, query.transactions)
    late = CheckpointCoordinator(
        Journal(query.journal_store), sink, RunSettings("A", sink.name(), "options", "p"), query.view(1)
    )
    late.abort(messages, 1)
    with pytest.raises(TwoPhaseCommitError, match="LOCATION_MOVED_ON"):
        late.commit(messages, 1)
    assert sink.calls == []
    there.commit(begun, 1, driver="B")
    assert query.rows() == [0, 1, 10, 11]
