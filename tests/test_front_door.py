"""The names that users import: all there, cheap, and the only ones that the docs use."""

from __future__ import annotations

import contextlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import barrier_kafka
import barrier_kafka.reader
import barrier_kafka.sinks
import barrier_kafka.testing
from tests.api_page import PAGE, api_page
from tests.results import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FRONT_DOOR = (barrier_kafka, barrier_kafka.reader, barrier_kafka.sinks, barrier_kafka.testing)
_TYPE = re.compile(r"^(?:class )?([A-Z][A-Za-z]+)\b(?: = (?!TypeVar)|[(:\[])", re.MULTILINE)
OURS = {
    name
    for package in ("connector", "transactional")
    for file in (ROOT / package).rglob("*.py")
    for name in _TYPE.findall(file.read_text())
} - {"Column", "Metric"}  # in signatures they are PySpark's and prometheus_client's
"""Types and their aliases."""

RESULTS = {"Listening", "QueryCollector"}
"""Classes that no user constructs: a function returns them."""

HEAVY = ("confluent_kafka", "kafka", "pandas", "pyarrow", "pyspark", "typer")


@pytest.mark.parametrize("module", FRONT_DOOR, ids=lambda module: module.__name__)
def test_every_public_name_is_there_and_documented(module: object) -> None:
    names = list(module.__all__)  # type: ignore[attr-defined]
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    undocumented = [name for name in names if not (getattr(module, name).__doc__ or "").strip()]
    assert not undocumented
    assert set(names) <= set(dir(module))


def test_every_type_of_a_signature_can_be_imported_from_the_front_door() -> None:
    public = {name: getattr(module, name) for module in FRONT_DOOR for name in module.__all__}
    unknown = {
        f"{owner}: {name}"
        for owner, value in public.items()
        for annotation in _annotations(value, constructed=owner not in RESULTS)
        for name in re.findall(r"[A-Za-z]+", annotation)
        if name in OURS and name not in public
    }
    assert not unknown


def _annotations(value: object, constructed: bool) -> Iterator[str]:
    members = [member for name, member in vars(value).items() if name[0] != "_"] if inspect.isclass(value) else []
    for member in [*([value] if constructed else []), *members]:
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(plain) or (inspect.isclass(plain) and not issubclass(plain, Exception)):
            with contextlib.suppress(ValueError):
                signature = inspect.signature(plain)
                yield from map(
                    str, (signature.return_annotation, *(p.annotation for p in signature.parameters.values()))
                )


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
