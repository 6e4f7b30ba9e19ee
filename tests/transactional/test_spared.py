"""What a sweep must not touch: the newest handle of every part whose end is still open."""

from __future__ import annotations

from typing import Any

from tests.transactional.test_ledger import RUN, batch, fold, known
from transactional.entry import EntryKind


def judged(checkpoint: int, partition: int, verdict: str, handle: int = 0) -> dict[str, Any]:
    part = {"batch": 0, "partition": partition, "handle": handle, "verdict": verdict}
    return {"checkpoint": checkpoint, "run": 1, "parts": [part]}


def test_what_is_prepared_is_spared_until_it_is_settled() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.PREPARED, batch(0, 10, 11)))
    assert known(ledger) == [10, 11]
    fold((EntryKind.DECIDED, batch(1, 12, None, covers=[0])), ledger=ledger)
    assert known(ledger) == [10, 11, 12]
    fold((EntryKind.PREPARED, batch(2, 13)), ledger=ledger)
    assert known(ledger) == [10, 11, 12, 13]
    fold((EntryKind.SETTLED, {"checkpoint": 3, "run": 1, "output": {}}), ledger=ledger)
    assert known(ledger) == [13]


def test_what_is_judged_is_not_spared_and_its_repair_is() -> None:
    ledger = fold((EntryKind.RUN, RUN), (EntryKind.DECIDED, batch(0, 10, 11, covers=[])))
    fold((EntryKind.VERDICT, judged(2, 1, "lost")), (EntryKind.VERDICT, judged(2, 0, "committed")), ledger=ledger)
    assert known(ledger) == []
    repair = {"batch": 0, "partition": 1, "replaces": 0, "handle": {"transaction": 20}}
    fold((EntryKind.REPAIR, {"checkpoint": 2, "run": 1, "parts": [repair]}), ledger=ledger)
    assert known(ledger) == [20]
