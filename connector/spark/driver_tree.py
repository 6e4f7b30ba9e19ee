"""A driver as a child process with all that it starts: its JVM, Spark's Python workers. It is gone as a whole, or lives."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from connector.spark.process import session_members

__all__ = ["DriverTree"]

JVM = "java"
LOOK_SECONDS = 0.05


class DriverTree:
    """A command in a session of its own, to which every process below it belongs, whatever group it makes for itself.

    Parameters
    ----------
    command : Sequence[str]
    environment : Mapping[str, str]
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(list(command), env=dict(environment), start_new_session=True)
        self._jvms: set[int] = set()

    @property
    def pid(self) -> int:
        """Of the driver program."""
        return self._process.pid

    def status(self) -> int | None:
        """Exit status of the driver program, negative for a signal; None while it runs."""
        return self._process.poll()

    def lost_jvm(self) -> bool:
        """Whether it had a JVM, and has none now."""
        living = {pid for pid, name in session_members(self.pid).items() if name == JVM}
        self._jvms |= living
        return bool(self._jvms) and not living

    def signal(self, number: int) -> None:
        """Send a signal to the driver program alone."""
        if self.status() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of it, once, and no waiting: for a process that is about to end itself."""
        for pid in [*session_members(self.pid), self.pid]:
            _kill(pid)

    def end(self) -> int:
        """Make sure that nothing of it is left: SIGKILL to each, by its id, the JVM first. Returns the program's status."""
        status = self.status()
        while members := session_members(self.pid):
            self._jvms |= {pid for pid, name in members.items() if name == JVM}
            for pid in sorted(members, key=lambda pid: members[pid] != JVM):
                _kill(pid)
            self._process.poll()
            time.sleep(LOOK_SECONDS)
        if self._process.poll() is None:  # no /proc: the group is all that can be named
            os.killpg(self.pid, signal.SIGKILL)
        found = self._process.wait()
        return found if status is None else status


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
