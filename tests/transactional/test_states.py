"""A checkpoint's states: what may follow what, and that nothing else writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transactional.checkpoint import CheckpointFailureReason
from transactional.errors import JournalError
from transactional.ledger import TRANSITIONS, CheckpointRecord, CheckpointState, FailureRecord, enter

CORE = Path(__file__).parents[2] / "transactional"


@pytest.mark.parametrize("before", CheckpointState)
@pytest.mark.parametrize("after", CheckpointState)
def test_a_transition_that_the_table_does_not_have_is_refused(before: CheckpointState, after: CheckpointState) -> None:
    record = CheckpointRecord(7, [3], 0, 5, before)
    if after in TRANSITIONS[before]:
        enter(record, after)
        assert record.state is after
    else:
        with pytest.raises(JournalError, match=rf"JOURNAL_DAMAGED.*state from {before.value} to {after.value}, "):
            enter(record, after)
        assert record.state is before


def test_the_table_has_every_state_and_every_state_but_the_first_is_reached() -> None:
    assert set(TRANSITIONS) == set(CheckpointState)
    reached = {after for follows in TRANSITIONS.values() for after in follows}
    assert reached == set(CheckpointState) - {CheckpointState.PENDING}


def test_one_place_writes_a_state() -> None:
    writes = {
        f"{path.relative_to(CORE)}: {line.strip()}"
        for path in CORE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\w\.state = ", line) and "testing" not in path.parts
    }
    assert writes == {"ledger/states.py: record.state = state"}


@pytest.mark.parametrize("settled", [True, False])
def test_a_snapshot_has_the_states_of_decided_checkpoints_as_every_release_has_written_them(settled: bool) -> None:
    state = CheckpointState.SETTLED if settled else CheckpointState.DECIDED
    record = CheckpointRecord(7, [3], 0, 5, state)
    value = record.to_json()
    assert (value["settled"], "state" in value) == (settled, False)
    assert CheckpointRecord.from_json(value) == record


def test_every_reason_of_a_failure_ends_in_a_state_that_nothing_follows() -> None:
    for reason in CheckpointFailureReason:
        assert TRANSITIONS[FailureRecord(9, 0, reason.name, [3]).state] == frozenset()
