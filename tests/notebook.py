"""The tutorial as a Jupyter notebook: ``python -m tests.notebook`` writes ``examples/tutorial.ipynb`` from ``docs/tutorial/``.

A command of the pages becomes a cell that runs it, with the output that the page shows. All else is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.results import ROOT

__all__ = ["NOTEBOOK", "PAGES", "notebook"]

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"

HEAD = """\
The commands below are those of `docs/tutorial/`. Start Jupyter in the second terminal, after you have run the line that \
`make services` printed: the cells take the addresses of the servers from there.
"""

BEGIN = """\
import os
from pathlib import Path

while not Path("pyproject.toml").exists():  # the root of the clone
    os.chdir("..")
"""

BLOCK = re.compile(r"^```bash\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def notebook() -> str:
    """Return the notebook, as JSON."""
    cells = [_text(HEAD), _code(BEGIN, "")]
    for page in PAGES:
        cells += _cells(page.read_text(encoding="utf-8"))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    at = 0
    for found in BLOCK.finditer(page):
        yield _text(page[at : found.start()])
        yield _code(f"%%bash -e\n{found[1]}", found[2] or "")
        at = found.end()
    yield _text(page[at:])


def _text(text: str) -> dict[str, Any]:
    linked = re.sub(r"\]\((?!https?:|#)", "](../docs/tutorial/", text)
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(linked.strip("\n"))}


def _code(code: str, shown: str) -> dict[str, Any]:
    outputs = [{"name": "stdout", "output_type": "stream", "text": _lines(shown)}] if shown else []
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}}
    return {**cell, "outputs": outputs, "source": _lines(code.strip("\n"))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
