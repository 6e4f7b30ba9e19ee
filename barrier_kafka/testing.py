"""Helpers for tests of your own sinks: a test class that checks the contract of all sinks, and test doubles."""

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
