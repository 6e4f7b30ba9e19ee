"""Helpers for tests of your own sinks: the contract of every sink as a test class, and test doubles."""

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
