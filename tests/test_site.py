"""The documentation as a site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.llms_page import PAGE, llms_page
from tests.results import ROOT


def test_it_is_built_without_a_warning(tmp_path: Path) -> None:
    """Every page is in its navigation, and every link and anchor leads somewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    said = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in (tmp_path / "site").glob("*.html")}


def test_the_list_for_language_models_is_made_of_the_index_which_has_all_pages() -> None:
    assert PAGE.read_text(encoding="utf-8") == llms_page(), "run: python -m tests.llms_page"
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\((.*?)\)", llms_page()))
