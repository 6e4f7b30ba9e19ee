"""A program whose session has lost the formats: ``python -m integration.lost_formats FOLDER``.

FOLDER holds `killed_once`, which Spark's look for formats imports: it is killed the first time. Prints what each way to use a
format came to, a line each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import connector
from transactional.restart import NoRestart

__all__ = ["killed_once", "main"]


def killed_once(folder: Path) -> None:
    """Leave a module that kills the first process that imports it."""
    mark = folder / "killed"
    lines = ["import os, signal", f"if not os.path.exists({str(mark)!r}):", f"    open({str(mark)!r}, 'w').close()"]
    (folder / "pyspark_000_killed.py").write_text("\n".join([*lines, "    os.kill(os.getpid(), signal.SIGKILL)\n"]))


def main(arguments: Sequence[str]) -> int:
    """Use a format before and after."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

    def load() -> Any:
        return spark.readStream.format("barrier-kafka").load()

    for what, use in (
        ("at first", load),
        ("again", load),
        ("supervised", lambda: connector.supervise(load, NoRestart(), location=arguments[0])),
        ("afterwards", load),
    ):
        print(f"{what}: {_outcome(use)}")
    spark.stop()
    return 0


def _outcome(use: Callable[[], Any]) -> str:
    """The text of an error, in a line."""
    try:
        use()
    except Exception as problem:  # noqa: BLE001 - the test judges
        return " ".join(str(problem).split())
    return "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
