"""The ledger: the fold over the journal, all that the coordinator knows."""

from transactional.ledger.fold import apply
from transactional.ledger.ledger import Ledger
from transactional.ledger.records import (
    MOVING,
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
    Written,
)

__all__ = [
    "MOVING",
    "BatchRecord",
    "CheckpointRecord",
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
]
