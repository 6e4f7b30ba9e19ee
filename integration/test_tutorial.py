"""docs/tutorial/, as a reader follows it: every command is run, and prints what the page shows; the code is the programs'."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.broker import Cluster
from integration.other_spark import ROOT, output_of
from integration.postgresql import PostgresqlServer
from integration.services import variables

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
PLACE = "/tmp/barrier/tutorial"
SECONDS = 300


def blocks(page: Path, kind: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def shown_by(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, and what it shows that they print."""
    found = re.findall(r"^```bash\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(commands, shown) for commands, shown in found]


def fits(shown: str, printed: str) -> bool:
    """Whether a text was printed; ``...`` stands for anything."""
    pattern = ".*".join(map(re.escape, shown.strip().split("...")))
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, lines, re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_part_is_of_its_program(page: Path) -> None:
    programs = [program.read_text() for program in (ROOT / "examples" / "tutorial").glob("*.py")]
    for block in blocks(page, "python"):
        assert any(block in program for program in programs), block


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_tutorial_from_top_to_bottom(tmp_path: Path) -> None:
    with Cluster() as cluster, PostgresqlServer() as server:
        environment = {
            **os.environ,
            **variables(cluster, server),
            "PLACE": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        for page in PAGES:
            for commands, shown in shown_by(page):
                printed, problem = run(commands.replace(PLACE, str(tmp_path)), environment)
                printed = printed.replace(str(tmp_path), PLACE)
                case = f"{page.name}:\n{commands}\nshown:\n{shown}\nprinted:\n{printed}\n{problem}"
                assert not problem, case
                assert fits(shown, printed), case


def run(commands: str, environment: dict[str, str]) -> tuple[str, str]:
    """Run commands to their end; return what they print, and the end of what they report if one of them fails."""
    shell = subprocess.Popen(
        ["bash", "-ec", commands],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    printed, reported = output_of(shell, SECONDS)
    return printed, "" if shell.returncode == 0 else f"exit {shell.returncode}: {reported[-3000:]}"
