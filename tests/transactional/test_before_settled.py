"""What has to be true at the store before an entry says so: lost is for ever, and settled is visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.transactional.bodies import fact_of
from tests.transactional.test_steps import CrashAt, Query, lost_after_decision
from transactional.checkpoint import Mode
from transactional.entry import EntryKind, decode
from transactional.errors import StoreError
from transactional.journal import Journal
from transactional.sink import Outcome
from transactional.testing import MemoryHandle, RecordingSink


def hurt_after_decision() -> Query:
    """The first of two parts was committed; of the second a part is gone, and the store still calls it open."""
    query = Query(CrashAt())
    messages = query.tasks(query.plan(0))
    query.journal_store.armed = "settled"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.commit(messages, 0)
    query.journal_store.armed = ""  # type: ignore[attr-defined]
    second = query.transactions._transactions[2]
    second.state, second.hurt = "prepared", True
    assert query.transactions.outcome(2) is Outcome.LOST
    return query


def test_a_hurt_transaction_is_aborted_before_it_is_judged_lost() -> None:
    """A commit that a frozen process still has on its way finds it ended: its rows are about to be written again."""
    query = hurt_after_decision()
    query.journal_store.armed = "verdict"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.plan(0, "B")
    assert query.transactions.commit(2) is Outcome.LOST


def test_a_hurt_transaction_is_repaired() -> None:
    query = hurt_after_decision()
    plan = query.plan(0, "B")
    assert query.transactions.commit(2) is Outcome.LOST
    query.commit(query.tasks(plan), 0, "B")
    assert query.rows() == [0, 1]
    assert query.kinds()[-3:] == [EntryKind.VERDICT, EntryKind.REPAIR, EntryKind.SETTLED]


def test_what_the_abort_finds_committed_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    query = hurt_after_decision()
    abort = RecordingSink.abort

    def late(sink: RecordingSink, handles: Sequence[MemoryHandle]) -> Sequence[MemoryHandle]:
        query.transactions.commit(2)  # of the process that stood still
        return abort(sink, handles)

    monkeypatch.setattr(RecordingSink, "abort", late)
    assert query.plan(0, "B").mode is Mode.DRAIN
    assert query.rows() == [0, 1]
    assert EntryKind.VERDICT not in query.kinds()


def test_a_void_rests_on_an_abort_of_the_hurt_one_too() -> None:
    query = hurt_after_decision()
    query.transactions._transactions[1].state = "prepared"
    query.journal_store.armed = "void"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.plan(0, "B")
    assert [query.transactions.commit(number) for number in (1, 2)] == [Outcome.LOST, Outcome.LOST]


class Visible:
    """Stands for a sink's `ensureVisible`, and keeps what it was called with."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.calls: list[list[int]] = []
        self.repaired: list[dict[str, Any]] = []
        self.fails = False

    def __call__(self, handles: Sequence[MemoryHandle]) -> Sequence[Mapping[str, Any]]:
        numbers = [handle["transaction"] for handle in handles]
        assert {self.query.transactions.outcome(number) for number in numbers} <= {Outcome.COMMITTED}
        assert EntryKind.SETTLED not in self.query.kinds()
        self.calls.append(numbers)
        if self.fails:
            raise StoreError("NOT_VISIBLE", "a partition has no leader")
        return self.repaired


def watched(query: Query, monkeypatch: pytest.MonkeyPatch) -> Visible:
    visible = Visible(query)
    monkeypatch.setattr(RecordingSink, "ensureVisible", lambda sink, handles, checkpoint: visible(handles))
    return visible


def settled_body(query: Query) -> Mapping[str, Any]:
    names = [name for name in query.journal_store.names() if "snapshot" not in name]
    entries = [decode(query.journal_store.read(name), name) for name in names]
    return next(entry.body for entry in entries if entry.kind == EntryKind.SETTLED)


def test_a_checkpoint_is_settled_when_its_rows_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    visible = watched(query, monkeypatch)
    query.run(0)
    assert visible.calls == [[1, 2]]
    assert "repaired" not in settled_body(query)


def test_a_checkpoint_whose_rows_are_not_visible_is_not_settled_and_the_next_start_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = Query()
    visible = watched(query, monkeypatch)
    visible.fails = True
    with pytest.raises(StoreError, match="NOT_VISIBLE"):
        query.run(0)
    with pytest.raises(StoreError, match="NOT_VISIBLE"):
        query.plan(0, "B")
    visible.fails = False
    visible.repaired = [{"partition": 0}]
    assert query.plan(0, "B").mode is Mode.DRAIN
    assert visible.calls == [[1, 2]] * 3
    assert settled_body(query)["repaired"] == [{"partition": 0}]


def test_only_handles_that_are_committed_have_to_be_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a repaired part the last handle; none of a part whose loss was accepted."""
    query = lost_after_decision(committed=[1])
    query.plan(0, "B")
    visible = watched(query, monkeypatch)
    journal = Journal(query.journal_store)
    checkpoint = journal.load().unsettled()[0].id
    choice = {"checkpoint": checkpoint, "batch": 0, "partition": 1, "decision": "accept-loss"}
    journal.append(fact_of(EntryKind.RESOLVE, choice), lambda ledger: None)
    assert query.plan(0, "C").mode is Mode.DRAIN
    assert visible.calls == [[1]]
    assert query.ledger().unsettled() == []
