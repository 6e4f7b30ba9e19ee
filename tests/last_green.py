"""``build/last-green``: the last commit on which all of `make test` has passed, in a tree that had nothing else in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.results import ROOT

__all__ = ["FILE", "LastGreen", "clean_commit", "is_whole"]

FILE = ROOT / "build" / "last-green"


class LastGreen:
    """A plugin that writes the file at the end of a session that was whole and green, if nothing was changed meanwhile."""

    def __init__(self, root: Path = ROOT, file: Path = FILE) -> None:
        self._root, self._file = root, file
        self._begun = clean_commit(root)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write it."""
        whole = exitstatus == pytest.ExitCode.OK and is_whole(session.config)
        if whole and self._begun and clean_commit(self._root) == self._begun:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(f"{self._begun}\n")


def clean_commit(root: Path) -> str:
    """Return the commit that is checked out; empty if a file is not as it is there, or outside of a repository."""
    try:
        status, head = (
            subprocess.run(["git", *words], capture_output=True, text=True, cwd=root, check=True).stdout.strip()
            for words in (("status", "--porcelain"), ("rev-parse", "HEAD"))
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "" if status else head


def is_whole(config: pytest.Config) -> bool:
    """Return whether nothing was left out by the command's arguments."""
    option = config.option
    chosen = option.keyword or option.deselect or option.collectonly or getattr(option, "lf", False)
    return not chosen and config.args_source is config.ArgsSource.TESTPATHS and "not matrix" in option.markexpr
