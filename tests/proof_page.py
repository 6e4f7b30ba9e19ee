"""The attempts to break exactly-once, and the tests of each claim: ``python -m tests.proof_page`` writes ``docs/proof.md``.

The page is ``tests/proof_page.md`` with tables of the results in ``docs/proof/`` and of the claims in ``tests/claims.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.proof_tables import TABLES
from tests.results import ROOT

__all__ = ["PAGE", "claims", "proof_page"]

CLAIMS = Path(__file__).parent / "claims.json"
TEMPLATE = Path(__file__).with_name("proof_page.md")
PAGE = ROOT / "docs" / "proof.md"


def claims() -> dict[str, dict[str, list[str]]]:
    """Return the claims of each page, each with the names of its tests or the paths of their files."""
    pages: dict[str, dict[str, list[str]]] = json.loads(CLAIMS.read_text(encoding="utf-8"))
    return pages


def proof_page() -> str:
    """Return the page."""
    tables = {name: "\n".join(lines()) for name, lines in TABLES.items()}
    sections = "\n".join(_section(page, rows) for page, rows in claims().items())
    return TEMPLATE.read_text(encoding="utf-8").format_map(tables | {"claims": sections})


def _section(page: str, rows: dict[str, list[str]]) -> str:
    title = (ROOT / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    lines = [f"| {claim} | {', '.join(f'`{test}`' for test in tests)} |" for claim, tests in rows.items()]
    return "\n".join([f"### [{title}]({Path(page).name})\n", "| claim | tests |", "|---|---|", *lines, ""])


if __name__ == "__main__":
    PAGE.write_text(proof_page(), encoding="utf-8")
