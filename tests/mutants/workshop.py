"""A copy of the product and its tests, in which bugs are planted and tests run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant, MutantError, planted

__all__ = ["Finding", "Workshop"]

COPIED = ("connector", "transactional", "tests", "integration", "docs")
QUICK = "tests"
"""What `make test` runs without a broker or Spark."""

LIKELY_SECONDS = 240.0
"""Limit of the tests that should find a bug. A bug that makes them hang is found, too."""

ALL_SECONDS = 1800.0
"""Limit of the whole quick suite, which takes minutes."""

_PASSED, _FAILED, _ERRORS = 0, 1, 2
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What became of a bug: the test that found it, or "" if none did."""

    mutant: Mutant
    test: str


class Workshop:
    """A copy of the tree.

    Parameters
    ----------
    root : Path
        Of the product.
    folder : Path
        To be made.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._scratch = folder / "scratch"
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in root.iterdir():
            if path.is_file() and not path.name.startswith("."):
                shutil.copy2(path, self.root / path.name)
        self._environment = {
            key: text for key, text in os.environ.items() if not key.startswith(("PYTEST_", "BARRIER_"))
        }
        self._environment["PYTHONPATH"] = f"{self.root}{os.pathsep}{self.root / 'shims'}"

    def compile(self) -> None:
        """Make the bytecode of the whole tree, once; the runs with a bug write none."""
        subprocess.run([sys.executable, "-m", "compileall", "-q", *COPIED], cwd=self.root, check=False)
        self._environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def look_for(self, mutant: Mutant, likely: bool = False) -> Finding:
        """Plant a bug, and run the tests that should find it; then all, unless only the likely ones are asked for.

        Raises
        ------
        MutantError
            The patch is stale, or the test that failed does so without the bug, too.
        """
        with planted(mutant, self.root):
            found = self.failing(mutant.tests, LIKELY_SECONDS) if mutant.tests else ""
            if found or likely:
                return Finding(mutant, found)
            rest = self.failing([QUICK], ALL_SECONDS)
        if rest and "::" in rest and self.failing([rest], LIKELY_SECONDS):
            raise MutantError(f"{rest} fails without {mutant.breaks!r} as well")
        return Finding(mutant, rest)

    def failing(self, tests: Sequence[str], seconds: float) -> str:
        """Run tests until one fails; return its name, or "".

        Raises
        ------
        MutantError
            They can't be run.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += [f"--basetemp={self._scratch}", *tests]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"not done within {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == _PASSED:
            return ""
        first = _FIRST.search(said)
        if process.returncode not in (_FAILED, _ERRORS) or first is None:
            raise MutantError(f"pytest {' '.join(tests)} ended with {process.returncode}:\n{said[-2000:]}")
        return first[1]
