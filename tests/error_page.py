"""The errors' page of the docs, made of the catalogues: ``python -m tests.error_page`` writes it."""

from __future__ import annotations

from pathlib import Path

import connector
from transactional.errors.catalogue import Condition, catalogue

__all__ = ["ERROR_PAGE", "error_page"]

ERROR_PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

ACTIONS = {
    "restart": "starts the query again",
    "rewind": "rewinds, and starts the query again",
    "none": "does not restart the query: apply the remedy first",
    "stopped": "ends, because this is not a failure",
}

HEAD = """\
# Errors

<!-- Written by python -m tests.error_page, from transactional/errors/conditions.json and connector/conditions.json. -->

Every error begins with its *condition*: `[CONDITION] what happened. What to do.` Spark's `StreamingQueryException` contains the
same text. In a program, call `error.getCondition()`, `error.getMessageParameters()` and `error.getSqlState()`.

Find the condition below. Each section ends with the reaction of `supervise`.
"""


def error_page() -> str:
    """Return the page."""
    assert connector.__name__  # whose catalogue it has, too
    return "\n".join([HEAD, *(_section(catalogue[name]) for name in sorted(catalogue))])


def _section(condition: Condition) -> str:
    return (
        f"## {condition.name}\n\n{_plain(condition.message)}\n\n**Remedy.** {_plain(condition.remedy)}\n\n"
        f"`supervise` {ACTIONS[condition.action]}. *SQLSTATE:* {condition.sql_state}\n"
    )


def _plain(text: str) -> str:
    """Return the text for Markdown, which takes an angle bracket for a tag."""
    return text.replace("<", "‹").replace(">", "›")


if __name__ == "__main__":
    ERROR_PAGE.write_text(error_page())
