"""The reference of the front door, made of its docstrings: ``python -m tests.api_page`` writes ``docs/api.md``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import barrier_kafka
import barrier_kafka.testing

__all__ = ["PAGE", "api_page"]

PAGE = Path(__file__).parent.parent / "docs" / "api.md"

HEAD = """\
# API

<!-- written by python -m tests.api_page -->

Programs import these names from `barrier_kafka`. Tests of a sink import from `barrier_kafka.testing`. Other modules may change
between releases.
"""


def api_page() -> str:
    """Return the page."""
    names: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "`barrier_kafka.testing`": []}
    for name in barrier_kafka.__all__:
        value = getattr(barrier_kafka, name)
        names["Functions" if not inspect.isclass(value) else "Errors" if _is_error(value) else "Classes"].append(
            _entry(name, value)
        )
    for name in barrier_kafka.testing.__all__:
        names["`barrier_kafka.testing`"].append(_entry(name, getattr(barrier_kafka.testing, name)))
    sections = ("\n".join([f"## {kind}\n", *entries]) for kind, entries in names.items())
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _is_error(value: type) -> bool:
    return issubclass(value, Exception)


def _entry(name: str, value: Any) -> str:
    bases = [base.__name__ for base in value.__bases__] if inspect.isclass(value) and _is_error(value) else []
    head = f"{name}({', '.join(bases)})" if bases else f"{name}{_signature(value)}"
    lines = [f"### `{name}`", "", "```text", head, "", inspect.getdoc(value) or "", "```", ""]
    if inspect.isclass(value) and not bases:
        lines += _methods(value)
    return "\n".join(lines)


def _methods(kind: type) -> list[str]:
    found = [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
    ]
    rows = []
    for name, member in found:
        plain = member.__func__ if isinstance(member, classmethod) else member
        summary = (inspect.getdoc(plain) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{name}` | {summary} |")
    return ["| method | |", "|---|---|", *rows, ""] if rows else []


def _signature(value: Any) -> str:
    try:
        return re.sub(r"<.*? at 0x\w+>", "...", str(inspect.signature(value)).replace("'", ""))
    except (TypeError, ValueError):
        return ""


if __name__ == "__main__":
    PAGE.write_text(api_page())
