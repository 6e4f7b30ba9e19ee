"""A Spark driver of its own that runs one query after another, and that a test freezes and thaws in between.

``python -m integration.warm_driver NAME ...`` takes the arguments of `integration.jobs` for its session. Each line on
standard input is a command in JSON, each is answered by one line: ``{"start": {...}}`` (a job), ``{"stop": true}``,
``{"look": true}`` (says whether the query is active, and its error).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from integration import ragged_source  # noqa: F401 - registers its job
from integration.driver_process import DEADLINE, Faults
from integration.jobs import Job, build_session, jvm_options, parse, start
from integration.session import JVM, session_members
from transactional.faults import VARIABLE

__all__ = ["WarmDriver"]


class WarmDriver:
    """The test's end. A context manager."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.faults = Faults(folder / f"{name}-faults")
        self.running = False
        self.frozen = False
        self._log = folder / f"{name}.err"
        self._folder = folder  # For its log and its armed faults.
        self._answers: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> WarmDriver:
        root = str(Path(__file__).parent.parent)
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            VARIABLE: str(self.faults.folder),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": path,
            "SPARK_LAUNCHER_OPTS": jvm_options(),
        }
        job = Job(str(self._folder), str(self._folder), conf={"spark.sql.streaming.stopTimeout": "60s"})
        with self._log.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.warm_driver", *job.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                cwd=root,
                env=environment,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        assert self._process is not None
        while members := session_members(self._process.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait()

    # -- its query --------------------------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """Start a query; the former one must have ended."""
        assert not self.running, self.name
        self._ask({"start": asdict(job)})
        self.running = True

    def stop(self) -> None:
        """``query.stop()``."""
        self._ask({"stop": True})
        self.running = False

    def error(self) -> str:
        """Why its query has failed; empty while it runs."""
        said = self._ask({"look": True})
        if said["active"]:
            return ""
        self.running = False
        return str(said["error"]) or "the query ended without an error"

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert not self.frozen, f"{self.name} is frozen"
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        try:
            said = self._answers.get(timeout=DEADLINE)
        except queue.Empty:
            raise AssertionError(f"{self.name} does not answer\n{self._log.read_text()[-4000:]}") from None
        found: dict[str, Any] = json.loads(said)
        return found

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self._answers.put(line)

    # -- its processes ----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """SIGSTOP to every process, the JVM first; what is forked meanwhile, too."""
        assert self._process is not None
        stopped: set[int] = set()
        while new := {pid: name for pid, name in session_members(self._process.pid).items() if pid not in stopped}:
            for pid in sorted(new, key=lambda pid: new[pid] != JVM):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped.update(new)
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT to every process."""
        assert self._process is not None
        for pid in session_members(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen = False


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    session = build_session(parse(arguments))
    query: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            query = start(session, Job(**command["start"]))
        elif "stop" in command and query is not None:
            query.stop()
        active = query is not None and query.isActive
        problem = None if active or query is None else query.exception()
        print(json.dumps({"active": active, "error": str(problem) if problem is not None else ""}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
