"""The jars of a Kafka broker, resolved once with the Ivy that pyspark brings.

The jars lie in ``$BARRIER_KAFKA_CACHE`` (default ``~/.cache/barrier-kafka``), one folder a version. A folder is filled
under a temporary name and renamed when it is whole, so a folder that exists is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

KAFKA_VERSION = "4.2.1"
"""4.3.0 and 4.3.1 can skip commit markers (KAFKA-20734), 4.4.0 is not whole on Maven Central."""

SLF4J_VERSION = "1.7.36"
"""The slf4j that Kafka is built against. Its dependencies name no binding: without one a broker logs nothing."""

RESOLVE_TIMEOUT_SECONDS = 300.0
"""A whole resolution takes about 40 s."""

RESOLVE_ATTEMPTS = 3

_IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="barrier-kafka" module="broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{kafka}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="{slf4j}" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


class JarResolutionError(RuntimeError):
    """Ivy did not bring the jars of a broker, or there is no Java or pyspark to run it with."""


def cache_folder() -> Path:
    """Return the folder that keeps what is resolved once: ``$BARRIER_KAFKA_CACHE`` or ``~/.cache/barrier-kafka``."""
    configured = os.environ.get("BARRIER_KAFKA_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "barrier-kafka"


def java_executable() -> str:
    """Return the ``java`` to run: ``$JAVA_HOME/bin/java``, else the one on the PATH.

    Raises
    ------
    JarResolutionError
        When neither exists.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise JarResolutionError(f"JAVA_HOME is {home}, but {java} does not exist. Point it at a JDK or JRE 17+.")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JarResolutionError("There is no java on the PATH and JAVA_HOME is not set. Install Java 17 or newer.")
    return found


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold a lock among all processes that use the cache folder.

    Parameters
    ----------
    name : str
        What is locked; part of the lock file's name.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def resolve_kafka(version: str = KAFKA_VERSION) -> Path:
    """Return the folder with all jars of a Kafka broker, resolving them when they are not there yet.

    Safe when several processes ask at once: one of them resolves, the others wait for it.

    Parameters
    ----------
    version : str
        The version of ``org.apache.kafka:kafka_2.13``.

    Raises
    ------
    JarResolutionError
        When Ivy fails three times; the message holds the end of its output.
    """
    wanted = cache_folder() / f"kafka-{version}"
    if wanted.is_dir():
        return wanted
    with exclusive("resolve"):
        if wanted.is_dir():
            return wanted
        attempts = Retrying(
            retry=retry_if_exception_type(JarResolutionError),
            stop=stop_after_attempt(RESOLVE_ATTEMPTS),
            wait=wait_fixed(1),
            reraise=True,
        )
        return attempts(_retrieve, version, wanted)


def _retrieve(version: str, wanted: Path) -> Path:
    # The temporary folder is on the cache's own file system, or the rename would not be atomic. Ivy's cache is in it
    # too: two Ivy processes that share ~/.ivy2 disturb each other.
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".resolving-") as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(_IVY_MODULE.format(kafka=version, slf4j=SLF4J_VERSION))
        libs = Path(scratch) / "libs"
        # fmt: off
        command = [
            java_executable(), "-jar", str(_ivy_jar()), "-ivy", str(module), "-confs", "default",
            "-cache", str(Path(scratch) / "cache"), "-retrieve", f"{libs}/[artifact]-[revision].[ext]",
        ]
        # fmt: on
        try:
            ivy = subprocess.run(
                command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_SECONDS, check=False, cwd=scratch
            )
        except subprocess.TimeoutExpired as late:
            raise JarResolutionError(
                f"Resolving Kafka {version} took more than {RESOLVE_TIMEOUT_SECONDS:.0f} s. Is Maven Central reachable?"
            ) from late
        needed = (f"kafka_2.13-{version}.jar", f"kafka-server-{version}.jar", f"slf4j-simple-{SLF4J_VERSION}.jar")
        missing = [jar for jar in needed if not (libs / jar).is_file()]
        if ivy.returncode != 0 or missing:
            tail = "\n".join((ivy.stdout + ivy.stderr).splitlines()[-20:])
            raise JarResolutionError(
                f"Ivy could not resolve Kafka {version} (exit code {ivy.returncode}, missing: {missing}):\n{tail}"
            )
        libs.rename(wanted)
    return wanted


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarResolutionError("pyspark is not installed: its Ivy resolves the broker's jars.")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarResolutionError(f"pyspark at {Path(spec.origin).parent} brings no ivy-*.jar.")
    return jars[-1]
