"""Spark's standalone cluster from pyspark's own jars: a master and workers as child processes, on the loopback address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pyspark

from integration.driver_process import wait_until
from integration.jobs import QUICK_JVM
from integration.ports import HOST, Ports

__all__ = ["StandaloneCluster"]

SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


class StandaloneCluster:
    """A context manager; workers have a core and 1 GB each, and start their executors' Python as this one."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder  # For logs and the workers' files.
        self._ports = Ports()
        self._port = self._ports.reserve()
        self._count = 0
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._first = workers

    @property
    def address(self) -> str:
        """The master's, as a session takes it."""
        return f"spark://{HOST}:{self._port}"

    def start_master(self) -> None:
        """Start the master; it goes on where a former one was killed."""
        words = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._ports.reserve())]
        self.master = self._start("master", f"{DEPLOY}.master.Master", words, "I have been elected leader")

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        words = ["--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", str(self._ports.reserve())]
        words += ["--work-dir", str(self._folder / f"work-{self._count}"), self.address]
        worker = self._start("worker", f"{DEPLOY}.worker.Worker", words, "Successfully registered with master")
        self.workers.append(worker)
        return worker

    def executors(self, worker: subprocess.Popen[bytes]) -> list[int]:
        """Return the processes of a worker's executors: their JVMs, without their Python."""
        return [child.pid for child in psutil.Process(worker.pid).children() if child.name() == "java"]

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to a master or worker alone: a worker's executors are not in its hands any more."""
        process.kill()
        process.wait()

    def _start(self, name: str, program: str, words: list[str], said: str) -> subprocess.Popen[bytes]:
        self._count += 1
        log = self._folder / f"{name}.{self._count}.log"
        self._folder.mkdir(parents=True, exist_ok=True)
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._folder}/recovery"
        environment = {
            "SPARK_HOME": str(SPARK),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} {recovery}",
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), program, *words],  # which becomes the JVM
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, **environment, "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )

        def ended() -> str | None:
            return None if process.poll() is None else f"it ended with {process.returncode}\n{log.read_text()[-3000:]}"

        wait_until(lambda: said in log.read_text(errors="replace"), f"{name} of a standalone cluster", alive=ended)
        return process

    def __enter__(self) -> StandaloneCluster:
        try:
            self.start_master()
            for _ in range(self._first):
                self.start_worker()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in filter(None, (*self.workers, self.master)):
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.send_signal(signal.SIGKILL)
            process.kill()
            process.wait()
        self._ports.release()
