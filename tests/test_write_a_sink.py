"""The two sinks of docs/write-a-sink.md as they stand there, and the page's test for both."""

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
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block_with(line: str) -> str:
    [block] = [block for block in BLOCKS if line in block]
    return str(block)


SINK, STAGED_SINK = map(block_with, ("SqliteSink(TwoPhaseCommitSink", "SqliteSink(StagedSqlSink"))


@pytest.fixture(scope="module", autouse=True)
def sink_modules() -> Iterator[None]:
    """The folder of the pages' sinks, for processes that the suite starts."""
    yield
    sys.path.remove(FOLDER)


@pytest.mark.parametrize(("sink", "lines"), [(SINK, 70), (STAGED_SINK, 45)], ids=["sink", "staged"])
def test_the_sink_is_short(sink: str, lines: int) -> None:
    assert len([line for line in sink.splitlines() if line.strip()]) < lines


def suite(sink: str, module: str) -> type[SinkConformance]:
    """The class of tests for a sink, which is a module that other processes can import."""
    Path(FOLDER, f"{module}.py").write_text(sink)
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    found: dict[str, object] = {"__name__": __name__}
    exec(block_with("class TestSqliteSink").replace("from sqlite_sink import", f"from {module} import"), found)
    made = found["TestSqliteSink"]
    assert isinstance(made, type)
    assert issubclass(made, SinkConformance)
    return made


class TestSqliteSink(suite(SINK, "sqlite_sink")):  # type: ignore[misc]
    """That of the page."""


class TestStagedSqliteSink(suite(STAGED_SINK, "sqlite_staged_sink")):  # type: ignore[misc]
    """That of the page."""
