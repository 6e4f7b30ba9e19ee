"""Public, for people who write sinks: `SinkConformance`, a settable clock, and sinks in memory.

`SinkConformance` is a class of tests that a sink's author subclasses in a pytest module. The rest are doubles:
`FakeClock`, `MemoryTransactions` (a store), `RecordingSink`, `FailingSink` and `BlockingSink` over it.
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
