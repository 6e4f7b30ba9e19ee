"""Identify a driver process, and check whether it is still running, by asking the operating system, not Spark.

A pid alone does not identify a process, because the system reuses pids. Together with the boot id, the pid namespace and the
start time, the pid identifies a process on this machine and in this container. Other machines and containers can't see
whether the process is running. On systems other than Linux, nothing is recorded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

_PROC = "/proc"
_JVM = "java"
"""The process name of a driver, which is a JVM."""

_drivers: dict[int, tuple[int, Any]] = {}
"""Maps a worker's pid to its driver's pid and start time, which stay the same while both processes run."""


def driver_process() -> dict[str, Any]:
    """Return the identity of this Python worker's driver process. Called when a micro-batch is planned.

    A worker is a child of PySpark's daemon, which is a child of the driver's JVM. So the nearest ancestor named ``java`` is the
    driver.
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
    """Return the identity of the calling process, with the same keys as `driver_process`."""
    return _identity(os.getpid())


def process_of(pid: int) -> dict[str, Any]:
    """Return the identity of a process on this machine, with the same keys as `driver_process`."""
    return _identity(pid)


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Return whether the process with this identity is still running; None if that can't be determined."""
    here = this_process()
    pid, started = identity.get("pid"), identity.get("started")
    if not isinstance(pid, int) or pid < 1 or started is None or here["pid"] is None:
        return None
    if any(identity.get(key) != here[key] for key in ("boot", "namespace")):
        return None
    found = _started(pid)
    if found is not None:
        return found == started and _runs(pid)
    try:  # psutil reports a hidden process as gone
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # /proc mounted with hidepid
    return None


def driver_text(process: Mapping[str, Any], alive: bool | None) -> str:
    """Describe a process: its host and pid, and whether it is running according to `alive` (None if unknown)."""
    runs = {True: "running", False: "no longer running", None: "may be running, but can't be seen from here"}[alive]
    return f"{process_text(process)}: {runs}"


def process_text(process: Mapping[str, Any]) -> str:
    """Describe a process: its host and pid."""
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
            return found  # /proc is of another pid namespace, so its pids are not ours
    except OSError:
        return found
    return {**found, "boot": boot, "namespace": namespace, "pid": pid, "started": started}


def _started(pid: int) -> int | None:
    """Return a process's start time in clock ticks after boot; None if the process does not exist or can't be seen."""
    import psutil

    try:
        while True:  # psutil counts from 1970; if the clock is set in between, both values are read again
            boot = psutil.boot_time()
            seconds = psutil.Process(pid).create_time() - boot
            if psutil.boot_time() == boot:
                ticks: int = round(seconds * os.sysconf("SC_CLK_TCK"))
                return ticks
    except (psutil.Error, OSError):
        return None


def _runs(pid: int) -> bool:
    """Return whether an existing process is running. A zombie is not running."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (psutil.Error, OSError):
        return False
