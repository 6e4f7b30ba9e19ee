"""Results that the docs show: lists in ``docs/proof/``, one line for each run, with the commit that was tried."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "ROOT", "add_result", "commit", "read_results", "write_results"]

ROOT = Path(__file__).parent.parent

FOLDER = ROOT / "docs" / "proof"


def commit() -> str:
    """Return the short name of the commit that is checked out; empty outside of a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read_results(file: Path) -> Sequence[Mapping[str, Any]]:
    """Return the results in a file; none if there is no such file."""
    found: Sequence[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return found


def write_results(file: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Replace the results in a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n", encoding="utf-8")


def add_result(file: Path, result: Mapping[str, Any]) -> None:
    """Add a result of this commit."""
    write_results(file, [*read_results(file), {"commit": commit(), **result}])
