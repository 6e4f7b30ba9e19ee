"""The option tables of the docs: ``python -m tests.option_page`` writes the code's tables into the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from connector.kafka.source.read_options import BATCH_ONLY, DEFAULTS_SHOWN, GROUP_ID, READ_OPTIONS, STREAM_ONLY
from connector.options import REQUIRED, Option

__all__ = ["SOURCE_PAGE", "between", "option_table", "source_options", "with_table"]

SOURCE_PAGE = Path(__file__).parent.parent / "docs" / "source.md"

BEGIN, END = "<!-- options: written by python -m tests.option_page -->", "<!-- end of options -->"


def option_table(
    options: Sequence[Option], columns: Mapping[str, Mapping[str, str]], defaults: Mapping[str, str]
) -> str:
    """Make a Markdown table.

    Parameters
    ----------
    options : Sequence[Option]
    columns : Mapping[str, Mapping[str, str]]
        Further columns: heading to option to text. The cell of an option that is not named is empty.
    defaults : Mapping[str, str]
        Defaults that the page shows in other words than the code.
    """
    lines = [f"| option | default | {''.join(f'{heading} | ' for heading in columns)}|"]
    lines.append("|---|---|" + "---|" * (len(columns) + 1))
    for option in options:
        told = [f"`{option.key}`", defaults.get(option.key, _shown(option.default))]
        told += [texts.get(option.key, "") for texts in columns.values()]
        cells = [*told, option.doc.replace("|", "\\|").replace("<", "\\<")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(default: Any) -> str:
    if default is None:
        return ""
    if default is REQUIRED:
        return "needed"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def source_options() -> str:
    """Return the table of ``barrier-kafka``."""
    of = {**dict.fromkeys(BATCH_ONLY, "batch"), **dict.fromkeys(STREAM_ONLY, "stream")}
    options = [*READ_OPTIONS.options, GROUP_ID]
    columns = {"for": {option.key: of.get(option.key, "both") for option in options}}
    return option_table(options, columns, DEFAULTS_SHOWN)


def with_table(page: str, table: str) -> str:
    """Return the page with this table between its marks."""
    return between(page, BEGIN, table, END)


def between(page: str, begin: str, table: str, end: str) -> str:
    """Return the page with this table between two marks."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    SOURCE_PAGE.write_text(with_table(SOURCE_PAGE.read_text(), source_options()))
