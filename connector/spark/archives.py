"""PySpark's zip archives. Spark's Python processes import PySpark from them, and compile each module at each start."""

from __future__ import annotations

import io
import os
import py_compile
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from typing import BinaryIO, Final

from connector.location.files import LocalFiles
from transactional.errors import OptionError

_UNCHECKED: Final = py_compile.PycInvalidationMode.UNCHECKED_HASH  # zipimport would compare times with the source's


def archives() -> Sequence[Path]:
    """Return PySpark's archives in ``SPARK_HOME`` or, if unset, in the installed PySpark; empty if there are none."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        installed = find_spec("pyspark")
        if installed is None or installed.origin is None:
            return []
        home = os.path.dirname(installed.origin)
    return sorted(each for each in Path(home, "python", "lib").glob("*.zip") if zipfile.is_zipfile(each))


def has_compiled_modules(archive: Path) -> bool:
    """Return whether the archive's modules are already compiled for this release of Python."""
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        compiled = [name for name in names if name.endswith(".pyc")]
        if not compiled:
            return not any(name.endswith(".py") for name in names)
        return opened.read(compiled[0])[: len(MAGIC_NUMBER)] == MAGIC_NUMBER


def add_compiled_modules(archive: Path) -> int:
    """Add compiled modules to the archive, beside their sources, and return their number.

    PySpark's own tests are removed from the archive's list of files. They are two thirds of the list. Each Python process
    reads the whole list again for each package that it has imported, because PySpark calls
    ``importlib.invalidate_caches``.

    Running processes can continue to read the archive: no content moves, and the file is replaced in one step.

    Raises
    ------
    OptionError
        ARCHIVE_UNWRITABLE: for example, this user may not write to the archive's folder.
    """
    folder = LocalFiles(str(archive.parent))
    with _naming(archive):
        whole = io.BytesIO(folder.read(archive.name))
    count = _append(whole, archive)
    with _naming(archive):
        folder.put(archive.name, whole.getvalue())
    return count


@contextmanager
def _naming(archive: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise OptionError("ARCHIVE_UNWRITABLE", archive=archive, reason=problem.strerror) from problem


def _append(whole: BinaryIO, archive: Path) -> int:
    """Add compiled modules to the archive, and return their number. Remove tests and older modules from the list of files."""
    count = 0
    with (
        zipfile.ZipFile(whole, "a", zipfile.ZIP_DEFLATED) as modules,
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # about PySpark's code, and modules that another release of Python compiled
        modules.filelist[:] = [each for each in modules.filelist if _is_kept(each.filename)]
        for name in [each for each in modules.namelist() if each.endswith(".py")]:
            source, compiled = modules.extract(name, folder), os.path.join(folder, "compiled")
            # A traceback names the source, as if Spark's process had compiled it.
            with suppress(py_compile.PyCompileError):  # a module for another release of Python
                py_compile.compile(source, compiled, str(archive / name), doraise=True, invalidation_mode=_UNCHECKED)
                modules.write(compiled, f"{name}c")
                count += 1
    return count


def _is_kept(name: str) -> bool:
    package, *more = name.split("/")
    return not name.endswith(".pyc") and not (package == "pyspark" and "tests" in more)
