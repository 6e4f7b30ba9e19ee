"""Programs in Go, compiled once: clients of Kafka that are not librdkafka's, and a broker that is not Apache Kafka's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.jars import kept_folder

__all__ = ["FOLDER", "go_program"]

FOLDER = Path(__file__).with_name("other_kafka")
"""The module of Go; also programs in other languages."""


def go_program(name: str) -> Path:
    """Return the program of a folder in `FOLDER`. Skips the test if Go is not installed."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    sources = [FOLDER / "go.mod", FOLDER / "go.sum", FOLDER / name / "main.go"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]

    def fill(folder: Path) -> None:
        subprocess.run(["go", "build", "-o", str(folder / name), f"./{name}"], cwd=FOLDER, check=True)

    return kept_folder(f"go-{name}-{digest}", fill) / name
