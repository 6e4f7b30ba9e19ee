"""``barrier`` in a process that is killed before its n-th change of a disk or an object store.

``python -m tests.connector.killed_command N ARGUMENT...``
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from connector.cli import main
from connector.location.object_store import ObjectFiles

__all__ = ["killed_before"]

DURABLE = ("chmod", "fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")

STORED = ("create_tagged", "put", "_delete")


def killed_before(death: int, arguments: Sequence[str]) -> bool:
    """Run the command; return whether it was killed before it came to its end.

    Raises
    ------
    AssertionError
        It ended in any other way.
    """
    command = [sys.executable, "-m", "tests.connector.killed_command", str(death), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode != 0


def killing(death: int) -> None:
    """Count every change that this process makes, and kill it before that one."""
    made, lock = [0], threading.Lock()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            with lock:
                made[0] += 1
                if made[0] == death:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **more)

        return call

    for name in DURABLE:
        setattr(os, name, counted(getattr(os, name)))
    for name in STORED:
        setattr(ObjectFiles, name, counted(getattr(ObjectFiles, name)))


if __name__ == "__main__":
    killing(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
