"""Fault points: named places in the code where a test can kill or pause the process, or raise an error.

They do nothing unless the environment variable ``BARRIER_FAULTS`` names a folder. In this folder, a file ``<point>.<k>`` (k =
any text) arms the fault point once. The content of the file is the action: ``kill`` (this process), ``kill-jvm`` (the nearest
Java ancestor, then this process), ``raise``, or ``pause`` (until a file ``<point>.resume`` exists). The first process that
reaches the point renames the file to ``<file>.fired`` and does the action, so each file fires exactly once.
"""

from __future__ import annotations

import os
import signal
import time

VARIABLE = "BARRIER_FAULTS"

POINTS = (
    "task.begun",
    "task.written",
    "task.prepared",
    "commit.called",
    "commit.looked",
    "decision.written",
    "journal.created",
    "commit.one",
    "commit.done",
    "mark.published",
    "settled.written",
    "abort.journalled",
    "recovery.claimed",
    "recovery.settling",
    "recovery.swept",
    "repair.verdict",
    "repair.handles",
    "source.latest",
)
"""The fault points that a micro-batch reaches if it closes a checkpoint."""

LONG_POINTS = ("prepared.written", "declined.prepared", "hooks.triggered", "hooks.restored")
"""The fault points that are reached only if a checkpoint has several micro-batches, is declined, or has hooks."""

REWIND_POINTS = (
    "rewind.begun",
    "rewind.settled",
    "rewind.aborted",
    "rewind.restored",
    "rewind.planned",
    "rewind.commit-deleted",
    "rewind.offset-deleted",
    "rewind.deleted",
    "rewind.put-back",
)

SAVEPOINT_POINTS = ("savepoint.copied", "restore.begun", "restore.copied", "restore.moved", "restore.opened")
"""The fault points that are reached when a savepoint is taken or restored."""

ALL_POINTS = POINTS + LONG_POINTS + REWIND_POINTS + SAVEPOINT_POINTS


class InjectedFault(RuntimeError):
    """The error that a fault point raises if its action is ``raise``."""


def reach(point: str) -> None:
    """Do the action of a fault point, if a test has armed the point; otherwise do nothing."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    if point not in ALL_POINTS:
        raise ValueError(f"unknown fault point {point!r}")
    action = _take(folder, point)
    if action is None:
        return
    if action.startswith("pause"):
        resume = os.path.join(folder, f"{point}.resume")
        while not os.path.exists(resume):
            time.sleep(0.02)
    elif action == "raise":
        raise InjectedFault(f"fault point {point}")
    else:
        if action == "kill-jvm":
            _kill_java_ancestor()
        os.kill(os.getpid(), signal.SIGKILL)


def _take(folder: str, point: str) -> str | None:
    """Rename one file that arms the fault point, so that it fires only once. Return the file's action.

    Return None if there is no such file.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return None
    for name in names:
        if not name.startswith(point + ".") or name.endswith((".fired", ".resume")):
            continue
        path = os.path.join(folder, name)
        try:
            os.rename(path, path + ".fired")
        except FileNotFoundError:
            continue
        with open(path + ".fired", encoding="utf-8") as file:
            return file.read().strip()
    return None


def _kill_java_ancestor() -> None:
    """Send SIGKILL to the nearest ancestor that is a Java process: the driver, or a local-cluster executor."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            stat = file.read()
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :]
        if name == "java":
            os.kill(pid, signal.SIGKILL)
            return
        pid = int(rest.split()[1])
    raise InjectedFault("no Java ancestor to kill")
