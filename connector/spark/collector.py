"""Python's cyclic garbage collector in the workers that Spark starts: off while we work, and blind to what was imported.

Each delivered message is an object that the collector knows, so it walks tens of thousands of live ones again and again; and
PySpark's daemon calls ``gc.collect()`` after every task and every planning or commit call, over a heap of modules. Both
together took 40 % of the Python workers' time, and most of a small micro-batch's.

Memory stays bounded: rows, batches and transactions make no cycles, so reference counts free them, and the daemon's own
collection after each task finds what else a task has made.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]

_modules = 0
"""Modules that were imported when the heap was frozen."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector off in a block of code in a worker, and leave its settings as they were.

    The user's code in the same process (UDFs that come to a worker that Spark reuses) runs outside of such blocks. If
    modules were imported since the last block, everything alive is taken out of later collections (`gc.freeze`). The daemon
    has collected before the task began, so little garbage is frozen with it, and only as often as modules are imported.
    """
    global _modules
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > _modules:
            gc.freeze()
            _modules = len(sys.modules)
        if was_enabled:
            gc.enable()
