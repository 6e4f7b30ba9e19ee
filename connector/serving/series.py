"""Compute the data of a query's charts: time series, and the events of the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from connector.views.queries import FAILURES
from connector.views.words import duration_text, status_text
from transactional.ledger import RestartRecord
from transactional.stats import CheckpointHistory

SHOWN: Final = 1000
"""The maximum number of checkpoints in a chart. If there are more, the charts show the newest."""

EVENTS: Final = ("completed", "open", "failed", "restart")
"""The rows of the timeline, from top to bottom."""

SHORTEST_SECONDS: Final = 0.1
"""The shortest interval for which a rate is shown. After a delay, several checkpoints become visible at almost the same
time, so their rate means nothing."""

LagSample = tuple[float, Mapping[str, int]]
"""A time in seconds since 1970, and each topic's lag at that time, in offsets."""


def series_of(
    found: Sequence[CheckpointHistory], restarts: Sequence[RestartRecord], lags: Sequence[LagSample]
) -> dict[str, Any]:
    """Return everything that the charts show, as JSON types. Times are in seconds since 1970, durations in seconds."""
    found = found[-SHOWN:]
    whole = sorted((each for each in found if each.committed is not None), key=lambda each: each.committed or 0)
    # The journal keeps failures and restarts for longer than checkpoints.
    begin = whole[0].time / 1000 if whole else 0.0
    events = [each for each in _events(found, restarts) if each[0] >= begin]
    topics = sorted({topic for _, lag in lags for topic in lag})
    return {
        "events": [dict(zip(("time", "kind", "id", "said"), each, strict=True)) for each in events],
        "kinds": EVENTS,
        "checkpoints": {
            "time": [(each.committed or 0) / 1000 for each in whole],
            "preparing": [_seconds(each.preparing_ms) for each in whole],
            "deciding": [_seconds(each.deciding_ms) for each in whole],
            "committing": [_seconds(each.committing_ms) for each in whole],
            "rate": _rates(whole),
        },
        "lag": {
            "time": [at for at, _ in lags],
            "topics": {topic: [lag.get(topic) for _, lag in lags] for topic in topics},
        },
    }


def _events(
    found: Sequence[CheckpointHistory], restarts: Sequence[RestartRecord]
) -> list[tuple[float, str, int | None, str]]:
    """Return what has happened, in order: time, kind, the checkpoint's id (None for a restart), and a sentence."""
    events: list[tuple[float, str, int | None, str]] = []
    for each in found:
        kind = "failed" if each.status in FAILURES else "open" if each.committed is None else "completed"
        took = f", {duration_text(each.committed - each.barrier)}" if each.committed and each.barrier else ""
        said = f"checkpoint {each.id}: {status_text(each, brief=True)}, {each.rows:,} rows{took}"
        events.append((each.time / 1000, kind, each.id, said))
    events += [
        (each.time / 1000, "restart", None, f"restart {each.number} by {each.by}: {each.reason}") for each in restarts
    ]
    return sorted(events, key=lambda event: event[0])


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _rates(whole: Sequence[CheckpointHistory]) -> list[float | None]:
    """Return the rows per second between each checkpoint and the previous one.

    The value is None for the first checkpoint, and if the previous one is too close in time.
    """
    rates: list[float | None] = [None] if whole else []
    for before, each in pairwise(whole):
        seconds = ((each.committed or 0) - (before.committed or 0)) / 1000
        rates.append(round(each.rows / seconds, 1) if seconds >= SHORTEST_SECONDS else None)
    return rates
