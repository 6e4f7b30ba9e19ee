"""The site of ``docs/``: ``python -m tests.site [FOLDER]``. It has a folder for each minor version, with a menu to switch.

A published site keeps the folders of its earlier versions: give its folder, and this version is added or replaced. Beside each
HTML page lies its Markdown, which ``llms.txt`` links to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.results import ROOT

__all__ = ["SITE", "build", "versions"]

SITE = ROOT / "build" / "site"

REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<title>barrier-kafka</title>
<meta http-equiv="refresh" content="0; url={folder}/index.html">
<a href="{folder}/index.html">barrier-kafka {folder}</a>
"""


def build(site: Path) -> Path:
    """Add this version to a site, or replace it. Return its folder.

    Raises
    ------
    SystemExit
        A page is in no menu, or a link or an anchor leads nowhere.
    """
    folder = site / _minor(version("barrier-kafka"))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        shutil.copy(page, folder / page.relative_to(docs))
    found = versions(site)
    menu = [{"version": each, "title": each, "aliases": ["latest"] if each == found[0] else []} for each in found]
    (site / "versions.json").write_text(json.dumps(menu, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(REDIRECT.format(folder=found[0]), encoding="utf-8")
    return folder


def versions(site: Path) -> Sequence[str]:
    """Return the versions that a site has, the newest one first."""
    found = [each.name for each in site.iterdir() if re.fullmatch(r"\d+\.\d+", each.name)]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def _minor(full: str) -> str:
    return ".".join(full.split(".")[:2])


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE) / "index.html")
