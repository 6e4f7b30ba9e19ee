"""Libraries that tests load before all others into a process (``LD_PRELOAD``), compiled from the C files beside them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["built"]


def built(source: Path, folder: Path) -> Path:
    """Compile a C file into a library in a folder. Raises AssertionError if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, f"{source.name} needs a C compiler: install gcc"
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library
