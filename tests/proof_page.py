"""Two pages: the attempts to break exactly-once, and the tests of each claim; ``python -m tests.proof_page`` writes both.

``docs/proof.md`` is ``tests/proof_page.md`` with tables of the results in ``docs/proof/``; ``docs/claims.md`` is made of
``tests/claims.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.proof_tables import TABLES

__all__ = ["PAGES", "claims"]

CLAIMS = Path(__file__).parent / "claims.json"
TEMPLATE = Path(__file__).with_name("proof_page.md")
DOCS = Path(__file__).parent.parent / "docs"

CLAIMS_HEAD = """\
# Which test proves what

<!-- Written by python -m tests.proof_page, from tests/claims.json. -->

The claims of each page, with the tests that would fail if a claim were wrong. The table names a single test by its name
(`grep -rn NAME tests integration`), and a whole file by its path. `make test` runs all tests except those that are marked
`matrix` and not `quick`. `make matrix` runs all tests that are marked `matrix`. Further attempts to break exactly-once:
[proof.md](proof.md).
"""


def claims() -> dict[str, dict[str, list[str]]]:
    """Return the claims of each page, each with the names of its tests or the paths of their files."""
    pages: dict[str, dict[str, list[str]]] = json.loads(CLAIMS.read_text(encoding="utf-8"))
    return pages


def claims_page() -> str:
    """Return the page of claims."""
    return "\n".join([CLAIMS_HEAD, *(_section(page, rows) for page, rows in claims().items())])


def proof_page() -> str:
    """Return the page of attempts."""
    return TEMPLATE.read_text(encoding="utf-8").format_map({name: "\n".join(lines()) for name, lines in TABLES.items()})


def _section(page: str, rows: dict[str, list[str]]) -> str:
    name = Path(page).name
    lines = [f"| {claim} | {', '.join(f'`{test}`' for test in tests)} |" for claim, tests in rows.items()]
    return "\n".join([f"## [{name}]({name})\n", "| claim | tests |", "|---|---|", *lines, ""])


PAGES: Mapping[Path, Callable[[], str]] = {DOCS / "proof.md": proof_page, DOCS / "claims.md": claims_page}

if __name__ == "__main__":
    for path, text in PAGES.items():
        path.write_text(text(), encoding="utf-8")
