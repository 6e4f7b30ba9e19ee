"""What `transactional` itself offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import transactional
from tests.results import ROOT

LONGEST = 400


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    assert sorted(transactional.__all__) == sorted(transactional._MODULES)
    for name in transactional.__all__:
        value = getattr(transactional, name)
        assert value.__name__ == name
    assert set(transactional.__all__) <= set(dir(transactional))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="TwoPhase"):
        _ = transactional.TwoPhase


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    code = "import sys, transactional; print(sum(name.startswith('transactional.') for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "0"


def test_the_docstring_names_every_module() -> None:
    modules = {path.stem for path in Path(transactional.__file__).parent.iterdir() if path.suffix in ("", ".py")}
    for module in modules - {"__init__", "__pycache__", "py"}:
        assert f"`{module}`" in (transactional.__doc__ or ""), module


def test_a_file_of_the_core_is_short() -> None:
    for path in (ROOT / "transactional").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= LONGEST, path
