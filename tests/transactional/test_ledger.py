"""The fold over the journal."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from typing import Any

import pytest

from tests.transactional.bodies import completed, recorded, restore_begun, run_body, settled
from tests.transactional.interleaving import run
from transactional.entry import Entry, EntryKind
from transactional.errors import JournalError
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger, Moved, Origin, RestartRecord, apply
from transactional.ledger.fold import KEPT_BATCHES, KEPT_FAILURES, KEPT_RUNS, KEPT_UNMARKED

RETAINED = 7
RUN = run_body(retained=RETAINED)


def fold(*facts: tuple[str, dict[str, Any]], ledger: Ledger | None = None) -> Ledger:
    ledger = ledger or Ledger()
    for kind, body in facts:
        apply(ledger, Entry(ledger.position + 1, kind, "n", 0, completed(kind, body)))
    return ledger


def part(partition: int, handle: int | None) -> dict[str, Any]:
    shown = None if handle is None else {"transaction": handle}
    return {"partition": partition, "handle": shown, "rows": 1, "bytes": 1, "digest": "1:0"}


def batch(number: int, *handles: int | None, covers: list[int] | None = None) -> dict[str, Any]:
    parts = [part(partition, handle) for partition, handle in enumerate(handles)]
    return recorded(number, parts, covers)


def known(ledger: Ledger) -> list[int]:
    return [handle["transaction"] for handle in ledger.known_handles()]


def test_a_checkpoint_goes_from_prepared_over_decided_to_settled() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.PREPARED, batch(0, 1, None)))
    assert (ledger.accounted, known(ledger), [b.batch for b in ledger.undecided()]) == (0, [1], [0])
    fold((EntryKind.DECIDED, batch(1, 2, covers=[0])), ledger=ledger)
    [checkpoint] = ledger.unsettled()
    assert (checkpoint.id, checkpoint.batches, checkpoint.rows, known(ledger)) == (3, [0, 1], 3, [1, 2])
    fold((EntryKind.SETTLED, settled(3)), ledger=ledger)
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
        (EntryKind.SETTLED, settled(9), "JOURNAL_DAMAGED"),
        (EntryKind.VOID, {"prepared": 4}, "JOURNAL_DAMAGED"),
        (EntryKind.DECIDED, batch(0, 1, covers=[7]), "JOURNAL_DAMAGED"),
        (EntryKind.REPAIR, {"parts": [{"batch": 0, "partition": 5, "handle": {}}]}, "JOURNAL_DAMAGED"),
        (EntryKind.MARK, {"run": 9, "mark": {}}, "JOURNAL_DAMAGED"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(kind: str, body: dict[str, Any], condition: str) -> None:
    with pytest.raises(JournalError, match=condition):
        fold((EntryKind.RUN, RUN), (kind, body))


def test_a_gap_is_refused() -> None:
    with pytest.raises(JournalError, match=r"JOURNAL_DAMAGED.*from the newest backup.*new checkpoint location"):
        apply(Ledger(), Entry(2, EntryKind.RUN, "n", 0, RUN))


@pytest.mark.parametrize("ended", [EntryKind.ABORTED, EntryKind.FENCED])
def test_a_run_ends(ended: str) -> None:
    run = fold((EntryKind.RUN, RUN), (ended, {"run": 1, "batch": 0})).newest_run
    assert run is not None
    assert run.ended == ended


@pytest.mark.parametrize("base", [-1, 0, 1, 5])
def test_an_adoption_that_drops_accounts_for_exactly_its_base(base: int) -> None:
    ledger = fold(
        (EntryKind.RUN, RUN),
        (EntryKind.DECIDED, batch(0, 1, covers=[])),
        (EntryKind.SETTLED, settled(2)),
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


def test_a_checkpoint_whose_loss_was_accepted_is_none_that_the_store_has_to_hold() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(0, 1, covers=[])))
    said = {"checkpoint": 2, "batch": 0, "partition": 0, "decision": "accept-loss"}
    fold((EntryKind.RESOLVE, said), (EntryKind.SETTLED, settled(2)), ledger=ledger)
    fold((EntryKind.RUN, RUN), ledger=ledger)
    assert not any(ledger.known_at_store([""]).values())
    fold((EntryKind.DECIDED, batch(1, 2, covers=[])), ledger=ledger)
    fold((EntryKind.SETTLED, settled(6)), ledger=ledger)
    assert ledger.known_at_store([""]) == {"": 6}


def test_what_no_recovery_needs_is_forgotten_and_what_is_unsettled_is_kept() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(0, 1, covers=[])))
    for number in range(1, 400):
        fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(number, None, covers=[])), ledger=ledger)
    assert len(ledger.batches) == KEPT_BATCHES + 1
    assert known(ledger) == [1]
    assert len(ledger.runs) == KEPT_UNMARKED
    assert sorted(ledger.checkpoints) == [2, *range(800 - 2 * RETAINED + 2, 801, 2)]
    assert [bool(run.setup) for _, run in sorted(ledger.runs.items())] == [False] * (KEPT_UNMARKED - 1) + [True]
    assert ledger.accounted == 399
    fold((EntryKind.SETTLED, settled(2)), ledger=ledger)


def test_runs_that_could_not_guard_their_prefix_push_out_none_that_did() -> None:
    ledger = Ledger()
    for _ in range(KEPT_RUNS + 5):
        fold((EntryKind.RUN, RUN), ledger=ledger)
        fold((EntryKind.MARK, {"run": ledger.position, "mark": {}}), ledger=ledger)
    assert len(ledger.runs) == KEPT_RUNS
    for _ in range(KEPT_RUNS):
        fold((EntryKind.RUN, RUN), ledger=ledger)
    assert [run.mark for _, run in sorted(ledger.runs.items())] == [{}] * (KEPT_RUNS - KEPT_UNMARKED) + [
        None
    ] * KEPT_UNMARKED


def test_failures_are_counted_and_the_last_are_kept() -> None:
    ledger = fold((EntryKind.RUN, RUN))
    for number in range(KEPT_FAILURES + 5):
        fold((EntryKind.ABORTED, {"run": 1, "batch": number}), ledger=ledger)
    assert ledger.counts == {"triggered": KEPT_FAILURES + 5, "failed": KEPT_FAILURES + 5}
    assert [failure.batches for failure in ledger.failures] == [[n] for n in range(5, KEPT_FAILURES + 5)]


def test_declined_checkpoints_are_subsumed_by_the_next() -> None:
    declined = {"run": 1, "batch": 0, "reason": "HOOK_FAILED", "detail": "no"}
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.PREPARED, batch(0, 1)), (EntryKind.DECLINED, declined))
    assert [each.batch for each in ledger.declined] == [0]
    fold((EntryKind.DECIDED, batch(1, 2, covers=[0])), ledger=ledger)
    assert (ledger.declined, ledger.checkpoints[4].subsumed, ledger.counts["declined"]) == ([], [0], 1)


def three_checkpoints() -> Ledger:
    ledger = fold((EntryKind.RUN, RUN))
    for number in range(3):
        fold((EntryKind.PREPARED, batch(2 * number, number)), ledger=ledger)
        fold((EntryKind.DECIDED, batch(2 * number + 1, number + 10, covers=[2 * number])), ledger=ledger)
        if number < 2:
            fold((EntryKind.SETTLED, settled(ledger.position)), ledger=ledger)
    return ledger


def test_entries_about_batches_after_a_rewind_are_void() -> None:
    ledger = fold((EntryKind.REWIND_BEGUN, {"checkpoint": 3, "restoreTables": False}), ledger=three_checkpoints())
    assert ledger.rewinding is not None
    assert (ledger.rewinding.token, ledger.rewinding.request) == (10, {"restoreTables": False})
    assert all(run.ended for run in ledger.runs.values())
    fold((EntryKind.REWIND_DONE, {"begun": 10, "batch": 1, "keep": None}), ledger=ledger)
    assert (ledger.accounted, sorted(ledger.checkpoints), known(ledger)) == (1, [3], [])
    assert [ledger.rewinding, ledger.replay, ledger.reached] == [None, None, 5]


def test_a_rewind_forgets_what_was_voided_behind_its_target_and_not_how_far_the_query_had_come() -> None:
    ledger = fold(
        (EntryKind.DECIDED, batch(0, 1, covers=[])),
        (EntryKind.PREPARED, batch(1, 2)),
        (EntryKind.VOID, {"prepared": 1}),
    )
    for token, reached in ((4, 1), (6, 1)):  # the second finds nothing behind its target
        fold(
            (EntryKind.REWIND_BEGUN, {"checkpoint": None}),
            (EntryKind.REWIND_DONE, {"begun": token, "batch": 0, "keep": None}),
            ledger=ledger,
        )
        assert (ledger.voided, ledger.reached, ledger.accounted) == ([], reached, 0)


def test_a_part_committed_checkpoint_that_a_rewind_keeps_holds() -> None:
    ledger = three_checkpoints()
    lost = {"batch": 5, "partition": 0, "handle": 0, "verdict": "lost"}
    [kept] = ledger.unsettled()
    fold((EntryKind.VERDICT, {"parts": [lost]}), (EntryKind.REWIND_BEGUN, {"checkpoint": None}), ledger=ledger)
    fold((EntryKind.REWIND_DONE, {"begun": 11, "batch": 4, "keep": kept.id}), ledger=ledger)
    assert (ledger.replay, ledger.accounted, [c.id for c in ledger.unsettled()]) == (5, 5, [kept.id])
    fold((EntryKind.SETTLED, settled(kept.id)), ledger=ledger)
    assert ledger.replay == 5  # its later micro-batches drain
    fold((EntryKind.DECIDED, batch(6, 9, covers=[])), ledger=ledger)
    assert ledger.replay is None


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


def test_a_snapshot_forgets_nothing() -> None:
    """Each field is set to something else than a new ledger has, so that one which is left out differs."""
    ledger = fold(
        (EntryKind.RUN, {**RUN, "retained": 7}),
        (EntryKind.MARK, {"run": 1, "mark": {"epoch": 3}}),
        (
            EntryKind.DECIDED,
            {**batch(0, 1, covers=[]), "origin": "outer", "hooks": {"hook": "c3RhdGU="}},
        ),
        (EntryKind.SETTLED, settled(3, version=4)),
        (EntryKind.DECIDED, {**batch(1, 2, 3, covers=[]), "log": "text"}),
        (EntryKind.VERDICT, {"parts": [{"batch": 1, "partition": 0, "handle": 0, "verdict": "lost"}]}),
        (EntryKind.PREPARED, batch(2, 4)),
        (EntryKind.VOID, {"prepared": 2}),
        (EntryKind.DECLINED, {"run": 1, "batch": 2, "reason": "HOOK_FAILED", "detail": "why"}),
        (EntryKind.REQUEST, {"reason": "stop"}),
        (EntryKind.REQUEST, {"what": "stop", "run": 1}),
        (EntryKind.REWIND_BEGUN, {"checkpoint": 3, "restoreTables": True}),
    )
    ledger.identity_suffix, ledger.originals, ledger.replay, ledger.base = "-12", ["theirs"], 1, 0
    ledger.reached, ledger.rewound = 9, 10
    ledger.moved = Moved(9, "there", "saved", 3)
    ledger.restored = Origin("saved", "origin", 3, 0, 8, True)
    ledger.restoring = restore_begun(Ledger(position=1), 3, True, "here")
    ledger.stamp, ledger.stamps = 8, {"orders": 9}
    ledger.restarts = [RestartRecord(5, 6, "supervise", 1, 2.0, "X", "why", False)]
    new = Ledger()
    assert [each.name for each in fields(Ledger) if getattr(ledger, each.name) == getattr(new, each.name)] == []
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
