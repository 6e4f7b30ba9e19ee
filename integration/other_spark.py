"""Another version of PySpark beside the one that the tests run: fetched once, without a virtual environment of its own.

What it needs lies in one folder of the cache (see `integration.jars`), which stands first in a process's ``PYTHONPATH``: it
hides the environment's own PySpark, and everything else is the environment's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration import ROOT
from integration.driver_process import wait_until
from integration.jars import kept_folder, pip_install
from integration.session import kill_group

__all__ = ["OtherSpark", "fetch"]

CONNECT = ("grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "zstandard>=0.25", "PyYAML>=6")
"""What Spark Connect and declarative pipelines ask for; their versions fit the environment's protobuf."""

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class OtherSpark:
    """A version of PySpark."""

    folder: Path  # With the package ``pyspark`` in it.

    @property
    def home(self) -> Path:
        """``SPARK_HOME``."""
        return self.folder / "pyspark"

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that runs it."""
        roots = os.pathsep.join(map(str, (self.folder, ROOT, ROOT / "shims")))
        return {
            **{key: text for key, text in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))},
            "PYTHONPATH": roots,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    @contextmanager
    def running(self, command: Sequence[str], log: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program in a process group of its own, which is killed at the end with all that it has started."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=self.environment(),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            kill_group(process)

    @contextmanager
    def connect_server(self, port: int, folder: Path) -> Iterator[None]:
        """Run a Spark Connect server, which is killed at the end as by ``kill -9``."""
        log = folder / "server.log"
        begin = log.stat().st_size if log.exists() else 0
        settings: Mapping[str, object] = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": False}
        command = [str(self.home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
        command += [word for key, value in settings.items() for word in ("--conf", f"{key}={str(value).lower()}")]
        with self.running([*command, "--class", SERVER, "spark-internal"], log, folder) as server:
            wait_until(
                lambda: b"Spark Connect server started" in log.read_bytes()[begin:],
                "the Connect server starts",
                alive=lambda: log.read_text()[-2000:] if server.poll() is not None else None,
            )
            yield


def fetch(version: str) -> OtherSpark:
    """Return a version of PySpark, fetched from the package index if it is not there yet.

    Parameters
    ----------
    version : str
        Such as ``"4.3.0"``.
    """
    packages = [f"pyspark=={version}", *CONNECT]
    return OtherSpark(
        kept_folder(f"pyspark-{version}", lambda folder: pip_install("--target", folder, "--no-deps", *packages))
    )
