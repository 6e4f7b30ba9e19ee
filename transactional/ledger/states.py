"""The states of a checkpoint, the allowed transitions, and `enter`, the only function that changes a state."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from transactional.errors import JournalError


class CheckpointState(str, enum.Enum):
    """The state of a checkpoint. Entries of the journal change it: `prepared`, `decided`, `settled`, `void`, ..."""

    PENDING = "pending"
    """The checkpoint's micro-batches are being written or are prepared. Nothing is decided yet."""
    DECIDED = "decided"
    """The decision is in the journal, but some rows of the checkpoint may not be visible yet."""
    SETTLED = "settled"
    """All rows of the checkpoint are visible."""
    DECLINED = "declined"
    """A hook or the journal's store failed, so the checkpoint was not decided. Its micro-batches wait for the next
    checkpoint."""
    ABORTED = "aborted"
    """The checkpoint was aborted before a decision, so its micro-batch is written again."""
    VOID = "void"
    """Prepared transactions were lost and none was committed, so all micro-batches of the checkpoint are written again."""


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
"""The states that may follow each state. A rewind or an adoption may also remove checkpoints, in any state."""


class _HasState(Protocol):
    state: CheckpointState


def enter(record: _HasState, state: CheckpointState) -> None:
    """Change a checkpoint's state; raise JournalError if the transition is not allowed."""
    if state not in TRANSITIONS[record.state]:
        reason = (
            f"an entry changes a checkpoint's state from {record.state.value} to {state.value}, which is not possible"
        )
        raise JournalError("JOURNAL_DAMAGED", reason=reason)
    record.state = state
