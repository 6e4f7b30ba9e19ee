"""The plugin that records which versions were tested, and its table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.results import read_results, write_results
from tests.versions import PAGE, with_versions

CONFTEST = """
from pathlib import Path
from tests.versions import Versions

def pytest_configure(config):
    config.addinivalue_line("markers", "version: x")
    config.pluginmanager.register(Versions(Path.cwd() / "found.json"))
"""

CHECKS = """
import pytest

@pytest.mark.version("Kafka", "3.9.1")
@pytest.mark.parametrize("number", [1, 2])
def test_it(number):
    pass

@pytest.mark.version("PySpark", "4.3.0")
def test_another():
    assert {result}

@pytest.mark.version("Kafka", "3.7.0")
@pytest.mark.parametrize("number", [1, 2])
def test_a_release_that_is_not_there(number):
    if number == 2:
        pytest.skip("it is not there")

@pytest.mark.version("Kafka", "3.6.0")
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.skip)])
def test_a_release_that_is_too_old(number):
    pass

def test_the_suite_s_own():
    pass
"""

OLDER = {"commit": "1234567", "name": "Kafka", "version": "3.8.0", "passed": 9, "date": "2026-01-01"}


def results(folder: Path, result: bool, *arguments: str) -> Sequence[tuple[str, str, int]]:
    """What is recorded after a run: name, version and number of tests."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_checks.py").write_text(CHECKS.format(result=result))
    write_results(folder / "found.json", [OLDER])
    command = [sys.executable, "-m", "pytest", "--quiet", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert (run.returncode == 0) is result, run.stdout
    return [(each["name"], each["version"], each["passed"]) for each in read_results(folder / "found.json")]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_has_passed_is_recorded_beside_older_results_unless_a_test_was_skipped(
    tmp_path: Path, workers: str
) -> None:
    found = results(tmp_path, True, "--numprocesses", workers)
    assert found == [("Kafka", "3.8.0", 9), ("Kafka", "3.9.1", 2), ("PySpark", "4.3.0", 1)]


def test_a_failure_or_a_choice_of_tests_leaves_the_results_as_they_were(tmp_path: Path) -> None:
    assert results(tmp_path, False) == [("Kafka", "3.8.0", 9)]
    assert results(tmp_path, True, "-k", "it") == [("Kafka", "3.8.0", 9)]


def test_the_page_has_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_versions(page) == page, "run: python -m tests.versions"
