"""``docs/proof/versions.json``: the tests that have passed with other versions than the suite's own. `make versions` writes it.

A test with the marker ``version(name, version)`` tests that version of a program. ``python -m tests.versions`` writes the
results into ``docs/upgrade.md``.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.option_page import between
from tests.results import FOLDER, ROOT, commit, read_results, write_results

__all__ = ["FILE", "PAGE", "Versions", "with_versions"]

FILE = FOLDER / "versions.json"
PAGE = ROOT / "docs" / "upgrade.md"
BEGIN, END = "<!-- versions: written by python -m tests.versions -->", "<!-- end of versions -->"


class Versions:
    """A plugin that writes the file at the end of a session without a failure, and without ``-k``."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._passed: Counter[tuple[str, str]] = Counter()
        self._skipped: set[tuple[str, str]] = set()

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Let the reports of a test name its versions: with pytest-xdist, they are all that comes back."""
        for item in items:
            item.user_properties += [("version", list(mark.args)) for mark in item.iter_markers("version")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that has passed. A version of which a test was skipped is not written."""
        found = [
            (value[0], value[1])
            for kind, value in report.user_properties
            if kind == "version" and isinstance(value, list)
        ]
        if report.skipped:
            self._skipped.update(found)
        elif report.when == "call" and report.passed:
            self._passed.update(found)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file."""
        option = session.config.option
        if hasattr(session.config, "workerinput") or exitstatus != pytest.ExitCode.OK or option.keyword:
            return
        date = dt.datetime.now(dt.timezone.utc).date().isoformat()
        found = {(each["name"], each["version"]): each for each in read_results(self._file)}
        for (name, version), passed in self._passed.items():
            if (name, version) in self._skipped:
                continue
            found[name, version] = {
                "commit": commit(),
                "name": name,
                "version": version,
                "passed": passed,
                "date": date,
            }
        write_results(self._file, [found[key] for key in sorted(found)])


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Versions())


def version_table() -> str:
    """Return the results as a Markdown table."""
    lines = [
        f"| {each['name']} | {each['version']} | {each['passed']} | {each['date']} | `{each['commit']}` |"
        for each in read_results(FILE)
    ]
    return "\n".join(["| | version | tests that passed | date | commit |", "|---|---|---|---|---|", *lines])


def with_versions(page: str) -> str:
    """Return the page with the table between its marks."""
    return between(page, BEGIN, version_table(), END)


if __name__ == "__main__":
    PAGE.write_text(with_versions(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
