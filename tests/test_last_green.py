"""``build/last-green`` names a commit only if all tests of it have passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from pathlib import Path

from tests.last_green import LastGreen


def pytest_configure(config):
    config.pluginmanager.register(LastGreen(Path.cwd(), Path.cwd().parent / "last-green"))
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


def noted(project: Path, *arguments: str) -> str:
    """What the file holds after a run; empty if there is none."""
    command = [sys.executable, "-m", "pytest", "--quiet", *arguments]
    subprocess.run(command, cwd=project, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
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
