"""The processes of a session (of `setsid`): a driver with all that it starts."""

from __future__ import annotations

import os

import psutil

__all__ = ["JVM", "session_members"]

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
