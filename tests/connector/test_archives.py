"""PySpark's archives are compiled once: what Python then imports, and what stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from connector.doctor.versions import check_versions
from connector.spark.archives import add_compiled_modules, archives, has_compiled_modules
from tests.connector.cli_place import answer
from transactional.errors import OptionError
from transactional.finding import Level

Capture = pytest.CaptureFixture[str]

SOURCES = {
    "pyspark/__init__.py": "",
    "pyspark/worker.py": "def main():\n    raise ValueError('of a task')\n",
    "pyspark/later.py": "here = __file__\n",
    "pyspark/of_tomorrow.py": "this is no Python\n",
    "pyspark/data.txt": "text",
}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "python" / "lib"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "pyspark.zip", "w", zipfile.ZIP_DEFLATED) as written:
        for name, text in SOURCES.items():
            written.writestr(name, text)
    (folder / "PY4J_LICENSE.txt").touch()
    (folder / "torn.zip").write_bytes(b"PK")
    with zipfile.ZipFile(folder / "data.zip", "w") as written:
        written.writestr("data.txt", "text")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return folder / "pyspark.zip"


def run(archive: Path, program: str) -> str:
    """Run a program that finds PySpark in the archive; return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def test_each_module_is_imported_from_its_compiled_file_once_the_command_has_run(
    archive: Path, capsys: Capture
) -> None:
    program = "import pyspark.worker, pyspark.later; print(pyspark.worker.__file__, pyspark.later.here)"
    assert run(archive, program).split() == [f"{archive}/pyspark/worker.py", f"{archive}/pyspark/later.py"]
    status, document, said = answer(capsys, "compile-pyspark")
    assert (status, document) == (0, {"status": "done", "archives": [str(archive)]})
    assert f"{archive}: 3 compiled modules were added" in said
    assert run(archive, program).split() == [f"{archive}/pyspark/worker.pyc", f"{archive}/pyspark/later.pyc"]
    with zipfile.ZipFile(archive) as opened:
        assert {name: opened.read(name).decode() for name in SOURCES} == SOURCES
    status, document, _ = answer(capsys, "compile-pyspark")
    assert (status, document["status"]) == (0, "nothing to do")


def test_the_tests_of_pyspark_are_not_listed_any_more(archive: Path) -> None:
    """Each Python process reads the whole list many times."""
    tests = ("pyspark/tests/", "pyspark/sql/tests/test_types.py")
    with zipfile.ZipFile(archive, "a") as written:
        for name in tests:
            written.writestr(name, "")
        assert {*written.namelist()} == {*SOURCES, *tests}
        written.writestr("theirs/tests/data.txt", "")
    add_compiled_modules(archive)
    compiled = {f"{name}c" for name in SOURCES if name.endswith(".py") and "tomorrow" not in name}
    with zipfile.ZipFile(archive) as opened:
        assert sorted(opened.namelist()) == sorted({*SOURCES, "theirs/tests/data.txt"} | compiled)


def test_a_traceback_shows_the_source_as_before(archive: Path) -> None:
    program = (
        "import traceback, pyspark.worker\ntry: pyspark.worker.main()\nexcept ValueError: print(traceback.format_exc())"
    )
    before = run(archive, program)
    add_compiled_modules(archive)
    assert run(archive, program) == before
    assert "raise ValueError('of a task')" in before


def test_a_process_that_runs_goes_on_importing(archive: Path) -> None:
    program = (
        "import pyspark.worker; print('begun', flush=True); input(); import pyspark.later; print(pyspark.later.here)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(archive)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        add_compiled_modules(archive)
        assert running.communicate("go on\n")[0] == f"{archive}/pyspark/later.py\n"


def test_what_another_release_of_python_compiled_is_compiled_again(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as written:
        for name in ("pyspark/__init__.pyc", "pyspark/worker.pyc"):
            written.writestr(name, bytes(20))
    program = "import pyspark.worker; print(pyspark.worker.__file__)"
    assert (run(archive, program), has_compiled_modules(archive)) == (f"{archive}/pyspark/worker.py\n", False)
    add_compiled_modules(archive)
    assert has_compiled_modules(archive)
    assert run(archive, program) == f"{archive}/pyspark/worker.pyc\n"
    with zipfile.ZipFile(archive) as opened:
        assert len(opened.namelist()) == len({*opened.namelist()})


def test_an_archive_that_can_not_be_replaced_is_named_and_stays(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError) as refused:
        add_compiled_modules(Path("/proc/pyspark.zip"))  # no user can create a file there, not even root
    assert refused.value.condition == "ARCHIVE_UNWRITABLE"
    before, names = archive.read_bytes(), sorted(os.listdir(archive.parent))
    monkeypatch.setattr("zipfile.ZipFile.write", lambda *_: os.stat("/no/disk/left"))
    with pytest.raises(OSError, match="/no/disk/left"):
        add_compiled_modules(archive)
    assert (archive.read_bytes(), sorted(os.listdir(archive.parent))) == (before, names)


def test_the_doctor_knows_whether_each_process_compiles_pyspark(archive: Path) -> None:
    found = {each.check: each for each in check_versions()}["spark"]
    assert (found.level, "barrier compile-pyspark" in found.remedy) == (Level.WARNING, True)
    assert [path.name for path in archives()] == ["data.zip", "pyspark.zip"]
    add_compiled_modules(archive)
    assert {each.check: each for each in check_versions()}["spark"].level is Level.GOOD


def test_without_an_archive_there_is_nothing_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    status, document, _ = answer(capsys, "compile-pyspark")
    assert (status, document["condition"]) == (1, "MISSING_PACKAGE")
