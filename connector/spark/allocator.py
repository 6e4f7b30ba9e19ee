"""The C library's memory in the workers that Spark keeps: what is free goes back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

__all__ = ["THRESHOLD_BYTES", "return_free_memory"]

THRESHOLD_BYTES: Final = 128 << 10
"""glibc's ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` as they are before the first large block is freed."""

_TRIM: Final = -1
"""``M_TRIM_THRESHOLD`` of malloc.h."""

_OWN_SETTINGS: Final = ("MALLOC_", "GLIBC_TUNABLES")
"""Environment variables by which a user sets the allocator."""


@lru_cache(1)
def return_free_memory() -> bool:
    """Keep glibc from raising its thresholds; return whether that was done. *Workers, once per process.*

    The first freed buffer of a megabyte teaches glibc to take all later ones of that size from its heaps, between small
    blocks that stay: each task's threads leave other holes, and a worker that is kept for a day grows by 10 to 80 kB a task.
    With the threshold fixed, large buffers are mapped and unmapped by themselves: the worker stays at the size that it had
    after its first tasks, a sixth smaller, at the same speed.

    Nothing is done without glibc, or if the user's environment sets the allocator.
    """
    if not sys.platform.startswith("linux") or _is_set(os.environ):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_TRIM, THRESHOLD_BYTES))
    except (AttributeError, OSError):  # another C library
        return False


def _is_set(environment: Mapping[str, str]) -> bool:
    return any(name.startswith(_OWN_SETTINGS) for name in environment)
