"""Checks whether the installed releases of Python, Java, Spark and the client libraries are supported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from connector.kafka.native.columns import native_columns
from connector.kafka.native.library import native_library
from connector.spark.archives import archives, has_compiled_modules
from transactional.finding import Finding, good, problem, unknown, warning

PYTHON: Final = (3, 10)
JAVA: Final = (17, 21)
JAVA_SECONDS: Final = 30.0
SPARK: Final = {(4, 2): "", (4, 3): "", (4, 1): "only the sinks work"}
"""The tested releases of PySpark, each with its limitation. An empty string means that everything works."""


def check_versions() -> Iterator[Finding]:
    """Check the releases of Python, Java, PySpark and the client libraries where the command runs."""
    yield from (_python(), _java(), _spark(), _clients())


def _python() -> Finding:
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= PYTHON:
        return good("python", f"Python {here}")
    return problem(
        "python", f"Python {here} is not supported.", "Use Python 3.10 or newer, for the driver and on the executors."
    )


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")  # Spark prefers JAVA_HOME to the PATH
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None:
        return unknown("java", "There is no java on the PATH of this program.", "Spark needs Java 17 or 21.")
    try:
        told = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_SECONDS
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as problem_of_it:
        return unknown("java", f"{program} can't be run: {problem_of_it}", "Spark needs Java 17 or 21.")
    found = re.search(r'version "(\d+)', told)
    if found is None:
        return unknown("java", f"{program} does not report its version.", "Spark needs Java 17 or 21.")
    if int(found[1]) in JAVA:
        return good("java", f"Java {found[1]}")
    return warning("java", f"Java {found[1]} is not tested.", "Use Java 17 or 21.")


def _spark() -> Finding:
    try:
        release = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return unknown("spark", "PySpark is not installed here.", "Run the command where the query runs.")
    missing = SPARK.get(tuple(map(int, re.findall(r"\d+", release)[:2])))  # type: ignore[arg-type]
    if missing is None:
        return problem(
            "spark", f"PySpark {release} is not supported.", "Use PySpark 4.2 or 4.3; with 4.1 only the sinks work."
        )
    if missing:
        return warning("spark", f"PySpark {release}: {missing}", "Use PySpark 4.2 or 4.3 for streams of barrier-kafka.")
    if not all(map(has_compiled_modules, archives())):
        sentence = f"PySpark {release}: each Python process that Spark starts compiles PySpark again"
        return warning("spark", sentence, "Run `barrier compile-pyspark` once, so that queries start faster.")
    return good("spark", f"PySpark {release}")


def _clients() -> Finding:
    releases = ", ".join(f"{name} {metadata.version(name)}" for name in ("confluent-kafka", "pyarrow", "numpy"))
    if native_library() is None:
        return warning(
            "clients",
            f"{releases}: rows are read through Python objects, which is slower",
            "Use confluent-kafka 2, and unset BARRIER_KAFKA_OBJECTS.",
        )
    if native_columns() is None:
        return warning(
            "clients",
            f"{releases}: the source's compiled helper is missing, so the source is slower",
            "Install a wheel that `make wheel` built, or install with a C compiler.",
        )
    return good("clients", releases)
