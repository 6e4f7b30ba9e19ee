"""A query's driver as a child process: its Python, its JVM and its Python workers, all of which end together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.session import session_members

__all__ = ["Driver", "DriverFailed"]

REPOSITORY = Path(__file__).resolve().parents[2]

GONE_SECONDS = 20.0
"""A killed process goes at once; one that waits for a slow disk may take a moment."""


class DriverFailed(RuntimeError):
    """A driver ended by itself before its query had, or did not get anywhere; the message ends with its log."""


class Driver:
    """One driver process in a session of its own.

    Spark's Python workers leave the driver's process group, but nothing leaves its session: that is what is killed.

    Parameters
    ----------
    arguments : Sequence[str]
        Of the program.
    folder : Path
        Its working directory and its temporary files.
    log : Path
        Gets all it prints; several drivers may share one.
    faults : Path, optional
        The folder with armed fault points.
    program : str
        The module that it runs.
    entrance : Sequence[str]
        Words before its command that run it at a host of its own.
    environment : Mapping[str, str]
        More variables.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        log: Path,
        faults: Path | None = None,
        program: str = "integration.demo.query",
        entrance: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*entrance, sys.executable, "-m", program, "--scratch", str(folder), *arguments],
                # Nothing is ever written to it: it breaks when we are gone.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**_environment(folder, faults), **(environment or {})},
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether its Python process runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The id of its Python process."""
        return self._process.pid

    @property
    def members(self) -> dict[int, str]:
        """All processes of its session, with their names: Python, the JVM, Spark's Python workers."""
        return session_members(self._process.pid)

    def stop(self, seconds: float) -> int | None:
        """Ask its program to end (SIGTERM to it alone), and wait; None if it has not ended by then."""
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def freeze(self) -> None:
        """Stop its Python process and its JVM where they are (SIGSTOP)."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them run on (SIGCONT)."""
        self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """Kill every process of the session with SIGKILL, the JVM's group first, and wait until all are gone."""
        if self.alive:
            self._signal_group(signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while members := session_members(self._process.pid):
            if time.monotonic() > deadline:
                raise DriverFailed(f"processes {members} of a killed driver did not end")
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait(GONE_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _environment(folder: Path, faults: Path | None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("SPARK_LOCAL_DIRS", "BARRIER_FAULTS")}
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TMPDIR": str(folder),
        **({"BARRIER_FAULTS": str(faults)} if faults else {}),
    }
