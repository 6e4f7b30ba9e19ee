"""The reference of the front door, made of its docstrings: ``python -m tests.api_page`` writes ``docs/api.md``."""

from __future__ import annotations

import ast
import enum
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import griffe

import barrier_kafka
import barrier_kafka.reader
import barrier_kafka.sinks
import barrier_kafka.testing
import connector.options

__all__ = ["PAGE", "api_page"]

PAGE = Path(__file__).parent.parent / "docs" / "api.md"

HEAD = """\
# API

<!-- written by python -m tests.api_page -->

Programs import these names from `barrier_kafka`, and from `barrier_kafka.reader` to read the output without Spark. Authors of a
sink also import from `barrier_kafka.sinks` (tools) and `barrier_kafka.testing`. Other modules may change between releases.
"""

WIDTH = 100
"""Characters of a signature in one line."""

_CODE = re.compile(r"``(.+?)``|`([A-Za-z_][\w.]*)`")
_NAME = re.compile(r"[A-Za-z_]\w*")


def api_page() -> str:
    """Return the page."""
    names: dict[str, dict[str, Any]] = {"Functions": {}, "Classes": {}, "Errors": {}}
    for name in barrier_kafka.__all__:
        value = getattr(barrier_kafka, name)
        names["Functions" if not inspect.isclass(value) else "Errors" if _is_error(value) else "Classes"][name] = value
    for module in (barrier_kafka.reader, barrier_kafka.sinks, barrier_kafka.testing):
        values = {name: getattr(module, name) for name in module.__all__}
        names[f"`{module.__name__}`"] = {**{name: value for name, value in values.items() if callable(value)}, **values}
    page = _Page({name for members in names.values() for name in members})
    lines = [HEAD]
    for kind, members in names.items():
        lines += [f"## {kind}", ""]
        for name, value in members.items():
            lines += page.entry(name, value)
    return "\n".join(lines).rstrip() + "\n"


class _Page:
    """The entries of a page."""

    def __init__(self, names: set[str]) -> None:
        self._names = names  # All that have an entry: where a text names one, it is a link.

    def entry(self, name: str, value: Any) -> list[str]:
        """Return what the page says of a name."""
        if not callable(value):
            return [f"### `{name}`", "", _described(name), ""]
        bases = [base.__name__ for base in value.__bases__] if inspect.isclass(value) and _is_error(value) else []
        head = f"class {name}({', '.join(bases)})" if bases else _head(name, value)
        lines = [f"### `{name}`", "", "```python", head, "```", "", *self._text(value, name)]
        return lines + (self._methods(value, name) if inspect.isclass(value) and not bases else [])

    def _methods(self, kind: type, owner: str) -> list[str]:
        rows = []
        # Methods of bases that have no entry of their own count as the class's.
        bases = [base for base in kind.__mro__[:0:-1] if self._is_hidden(base)]
        for name, member in {name: each for base in [*bases, kind] for name, each in vars(base).items()}.items():
            plain = getattr(member, "__func__", getattr(member, "fget", member))
            if not name.startswith("_") and inspect.isfunction(plain):
                summary = self._linked((inspect.getdoc(plain) or "").split("\n\n")[0], owner)
                head = (
                    name
                    if isinstance(member, property)
                    else _line(name, inspect.signature(plain), owned=not isinstance(member, staticmethod))
                )
                rows.append("| {} | {} |".format(*(each.replace("|", "\\|") for each in (f"`{head}`", summary))))
        return ["| method | |", "|---|---|", *rows, ""] if rows else []

    def _is_hidden(self, base: type) -> bool:
        ours = ("barrier_kafka", "connector", "transactional")
        return base.__module__.partition(".")[0] in ours and base.__name__ not in self._names

    def _text(self, value: Any, owner: str) -> list[str]:
        text = inspect.getdoc(value) or ""
        parts = griffe.Docstring(text).parse("numpy", warn_unknown_params=False, warnings=False)
        return [line for part in parts for line in self._part(part, owner)]

    def _part(self, part: Any, owner: str) -> Iterator[str]:
        kind = part.kind.value
        if kind == "text":
            yield from (self._paragraphs(part.value, owner), "")
            return
        if kind == "admonition":
            yield from (f"**{part.title}**", "", self._paragraphs(part.value.contents, owner), "")
            return
        yield from (f"**{kind.capitalize()}**", "")
        if kind == "examples":
            yield "```python"
            yield "\n\n".join(text for _, text in part.value)
            yield from ("```", "")
            return
        for description, alike in groupby(part.value, lambda each: each.description):
            yield f"- {self._item(description, [*alike], owner)}"
        yield ""

    def _item(self, description: str, alike: Sequence[Any], owner: str) -> str:
        """Return the line of parameters, attributes, results or errors that a docstring describes together."""
        described = self._paragraphs(description.strip(), owner).replace("\n", "\n  ")
        named = ", ".join(f"`{each.name}`" for each in alike if getattr(each, "name", ""))
        typed = self._type(str(alike[0].annotation or ""), owner)
        what = f"{named} ({typed})" if named and typed else named or typed
        return f"{what}: {described}" if described else what

    def _type(self, text: str, owner: str) -> str:
        named = [name for name in _NAME.findall(text) if name in self._names and name != owner]
        shown = f"`{text}`" if text else ""
        return f"[{shown}](#{named[0].lower()})" if named else shown

    def _paragraphs(self, text: str, owner: str) -> str:
        """Return a text in Markdown; blocks of code after ``::`` and lists stay as they are."""
        return "\n\n".join(
            self._block(block) if block.startswith("    ") else self._linked(block, owner)
            for block in re.split(r"\n\n(?=    )|\n\n(?!    )", text.replace("::\n", ":\n"))
        )

    @staticmethod
    def _block(block: str) -> str:
        return f"```text\n{inspect.cleandoc(block)}\n```"

    def _linked(self, text: str, owner: str) -> str:
        def shown(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            last = name.rpartition(".")[2]
            is_link = last in self._names and last != owner
            return f"[`{name}`](#{last.lower()})" if is_link else f"`{name}`"

        return _CODE.sub(shown, text)


def _described(constant: str) -> str:
    """Return the text below a constant of `connector.options`."""
    body = ast.parse(inspect.getsource(connector.options)).body
    for assigned, text in pairwise(body):
        target = ast.unparse(assigned).partition(":" if isinstance(assigned, ast.AnnAssign) else " =")[0]
        if target == constant and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            return str(text.value.value)
    raise LookupError(constant)


def _is_error(value: type) -> bool:
    return issubclass(value, Exception)


def _head(name: str, value: Callable[..., Any]) -> str:
    if isinstance(value, enum.EnumMeta):  # the signature for making a new enum differs between versions of Python
        return f"{name}(value)"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    if inspect.isclass(value):
        signature = signature.replace(return_annotation=signature.empty)
    whole = _line(name, signature)
    given, end = _arguments(signature.parameters), whole[whole.rindex(")") :]
    return whole if len(whole) <= WIDTH else "\n".join([f"{name}(", *(f"    {each}," for each in given), end])


def _line(name: str, signature: inspect.Signature, owned: bool = False) -> str:
    """Return a signature in one line; without the first argument if it is `owned` by a class."""
    result = signature.return_annotation
    end = "" if result is signature.empty else f" -> {_annotation(result)}"
    return f"{name}({', '.join(_arguments(signature.parameters)[owned:])}){end}"


def _arguments(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the arguments of a signature, one by one."""
    found: list[str] = []
    for each in parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(text.startswith("*") for text in found):
            found.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        typed = "" if each.annotation is each.empty else f": {_annotation(each.annotation)}"
        default = "" if each.default is each.empty else f"{' = ' if typed else '='}{_default(each.default)}"
        found.append(f"{stars}{each.name}{typed}{default}")
    return found


def _annotation(annotation: Any) -> str:
    return annotation.strip("'") if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    return re.sub(r"<.*? at 0x\w+>|<factory>|Ellipsis", "...", repr(value))


if __name__ == "__main__":
    logging.getLogger("griffe").setLevel(logging.ERROR)
    PAGE.write_text(api_page())
