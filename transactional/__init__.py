"""The checkpoint protocol: two-phase-commit sinks, journal, coordinator and recovery.

The package does not depend on a particular engine, store or command.

For users: `TwoPhaseCommitSink` (`sink`, `transaction`), abilities that only some sinks have (`capabilities`), `CheckpointHook`
(`hooks`), restart strategies (`restart`), errors (`errors`, with their catalogue), `History` (`history`), `Finding`
(`finding`), test doubles and a conformance kit for the tests of a sink (`testing`).

The core, which makes the decisions: `journal` (numbered entries; each number is created exactly once), `entries` (a
class for each kind of entry), `entry` (entries as bytes), `ledger` (everything that is known from the journal, and the
states of a checkpoint), `ownership` (when an entry may be written), `recovery` (decisions without I/O), `comparison`
(compares the journal with the store), `coordinator` (the steps), `settlement` (carries out a decision).

Around the core: `barrier` and `schedule` (in the source), `checkpoint` (the tasks' reports), `rewind` and `restore` (go
back to an earlier checkpoint), `stats` (statistics), `failure` (how a supervisor responds to a failure), `digest` and
`spans` (hashes of rows), `secrets`, `printable` (escapes names from other systems, so that they are safe to print in a
terminal), `clock`, `faults`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # An alias re-exports a name for type checkers.
    # isort: off
    from transactional.barrier import CheckpointBarrier as CheckpointBarrier
    from transactional.capabilities import (
        Examines as Examines,
        Expires as Expires,
        GuardsRuns as GuardsRuns,
        KeepsEvidence as KeepsEvidence,
        MarksCheckpoints as MarksCheckpoints,
        NamesDatasets as NamesDatasets,
        ReportsOutput as ReportsOutput,
        Restorable as Restorable,
        Routes as Routes,
        ShowsLater as ShowsLater,
        WarmsUp as WarmsUp,
        WritesTopics as WritesTopics,
    )
    from transactional.checkpoint import (
        CheckpointMark as CheckpointMark,
        ClosingReason as ClosingReason,
        DecidedCheckpoint as DecidedCheckpoint,
    )
    from transactional.clock import Clock as Clock
    from transactional.errors import (
        AmbiguousOutcomeError as AmbiguousOutcomeError,
        FencedError as FencedError,
        HookError as HookError,
        JournalError as JournalError,
        JournalStoreError as JournalStoreError,
        LocationError as LocationError,
        OptionError as OptionError,
        ProtocolError as ProtocolError,
        PutBackError as PutBackError,
        QueryStoppedError as QueryStoppedError,
        ReplayMismatchError as ReplayMismatchError,
        RetriableError as RetriableError,
        RewindRequiredError as RewindRequiredError,
        RowRefusedError as RowRefusedError,
        StoreError as StoreError,
        StoreReplacedError as StoreReplacedError,
        StoreUnreachableError as StoreUnreachableError,
        SupersededError as SupersededError,
        TransactionLostError as TransactionLostError,
        TwoPhaseCommitError as TwoPhaseCommitError,
    )
    from transactional.failure import Failure as Failure, Remedy as Remedy, failure_of as failure_of
    from transactional.finding import Finding as Finding, Level as Level
    from transactional.history import History as History
    from transactional.hooks import CheckpointHook as CheckpointHook, HookContext as HookContext
    from transactional.ledger import CheckpointState as CheckpointState
    from transactional.restart import (
        ExponentialDelay as ExponentialDelay,
        FailureRate as FailureRate,
        FixedDelay as FixedDelay,
        Life as Life,
        NoRestart as NoRestart,
        RestartStrategy as RestartStrategy,
    )
    from transactional.sink import TwoPhaseCommitSink as TwoPhaseCommitSink
    from transactional.stats import CheckpointHistory as CheckpointHistory, Restored as Restored
    from transactional.transaction import (
        Cutoff as Cutoff,
        HandleState as HandleState,
        Options as Options,
        Outcome as Outcome,
        TransactionContext as TransactionContext,
    )
    # isort: on

_HOMES = {
    "barrier": "CheckpointBarrier",
    "capabilities": (
        "Examines Expires GuardsRuns KeepsEvidence MarksCheckpoints NamesDatasets ReportsOutput Restorable Routes ShowsLater "
        "WarmsUp WritesTopics"
    ),
    "checkpoint": "CheckpointMark ClosingReason DecidedCheckpoint",
    "clock": "Clock",
    "errors": (
        "AmbiguousOutcomeError FencedError HookError JournalError JournalStoreError LocationError OptionError ProtocolError "
        "PutBackError QueryStoppedError ReplayMismatchError RetriableError RewindRequiredError RowRefusedError StoreError "
        "StoreReplacedError StoreUnreachableError SupersededError TransactionLostError TwoPhaseCommitError"
    ),
    "failure": "Failure Remedy failure_of",
    "finding": "Finding Level",
    "history": "History",
    "hooks": "CheckpointHook HookContext",
    "ledger": "CheckpointState",
    "restart": "ExponentialDelay FailureRate FixedDelay Life NoRestart RestartStrategy",
    "sink": "TwoPhaseCommitSink",
    "stats": "CheckpointHistory Restored",
    "transaction": "Cutoff HandleState Options Outcome TransactionContext",
}
"""The public names of each module. A module is imported when one of its names is first used."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_MODULES)  # noqa: PLE0605 - Type checkers see the imports above.


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
