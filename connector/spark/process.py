"""The process of a query's driver, and whether it still runs, from the operating system, without Spark.

A pid alone is no name: pids come back. With the boot id, the pid namespace and the start time it is one, on this machine
and in this container. From anywhere else that can't be known, and on systems other than Linux nothing is recorded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

__all__ = [
    "driver_process",
    "driver_text",
    "is_alive",
    "process_of",
    "process_text",
    "this_process",
]

_PROC = "/proc"
_JVM = "java"
"""The name of a driver's process."""

_drivers: dict[int, tuple[int, Any]] = {}
"""A worker's pid → its driver's, which is the same for as long as both live, and when that started."""


def driver_process() -> dict[str, Any]:
    """Return the driver's process, seen from one of its Python workers. *Driver, planning process, once per micro-batch.*

    A worker is a child of PySpark's daemon, which is a child of the driver's JVM: the nearest ancestor named ``java``.
    """
    worker = os.getpid()
    pid, started = _drivers.get(worker, (0, None))
    if started is None or _started(pid) != started:
        found = _java_above()
        if found is None:
            return _identity(None)
        pid = found
        _drivers[worker] = pid, _started(pid)
    return _identity(pid)


def _java_above() -> int | None:
    import psutil

    try:
        return next((above.pid for above in psutil.Process().parents() if above.name() == _JVM), None)
    except (psutil.Error, OSError):
        return None


def this_process() -> dict[str, Any]:
    """Return the calling process in the form of `driver_process`, for commands."""
    return _identity(os.getpid())


def process_of(pid: int) -> dict[str, Any]:
    """Return a process of this machine in the form of `driver_process`."""
    return _identity(pid)


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Return whether a process that `driver_process` or `this_process` described still runs."""
    here = this_process()
    pid, started = identity.get("pid"), identity.get("started")
    if not isinstance(pid, int) or pid < 1 or started is None or here["pid"] is None:
        return None
    if any(identity.get(key) != here[key] for key in ("boot", "namespace")):
        return None
    found = _started(pid)
    if found is not None:
        return found == started and _runs(pid)
    try:  # psutil takes a process that is hidden for one that is gone
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # /proc mounted with hidepid
    return None


def driver_text(process: Mapping[str, Any], alive: bool | None) -> str:
    """Describe a process, and whether it runs."""
    runs = {True: "runs", False: "is gone", None: "whether it runs can't be seen from here"}[alive]
    return f"{process_text(process)}: {runs}"


def process_text(process: Mapping[str, Any]) -> str:
    """Describe a process."""
    return f"host {process.get('host') or 'unknown'}, pid {process.get('pid') or 'unknown'}"


def _identity(pid: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "boot": None,
        "namespace": None,
        "pid": None,
        "started": None,
    }
    started = None if pid is None else _started(pid)
    if started is None:
        return found
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.readlink(f"{_PROC}/self/ns/pid")
        if os.readlink(f"{_PROC}/self") != str(os.getpid()):
            return found  # mounted from another namespace: its numbers are not ours
    except OSError:
        return found
    return {**found, "boot": boot, "namespace": namespace, "pid": pid, "started": started}


def _started(pid: int) -> int | None:
    """Return when a process began, in clock ticks after boot; None if there is none, or it can't be seen."""
    import psutil

    try:
        while True:  # psutil counts from 1970, by the clock; if that is set meanwhile, both are read again
            boot = psutil.boot_time()
            seconds = psutil.Process(pid).create_time() - boot
            if psutil.boot_time() == boot:
                ticks: int = round(seconds * os.sysconf("SC_CLK_TCK"))
                return ticks
    except (psutil.Error, OSError):
        return None


def _runs(pid: int) -> bool:
    """Return whether a process that is there has not ended: a zombie has ended."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (psutil.Error, OSError):
        return False
