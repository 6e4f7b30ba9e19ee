"""The engines that run a benchmark's queries: processes that take orders, see `orders`, `spark_query` and `flink_query`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from integration import ROOT
from integration.benchmarks.accounts import ProcessTree
from integration.jars import JarResolutionError, Jars, cache_folder, exclusive, resolve, resolve_spark_kafka
from integration.session import kill_group

__all__ = ["Engine", "EngineError", "Launch", "flink", "spark"]

HEAP = "768m"
"""Of an engine's JVM."""

DEADLINE = 900.0
"""Seconds for an answer: a query over all rows, on a busy machine."""

FLINK_VERSION = "2.2.1"
"""The connector is built for it."""

FLINK_CONNECTOR = "5.0.0-2.2"


class EngineError(RuntimeError):
    """An engine ended or did not answer; the message ends with its log."""


@dataclass(frozen=True)
class Launch:
    """How an engine is started."""

    command: Sequence[str]
    environment: Mapping[str, str]  # Beside this process's own.


def spark(conf: Mapping[str, str] | None = None) -> Launch:
    """Return how a Spark session with Spark's own Kafka connector is started; its jars are resolved if they are missing."""
    program = [sys.executable, "-m", "integration.benchmarks.spark_query"]
    command = [*program, HEAP, json.dumps({**(conf or {})}), *map(str, resolve_spark_kafka())]
    roots = os.pathsep.join(map(str, (ROOT, ROOT / "shims")))
    return Launch(command, {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": roots})


def flink(python: Path | None, build: bool) -> tuple[Launch | None, str]:
    """Return how PyFlink is started, or None and why it is left out.

    Parameters
    ----------
    python : Path, optional
        The Python of an environment that has PyFlink.
    build : bool
        Make such an environment in the cache folder if it is not there: some 900 MB, from the package index.
    """
    needs = f"it needs apache-flink {FLINK_VERSION} and a jar from Maven Central: pass --with-flink, or --flink PYTHON"
    if python is None and not build:
        return None, f"PyFlink is left out: {needs}."
    try:
        # Not resolved: the Python of a virtual environment is a link, and is known by where that lies.
        found = (python or _build()).absolute()
        subprocess.run([str(found), "-c", "import pyflink.version"], check=True, capture_output=True)
        return _flink(found), ""
    except (OSError, subprocess.CalledProcessError, JarResolutionError) as problem:
        return None, f"PyFlink is left out, {needs}. {problem}"


def _flink(python: Path) -> Launch:
    artifact = ("org.apache.flink", "flink-sql-connector-kafka", FLINK_CONNECTOR)
    jars = Jars(f"flink-sql-connector-kafka-{FLINK_CONNECTOR}", [artifact], whole=False)
    command = [str(python), "-m", "integration.benchmarks.flink_query", str(resolve(jars) / jars.files()[0])]
    # The launcher of java takes its options from there; PyFlink's own settings would replace Flink's --add-opens.
    return Launch(command, {"JDK_JAVA_OPTIONS": f"-Xmx{HEAP}", "PYTHONPATH": str(ROOT)})


def _build() -> Path:
    folder = cache_folder() / f"flink-{FLINK_VERSION}"
    python = folder / "bin" / "python"
    with exclusive(folder.name):
        whole = folder / "whole"  # a virtual environment can't be renamed
        if not whole.exists():
            print(f"Installing apache-flink {FLINK_VERSION} into the cache folder: minutes.", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, f"apache-flink=={FLINK_VERSION}"], check=True)
            whole.touch()
    return python


class Engine:
    """A running engine. A context manager: at its end everything that the engine started is killed.

    Parameters
    ----------
    launch : Launch
    folder : Path
        For its log, and its working directory.
    """

    def __init__(self, launch: Launch, folder: Path) -> None:
        self._launch, self._folder = launch, folder
        self._answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Engine:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = self._folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._launch.command,
                env={**os.environ, **self._launch.environment},
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.tree = ProcessTree(self._process.pid)
            self.ready = self._answer()
        except BaseException:
            kill_group(self._process)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tree.look()
        kill_group(self._process)
        for process in self.tree.processes():  # those in a group of their own, as PySpark's daemon
            with contextlib.suppress(psutil.Error):
                process.kill()

    def ask(self, order: str, what: Mapping[str, Any] | bool) -> dict[str, Any]:
        """Give an order and return its answer.

        Raises
        ------
        EngineError
            When the engine ends, or after 15 minutes.
        """
        assert self._process.stdin is not None
        print(json.dumps({order: what}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=DEADLINE)
        except queue.Empty:
            line = ""
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])
            raise EngineError(f"{' '.join(self._launch.command[:3])} ended or did not answer. Its log:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # whatever else a JVM prints
                self._answers.put(line)
        self._answers.put("")
