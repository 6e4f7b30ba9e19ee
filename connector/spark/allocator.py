"""Make the C library return free memory to the system, in workers that Spark reuses."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

THRESHOLD_BYTES: Final = 128 << 10
"""The initial values of glibc's ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD``, before glibc raises them."""

_TRIM: Final = -1
"""The constant ``M_TRIM_THRESHOLD`` of malloc.h."""

_OWN_SETTINGS: Final = ("MALLOC_", "GLIBC_TUNABLES")
"""Users configure the allocator with environment variables whose names begin with these prefixes."""


@lru_cache(1)
def return_free_memory() -> bool:
    """Keep glibc from raising its memory thresholds, and return whether this succeeded. Takes effect once per process.

    When a worker frees its first buffer of a megabyte, glibc raises its thresholds. It then takes later buffers of this
    size from its heaps, between small blocks that stay allocated. The threads of each task leave other holes in the
    heaps, so a worker that is reused for a day grows by 10 to 80 kB per task. With fixed thresholds, glibc maps and
    unmaps each large buffer separately. The worker then keeps the size that it had after its first tasks, and is a
    sixth smaller at the same speed.

    If the C library is not glibc, or if the user's environment configures the allocator, change nothing.
    """
    if not sys.platform.startswith("linux") or _is_set(os.environ):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_TRIM, THRESHOLD_BYTES))
    except (AttributeError, OSError):  # another C library
        return False


def _is_set(environment: Mapping[str, str]) -> bool:
    return any(name.startswith(_OWN_SETTINGS) for name in environment)
