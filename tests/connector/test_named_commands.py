"""Commands, options and Python names in errors and pages exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import typer.main

import barrier_kafka
from connector.cli.command_line import GROUPS, app
from tests.command_page import commands
from tests.results import ROOT
from tests.words import ROOMS
from transactional.errors.catalogue import catalogue

CALL = re.compile(r"\bbarrier ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)([^`\n|;&#]*)")

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

PYTHON = re.compile(r"(?<![\w/.])(?<!from )(barrier_kafka|connector|transactional)\.([A-Za-z_]\w*)")

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


def messages() -> Iterator[tuple[str, str]]:
    """The catalogue, and all literals of several words in the product that are no docstrings."""
    for name, condition in catalogue.items():
        yield name, f"{condition.message} {condition.remedy}"
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        documents = {id(each.value) for each in ast.walk(module) if isinstance(each, ast.Expr)}
        for each in ast.walk(module):
            if isinstance(each, ast.Constant) and id(each) not in documents and " " in str(each.value):
                yield f"{path.relative_to(ROOT)}:{each.lineno}", str(each.value)


def test_a_message_names_in_python_only_what_users_import() -> None:
    named = [(where, *found) for where, text in messages() for found in PYTHON.findall(text)]
    known = {("barrier_kafka", name) for name in (*barrier_kafka.__all__, "sinks")}  # sinks: the group of entry points
    assert [each for each in named if each[1:] not in known] == []
    assert {"idempotent_merge", "register", "sinks", "CheckpointHook"} <= {name for _, _, name in named}


@pytest.mark.parametrize("script", ["start-master.sh", "start-worker.sh", "start-connect-server.sh"])
def test_no_page_uses_a_script_that_pip_s_pyspark_lacks(script: str) -> None:
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if script in page.read_text(encoding="utf-8")]
