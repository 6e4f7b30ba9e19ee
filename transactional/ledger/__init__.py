"""The ledger: everything that is known about a query, computed by applying the journal's entries in order (the fold)."""

from transactional.ledger.fold import apply
from transactional.ledger.ledger import Ledger
from transactional.ledger.records import (
    BatchRecord,
    CheckpointRecord,
    Declined,
    FailureRecord,
    Moved,
    Origin,
    PartRecord,
    RestartRecord,
    Rewind,
    RunRecord,
    between,
)
from transactional.ledger.states import TRANSITIONS, CheckpointState, enter
from transactional.ledger.written import Written

__all__ = [
    "TRANSITIONS",
    "BatchRecord",
    "CheckpointRecord",
    "CheckpointState",
    "Declined",
    "FailureRecord",
    "Ledger",
    "Moved",
    "Origin",
    "PartRecord",
    "RestartRecord",
    "Rewind",
    "RunRecord",
    "Written",
    "apply",
    "between",
    "enter",
]
