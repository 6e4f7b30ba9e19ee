"""The jars of a Kafka broker, of Delta and of Spark's own Kafka connector, resolved once with the Ivy that pyspark brings.

The jars lie in ``$BARRIER_KAFKA_CACHE`` (default ``~/.cache/barrier-kafka``), one folder a version. A folder is filled
under a temporary name and renamed when it is whole, so a folder that exists is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

KAFKA_VERSION = "4.2.1"
"""4.3.0, 4.3.1 and 4.4.0 can skip commit markers (KAFKA-20734)."""

SLF4J_VERSION = "1.7.36"
"""The slf4j that Kafka is built against. Its dependencies name no binding: without one a broker logs nothing."""

RESOLVE_TIMEOUT_SECONDS = 300.0
"""A whole resolution takes about 40 s."""

RESOLVE_ATTEMPTS = 3

DELTA_VERSION = "4.4.0"
"""That of 4.4.1 for Spark 4.2 is not on Maven Central."""

SPARK_KAFKA_VERSION = "4.2.0"
"""Spark's own Kafka connector, which queries are moved away from."""

TOKEN_PROVIDER_VERSION = "4.0.0"
"""What the connector asks for delegation tokens, which no test has. That of 4.2.0 is not to be had everywhere."""

POSTGRESQL_JDBC_VERSION = "42.7.4"
"""With which Spark's own JDBC writer is compared."""

COMMONS_POOL_VERSION = "2.12.1"

HADOOP_VERSION = "3.5.0"
"""That of pyspark's own hadoop-client jars."""

AWS_SDK_VERSION = "2.35.4"
"""What hadoop-aws is built against. Its bundle has 650 MB; the modules that S3A loads have 10."""

AWS_MODULES = (
    "annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol", "checksums",
    "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws", "http-auth-aws-eventstream", "http-auth-spi",
    "http-client-spi", "identity-spi", "json-utils", "metrics-spi", "netty-nio-client", "profiles", "protocol-core", "regions",
    "retries", "retries-spi", "s3", "s3-transfer-manager", "sdk-core", "sts", "third-party-jackson-core", "utils", "utils-lite",
)  # fmt: skip

_IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="barrier-kafka" module="{module}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class Jars:
    """A set of jars."""

    name: str  # Of its folder in the cache; holds the version.
    artifacts: Sequence[tuple[str, str, str]]  # Organisation, name and version of each.
    whole: bool  # With what they depend on.

    def module(self) -> str:
        """What Ivy is asked for."""
        configuration = "default" if self.whole else "master"
        lines = [
            f'    <dependency org="{org}" name="{name}" rev="{rev}" conf="default->{configuration}"/>'
            for org, name, rev in self.artifacts
        ]
        return _IVY_MODULE.format(module=self.name, dependencies="\n".join(lines))

    def files(self) -> list[str]:
        """Names that must be there."""
        return [f"{name}-{rev}.jar" for _, name, rev in self.artifacts]


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


def kept_folder(name: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder of the cache. The first time, `fill` fills it; a folder that exists is complete."""
    folder = cache_folder() / name
    with exclusive(name):
        if not folder.is_dir():
            filled = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
            try:
                filled.chmod(0o755)  # other users run programs that are in it
                fill(filled)
                filled.rename(folder)
            finally:
                shutil.rmtree(filled, ignore_errors=True)
    return folder


def pip_install(*words: str | Path, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
    """Run ``pip install``. The words are packages and options, such as ``--target FOLDER``."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(pip, check=True, env={**os.environ, **(environment or {})})


def resolve_kafka(version: str = KAFKA_VERSION) -> Path:
    """Return the folder with all jars of a Kafka broker, resolving them when they are not there yet.

    Parameters
    ----------
    version : str
        The version of ``org.apache.kafka:kafka_2.13``.

    Raises
    ------
    JarResolutionError
        When Ivy fails three times; the message holds the end of its output.
    """
    artifacts = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-server", version),
        ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
    ]
    return resolve(Jars(f"kafka-{version}", artifacts, whole=True))


def resolve_delta(version: str = DELTA_VERSION) -> list[Path]:
    """Return Delta's jars for this Spark, resolving them when they are not there yet.

    Raises
    ------
    JarResolutionError
        As `resolve_kafka`.
    """
    artifacts = [("io.delta", "delta-spark_4.2_2.13", version), ("io.delta", "delta-storage", version)]
    jars = Jars(f"delta-{version}", artifacts, whole=False)
    folder = resolve(jars)
    return [folder / file for file in jars.files()]


def resolve_spark_kafka(version: str = SPARK_KAFKA_VERSION) -> list[Path]:
    """Return the jars of Spark's own ``format("kafka")``, resolving them when they are not there yet.

    Raises
    ------
    JarResolutionError
        As `resolve_kafka`.
    """
    artifacts = [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", TOKEN_PROVIDER_VERSION),
        ("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
        ("org.apache.commons", "commons-pool2", COMMONS_POOL_VERSION),
    ]
    jars = Jars(f"spark-kafka-{version}", artifacts, whole=False)
    folder = resolve(jars)
    return [folder / file for file in jars.files()]


def resolve_postgresql(version: str = POSTGRESQL_JDBC_VERSION) -> list[Path]:
    """Return the jar of PostgreSQL's JDBC driver, resolving it when it is not there yet.

    Raises
    ------
    JarResolutionError
        As `resolve_kafka`.
    """
    jars = Jars(f"postgresql-{version}", [("org.postgresql", "postgresql", version)], whole=False)
    folder = resolve(jars)
    return [folder / file for file in jars.files()]


def resolve_hdfs() -> Path:
    """Return the folder with the jar of HDFS's servers, resolving it when it is not there yet. pyspark has the rest.

    Raises
    ------
    JarResolutionError
        As `resolve_kafka`.
    """
    artifacts = [("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION)]
    return resolve(Jars(f"hdfs-{HADOOP_VERSION}", artifacts, whole=False))


def resolve_s3a() -> list[Path]:
    """Return the jars of Hadoop's ``s3a://``, resolving them when they are not there yet.

    Raises
    ------
    JarResolutionError
        As `resolve_kafka`.
    """
    artifacts = [
        ("org.apache.hadoop", "hadoop-aws", HADOOP_VERSION),
        ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        ("software.amazon.eventstream", "eventstream", "1.0.1"),
        ("org.reactivestreams", "reactive-streams", "1.0.4"),
        *(("software.amazon.awssdk", module, AWS_SDK_VERSION) for module in AWS_MODULES),
    ]
    jars = Jars(f"s3a-{HADOOP_VERSION}", artifacts, whole=False)
    folder = resolve(jars)
    return [folder / file for file in jars.files()]


def resolve(jars: Jars) -> Path:
    """Return the folder with these jars. One process at a time resolves; two Ivy processes disturb each other."""
    folder = cache_folder() / jars.name
    if folder.is_dir():
        return folder
    attempts = Retrying(
        retry=retry_if_exception_type(JarResolutionError),
        stop=stop_after_attempt(RESOLVE_ATTEMPTS),
        wait=wait_fixed(1),
        reraise=True,
    )
    with exclusive("resolve"):
        return kept_folder(jars.name, lambda libs: attempts(_retrieve, jars, libs))


def _retrieve(jars: Jars, libs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".resolving-") as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(jars.module())
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
                f"Resolving {jars.name} took more than {RESOLVE_TIMEOUT_SECONDS:.0f} s. Is Maven Central reachable?"
            ) from late
        missing = [file for file in jars.files() if not (libs / file).is_file()]
        if ivy.returncode != 0 or missing:
            tail = "\n".join((ivy.stdout + ivy.stderr).splitlines()[-20:])
            raise JarResolutionError(
                f"Ivy could not resolve {jars.name} (exit code {ivy.returncode}, missing: {missing}):\n{tail}"
            )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarResolutionError("pyspark is not installed: its Ivy resolves the jars.")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarResolutionError(f"pyspark at {Path(spec.origin).parent} brings no ivy-*.jar.")
    return jars[-1]
