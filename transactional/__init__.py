"""The checkpoint protocol: two-phase-commit sinks, journal, coordinator and recovery. It knows no engine, store or command.

For users: `TwoPhaseCommitSink` (`sink`, `transaction`), `CheckpointHook` (`hooks`), restart strategies (`restart`), errors
(`errors`, with their catalogue), `History` (`history`), doubles and a conformance kit for a sink's tests (`testing`).

What decides: `journal` (exclusive create), `entry` (as bytes), `ledger` (the fold, a checkpoint's states), `ownership` (what an
entry needs to bind), `recovery` (judgements, pure), `coordinator` (the steps), `settlement` (what becomes of a decision).

Beside it: `barrier` and `schedule` (in the source), `checkpoint` (what tasks report), `rewind` and `restore` (going back),
`stats` (figures), `failure` (what a supervisor does), `digest`, `secrets`, `clock`, `faults`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transactional.barrier import CheckpointBarrier
    from transactional.checkpoint import ClosingReason, DecidedCheckpoint
    from transactional.errors import (
        AmbiguousOutcomeError,
        FencedError,
        HookError,
        JournalError,
        LocationError,
        OptionError,
        ProtocolError,
        QueryStoppedError,
        ReplayMismatchError,
        RetriableError,
        RewindRequiredError,
        RowRefusedError,
        StoreError,
        TransactionLostError,
        TwoPhaseCommitError,
    )
    from transactional.failure import Failure, Remedy, failure_of
    from transactional.history import History, put_back
    from transactional.hooks import CheckpointHook, HookContext
    from transactional.ledger import CheckpointState
    from transactional.restart import (
        ExponentialDelay,
        FailureRate,
        FixedDelay,
        NoRestart,
        RestartStrategy,
    )
    from transactional.sink import TwoPhaseCommitSink
    from transactional.stats import CheckpointHistory, CheckpointStats, Restored
    from transactional.transaction import Cutoff, HandleState, Options, Outcome, TransactionContext

_HOMES = {
    "barrier": ("CheckpointBarrier",),
    "checkpoint": ("ClosingReason", "DecidedCheckpoint"),
    "errors": (
        "AmbiguousOutcomeError",
        "FencedError",
        "HookError",
        "JournalError",
        "LocationError",
        "OptionError",
        "ProtocolError",
        "QueryStoppedError",
        "ReplayMismatchError",
        "RetriableError",
        "RewindRequiredError",
        "RowRefusedError",
        "StoreError",
        "TransactionLostError",
        "TwoPhaseCommitError",
    ),
    "failure": ("Failure", "Remedy", "failure_of"),
    "history": ("History", "put_back"),
    "hooks": ("CheckpointHook", "HookContext"),
    "ledger": ("CheckpointState",),
    "restart": (
        "ExponentialDelay",
        "FailureRate",
        "FixedDelay",
        "NoRestart",
        "RestartStrategy",
    ),
    "sink": ("TwoPhaseCommitSink",),
    "stats": ("CheckpointHistory", "CheckpointStats", "Restored"),
    "transaction": ("Cutoff", "HandleState", "Options", "Outcome", "TransactionContext"),
}
"""Modules of the public names, which are imported when they are first used."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AmbiguousOutcomeError",
    "CheckpointBarrier",
    "CheckpointHistory",
    "CheckpointHook",
    "CheckpointState",
    "CheckpointStats",
    "ClosingReason",
    "Cutoff",
    "DecidedCheckpoint",
    "ExponentialDelay",
    "Failure",
    "FailureRate",
    "FencedError",
    "FixedDelay",
    "HandleState",
    "History",
    "HookContext",
    "HookError",
    "JournalError",
    "LocationError",
    "NoRestart",
    "OptionError",
    "Options",
    "Outcome",
    "ProtocolError",
    "QueryStoppedError",
    "Remedy",
    "ReplayMismatchError",
    "RestartStrategy",
    "Restored",
    "RetriableError",
    "RewindRequiredError",
    "RowRefusedError",
    "StoreError",
    "TransactionContext",
    "TransactionLostError",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "failure_of",
    "put_back",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
