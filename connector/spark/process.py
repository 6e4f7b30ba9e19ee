"""Which process a query's driver is, and whether it still runs: told by Linux's ``/proc``, without asking Spark.

A pid alone is no name: pids come back. With the boot id, the pid namespace and the start time it is one, on this machine
and in this container. From anywhere else nobody can tell, and elsewhere than on Linux nothing is recorded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["driver_process", "driver_text", "is_alive", "session_members", "this_process"]

_PROC = "/proc"
_JAVA = "java"


class _Stat(NamedTuple):
    name: str
    state: str
    parent: int
    session: int
    started: int


def driver_process() -> dict[str, Any]:
    """The driver's process, seen from one of its Python workers. *Driver, planning process, once per micro-batch.*

    A worker is a child of PySpark's daemon, which is a child of the driver's JVM: the nearest ancestor named ``java``.

    Returns
    -------
    dict
        JSON types: ``host`` (name, for people), ``boot`` (the kernel's boot id), ``namespace`` (of pids), ``pid`` and
        ``started`` (clock ticks after boot). All but ``host`` are None where there is no ``/proc`` (macOS) or no ancestor
        is Java (Spark's workers in a container of their own).
    """
    pid = os.getppid()
    while pid > 0:
        stat = _stat(pid)
        if stat is None:
            break
        if stat.name == _JAVA:
            return _identity(pid)
        pid = stat.parent
    return _identity(None)


def this_process() -> dict[str, Any]:
    """The calling process, in the form of `driver_process`; for a command line tool."""
    return _identity(os.getpid())


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether a process that `driver_process` or `this_process` described still runs.

    Returns
    -------
    bool or None
        None where it can't be known from here: another machine or container, a machine that was started anew since (its
        name may be another machine's by now), no ``/proc``, a process that is hidden from this user, nothing recorded.
    """
    here = this_process()
    pid, started = identity.get("pid"), identity.get("started")
    if not isinstance(pid, int) or pid < 1 or started is None or here["pid"] is None:
        return None
    if any(identity.get(key) != here[key] for key in ("boot", "namespace")):
        return None
    stat = _stat(pid)
    if stat is not None:
        return stat.started == started and stat.state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # /proc mounted with hidepid
    return None


def session_members(session: int) -> dict[int, str]:
    """Living processes of a session, with their names; empty where there is no ``/proc``."""
    found = {}
    for name in os.listdir(_PROC) if os.path.isdir(_PROC) else ():
        stat = _stat(int(name)) if name.isdigit() else None
        if stat is not None and stat.session == session and stat.state not in "ZX":
            found[int(name)] = stat.name
    return found


def driver_text(process: Mapping[str, Any], alive: bool | None) -> str:
    """Which process, and whether it runs."""
    where = f"host {process.get('host') or 'unknown'}, pid {process.get('pid') or 'unknown'}"
    runs = {True: "runs", False: "is gone", None: "nobody can tell from here whether it runs"}[alive]
    return f"{where}: {runs}"


def _identity(pid: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "boot": None,
        "namespace": None,
        "pid": None,
        "started": None,
    }
    stat = None if pid is None else _stat(pid)
    if stat is None:
        return found
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.readlink(f"{_PROC}/self/ns/pid")
        if os.readlink(f"{_PROC}/self") != str(os.getpid()):
            return found  # mounted from another namespace: its numbers are not ours
    except OSError:
        return found
    return {**found, "boot": boot, "namespace": namespace, "pid": pid, "started": stat.started}


def _stat(pid: int) -> _Stat | None:
    """What proc(5) says in ``stat``; None where there is no such process, or no ``/proc``."""
    try:
        with open(f"{_PROC}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        begin, end = text.index("("), text.rindex(")")  # the name may hold blanks and brackets itself
        fields = text[end + 2 :].split()
        return _Stat(text[begin + 1 : end], fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
