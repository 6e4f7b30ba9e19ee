"""``python -m integration.benchmarks.chart FILE > docs/benchmarks.svg``: bars of a result; ``--table``: Markdown instead.

A bar is the median of a contestant's rounds, the line across its end their range. Bars of one thing share a scale.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["chart", "table"]

WIDTH, LABEL, NUMBER = 760, 270, 110
BAR, GAP, HEAD = 20, 6, 34
OURS, OTHERS = "#2563a8", "#9aa5b1"
TEXT = 'font-family="sans-serif" font-size="13" fill="#1c1c1c"'
"""Dark on white, also if a page is dark: the chart has a background of its own."""


def main() -> int:
    """Print the chart or the table of a file."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.chart", description=__doc__)
    parser.add_argument("file", type=Path, help="that a benchmark wrote")
    parser.add_argument("--figure", help="instead of the benchmark's headline, such as query_us_per_row")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    result = json.loads(given.file.read_text(encoding="utf-8"))
    print(table(result) if given.table else chart(result, given.figure), end="")
    return 0


def chart(result: Mapping[str, Any], figure: str | None = None) -> str:
    """Return a bar chart of one figure as SVG.

    Parameters
    ----------
    result : Mapping[str, Any]
        What a benchmark wrote.
    figure : str, optional
        Its headline by default.

    Raises
    ------
    ValueError
        If nothing has that figure.
    """
    headline = result["headline"]
    name = figure or headline["figure"]
    unit = headline["unit"] if name == headline["figure"] else name.replace("_", " ")
    groups = {
        what: found
        for what, entries in _by_what(result).items()
        if (found := [entry for entry in entries if name in entry["figures"]])
    }
    if not groups:
        raise ValueError(f"Nothing in this file has the figure {name}.")
    lines, y = [], 10
    for what, entries in groups.items():
        lines.append(f'<text x="10" y="{y + 18}" {TEXT} font-weight="bold">{escape(what)}, {escape(unit)}</text>')
        y += HEAD
        ranges = [_range(result, entry, name) for entry in entries]
        scale = (WIDTH - LABEL - NUMBER) / (max(most for _, most in ranges) or 1)
        for entry, (least, most) in zip(entries, ranges, strict=True):
            lines += _bar(entry["who"], entry["figures"][name], least, most, scale, y)
            y += BAR + GAP
        y += GAP
    caption = f"{result['began'][:10]}, commit {result['commit'][:12]}{', changed' if result['dirty'] else ''}"
    lines.append(f'<text x="10" y="{y + 14}" {TEXT} opacity="0.7">{escape(caption)}, {_machine(result)}</text>')
    size = f'width="{WIDTH}" height="{y + 26}" viewBox="0 0 {WIDTH} {y + 26}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            '<rect width="100%" height="100%" fill="#fff"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _bar(who: str, value: float, least: float, most: float, scale: float, y: int) -> Iterator[str]:
    colour = OURS if "ours" in who.split(", ") else OTHERS
    middle = y + BAR / 2
    yield f'<text x="{LABEL - 8}" y="{y + 15}" {TEXT} text-anchor="end">{escape(who)}</text>'
    yield f'<rect x="{LABEL}" y="{y}" width="{value * scale:.1f}" height="{BAR}" fill="{colour}"/>'
    if most > least:
        begin, end = LABEL + least * scale, LABEL + most * scale
        yield f'<path d="M{begin:.1f} {middle}H{end:.1f}" stroke="#1c1c1c" stroke-width="1.5"/>'
    yield f'<text x="{LABEL + most * scale + 6:.1f}" y="{y + 15}" {TEXT}>{value:,.{0 if value >= 100 else 1}f}</text>'


def table(result: Mapping[str, Any]) -> str:
    """Return the medians as Markdown, a table for each thing that was measured."""
    lines = []
    for what, entries in _by_what(result).items():
        names = list(entries[0]["figures"])
        lines += [f"| {what} | {' | '.join(name.replace('_', ' ') for name in names)} | noisy rounds |"]
        lines += ["|---" * (len(names) + 2) + "|"]
        for entry in entries:
            cells = [f"{value:,.{0 if value >= 100 else 2}f}" for value in map(entry["figures"].__getitem__, names)]
            lines.append(f"| {entry['who']} | {' | '.join(cells)} | {entry['noisy']} of {entry['rounds']} |")
        lines.append("")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    changed = " (changed)" if result["dirty"] else ""
    return "\n".join(
        [*lines, f"{result['began'][:10]}, commit {result['commit'][:12]}{changed}, {_machine(result)}. {versions}.\n"]
    )


def _machine(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    objects = [end for end, way in result["data_plane"].items() if way != "columns"]
    slow = f", {' and '.join(objects)} without the data plane" if objects else ""
    return f"{machine['cores']} cores, {machine['memory_gib']:.0f} GiB, broker included{slow}"


def _by_what(result: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in result["medians"]:
        groups.setdefault(entry["what"], []).append(entry)
    return groups


def _range(result: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> tuple[float, float]:
    rounds: Sequence[Mapping[str, Any]] = result["rounds"]
    values = [each["figures"][name] for each in rounds if (each["what"], each["who"]) == (entry["what"], entry["who"])]
    return min(values), max(values)


if __name__ == "__main__":
    sys.exit(main())
