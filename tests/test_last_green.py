"""``build/last-green`` names a commit only if all tests of it have passed; ``build/passed`` has those that did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from pathlib import Path

from tests.last_green import LastGreen, clean_commit
from tests.passed import Passed, pytest_addoption


def pytest_configure(config):
    config.pluginmanager.register(LastGreen(Path.cwd(), Path.cwd().parent / "last-green"))
    config.pluginmanager.register(Passed(Path.cwd().parent / "passed" / (clean_commit(Path.cwd()) or "none"), config))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one test that passes, committed."""
    found = tmp_path / "project"
    (found / "checks").mkdir(parents=True)
    (found / "conftest.py").write_text(PLUGIN)
    (found / "pytest.ini").write_text("[pytest]\ntestpaths = checks\naddopts = -m 'not matrix' -p no:cacheprovider\n")
    (found / "checks" / "test_it.py").write_text("def test_it(): pass\n")
    (found / ".gitignore").write_text("__pycache__/\n")
    git(found, "init", "--quiet")
    git(found, "add", "--all")
    git(found, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "one")
    return found


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def tried(project: Path, *arguments: str, **environment: str) -> str:
    """Run the tests; return what is printed."""
    command = [sys.executable, "-m", "pytest", "--quiet", *arguments]
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, cwd=project, env=everything, check=False, capture_output=True, text=True).stdout


def noted(project: Path, *arguments: str) -> str:
    """What the file holds after a run; empty if there is none."""
    tried(project, *arguments)
    file = project.parent / "last-green"
    return file.read_text().strip() if file.exists() else ""


def test_a_whole_green_run_of_a_clean_tree_is_noted(project: Path) -> None:
    assert noted(project) == git(project, "rev-parse", "HEAD")


@pytest.mark.parametrize("arguments", [("-k", "it"), ("checks/test_it.py",), ("-m", "")])
def test_a_run_of_some_tests_is_not(project: Path, arguments: tuple[str, ...]) -> None:
    assert noted(project, *arguments) == ""


@pytest.mark.parametrize("body", ["def test_it(): pass  # changed\n", "def test_it(): assert False\n"])
def test_a_changed_tree_and_a_red_run_are_not(project: Path, body: str) -> None:
    (project / "checks" / "test_it.py").write_text(body)
    assert noted(project) == ""
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-am", "two")
    assert (noted(project) == "") == ("False" in body)


def test_an_interrupted_run_goes_on_with_the_tests_that_have_not_passed(project: Path) -> None:
    more = "import os\n\n\ndef test_other(): assert 'FAILS' not in os.environ\n\n\ndef test_third(): assert True\n"
    (project / "checks" / "test_it.py").write_text(f"def test_it(): pass\n\n\n{more}")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-am", "two")
    assert "1 failed, 2 passed" in tried(project, "-n", "2", FAILS="1")
    assert "1 passed" in tried(project, "--resume", "-n", "2")
    git(
        project,
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "three",
    )
    assert "3 passed" in tried(project, "--resume"), "of another commit"
