"""The page of a sink's methods, made of their docstrings: ``python -m tests.sink_page`` writes ``docs/sink-contract.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transactional import capabilities
from transactional.sink import TwoPhaseCommitSink

__all__ = ["PAGE", "sink_page"]

TEMPLATE = Path(__file__).with_name("sink_page.md")
PAGE = Path(__file__).parent.parent / "docs" / "sink-contract.md"

HEAD = ["| method | called | what it has to do |", "|---|---|---|"]


def sink_page() -> str:
    """Return the page: the template, with a table of the core and one of each capability."""
    core = "\n".join([*HEAD, *_rows(TwoPhaseCommitSink)])
    return TEMPLATE.read_text(encoding="utf-8").format(core=core, capabilities="\n\n".join(_capabilities()))


def _capabilities() -> Iterator[str]:
    for name in capabilities.__all__:
        found = getattr(capabilities, name)
        if inspect.isclass(found):
            yield "\n".join([f"### `{name}`", "", f"{_paragraphs(found)[0]}", "", *HEAD, *_rows(found)])


def _rows(owner: type) -> Iterator[str]:
    for name, member in vars(owner).items():
        method = getattr(member, "__func__", getattr(member, "fget", member))
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        called, tasks = "", []
        for text in _paragraphs(method):
            before, where, after = [*re.split(r" ?\*([^*]+)\*", text, maxsplit=1), "", ""][:3]
            called = called or where.rstrip(".")
            tasks.append(f"{before}{after}".strip())
        yield f"| `{_signature(name, member)}` | {called} | {' '.join(tasks)} |"


def _signature(name: str, member: Any) -> str:
    """Return a method as authors write it, without ``self``; a property is its name."""
    if isinstance(member, property):
        return name
    signature = inspect.signature(getattr(member, "__func__", member))
    own = list(signature.parameters.values())[1:]
    taken = ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in own)
    return f"{name}({taken}) -> {signature.return_annotation}".replace("|", "\\|")


def _paragraphs(documented: object) -> list[str]:
    """Return the paragraphs before the first section of a docstring, each on one line, in Markdown."""
    text = re.split(r"\n[A-Z][a-z]+\n-{4,}\n", inspect.getdoc(documented) or "")[0]
    return [re.sub(r"\s+", " ", each).replace("``", "`").strip() for each in text.split("\n\n") if each.strip()]


if __name__ == "__main__":
    PAGE.write_text(sink_page(), encoding="utf-8")
