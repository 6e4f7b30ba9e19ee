"""The sink and its test in docs/write-a-sink.md, as they stand on the page."""

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
PAGE = Path(__file__).parent.parent / "docs" / "write-a-sink.md"
MODULE = "sqlite_sink"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def sink_module() -> Iterator[None]:
    """The folder of the page's sink, for processes that the suite starts."""
    yield
    sys.path.remove(FOLDER)


def test_the_sink_has_less_than_60_lines() -> None:
    assert len([line for line in blocks()[0].splitlines() if line.strip()]) < 60


def suite() -> type[SinkConformance]:
    """The class of tests on the page; its sink is a module that other processes can import."""
    Path(FOLDER, f"{MODULE}.py").write_text(blocks()[0])
    sys.path.insert(0, FOLDER)
    found: dict[str, object] = {"__name__": __name__}
    exec(next(block for block in blocks() if "class TestSqliteSink" in block), found)
    made = found["TestSqliteSink"]
    assert isinstance(made, type)
    assert issubclass(made, SinkConformance)
    return made


class TestSqliteSink(suite()):  # type: ignore[misc]
    """That of the page."""
