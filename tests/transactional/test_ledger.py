"""The fold over the journal."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.transactional.interleaving import run
from transactional.errors import JournalError
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import KEPT_BATCHES, KEPT_CHECKPOINTS, KEPT_RUNS, Ledger
from transactional.metadata import Entry, EntryKind

RUN = {"driver": "d", "settings": "s", "sink": "x", "location": "here", "prefix": "p", "identity": {}, "queryId": "q"}


def fold(*facts: tuple[str, dict[str, Any]], ledger: Ledger | None = None) -> Ledger:
    ledger = ledger or Ledger()
    for kind, body in facts:
        ledger.apply(Entry(ledger.position + 1, kind, "n", 0, body))
    return ledger


def part(partition: int, handle: int | None) -> dict[str, Any]:
    shown = None if handle is None else {"transaction": handle}
    return {"partition": partition, "handle": shown, "rows": 1, "bytes": 1, "digest": "1:0"}


def batch(number: int, *handles: int | None, covers: list[int] | None = None) -> dict[str, Any]:
    parts = [part(partition, handle) for partition, handle in enumerate(handles)]
    body = {"run": 1, "batch": number, "sources": "s", "writers": len(parts), "parts": parts}
    return body if covers is None else {**body, "covers": covers}


def known(ledger: Ledger) -> list[int]:
    return [handle["transaction"] for handle in ledger.known_handles()]


def test_a_checkpoint_goes_from_prepared_over_decided_to_settled() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.PREPARED, batch(0, 1, None)))
    assert (ledger.accounted, known(ledger), [b.batch for b in ledger.undecided()]) == (0, [1], [0])
    fold((EntryKind.DECIDED, batch(1, 2, covers=[0])), ledger=ledger)
    [checkpoint] = ledger.unsettled()
    assert (checkpoint.id, checkpoint.batches, checkpoint.rows, known(ledger)) == (3, [0, 1], 3, [1, 2])
    fold((EntryKind.SETTLED, {"checkpoint": 3, "run": 1}), ledger=ledger)
    assert (ledger.unsettled(), known(ledger), ledger.accounted) == ([], [], 1)


def test_a_decision_without_handles_is_settled() -> None:
    assert fold((EntryKind.DECIDED, batch(0, None, covers=[]))).unsettled() == []


def test_a_repair_is_the_last_of_a_chain() -> None:
    lost = {"batch": 0, "partition": 0, "handle": 0, "verdict": "lost"}
    ledger = fold((EntryKind.DECIDED, batch(0, 1, 2, covers=[])), (EntryKind.VERDICT, {"parts": [lost]}))
    assert known(ledger) == [2]
    assert [p.partition for p in ledger.parts_of(ledger.unsettled()[0]) if p.lost] == [0]
    repair = {"batch": 0, "partition": 0, "replaces": 0, "handle": {"transaction": 3}}
    fold((EntryKind.REPAIR, {"parts": [repair]}), ledger=ledger)
    assert known(ledger) == [3, 2]
    assert ledger.part(0, 0).verdicts == ["lost", None]


@pytest.mark.parametrize("void", [{"prepared": 0}, {"checkpoint": 1}])
def test_what_is_void_is_remembered_until_it_is_recorded_anew(void: dict[str, int]) -> None:
    first = (EntryKind.PREPARED, batch(0, 1)) if "prepared" in void else (EntryKind.DECIDED, batch(0, 1, covers=[]))
    ledger = fold(first, (EntryKind.VOID, void))
    assert (ledger.accounted, ledger.voided, known(ledger)) == (-1, [0], [])
    fold((EntryKind.DECIDED, batch(0, 2, covers=[])), ledger=ledger)
    assert (ledger.accounted, ledger.voided, known(ledger)) == (0, [], [2])


@pytest.mark.parametrize(
    ("kind", "body", "condition"),
    [
        (EntryKind.SETTLED, {"checkpoint": 9, "run": 1}, "JOURNAL_INCONSISTENT"),
        (EntryKind.VOID, {"prepared": 4}, "JOURNAL_INCONSISTENT"),
        (EntryKind.DECIDED, batch(0, 1, covers=[7]), "JOURNAL_INCONSISTENT"),
        (EntryKind.REPAIR, {"parts": [{"batch": 0, "partition": 5, "handle": {}}]}, "JOURNAL_INCONSISTENT"),
        (EntryKind.MARK, {"run": 9, "mark": {}}, "JOURNAL_INCONSISTENT"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(kind: str, body: dict[str, Any], condition: str) -> None:
    with pytest.raises(JournalError, match=condition):
        fold((EntryKind.RUN, RUN), (kind, body))


def test_a_gap_is_refused() -> None:
    with pytest.raises(JournalError, match="JOURNAL_GAP"):
        Ledger().apply(Entry(2, EntryKind.RUN, "n", 0, RUN))


@pytest.mark.parametrize("ended", [EntryKind.ABORTED, EntryKind.FENCED])
def test_a_run_ends(ended: str) -> None:
    run = fold((EntryKind.RUN, RUN), (ended, {"run": 1})).newest_run
    assert run is not None
    assert run.ended == ended


@pytest.mark.parametrize("base", [-1, 0, 1, 5])
def test_an_adoption_that_drops_accounts_for_exactly_its_base(base: int) -> None:
    ledger = fold(
        (EntryKind.RUN, RUN),
        (EntryKind.DECIDED, batch(0, 1, covers=[])),
        (EntryKind.SETTLED, {"checkpoint": 2, "run": 1}),
        (EntryKind.DECIDED, batch(1, 2, covers=[])),
        (EntryKind.PREPARED, batch(2, 3)),
        (EntryKind.ADOPT, {"location": "there", "suffix": "-12", "base": base, "drop": True}),
    )
    assert (ledger.accounted, ledger.unsettled(), ledger.undecided(), known(ledger)) == (base, [], [], [])
    assert (ledger.location, ledger.identity_suffix) == ("there", "-12")
    assert ledger.newest_run is not None
    assert ledger.newest_run.ended == EntryKind.ADOPT


def test_an_adoption_that_keeps_loses_no_handle() -> None:
    ledger = fold(
        (EntryKind.RUN, RUN),
        (EntryKind.DECIDED, batch(0, 1, covers=[])),
        (EntryKind.PREPARED, batch(1, 2)),
        (EntryKind.ADOPT, {"location": "there", "suffix": "", "base": -1, "drop": False}),
    )
    assert (ledger.accounted, known(ledger)) == (1, [1, 2])


@pytest.mark.parametrize(
    ("decision", "committed", "lost", "free"),
    [
        ("accept-loss", True, False, False),
        ("accept-duplicates", False, True, False),
        ("accept-difference", False, True, True),
    ],
)
def test_what_an_operator_resolves(decision: str, committed: bool, lost: bool, free: bool) -> None:
    ledger = fold((EntryKind.DECIDED, batch(0, 1, 2, covers=[])))
    fold((EntryKind.RESOLVE, {"checkpoint": 1, "batch": 0, "partition": 1, "decision": decision}), ledger=ledger)
    found = ledger.part(0, 1)
    assert (found.committed, found.lost, found.free) == (committed, lost, free)
    assert ledger.part(0, 0).open


def test_what_no_recovery_needs_is_forgotten_and_what_is_unsettled_is_kept() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(0, 1, covers=[])))
    for number in range(1, 400):
        fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(number, None, covers=[])), ledger=ledger)
    assert len(ledger.batches) == KEPT_BATCHES + 1
    assert known(ledger) == [1]
    assert len(ledger.runs) == KEPT_RUNS
    assert len(ledger.checkpoints) <= KEPT_BATCHES + KEPT_CHECKPOINTS
    assert ledger.accounted == 399
    fold((EntryKind.SETTLED, {"checkpoint": 2, "run": 1}), ledger=ledger)


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_is_the_fold_and_is_read_as_such(seed: int) -> None:
    chance = random.Random(seed)
    world = run(chance.randbytes(150), spans=seed % 2 == 1)
    ledger = world.truth()
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    copy = MemoryJournalStore()
    copy.files = dict(world.store.files)
    journal = Journal(copy)
    journal.load()
    for _ in range(2):
        journal.fold(1)
        assert Journal(copy).load() == ledger
