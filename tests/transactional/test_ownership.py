"""What must be true of the ledger for an entry to bind: one judge a test, with two processes of one run beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transactional.bodies import run_body, settled
from tests.transactional.test_ledger import batch, fold
from transactional.entry import EntryKind
from transactional.errors import FencedError, ProtocolError
from transactional.ledger import Ledger, PartRecord
from transactional.ownership import (
    Judge,
    may_abort,
    may_finish,
    may_record,
    may_restore,
    may_settle,
    may_stop,
    may_void,
    may_void_checkpoint,
    must_own,
)

RUN = (EntryKind.RUN, run_body())
VOIDED = (EntryKind.VOID, {"prepared": 0})
BEGUN = (EntryKind.REWIND_BEGUN, {"checkpoint": None})
MOVED = (EntryKind.MOVED, {"begun": 2, "location": "there", "savepoint": "s", "checkpoint": 1})
LOST = {"batch": 0, "partition": 0, "handle": 0, "verdict": "lost"}
COMMITTED = {**LOST, "verdict": "committed"}


def decided(number: int, *handles: int, covers: tuple[int, ...] = ()) -> tuple[str, dict[str, Any]]:
    return EntryKind.DECIDED, batch(number, *handles, covers=list(covers))


def prepared(number: int, *handles: int) -> tuple[str, dict[str, Any]]:
    return EntryKind.PREPARED, batch(number, *handles)


def verdict(*parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return EntryKind.VERDICT, {"checkpoint": 2, "run": 1, "parts": list(parts)}


def repaired(handle: int) -> tuple[str, dict[str, Any]]:
    parts = [{"batch": 0, "partition": 0, "replaces": 0, "handle": {"transaction": handle}}]
    return EntryKind.REPAIR, {"checkpoint": 2, "run": 1, "parts": parts}


def refuses(judge: Judge, condition: str, *entries: tuple[str, dict[str, Any]]) -> None:
    """The judge lets the ledger pass before the last of the entries, and not with it."""
    judge(fold(*entries[:-1]))
    with pytest.raises((FencedError, ProtocolError)) as refused:
        judge(fold(*entries))
    assert refused.value.condition == condition


# -- whose the location is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "condition"),
    [
        (RUN, "RUN_SUPERSEDED"),
        ((EntryKind.ABORTED, {"run": 1, "batch": 0}), "RUN_ENDED"),
        ((EntryKind.FENCED, {"run": 1, "by": 2}), "RUN_ENDED"),
        ((EntryKind.STOPPED, {"run": 1}), "RUN_ENDED"),
        (BEGUN, "REWIND_NOT_DONE"),
        (MOVED, "LOCATION_MOVED_ON"),
    ],
)
def test_the_newest_run_owns_the_location_until_it_ends(entry: tuple[str, dict[str, Any]], condition: str) -> None:
    for judge in (
        must_own(1),
        may_abort(1, 0),
        may_record(1, 0, False, [], False),
        may_stop(1),
    ):
        refuses(judge, condition, RUN, entry)


def test_where_nobody_has_planned_nobody_owns_it() -> None:
    with pytest.raises(ProtocolError, match="PROTOCOL_VIOLATED"):
        must_own(1)(Ledger())


def test_while_it_is_rewound_only_the_newest_rewind_owns_it() -> None:
    ledger = fold(RUN, BEGUN, BEGUN)
    must_own(3)(ledger)
    for former in (1, 2):
        with pytest.raises(FencedError, match="REWIND_NOT_DONE"):
            must_own(former)(ledger)


# -- C7 ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_decided_beside_a_decision_that_is_not_settled() -> None:
    """Two commits of one run, of micro-batches 0 and 1: the former is still under way."""
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        may_record(1, 1, False, [], False)(fold(RUN, decided(0, 1)))
    may_record(1, 1, False, [], False)(fold(RUN, decided(0, 1), (EntryKind.SETTLED, settled(2))))


@pytest.mark.parametrize(
    ("name", "judge", "entries"),
    [
        ("decided by the other", may_record(1, 0, False, [], False), (RUN, decided(0))),
        ("prepared by the other", may_record(1, 0, False, [], False), (RUN, prepared(0, 1))),
        ("covered by the other", may_record(1, 1, False, [0], False), (RUN, prepared(0, 1), decided(0, covers=(0,)))),
        ("its record was voided", may_record(1, 0, True, [0], False), (RUN, prepared(0, 1), VOIDED)),
        ("one that it covers was voided", may_record(1, 1, False, [0], False), (RUN, prepared(0, 1), VOIDED)),
        ("another is prepared", may_record(1, 0, True, [0], False), (RUN, prepared(0, 1), prepared(1, 2))),
        ("a version above it", may_record(1, 1, False, [], True), (RUN, decided(5))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_record_binds_only_on_what_its_commit_has_found(
    name: str, judge: Judge, entries: tuple[tuple[str, dict[str, Any]], ...]
) -> None:
    refuses(judge, "CONCURRENT_COMMIT", *entries)


def test_what_was_decided_and_settled_by_another_is_not_covered_again() -> None:
    ledger = fold(RUN, prepared(0, 1), decided(0, covers=(0,)), (EntryKind.SETTLED, settled(3)))
    may_record(1, 1, False, [], False)(ledger)
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        may_record(1, 1, False, [0], False)(ledger)


def test_numbers_may_be_left_out_by_batch_writes_only() -> None:
    ledger = fold(RUN, decided(0))
    may_record(1, 7, False, [], True)(ledger)
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        may_record(1, 7, False, [], False)(ledger)


def test_no_run_is_aborted_for_a_micro_batch_that_is_recorded() -> None:
    refuses(may_abort(1, 0), "CONCURRENT_COMMIT", RUN, prepared(0, 1))
    refuses(may_abort(1, 0), "CONCURRENT_COMMIT", RUN, decided(0))


# -- P5 and C2 --------------------------------------------------------------------------------------------------------

OPEN = [{"batch": 0, "partition": 0, "handle": 0}]
AGAIN = [{"batch": 0, "partition": 0, "handle": 1}]


@pytest.mark.parametrize(
    ("judge", "entries"),
    [
        (may_settle(1, 2), (RUN, decided(0, 1), (EntryKind.SETTLED, settled(2)))),
        (may_settle(1, 2), (RUN, decided(0, 1), (EntryKind.VOID, {"checkpoint": 2}))),
        (may_settle(1, 2, OPEN, "open"), (RUN, decided(0, 1), verdict(LOST))),
        (may_settle(1, 2, OPEN, "open"), (RUN, decided(0, 1), verdict(COMMITTED))),
        (may_settle(1, 2, OPEN, "lost"), (RUN, decided(0, 1), verdict(LOST), repaired(2))),
        (
            may_settle(1, 2, AGAIN, "open"),
            (RUN, decided(0, 1), verdict(LOST), repaired(2), verdict({**LOST, "handle": 1})),
        ),
    ],
    ids=["settled", "void", "judged lost", "judged committed", "repaired", "repair judged"],
)
def test_of_two_processes_of_one_run_the_second_finds_the_checkpoint_taken(
    judge: Judge, entries: tuple[tuple[str, dict[str, Any]], ...]
) -> None:
    refuses(judge, "CONCURRENT_COMMIT", *entries)


def test_a_verdict_about_a_handle_does_not_bind_its_repair() -> None:
    """It has stood still since it looked at the first handle; the second is open as that was."""
    ledger = fold(RUN, decided(0, 1), verdict(LOST), repaired(2))
    assert ledger.part(0, 0).open
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        may_settle(1, 2, OPEN, "open")(ledger)


# -- P6 and P7 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        (RUN, prepared(0, 1), VOIDED),
        (RUN, prepared(0, 1), decided(0, covers=(0,))),
        (RUN, prepared(0, 1), prepared(1, 2)),
    ],
    ids=["voided", "decided", "followed"],
)
def test_a_prepared_micro_batch_is_voided_while_it_is_the_last_and_as_it_was(
    entries: tuple[tuple[str, dict[str, Any]], ...],
) -> None:
    refuses(may_void(1, 0, 2), "CONCURRENT_COMMIT", *entries)


def test_one_that_was_prepared_again_meanwhile_is_not_the_one_that_was_looked_at() -> None:
    ledger = fold(RUN, prepared(0, 1), VOIDED, prepared(0, 2))
    may_void(1, 0, 4)(ledger)
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        may_void(1, 0, 2)(ledger)


def test_a_run_stops_with_nothing_open() -> None:
    refuses(may_stop(1), "CONCURRENT_COMMIT", RUN, prepared(0, 1))
    refuses(may_stop(1), "CONCURRENT_COMMIT", RUN, decided(0, 1))
    may_stop(1)(fold(RUN, decided(0, 1), verdict(LOST)))  # what is left is lost: the next run writes it


# -- a checkpoint as a whole -------------------------------------------------------------------------------------------


def parts_of(ledger: Ledger) -> list[PartRecord]:
    return ledger.parts_of(ledger.checkpoints[2])


def test_a_checkpoint_is_settled_only_with_the_handles_that_were_committed() -> None:
    begun = (RUN, decided(0, 7))
    judge = may_finish(1, 2, parts_of(fold(*begun)))
    refuses(judge, "CONCURRENT_COMMIT", *begun, verdict(LOST))
    with pytest.raises(FencedError, match="repairing checkpoint 2"):
        judge(fold(*begun, verdict(LOST), repaired(8)))


def test_a_checkpoint_is_void_only_as_it_was_judged() -> None:
    begun = (RUN, decided(0, 7))
    judge = may_void_checkpoint(1, 2, parts_of(fold(*begun)))
    refuses(judge, "CONCURRENT_COMMIT", *begun, verdict(LOST), repaired(8))
    refuses(judge, "CONCURRENT_COMMIT", *begun, verdict(COMMITTED))


def test_hooks_get_the_state_of_the_newest_decision_once_in_a_run() -> None:
    refuses(may_restore(1, None), "CONCURRENT_COMMIT", RUN, decided(0, 7))
    refuses(may_restore(1, None), "CONCURRENT_COMMIT", RUN, (EntryKind.RESTORED, {"run": 1, "checkpoint": None}))
