"""The names that users import: exactly-once streaming from Kafka through PySpark.

The formats ``barrier-kafka``, ``2pc-kafka`` and ``2pc-delta`` need no import; `register` lets ``start()`` report mistakes. To
write a sink, subclass `TwoPhaseCommitSink`, and test it with `barrier_kafka.testing`. Names that are not in ``__all__`` may
change between releases.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from connector import CheckpointListener, LagListener, StopWish, listen, register, supervise
    from connector.delta import idempotent_merge
    from connector.schema_registry.columns import decode_avro, decode_json
    from transactional.checkpoint import DecidedCheckpoint
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
    from transactional.history import History, put_back
    from transactional.hooks import CheckpointHook, HookContext
    from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
    from transactional.sink import HandleState, Options, Outcome, TransactionContext, TwoPhaseCommitSink

__all__ = [
    "AmbiguousOutcomeError",
    "CheckpointHook",
    "CheckpointListener",
    "DecidedCheckpoint",
    "ExponentialDelay",
    "FailureRate",
    "FencedError",
    "FixedDelay",
    "HandleState",
    "History",
    "HookContext",
    "HookError",
    "JournalError",
    "LagListener",
    "LocationError",
    "NoRestart",
    "OptionError",
    "Options",
    "Outcome",
    "ProtocolError",
    "QueryStoppedError",
    "ReplayMismatchError",
    "RetriableError",
    "RewindRequiredError",
    "RowRefusedError",
    "StopWish",
    "StoreError",
    "TransactionContext",
    "TransactionLostError",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "decode_avro",
    "decode_json",
    "idempotent_merge",
    "listen",
    "put_back",
    "register",
    "supervise",
]

_HOMES: Final = {
    "connector": ("CheckpointListener", "LagListener", "StopWish", "listen", "register", "supervise"),
    "connector.delta": ("idempotent_merge",),
    "connector.schema_registry.columns": ("decode_avro", "decode_json"),
    "transactional.checkpoint": ("DecidedCheckpoint",),
    "transactional.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "transactional.history": ("History", "put_back"),
    "transactional.hooks": ("CheckpointHook", "HookContext"),
    "transactional.restart": ("ExponentialDelay", "FailureRate", "FixedDelay", "NoRestart"),
    "transactional.sink": ("HandleState", "Options", "Outcome", "TransactionContext", "TwoPhaseCommitSink"),
}
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing else: an executor that needs one class does not pay for all clients."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
