"""Spark's classes, parsed once: an archive that a JVM maps instead, so that a driver starts in two thirds of the time.

``python -m integration.class_archive`` makes it, in this Python's environment (class data sharing, JEP 350). A JVM takes it
only where its version and class path are those it was made with, and starts as ever where they are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["ARCHIVE", "archive_options", "main"]

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def archive_options() -> str:
    """What stands among a driver's JVM options; nothing where there is no archive."""
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off" if ARCHIVE.exists() and ARCHIVE.stat().st_size else ""


def main() -> int:
    """Make the archive from what a short query loads."""
    from integration.jobs import QUICK_JVM, Job

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "classes.jsa"
        job = Job(
            f"{folder}/checkpoint",
            f"{folder}/output",
            "shuffled",
            conf={"spark.driver.extraJavaOptions": f"{QUICK_JVM} -XX:ArchiveClassesAtExit={made} -Xlog:cds=off"},
        )
        # Its output ends when the JVM ends, which writes the archive then.
        ran = subprocess.run(
            [sys.executable, "-m", "integration.jobs", *job.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        if not made.exists():
            print(f"no archive of Spark's classes: tests start slower\n{ran.stdout[-2000:]}", file=sys.stderr)
            return 1
        beside = ARCHIVE.with_suffix(".new")
        beside.write_bytes(made.read_bytes())
        beside.replace(ARCHIVE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
