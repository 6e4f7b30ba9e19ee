"""The pages of the reference that have no generator of their own test: commands, journal, versions."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from connector.doctor.versions import JAVA, PYTHON, SPARK
from tests import sink_page
from tests.command_page import PAGE, command_page
from tests.results import ROOT
from transactional.entry import FORMAT, EntryKind


def test_the_page_of_the_commands_is_the_programs_own() -> None:
    assert PAGE.read_text(encoding="utf-8") == command_page(), "run: python -m tests.command_page"


def test_the_page_of_a_sink_s_methods_is_that_of_their_docstrings() -> None:
    assert sink_page.PAGE.read_text(encoding="utf-8") == sink_page.sink_page(), "run: python -m tests.sink_page"


def test_the_page_of_the_journal_has_every_kind_and_every_field() -> None:
    page = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `([a-z ]+)` \| [^|]*\| ([^\n]*) \|$", page.partition("## Kinds of entries")[2], re.MULTILINE)
    )
    assert set(rows) == EntryKind.ALL
    assert f"| `format` | {FORMAT}." in page
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "tests" / "golden" / "journal").glob(f"v{FORMAT}*/**/*.json"):
        entry = json.loads(file.read_text(encoding="utf-8"))
        fields[entry["kind"]] |= set(entry["body"])
    assert set(fields) >= EntryKind.ALL - {"snapshot"}
    for kind in EntryKind.ALL - {"snapshot", "decided", "rewind begun", "restoring"}:  # in words, as a whole
        assert {name for name in fields[kind] if f"`{name}`" not in rows[kind]} == set(), kind


def test_the_page_of_versions_names_those_that_the_doctor_accepts() -> None:
    page, *_ = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8").partition("<!-- versions")
    rows = dict(re.findall(r"^\| (\w+) \| ([^|]*) \|", page, re.MULTILINE))
    assert rows["Python"].startswith(".".join(map(str, PYTHON)))
    assert rows["Java"] == ", ".join(map(str, JAVA))
    assert {tuple(map(int, each)) for each in re.findall(r"(\d+)\.(\d+)", rows["PySpark"])} == set(SPARK)
