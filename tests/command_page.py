"""The page of the commands, made of the program's own help: ``python -m tests.command_page`` writes it."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from connector.cli.arguments import for_typer
from connector.cli.command_line import COMMANDS
from connector.cli.report import EXIT_STATUS

__all__ = ["PAGE", "command_page", "commands"]

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"

HEAD = """<!-- written by python -m tests.command_page -->

# Commands

The program `barrier` is installed with the package. Which command when: [On call](runbook.md). With `--help` a command
prints its section.

{status}

Options of several commands:

| | |
|---|---|
{shared}
"""

SHARED = ("--output", "--option", "--options-file", "--yes")


def commands() -> dict[str, Callable[..., Any]]:
    """Return the function of every command, as typer calls it, by the words that call it."""
    return {words: for_typer(command) for words, command in COMMANDS.items()}


def command_page() -> str:
    """Return the page's text."""
    found = sorted(commands().items())
    shared = {name: text for _, command in found for name, text in _rows(command) if name.split()[0] in SHARED}
    head = HEAD.format(status=_prose(EXIT_STATUS), shared=_table(sorted(shared.items())))
    return head + "\n" + "\n".join(_section(f"barrier {words}", command) for words, command in found)


def _section(words: str, command: Callable[..., Any]) -> str:
    rows = _rows(command)
    arguments = [name for name, _ in rows if not name.startswith("--")]
    own = [row for row in rows if row[0].split()[0] not in SHARED]
    also = ", ".join(f"`{name.split()[0]}`" for name, _ in rows if name.split()[0] in SHARED)
    lines = [f"## {words}", "", f"    {' '.join([words, '[OPTIONS]', *arguments])}", ""]
    lines += [_prose(inspect.getdoc(command) or ""), ""]
    lines += ["| | |", "|---|---|", _table(own), ""] if own else []
    return "\n".join([*lines, *([f"{'And ' if own else 'Option: '}{also}.", ""] if also else [])])


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"| `{name}` | {text} |" for name, text in rows)


def _rows(command: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return the arguments, then the options, as one types them, and what they are."""
    hints = get_type_hints(command, include_extras=True)
    arguments, options = [], []
    for name, parameter in inspect.signature(command).parameters.items():
        # Before Python 3.11, a parameter whose default is None has an Optional around its annotation.
        kind, info = get_args(
            next((each for each in get_args(hints[name]) if get_origin(each) is Annotated), hints[name])
        )
        if isinstance(info, ArgumentInfo):
            arguments.append(_argument(name, kind, info, parameter.default))
        elif isinstance(info, OptionInfo):
            options.append(_option(name, kind, info, parameter.default))
    return [*arguments, *options]


def _argument(name: str, kind: Any, info: ArgumentInfo, default: Any) -> tuple[str, str]:
    shown = re.sub(r"[\[\].]", "", info.metavar or name.upper())
    shown += "..." if "list" in str(kind) else ""
    return shown if default is inspect.Parameter.empty else f"[{shown}]", _escaped(info.help or "")


def _option(name: str, kind: Any, info: OptionInfo, default: Any) -> tuple[str, str]:
    named = [
        each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str) and each.startswith("--")
    ]
    shown, text = ", ".join(named or [f"--{name.replace('_', '-')}"]), _escaped(info.help or "")
    if kind is bool:
        return shown, text
    plain = next((each for each in (kind, *get_args(kind)) if isinstance(each, type) and each is not type(None)), str)
    if issubclass(plain, enum.Enum):
        values = "\\|".join(str(each.value) for each in plain)
    else:
        values = info.metavar or {int: "N", float: "N"}.get(plain, name.upper())
    if default in (None, "", inspect.Parameter.empty):
        return f"{shown} {values}", text + (" Needed." if default is inspect.Parameter.empty else "")
    return f"{shown} {values}", f"{text} Default: `{getattr(default, 'value', default)}`."


def _prose(text: str) -> str:
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_escaped(" ".join(each.split())) for each in paragraphs)


def _escaped(text: str) -> str:
    return text.replace("<", "\\<").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(command_page(), encoding="utf-8")
