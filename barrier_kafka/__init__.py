"""Exactly-once streaming from Kafka with PySpark. Your programs import all public names from this module.

You need no import to use the formats ``barrier-kafka``, ``2pc-kafka``, ``2pc-delta``, ``2pc-postgresql``, ``2pc-mysql`` and
``2pc-multi``. If you call `register`, ``start()`` reports mistakes in their options. To write a sink of your own, subclass
`TwoPhaseCommitSink` (for a database, `StagedSqlSink`), and test it with `barrier_kafka.testing`. Names that are not in
``__all__`` may change between releases.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from connector import CheckpointListener, LagListener, StopRequest, add_listener, register, supervise
    from connector.delta import idempotent_merge
    from connector.kafka.client.topics import Partition
    from connector.kafka.sink.injector import inject_barriers
    from connector.kafka.source.lag import QueryLag, SourceLag
    from connector.operations.listener import Listening
    from connector.schema_registry.columns import decode_avro, decode_json
    from connector.schema_registry.dead_letters import dead_letters
    from connector.schema_registry.encode import encode_avro, encode_json
    from connector.serving.lineage import LineageListener
    from connector.serving.metrics import QueryCollector, register_opentelemetry, register_prometheus
    from connector.sql.control_tables import Cursor
    from connector.sql.database import Connection
    from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
    from transactional import (
        AmbiguousOutcomeError,
        CheckpointHistory,
        CheckpointHook,
        CheckpointMark,
        CheckpointState,
        Clock,
        Cutoff,
        DecidedCheckpoint,
        Examines,
        Expires,
        ExponentialDelay,
        FailureRate,
        FencedError,
        Finding,
        FixedDelay,
        GuardsRuns,
        HandleState,
        History,
        HookContext,
        HookError,
        JournalError,
        JournalStoreError,
        KeepsEvidence,
        Level,
        Life,
        LocationError,
        MarksCheckpoints,
        NamesDatasets,
        NoRestart,
        OptionError,
        Options,
        Outcome,
        ProtocolError,
        PutBackError,
        QueryStoppedError,
        ReplayMismatchError,
        ReportsOutput,
        RestartStrategy,
        Restorable,
        Restored,
        RetriableError,
        RewindRequiredError,
        Routes,
        RowRefusedError,
        ShowsLater,
        StoreError,
        StoreReplacedError,
        StoreUnreachableError,
        SupersededError,
        TransactionContext,
        TransactionLostError,
        TwoPhaseCommitError,
        TwoPhaseCommitSink,
        WarmsUp,
        WritesTopics,
    )

__all__ = [
    "AmbiguousOutcomeError",
    "CheckpointHistory",
    "CheckpointHook",
    "CheckpointListener",
    "CheckpointMark",
    "CheckpointState",
    "Clock",
    "Connection",
    "Cursor",
    "Cutoff",
    "DecidedCheckpoint",
    "Examines",
    "Expires",
    "ExponentialDelay",
    "FailureRate",
    "FencedError",
    "Finding",
    "FixedDelay",
    "GuardsRuns",
    "HandleState",
    "History",
    "HookContext",
    "HookError",
    "JournalError",
    "JournalStoreError",
    "KeepsEvidence",
    "LagListener",
    "Level",
    "Life",
    "LineageListener",
    "Listening",
    "LocationError",
    "MarksCheckpoints",
    "NamesDatasets",
    "NoRestart",
    "OptionError",
    "Options",
    "Outcome",
    "Partition",
    "ProtocolError",
    "PutBackError",
    "QueryCollector",
    "QueryLag",
    "QueryStoppedError",
    "ReplayMismatchError",
    "ReportsOutput",
    "RestartStrategy",
    "Restorable",
    "Restored",
    "RetriableError",
    "RewindRequiredError",
    "Routes",
    "RowRefusedError",
    "ShowsLater",
    "SourceLag",
    "StagedHandle",
    "StagedSqlSink",
    "StagedTransaction",
    "StopRequest",
    "StoreError",
    "StoreReplacedError",
    "StoreUnreachableError",
    "SupersededError",
    "TransactionContext",
    "TransactionLostError",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "WarmsUp",
    "WritesTopics",
    "add_listener",
    "dead_letters",
    "decode_avro",
    "decode_json",
    "encode_avro",
    "encode_json",
    "idempotent_merge",
    "inject_barriers",
    "register",
    "register_opentelemetry",
    "register_prometheus",
    "supervise",
]

_ELSEWHERE: Final = {
    "connector": ("CheckpointListener", "LagListener", "StopRequest", "add_listener", "register", "supervise"),
    "connector.delta": ("idempotent_merge",),
    "connector.kafka.client.topics": ("Partition",),
    "connector.kafka.sink.injector": ("inject_barriers",),
    "connector.kafka.source.lag": ("QueryLag", "SourceLag"),
    "connector.operations.listener": ("Listening",),
    "connector.schema_registry.columns": ("decode_avro", "decode_json"),
    "connector.schema_registry.dead_letters": ("dead_letters",),
    "connector.schema_registry.encode": ("encode_avro", "encode_json"),
    "connector.serving.lineage": ("LineageListener",),
    "connector.serving.metrics": ("QueryCollector", "register_opentelemetry", "register_prometheus"),
    "connector.sql.control_tables": ("Cursor",),
    "connector.sql.database": ("Connection",),
    "connector.sql.staged_sink": ("StagedHandle", "StagedSqlSink", "StagedTransaction"),
}
_HOME: Final = {name: module for module, names in _ELSEWHERE.items() for name in names}
"""The module of each public name that is not in `transactional`."""


def __getattr__(name: str) -> Any:
    """Import a public name's module only when the name is first used, so that executors don't import every client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "transactional")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names for ``dir()``, including those whose modules are not imported yet."""
    return sorted(__all__)
