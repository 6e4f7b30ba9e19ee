"""Public test tools for authors of sinks: test classes, a fake clock, and an in-memory store with sinks.

Subclass `SinkConformance` in a pytest module; `StoreMatrix` adds tests with a wrong store. `FakeClock` is a clock that
your test moves forward. `MemoryTransactions` is an in-memory store, and `RecordingSink`, `FailingSink` and
`BlockingSink` write to it.
"""

from transactional.testing.clock import FakeClock
from transactional.testing.conformance import SinkConformance
from transactional.testing.memory import BlockingSink, FailingSink, MemoryHandle, MemoryTransactions, RecordingSink
from transactional.testing.process import SinkProcess
from transactional.testing.store_matrix import StoreMatrix

__all__ = [
    "BlockingSink",
    "FailingSink",
    "FakeClock",
    "MemoryHandle",
    "MemoryTransactions",
    "RecordingSink",
    "SinkConformance",
    "SinkProcess",
    "StoreMatrix",
]
