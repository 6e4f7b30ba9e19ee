"""The processes of a session (of `setsid`) or of a process group: a driver with all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

__all__ = ["JVM", "kill_group", "output_of", "session_members", "until_interrupted"]

JVM = "java"
"""The name of a driver's process."""

ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def session_members(session: int) -> dict[int, str]:
    """Return the living processes of a session, with their names."""
    found = {}
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            if os.getsid(pid) == session and process.status() not in ENDED:
                found[pid] = str(process.name())
        except (psutil.Error, OSError):  # noqa: PERF203 - it has ended meanwhile
            continue
    return found


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill the leader of a process group and all that it has started, as by ``kill -9``. It may have ended already."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def output_of(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Wait for the end of the leader of a process group, and kill the rest. Return what it wrote to its two pipes."""
    try:
        return process.communicate(timeout=seconds)
    finally:
        kill_group(process)


@contextmanager
def until_interrupted() -> Iterator[Callable[[], None]]:
    """End the block, without an error, at Ctrl-C or SIGTERM. The function that it gives waits for that."""
    # Both by hand: a shell starts its background jobs with SIGINT ignored.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)

    def wait() -> None:
        while True:
            signal.pause()

    with suppress(KeyboardInterrupt):
        yield wait
