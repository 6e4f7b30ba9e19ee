"""The documentation as a site."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.llms_page import PAGE, llms_page
from tests.results import ROOT
from tests.site import build, versions


def test_it_is_built_without_a_warning_beside_its_earlier_versions(tmp_path: Path) -> None:
    """Every page is in its navigation, and every link and anchor leads somewhere."""
    for earlier in ("0.8", "0.10"):
        (tmp_path / earlier).mkdir()
    folder = build(tmp_path)
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in folder.glob("*.html")}
    assert all((folder / name).exists() for name in re.findall(r"\]\((.*?)\)", (folder / "llms.txt").read_text()))
    assert versions(tmp_path) == ["0.10", "0.9", "0.8"]
    menu = json.loads((tmp_path / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in menu] == [("0.10", ["latest"]), ("0.9", []), ("0.8", [])]
    assert "url=0.10/index.html" in (tmp_path / "index.html").read_text()


def test_the_list_for_language_models_is_made_of_the_index_which_has_all_pages() -> None:
    assert PAGE.read_text(encoding="utf-8") == llms_page(), "run: python -m tests.llms_page"
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\((.*?)\)", llms_page()))
