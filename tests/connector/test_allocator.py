"""The C library's memory in workers."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

GROWTH = """
import ctypes, sys
from connector.spark.allocator import return_free_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
print(return_free_memory())
libc.free(libc.malloc(1 << 20))
blocks = [libc.malloc(1 << 20) for _ in range(64)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
pin = libc.malloc(64 << 10)  # lies behind them, if they lie in a heap
for block in blocks:
    libc.free(block)
pages = int(open("/proc/self/statm").read().split()[1])
print(pages * 4096 >> 20)
"""


def run(environment: dict[str, str]) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    answer = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, env={**kept, **environment}
    )
    done, resident = answer.stdout.split()
    return done, int(resident)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="The allocator of glibc")
def test_freed_buffers_go_back_to_the_system_unless_the_user_has_set_the_allocator() -> None:
    done, small = run({})
    left_alone, large = run({"MALLOC_ARENA_MAX": "8"})
    assert (done, left_alone) == ("True", "False")
    assert large > small + 48
