"""Python's cyclic garbage collector in the workers that Spark starts: patient while we work, and blind to what was imported.

Each delivered message is an object that the collector knows, so at its usual pace it walks tens of thousands of live ones
again and again; and PySpark's daemon calls ``gc.collect()`` after every task and every planning or commit call, over a heap
of modules. Both together took 40 % of the Python workers' time, and most of a small micro-batch's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from connector.spark.allocator import return_free_memory

__all__ = ["PATIENCE", "collector_patient"]

PATIENCE: Final = 500_000
"""Tracked objects, made and not yet freed, at which the collector looks.

Rows, batches and transactions make no cycles: reference counts free them, and this number is never reached. A user's sink
that does make cycles leaves at most that many of them uncollected.
"""

_modules = 0
"""Modules that were imported when the heap was frozen."""


@contextmanager
def collector_patient() -> Iterator[None]:
    """Let the collector look seldom in a block of code in a worker, and leave its settings as they were.

    The user's code in the same process (UDFs that come to a worker that Spark reuses) runs outside of such blocks. If
    modules were imported since the last block, everything alive is taken out of later collections (`gc.freeze`). The daemon
    has collected before the task began, so little garbage is frozen with it, and only as often as modules are imported.

    The C library's allocator is set as well, for good (`return_free_memory`).
    """
    global _modules
    return_free_memory()
    before = gc.get_threshold()
    if before[0]:  # else it is off, by the user's will
        gc.set_threshold(max(PATIENCE, before[0]), *before[1:])
    try:
        yield
    finally:
        if len(sys.modules) > _modules:
            gc.freeze()
            _modules = len(sys.modules)
        gc.set_threshold(*before)
