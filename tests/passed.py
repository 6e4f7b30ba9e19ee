"""``build/passed/<commit>``: the tests that have passed on a commit, so that an interrupted `make matrix` can be continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.last_green import clean_commit
from tests.results import ROOT

__all__ = ["FOLDER", "Passed"]

FOLDER = ROOT / "build" / "passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--resume``."""
    parser.addoption("--resume", action="store_true", help="leave out the tests that have passed on this commit")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if the tree is that of a commit."""
    commit = clean_commit(ROOT)
    if commit:
        config.pluginmanager.register(Passed(FOLDER / commit, config))


class Passed:
    """A plugin that notes each test that passes. With ``--resume`` it leaves out those that had passed when the run began."""

    def __init__(self, file: Path, config: pytest.Config) -> None:
        self._file, self._before = file, file.with_name(f"{file.name}.before")
        self._resumes: bool = config.getoption("--resume")
        self._is_worker = hasattr(config, "workerinput")  # of pytest-xdist
        self._failed: set[str] = set()
        if not self._is_worker:
            file.parent.mkdir(parents=True, exist_ok=True)
            # All workers have to leave out the same tests, also one that starts while others have passed more.
            self._before.write_text(file.read_text() if self._resumes and file.exists() else "")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        if self._resumes:
            passed = {*self._before.read_text().splitlines()}
            items[:] = [item for item in items if item.nodeid not in passed]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        """Note a test that has passed."""
        yield
        if self._is_worker:
            return
        if not report.passed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")
