"""The names that users import: all there, cheap, and the only ones that the docs use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_kafka
import barrier_kafka.testing
from tests.api_page import PAGE, api_page

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HEAVY = ("confluent_kafka", "kafka", "pandas", "pyarrow", "pyspark", "typer")


@pytest.mark.parametrize("module", [barrier_kafka, barrier_kafka.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_there_and_documented(module: object) -> None:
    names = list(module.__all__)  # type: ignore[attr-defined]
    assert names == sorted(names)
    undocumented = [name for name in names if not (getattr(module, name).__doc__ or "").strip()]
    assert not undocumented
    assert set(names) <= set(dir(module))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sink'"):
        barrier_kafka.Sink  # noqa: B018


def test_no_client_is_imported_before_it_is_needed() -> None:
    program = f"import sys, barrier_kafka; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_documents_import_from_the_front_door_only(document: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert not [line for line in lines if re.match(r"\s*(from|import) (connector|transactional)\b", line)]


def test_the_page_of_the_api_is_the_codes_own() -> None:
    assert PAGE.read_text() == api_page(), "run: python -m tests.api_page"
