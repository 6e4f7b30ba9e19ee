"""For tests of your own sinks: the contract of every sink as a class of tests, and doubles for the code around it."""

from __future__ import annotations

from transactional.testing import (
    BlockingSink,
    FailingSink,
    FakeClock,
    MemoryHandle,
    MemoryTransactions,
    RecordingSink,
    SinkConformance,
    StoreMatrix,
)

__all__ = [
    "BlockingSink",
    "FailingSink",
    "FakeClock",
    "MemoryHandle",
    "MemoryTransactions",
    "RecordingSink",
    "SinkConformance",
    "StoreMatrix",
]
