"""What others have named does not command the terminal of the person who runs a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

import connector
from connector.cli.report import Output, reporting
from transactional.errors import StoreError
from transactional.printable import printable

NAME = "group\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eevil\u2028\udcff\0"

SHOWN = r"group\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eevil\u2028\udcff\x00"


def test_control_characters_are_escaped_and_all_others_stay() -> None:
    assert printable(NAME) == SHOWN
    assert printable("Zürich, 東京, 🙂 \\ '") == "Zürich, 東京, 🙂 \\ '"
    assert printable("a\nb\tc\r", "\n\t") == "a\nb\tc\\r"


def controls(text: str) -> set[str]:
    return set(re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text))


def answer(output: Output) -> None:
    """Run a command that prints in every way that there is."""
    with reporting(output) as report:
        report.say(f"a sentence of {NAME}")
        report.complain(f"a complaint of {NAME}")
        report.table(("HEAD",), [(NAME,)], wraps=("HEAD",))
        report.pairs(NAME, [(NAME, NAME)])
        report.facts["name"] = NAME
        raise StoreError("BAD_RECORD", reason=NAME)


@pytest.mark.parametrize("output", Output)
def test_nothing_that_a_command_prints_holds_a_control_character(
    output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        answer(output)
    printed = capsys.readouterr()
    assert not controls(printed.out + printed.err)
    assert r"\x1b]0;owned\x07" in printed.err
    if output is Output.JSON:
        assert json.loads(printed.out)["name"] == NAME
    else:
        assert printed.out.count(r"\x1b]0;owned\x07") == 5


def test_a_failure_that_nobody_expected_holds_none_either(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reporting(Output.TABLE):
        raise ValueError(NAME)
    assert not controls(capsys.readouterr().err)


def test_an_error_of_ours_that_a_driver_prints_holds_none_either() -> None:
    assert not controls(str(StoreError("BAD_RECORD", reason=NAME)))


def test_commands_print_through_the_report_only() -> None:
    """One place escapes; the others print nothing of anybody else."""
    allowed = {"report.py", "command_line.py", "listener.py"}  # the last has an example for users
    for folder in ("cli", "views", "operations"):
        for path in (Path(connector.__path__[0]) / folder).glob("*.py"):
            assert path.name in allowed or not re.search(
                r"(?<![\w.])print\(|\becho\(|std(?:out|err)\.write|print_exc", path.read_text()
            )
