"""The list of pages for language models: ``python -m tests.llms_page`` writes ``docs/llms.txt``, of ``docs/index.md``."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGE", "llms_page"]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "llms.txt"

HEAD = """\
# barrier-kafka

> Exactly-once streaming for PySpark: a Kafka source with checkpoint barriers (`barrier-kafka`), two-phase-commit sinks
> (`2pc-kafka`, `2pc-delta`, `2pc-postgresql`, `2pc-mysql`, several at once by `2pc-multi`, your own by `TwoPhaseCommitSink`),
> and commands for the one on call.
"""


def llms_page() -> str:
    """Return the list."""
    _, *sections = re.split(r"^## ", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "\n".join([HEAD, *map(_section, sections)])


def _section(text: str) -> str:
    title, _, body = text.partition("\n")
    lines = [
        f"- [{name}]({target}): {question}"
        for question, links in re.findall(r"^\| (.+?) \| (.+?) \|$", body, re.MULTILINE)
        for name, target in re.findall(r"\[(.+?)\]\((.+?)\)", links)
    ]
    return "\n".join([f"## {title}", "", *lines, ""])


if __name__ == "__main__":
    PAGE.write_text(llms_page(), encoding="utf-8")
