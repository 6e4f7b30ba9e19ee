"""docs/tutorial/ and its notebook, as a reader follows them: every command prints what the page shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from integration import ROOT
from integration.broker import Cluster
from integration.postgresql import PostgresqlServer
from integration.services import variables
from tests.notebook import NOTEBOOK, PAGES, notebook

PLACE = "/tmp/barrier/tutorial"
SECONDS = 300


def fits(shown: str, printed: str) -> bool:
    """Whether a text was printed; ``...`` stands for anything."""
    pattern = ".*".join(map(re.escape, shown.strip().split("...")))
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, lines, re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_part_is_of_its_program(page: Path) -> None:
    programs = [program.read_text() for program in (ROOT / "examples" / "tutorial").glob("*.py")]
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        assert any(block in program for program in programs), block


def test_the_notebook_is_made_of_the_pages() -> None:
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook(), "run: python -m tests.notebook"
    nbformat.validate(nbformat.reads(notebook(), as_version=4))


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_notebook_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster() as cluster, PostgresqlServer() as server:
        environment = {
            **variables(cluster, server),
            "PLACE": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "IPYTHONDIR": str(tmp_path / "ipython"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        tried = nbformat.reads(notebook().replace(PLACE, str(tmp_path)), as_version=4)
        cells = [cell for cell in tried.cells if cell.cell_type == "code"]
        shown = [printed_by(cell) for cell in cells]
        where = {"metadata": {"path": str(NOTEBOOK.parent)}}
        NotebookClient(tried, timeout=SECONDS, kernel_name="python3", resources=where).execute()
        for cell, expected in zip(cells, shown, strict=True):
            assert fits(expected, printed_by(cell)), f"{cell.source}\nshown:\n{expected}\nprinted:\n{printed_by(cell)}"


def printed_by(cell: nbformat.NotebookNode) -> str:
    """What a cell has written to standard output."""
    return "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout")
