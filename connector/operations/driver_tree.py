"""A driver as a child process with all that it starts: its JVM, Spark's Python workers. It lives or ends as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from connector.spark.process import JVM, session_members

__all__ = ["DriverTree"]

LOOK_SECONDS = 0.05


class DriverTree:
    """A command in a session of its own, which holds every process below it, whatever its process group.

    Parameters
    ----------
    command : Sequence[str]
    environment : Mapping[str, str]
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(list(command), env=dict(environment), start_new_session=True)
        self._had_jvm = False

    @property
    def pid(self) -> int:
        """Return the process id of the driver program."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status of the driver program, negative for a signal; None while it runs."""
        return self._process.poll()

    def lost_jvm(self) -> bool:
        """Return whether it had a JVM, and has none now."""
        has_jvm = JVM in session_members(self.pid).values()
        self._had_jvm |= has_jvm
        return self._had_jvm and not has_jvm

    def signal(self, number: int) -> None:
        """Send a signal to the driver program alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to all of it, once, and do not wait: for a process that is about to end itself."""
        _kill([*session_members(self.pid), self.pid])

    def end(self) -> int:
        """Make sure that nothing of it is left: SIGKILL to each, by its id, the JVM first. Returns the program's status."""
        status = self.status()
        while members := session_members(self.pid):
            _kill(sorted(members, key=lambda pid: members[pid] != JVM))
            self._process.poll()
            time.sleep(LOOK_SECONDS)
        found = self._process.wait()
        return found if status is None else status


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
