"""Every command that an error, a page or the code names is one of the program, with the options that stand there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import connector
from connector.cli.command_line import GROUPS, app
from tests.command_page import commands
from transactional.errors.catalogue import catalogue

ROOT = Path(connector.__path__[0]).parent

CALL = re.compile(r"\bbarrier ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)([^`\n|;&#]*)")

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

OF_ALL = {"--help", "--json", "--version"}


def texts() -> Iterator[tuple[str, str]]:
    for page in sorted((ROOT / "docs").glob("*.md")):
        spans = re.findall(r"`([^`\n]+)`|^    (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for code, line in spans:
            yield page.name, code or line
    for name, condition in catalogue.items():
        yield name, condition.remedy
        yield name, condition.message
    for room in ("barrier_kafka", "connector", "transactional"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from ((file.name, code) for code in re.findall(r"`(barrier [^`]+)`", node.value))


def calls() -> list[tuple[str, str, str]]:
    """Where a call stands, the words of its command, and its arguments."""
    known = sorted(commands(), key=len, reverse=True)
    found = []
    for where, text in texts():
        for words, rest in CALL.findall(text):
            name = next((each for each in known if words == each or words.startswith(f"{each} ")), None)
            if name is not None:
                found.append((where, name, words[len(name) :] + rest))
            elif OPTION.search(rest) or text.startswith("barrier "):
                found.append((where, words, rest))
    return found


def test_the_program_takes_each_option_that_an_error_or_a_page_gives_a_command() -> None:
    program = typer.main.get_command(app)
    wrong = []
    seen = 0
    for where, words, rest in calls():
        command = program
        for word in words.split():
            command = getattr(command, "commands", {}).get(word, command)
        if words in GROUPS:
            continue
        if words not in commands():
            wrong.append(f"{where}: barrier {words} is no command")
            continue
        options = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}
        own = rest.partition(" -- ")[0]
        for option in OPTION.findall(own):
            seen += 1
            if option not in options | OF_ALL:
                wrong.append(f"{where}: barrier {words} {option}")
    assert wrong == []
    assert seen > 80  # so it looks at what it should


@pytest.mark.parametrize("script", ["start-master.sh", "start-worker.sh", "start-connect-server.sh"])
def test_no_page_uses_a_script_that_pip_s_pyspark_lacks(script: str) -> None:
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if script in page.read_text(encoding="utf-8")]
