"""States of a checkpoint, the transitions that are allowed, and the one place that writes them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from transactional.errors import JournalError

__all__ = ["TRANSITIONS", "CheckpointState", "enter"]


class CheckpointState(str, enum.Enum):
    """The state of a checkpoint. The journal's entries move it: `prepared`, `decided`, `settled`, `void`, ..."""

    PENDING = "pending"
    """Its micro-batches are being written, or are prepared; nothing is decided."""
    DECIDED = "decided"
    """Its decision is in the journal; not all of its rows are known to be visible."""
    SETTLED = "settled"
    """All of its rows are visible."""
    DECLINED = "declined"
    """It could not be decided: a checkpoint hook raised, or the store refused. Its micro-batches wait for the next one."""
    ABORTED = "aborted"
    """It was given up before its decision: its micro-batch is written again."""
    VOID = "void"
    """Its prepared transactions were lost and none was committed: its micro-batches are written again."""


TRANSITIONS: Mapping[CheckpointState, frozenset[CheckpointState]] = {
    CheckpointState.PENDING: frozenset(
        {CheckpointState.DECIDED, CheckpointState.DECLINED, CheckpointState.ABORTED, CheckpointState.VOID}
    ),
    CheckpointState.DECIDED: frozenset({CheckpointState.SETTLED, CheckpointState.VOID}),
    CheckpointState.SETTLED: frozenset(),
    CheckpointState.DECLINED: frozenset(),
    CheckpointState.ABORTED: frozenset(),
    CheckpointState.VOID: frozenset(),
}
"""The states that may follow each state. A rewind or an adoption forgets checkpoints, whatever their states."""


class _HasState(Protocol):
    state: CheckpointState


def enter(record: _HasState, state: CheckpointState) -> None:
    """Let a checkpoint enter a state."""
    if state not in TRANSITIONS[record.state]:
        reason = f"an entry makes a checkpoint {state.value}, but the checkpoint is {record.state.value}"
        raise JournalError("JOURNAL_DAMAGED", reason=reason)
    record.state = state
