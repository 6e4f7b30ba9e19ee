"""How the command line is used: help, version, ``--json``, and what is said of a location that is none."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer.main

from connector.cli import main
from connector.cli.command_line import COMMANDS as VERBS
from connector.cli.command_line import GROUPS, app
from tests.connector.cli_place import answer

Capture = pytest.CaptureFixture[str]

PROGRAM: Any = typer.main.get_command(app)
COMMANDS = {words: reduce(lambda found, word: found.commands[word], words.split(), PROGRAM) for words in VERBS}
"""Every command, by the words that call it."""

KINDS = {"missing": 0, "empty": 1, "file": 2, "below a file": 2}
NOT_THERE = ("LOCATION_NOT_A_FOLDER", "NO_JOURNAL", "LOCATION_NOT_A_FOLDER")
NO_SPARK = ("LOCATION_NOT_A_FOLDER", "LOGS_INCONSISTENT", "LOCATION_NOT_A_FOLDER")
NO_SAVEPOINT = ("SAVEPOINT_NOT_FOUND",) * 3
SAID = {
    "checkpoints list HERE": NOT_THERE,
    "checkpoints show HERE": NOT_THERE,
    "checkpoints trigger HERE": NOT_THERE,
    "transactions list HERE": NOT_THERE,
    "transactions list HERE --id name": NOT_THERE,
    "transactions explain HERE": NOT_THERE,
    "transactions abort HERE --yes": NOT_THERE,
    "doctor HERE": NOT_THERE,
    "stop HERE": NOT_THERE,
    "recover HERE": ("LOCATION_NOT_A_FOLDER", "nothing to do", "LOCATION_NOT_A_FOLDER"),
    "recover HERE --first-start": ("nothing to do", "nothing to do", "LOCATION_NOT_A_FOLDER"),
    "rewind HERE --to 2 --yes": NOT_THERE,
    "resolve HERE": NOT_THERE,
    "restore HERE --as-is --claim --yes": NO_SPARK,
    "restore HERE --as-is --no-claim --yes": NO_SPARK,
    "savepoint take HERE OTHER": NOT_THERE,
    "savepoint list HERE": ("SAVEPOINT_NOT_FOUND", "done", "SAVEPOINT_NOT_FOUND"),
    "savepoint list HERE one": NO_SAVEPOINT,
    "savepoint dispose HERE --yes": NO_SAVEPOINT,
    "restore HERE OTHER --no-claim --yes": NO_SAVEPOINT,
    "import-offsets HERE OTHER --yes": NO_SPARK,
}
"""Command: what is said of a path that is missing, an empty folder, a file."""


def test_the_table_has_every_command() -> None:
    without_one = {"serve", "inject", "offsets", "compile-pyspark"}
    assert {line.partition(" HERE")[0] for line in SAID} == set(COMMANDS) - without_one


@pytest.mark.parametrize("command", SAID)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_location_is_named_by_every_command(
    command: str, kind: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    here = str(tmp_path / ("file/below" if kind == "below a file" else kind))
    words = [{"HERE": here, "OTHER": str(tmp_path / "other")}.get(word, word) for word in command.split()]
    if words[:1] == ["transactions"] and words[1] != "list":
        words.insert(2, "an-id-or-a-topic")
    expected = SAID[command][KINDS[kind]]
    status, document, said = answer(capsys, *words)
    refused = expected.isupper()
    assert (status, document.get("condition", document["status"])) == (int(refused), expected)
    if expected == "LOCATION_NOT_A_FOLDER":
        named = f"{here} does not exist" if kind == "missing" else f"{tmp_path / 'file'} is a file"
        assert f"This is not a checkpoint location: {named}" in document["message"]
    elif refused:
        assert here in document["message"]
    else:
        assert ("no query has run here" if "recover" in command else "there is no savepoint in") in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"], "nothing was made"


@pytest.mark.parametrize("command", [*GROUPS, *VERBS])
def test_a_help_begins_with_when_to_use_the_command(command: str) -> None:
    text = GROUPS.get(command) or VERBS[command].__doc__ or ""
    assert re.match(r"(When|Before|To) [^.]*: ", text)


def test_a_journal_that_is_a_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "barrier").mkdir()
    (tmp_path / "barrier" / "log").touch()
    status, document, _ = answer(capsys, "checkpoints", "show", str(tmp_path))
    assert (status, document["condition"]) == (1, "LOCATION_NOT_A_FOLDER")
    assert f"{tmp_path / 'barrier/log'} is a file" in document["message"]


@pytest.mark.parametrize("columns", ["80", "50"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_shows_every_option_whole(
    command: str, columns: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    names = [name for parameter in COMMANDS[command].params for name in (*parameter.opts, *parameter.secondary_opts)]
    for name in (name for name in names if name.startswith("--")):
        assert re.search(rf"{name}(?![-\w])", shown), name
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_the_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"barrier-kafka (\d+\.\S+|not installed)\n", capsys.readouterr().out)


@pytest.mark.parametrize("where", ["before", "after"])
def test_json_is_short_for_output_json(where: str, tmp_path: Path, capsys: Capture) -> None:
    words = ["--json", str(tmp_path)] if where == "before" else [str(tmp_path), "--json"]
    assert main(["checkpoints", "list", *words]) == 1
    assert json.loads(capsys.readouterr().out)["condition"] == "NO_JOURNAL"
    assert main(["checkpoints", "list", *words, "--limit", "0"]) == 2
    assert json.loads(capsys.readouterr().out)["status"] == "wrong usage"
