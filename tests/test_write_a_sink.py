"""The sinks of docs/write-a-sink.md and docs/your-database.md as they stand there, and the former page's test for both."""

from __future__ import annotations

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from transactional.testing import SinkConformance

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def sink_modules() -> Iterator[None]:
    """The folder of the pages' sinks, for processes that the suite starts."""
    yield
    sys.path.remove(FOLDER)


@pytest.mark.parametrize(("page", "lines"), [("write-a-sink.md", 70), ("your-database.md", 45)])
def test_the_sink_is_short(page: str, lines: int) -> None:
    assert len([line for line in blocks(page)[0].splitlines() if line.strip()]) < lines


def suite(page: str, module: str, sink: str | None = None) -> type[SinkConformance]:
    """The class of tests for a page's sink, or another, which is a module that other processes can import."""
    Path(FOLDER, f"{module}.py").write_text(sink or blocks(page)[0])
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    found: dict[str, object] = {"__name__": __name__}
    test = next(block for block in blocks("write-a-sink.md") if "class TestSqliteSink" in block)
    exec(test.replace("from sqlite_sink import", f"from {module} import"), found)
    made = found["TestSqliteSink"]
    assert isinstance(made, type)
    assert issubclass(made, SinkConformance)
    return made


class TestSqliteSink(suite("write-a-sink.md", "sqlite_sink")):  # type: ignore[misc]
    """That of the page."""


class TestStagedSqliteSink(suite("your-database.md", "sqlite_staged_sink")):  # type: ignore[misc]
    """That of the page."""
