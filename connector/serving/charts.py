"""Charts of a query's checkpoints, as SVG without styles or scripts. The page's style sheet colors the bars by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape, quoteattr

from connector.views.words import duration_text, time_text
from transactional.stats import CheckpointHistory

SHOWN = 60
"""The maximum number of checkpoints in a chart. If there are more, the chart shows the newest."""

WIDTH, HEIGHT, AXIS = 720, 160, 64
STEPS = ("preparing", "deciding", "committing")
"""The parts of a bar, from bottom to top. ``preparing`` includes the wait until all tasks reach the barrier."""


def durations(found: Sequence[CheckpointHistory], link: Callable[[int], str]) -> str:
    """Return an SVG chart with the duration of each checkpoint's steps. `link` returns the address of a checkpoint's page."""
    rows = [
        (each, [each.preparing_ms or 0, each.deciding_ms or 0, each.committing_ms or 0])
        for each in found
        if each.committing_ms is not None
    ]
    said = [
        f"checkpoint {each.id}, {time_text(each.time)}: "
        + ", ".join(f"{step} {duration_text(value)}" for step, value in zip(STEPS, values, strict=True))
        for each, values in rows
    ]
    return _bars("Duration of checkpoints", rows, said, link, duration_text, STEPS)


def volumes(found: Sequence[CheckpointHistory], link: Callable[[int], str]) -> str:
    """Return an SVG chart with the number of rows of each checkpoint. `link` returns the address of a checkpoint's page."""
    rows = [(each, [each.rows]) for each in found if each.committing_ms is not None]
    said = [
        f"checkpoint {each.id}, {time_text(each.time)}: {each.rows:,} rows, {each.bytes:,} bytes" for each, _ in rows
    ]
    return _bars("Rows of checkpoints", rows, said, link, lambda value: f"{value or 0:,}", ("rows",))


def _bars(
    title: str,
    rows: Sequence[tuple[CheckpointHistory, Sequence[int]]],
    said: Sequence[str],
    link: Callable[[int], str],
    label: Callable[[int | None], str],
    classes: Sequence[str],
) -> str:
    rows, said = rows[-SHOWN:], said[-SHOWN:]
    most = max((sum(values) for _, values in rows), default=0)
    if not most:
        return ""
    width = (WIDTH - AXIS) / SHOWN
    lines = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label={quoteattr(f"{title}, at most {label(most)}")}>',
        f'<text x="{AXIS - 6}" y="12" text-anchor="end">{escape(label(most))}</text>',
        f'<text x="{AXIS - 6}" y="{HEIGHT}" text-anchor="end">0</text>',
        f'<path class="axis" d="M{AXIS} 0V{HEIGHT}H{WIDTH}"/>',
    ]
    for at, ((each, values), text) in enumerate(zip(rows, said, strict=True)):
        bottom = float(HEIGHT)
        lines.append(f"<a href={quoteattr(link(each.id))}><title>{escape(text)}</title>")
        for name, value in zip(classes, values, strict=True):
            high = value * HEIGHT / most
            bottom -= high
            lines.append(
                f'<rect class="{name}" x="{AXIS + at * width + 1:.1f}" y="{bottom:.1f}" '
                f'width="{width - 2:.1f}" height="{max(high, 0.5):.1f}"/>'
            )
        lines.append("</a>")
    first, last = time_text(rows[0][0].time), time_text(rows[-1][0].time)
    lines.append(f'<text x="{AXIS}" y="{HEIGHT + 16}">{first}</text>')
    if len(rows) > SHOWN // 2:
        lines.append(f'<text x="{WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{last}</text>')
    return "\n".join([*lines, "</svg>"])
