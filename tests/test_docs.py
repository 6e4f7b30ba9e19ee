"""What the documents claim names its test; the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def names() -> frozenset[str]:
    """All tests, and the files that hold them."""
    files = [file for folder in ("tests", "integration") for file in (ROOT / folder).rglob("test_*.py")]
    files += (ROOT / "transactional" / "testing").glob("*.py")  # the contract of sinks
    defined = (re.findall(r"def (test_\w+)", file.read_text()) for file in files)
    return frozenset(name for found in defined for name in found) | {file.stem for file in files}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_test_that_a_document_names_is_there(document: Path, names: frozenset[str]) -> None:
    assert set(re.findall(r"\btest_\w+", document.read_text())) <= names
