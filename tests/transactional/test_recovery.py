"""What was found, and what is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.transactional.bodies import lines
from tests.transactional.test_ledger import RUN, batch, fold
from transactional.barrier import sources_digest
from transactional.entry import EntryKind
from transactional.errors import AmbiguousOutcomeError, LocationError, OptionError, RewindRequiredError
from transactional.ledger import Ledger
from transactional.recovery import (
    Claim,
    Judgement,
    QueryView,
    check_account,
    check_location,
    check_prefix,
    committed_behind,
    gaps,
    judge_checkpoint,
    judge_prepared,
    whose_run,
)
from transactional.sink import HandleState, Outcome

STATES = {
    "P": HandleState(Outcome.PREPARED),
    "C": HandleState(Outcome.COMMITTED),
    "L": HandleState(Outcome.LOST),
    "U": HandleState(Outcome.UNKNOWN, evidence="its topic is gone"),
}


def view(number: int, committed: int | None = None, location: str = "here") -> QueryView:
    return QueryView(
        "q", location, number, number - 1 if committed is None else committed, lines(f"line {number}"), None
    )


def runs(*drivers: str) -> Ledger:
    """Runs of these drivers in turn, each with its mark; one in upper case has ended. ``-`` is one without a mark: "a"'s."""
    ledger = Ledger()
    for driver in drivers:
        fold((EntryKind.RUN, {**RUN, "driver": driver.lower().replace("-", "a")}), ledger=ledger)
        if driver != "-":
            fold((EntryKind.MARK, {"run": ledger.position, "mark": {}}), ledger=ledger)
        if driver.isupper():
            fold((EntryKind.ABORTED, {"run": max(ledger.runs), "batch": 0}), ledger=ledger)
    return ledger


@pytest.mark.parametrize(
    ("drivers", "claim", "token"),
    [
        ("", Claim.NEW, None),
        ("a", Claim.TAKE, 1),
        ("A", Claim.NEW, None),
        ("b", Claim.NEW, None),
        ("ab", Claim.FENCED, 1),
        ("aab", Claim.FENCED, 3),
        ("Ab", Claim.NEW, None),
        ("ba", Claim.TAKE, 3),
        ("aB", Claim.NEW, None),
        ("-", Claim.NEW, None),
        ("-a", Claim.TAKE, 2),
        ("-b", Claim.FENCED, 1),
    ],
)
def test_the_journal_alone_says_whose_run_it_is(drivers: str, claim: Claim, token: int | None) -> None:
    found, run = whose_run(runs(*drivers), "a", "s")
    assert (found, run and run.token) == (claim, token)


def test_a_run_is_not_kept_if_an_earlier_one_records_its_mark_late() -> None:
    """It may have guarded the prefix last: then the run that goes on would be taken for another query."""
    ledger = runs("-", "a")
    fold((EntryKind.MARK, {"run": 1, "mark": {}}), ledger=ledger)
    assert whose_run(ledger, "a", "s") == (Claim.NEW, None)
    fold((EntryKind.RUN, {**RUN, "driver": "a"}), ledger=ledger)
    fold((EntryKind.MARK, {"run": ledger.position, "mark": {}}), ledger=ledger)
    assert whose_run(ledger, "a", "s")[0] is Claim.TAKE


def test_other_settings_are_another_run() -> None:
    assert whose_run(runs("a"), "a", "other") == (Claim.NEW, None)


def test_a_location_that_was_copied_is_refused() -> None:
    check_location(Ledger(), view(0, location="there"))
    check_location(runs("a"), view(0))
    with pytest.raises(LocationError, match=r"LOCATION_MOVED.*here.*there.*--claim"):
        check_location(runs("a"), view(0, location="there"))


def test_a_location_of_another_query_is_refused() -> None:
    ledger = fold((EntryKind.RUN, {**RUN, "queryId": "another"}))
    with pytest.raises(LocationError, match=r"LOCATION_MOVED.*another.*--as-is"):
        check_location(ledger, view(0))


@pytest.mark.parametrize(("number", "ok"), [(0, False), (1, True), (2, True), (3, False)])
def test_the_journal_accounts_for_every_micro_batch(number: int, ok: bool) -> None:
    body = {**batch(1, 1, covers=[]), "sources": view(1).sources}
    ledger = fold((EntryKind.DECIDED, batch(0, None, covers=[])), (EntryKind.DECIDED, body))
    if ok:
        check_account(ledger, view(number))
    else:
        with pytest.raises(LocationError, match=r"BATCHES_NOT_ACCOUNTED.*ends at micro-batch 1.*--claim"):
            check_account(ledger, view(number))


def test_a_micro_batch_with_other_sources_is_refused() -> None:
    with pytest.raises(LocationError, match=r"BATCHES_NOT_ACCOUNTED.*offsets/0"):
        check_account(fold((EntryKind.DECIDED, batch(0, 1, covers=[]))), view(0))


def test_commits_ahead_of_offsets_are_refused() -> None:
    with pytest.raises(LocationError, match="LOGS_INCONSISTENT"):
        check_account(Ledger(), view(0, committed=0))


def test_a_voided_micro_batch_that_spark_has_passed_needs_a_rewind() -> None:
    ledger = fold((EntryKind.PREPARED, batch(0, 1)), (EntryKind.VOID, {"prepared": 0}))
    check_account(ledger, view(0))
    with pytest.raises(RewindRequiredError, match="PREPARED_LOST"):
        check_account(ledger, view(1))


@pytest.mark.parametrize(
    ("states", "judgement"),
    [
        ("PP", Judgement.COMMIT),
        ("CP", Judgement.COMMIT),
        ("CC", Judgement.COMMIT),
        ("CL", Judgement.REPAIR),
        ("PL", Judgement.VOID),
        ("LL", Judgement.VOID),
        ("L", Judgement.VOID),
        ("", Judgement.COMMIT),
    ],
)
def test_a_decided_checkpoint_is_judged_by_all_its_open_parts(states: str, judgement: Judgement) -> None:
    ledger = fold((EntryKind.DECIDED, batch(0, *range(1, len(states) + 1), None, covers=[])))
    checkpoint = ledger.checkpoints[1]
    open_parts = [part for part in ledger.parts_of(checkpoint) if part.open]
    found = list(zip(open_parts, [STATES[state] for state in states], strict=True))
    assert judge_checkpoint(ledger, checkpoint, found, 0) is judgement


@pytest.mark.parametrize(("first", "judgement"), [("committed", Judgement.REPAIR), ("lost", Judgement.VOID)])
def test_earlier_verdicts_count(first: str, judgement: Judgement) -> None:
    verdict = {"batch": 0, "partition": 0, "handle": 0, "verdict": first}
    ledger = fold((EntryKind.DECIDED, batch(0, 1, 2, covers=[])), (EntryKind.VERDICT, {"parts": [verdict]}))
    states = [(ledger.part(0, 1), STATES["L"])]
    assert judge_checkpoint(ledger, ledger.checkpoints[1], states, 0) is judgement


def test_an_unknown_outcome_stops_with_the_way_out() -> None:
    ledger = fold((EntryKind.DECIDED, batch(0, 1, covers=[])))
    with pytest.raises(AmbiguousOutcomeError, match=r"partition 0.*its topic is gone.*resolve") as raised:
        judge_checkpoint(ledger, ledger.checkpoints[1], [(ledger.part(0, 0), STATES["U"])], 0)
    assert raised.value.parameters["handle"] == {"transaction": 1}


def test_what_was_lost_behind_spark_needs_a_rewind() -> None:
    ledger = fold((EntryKind.PREPARED, batch(0, 1)), (EntryKind.DECIDED, batch(1, 2, covers=[0])))
    states = [(ledger.part(0, 0), STATES["L"]), (ledger.part(1, 0), STATES["C"])]
    with pytest.raises(
        RewindRequiredError, match=r"PREPARED_LOST.*\[0\].*\[1\] were already committed.*older.*barrier recover"
    ):
        judge_checkpoint(ledger, ledger.checkpoints[2], states, 1)
    states = [(ledger.part(0, 0), STATES["L"]), (ledger.part(1, 0), STATES["P"])]
    with pytest.raises(RewindRequiredError, match=r"PREPARED_LOST.*moved past them: 0, 1\.") as raised:
        judge_checkpoint(ledger, ledger.checkpoints[2], states, 1)
    assert "older" not in str(raised.value)


@pytest.mark.parametrize(
    ("states", "judgement"), [("PPL", Judgement.REPAIR), ("PLL", Judgement.REPAIR), ("PPP", Judgement.COMMIT)]
)
def test_what_only_the_newest_micro_batch_of_a_checkpoint_lost_is_repaired(states: str, judgement: Judgement) -> None:
    """A void would need the micro-batches before it to be written anew, and Spark has moved past them."""
    ledger = fold((EntryKind.PREPARED, batch(0, 1)), (EntryKind.DECIDED, batch(1, 2, 3, covers=[0])))
    parts = [ledger.part(0, 0), ledger.part(1, 0), ledger.part(1, 1)]
    found = [(part, STATES[state]) for part, state in zip(parts, states, strict=True)]
    assert judge_checkpoint(ledger, ledger.checkpoints[2], found, 1) is judgement


def routed(number: int, handles: Mapping[str, int | None]) -> dict[str, Any]:
    """A micro-batch of one task that wrote to several sinks; None: nothing to this one."""
    body = batch(number, *handles.values(), covers=[])
    for part, route in zip(body["parts"], handles, strict=True):
        part.update(partition=0, route=route)
    return body


@pytest.mark.parametrize(
    ("states", "judgement"),
    [({"a": "P", "b": "L"}, Judgement.REPAIR), ({"a": "L", "b": "L"}, Judgement.VOID), ({"b": "L"}, Judgement.VOID)],
    ids=str,
)
def test_a_sink_that_lost_nothing_commits_while_another_is_repaired(
    states: Mapping[str, str], judgement: Judgement
) -> None:
    handles = {route: 1 + number if route in states else None for number, route in enumerate("ab")}
    ledger = fold((EntryKind.DECIDED, routed(0, handles)))
    found = [(ledger.part(0, 0, route), STATES[state]) for route, state in states.items()]
    assert judge_checkpoint(ledger, ledger.checkpoints[1], found, 0) is judgement


def test_what_is_lost_begins_at_the_earliest_micro_batch_whoever_has_said_so() -> None:
    ledger = fold((EntryKind.PREPARED, batch(0, 1)), (EntryKind.DECIDED, {**batch(1, 2), "covers": [0]}))
    said = {"checkpoint": 2, "batch": 0, "partition": 0, "decision": "accept-duplicates"}
    fold((EntryKind.RESOLVE, said), ledger=ledger)
    assert gaps(ledger, ledger.checkpoints[2], [(ledger.part(1, 0), STATES["L"])]) == {"": 0}


def test_only_rows_of_one_sink_have_an_order() -> None:
    ledger = fold(
        (EntryKind.PREPARED, routed(0, {"a": 1, "b": 2})),
        (EntryKind.DECIDED, {**routed(1, {"a": 3, "b": 4}), "covers": [0]}),
    )
    parts = [ledger.part(number, 0, route) for number in (0, 1) for route in "ab"]
    states = list(zip(parts, (STATES[state] for state in "CLCP"), strict=True))
    assert gaps(ledger, ledger.checkpoints[2], states) == {"b": 0}
    assert committed_behind(ledger, ledger.checkpoints[2], states) == []
    states = list(zip(parts, (STATES[state] for state in "PLPC"), strict=True))
    assert committed_behind(ledger, ledger.checkpoints[2], states) == [1]


def test_a_prepared_micro_batch_is_kept_written_anew_or_needs_a_rewind() -> None:
    record = fold((EntryKind.PREPARED, batch(0, 1, 2))).batches[0]
    late = HandleState(Outcome.PREPARED, seconds_left=80.0, margin=90.0)
    assert judge_prepared(record, [STATES["P"], STATES["P"]], view(0))
    assert not judge_prepared(record, [STATES["P"], STATES["L"]], view(0))
    assert not judge_prepared(record, [STATES["P"], late], view(0))
    assert judge_prepared(record, [STATES["P"], STATES["P"]], view(1))
    with pytest.raises(RewindRequiredError, match="PREPARED_LOST"):
        judge_prepared(record, [STATES["P"], STATES["L"]], view(1))


def test_a_prepared_transaction_that_somebody_has_committed_is_never_written_anew() -> None:
    """An older copy of the location that an operator has accepted may hold it as prepared."""
    record = fold((EntryKind.PREPARED, batch(0, 1, 2))).batches[0]
    for number in (0, 1):
        with pytest.raises(AmbiguousOutcomeError, match=r"COMMITTED_UNDECIDED.*barrier resolve"):
            judge_prepared(record, [STATES["L"], STATES["C"]], view(number))


@pytest.mark.parametrize(("line", "previous"), [("another", "line 0"), ("line 1", "another")])
def test_a_file_of_offsets_that_was_replaced_after_it_was_recorded_stops_the_query(line: str, previous: str) -> None:
    """A former driver that stood still in Spark's rename puts its own file over the one that was read."""
    ledger = fold(
        *(
            (EntryKind.DECIDED, {**batch(number, 1, covers=[]), "sources": sources_digest(lines(f"line {number}"))})
            for number in (0, 1)
        )
    )
    right = QueryView("q", "here", 1, 0, lines("line 1"), lines("line 0"))
    check_account(ledger, right)
    with pytest.raises(LocationError, match=r"BATCHES_NOT_ACCOUNTED.*offsets/[01].*--as-is"):
        check_account(ledger, replace(right, lines=lines(line), previous=lines(previous)))


@pytest.mark.parametrize(("line", "previous"), [("another", "line 0"), ("line 1", "another")])
def test_a_replaced_file_of_offsets_of_which_the_journal_has_a_copy_asks_for_a_rewind(line: str, previous: str) -> None:
    ledger = fold(
        *(
            (
                EntryKind.DECIDED,
                {
                    **batch(number, 1, covers=[]),
                    "sources": sources_digest(lines(f"line {number}")),
                    "log": f"v1\n{{}}\nline {number}",
                },
            )
            for number in (0, 1)
        )
    )
    assert sorted(ledger.logs) == [0, 1]
    replaced = QueryView("q", "here", 1, 0, lines(line), lines(previous))
    with pytest.raises(RewindRequiredError, match=r"OFFSETS_REPLACED.*offsets/[01].*barrier recover LOCATION"):
        check_account(ledger, replaced)


def test_a_copy_does_not_use_the_prefix_of_its_original() -> None:
    copied = {"location": "there", "suffix": "-1a2b", "base": 0, "drop": True}
    ledger = fold((EntryKind.RUN, {**RUN, "prefix": "orders"}), (EntryKind.ADOPT, copied))
    check_prefix(ledger, "orders-copy")
    with pytest.raises(OptionError, match=r"PREFIX_OF_THE_ORIGINAL.*transactionalIdPrefix=orders"):
        check_prefix(ledger, "orders")


def test_a_query_without_a_journal_is_told_how_to_go_on() -> None:
    with pytest.raises(LocationError, match=r"NO_JOURNAL.*another sink before.*restore --as-is LOCATION --claim"):
        check_account(Ledger(), view(3))
