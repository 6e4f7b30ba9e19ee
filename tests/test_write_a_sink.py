"""The sink and its test in docs/write-a-sink.md, as they stand on the page."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transactional.testing import SinkConformance

PAGE = Path(__file__).parent.parent / "docs" / "write-a-sink.md"
MODULE = "sqlite_sink_of_the_page"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def sink_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's sink as a module that other processes can import."""
    folder = tmp_path_factory.mktemp("page")
    (folder / f"{MODULE}.py").write_text(blocks()[0])
    sys.path.insert(0, str(folder))
    TestSqliteSink.sink_type = __import__(MODULE).SqliteSink
    yield
    sys.path.remove(str(folder))


def test_the_sink_has_less_than_60_lines() -> None:
    assert len([line for line in blocks()[0].splitlines() if line.strip()]) < 60


def suite() -> type[SinkConformance]:
    """The class of tests on the page, whose sink is imported only when the tests run."""
    found: dict[str, object] = {
        "pytest": pytest,
        "json": json,
        "sqlite3": sqlite3,
        "SqliteSink": None,
        "__name__": __name__,
    }
    exec(next(block for block in blocks() if "class TestSqliteSink" in block), found)
    made = found["TestSqliteSink"]
    assert isinstance(made, type)
    assert issubclass(made, SinkConformance)
    return made


class TestSqliteSink(suite()):  # type: ignore[misc]
    """That of the page."""
