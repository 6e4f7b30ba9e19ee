"""Settings of Python's cyclic garbage collector in Spark's workers, so that it runs rarely and ignores imported modules.

The collector tracks each delivered message. With its default thresholds, it scans tens of thousands of live messages again
and again. In addition, PySpark's daemon calls ``gc.collect()`` after every task and every planning or commit call, which scans
the objects of all imported modules. Together, this took 40 % of the Python workers' time, and most of the time of a small
micro-batch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from connector.spark.allocator import return_free_memory

PATIENCE: Final = 500_000
"""The collector runs when this number of tracked objects have been created and not yet freed.

Rows, batches and transactions contain no cycles, so reference counting frees them, and this number is never reached. If a
user's sink creates cycles, at most this many objects stay uncollected.
"""

_modules = 0
"""The number of imported modules when live objects were last frozen."""


@contextmanager
def collector_patient() -> Iterator[None]:
    """Run a block of code in a worker, during which Python's garbage collector runs rarely; then restore its settings.

    The user's code in the same process (UDFs in a worker that Spark reuses) runs outside of such blocks. If modules were
    imported since the last block, all live objects are excluded from later collections (`gc.freeze`). This freezes little
    garbage, because the daemon has run a collection before the task, and because new imports are rare.

    The C library's allocator is also configured, permanently (`return_free_memory`).
    """
    global _modules
    return_free_memory()
    before = gc.get_threshold()
    if before[0]:  # 0 means that the user has switched the collector off
        gc.set_threshold(max(PATIENCE, before[0]), *before[1:])
    try:
        yield
    finally:
        if len(sys.modules) > _modules:
            gc.freeze()
            _modules = len(sys.modules)
        gc.set_threshold(*before)
