"""Format times, durations, micro-batches and outputs for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from transactional.ledger import CheckpointState
from transactional.stats import CheckpointHistory


def time_text(milliseconds: int | None) -> str:
    """Format a time in milliseconds since 1970 as UTC, to the second; None as a dash."""
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def duration_text(milliseconds: int | None) -> str:
    """Format milliseconds as seconds; None as a dash."""
    return "-" if milliseconds is None else f"{milliseconds / 1000:.3f} s"


def batches_text(batches: Sequence[int]) -> str:
    """Format the numbers of micro-batches as ``3 to 7, 9``."""
    spans: list[list[int]] = []
    for batch in sorted(batches):
        if spans and batch == spans[-1][1] + 1:
            spans[-1][1] = batch
        else:
            spans.append([batch, batch])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans) or "none"


def output_text(output: Mapping[str, Any]) -> str:
    """Format a checkpoint's output as ``orders-0: 17, orders-1: 12``; with several sinks as ``audit (version: 3), ...``."""
    return ", ".join(_place_text(name, place) for name, place in output.items()) or "-"


def _place_text(name: str, place: Any) -> str:
    return f"{name} ({output_text(place)})" if isinstance(place, Mapping) else f"{name}: {place}"


def status_text(found: CheckpointHistory, brief: bool = False) -> str:
    """Return a checkpoint's status as text, with the checkpoint that subsumed it, if there is one.

    Unless `brief`, also say whether the checkpoint is not settled yet, and which micro-batches it subsumes.
    """
    status: str = found.status.value
    if found.subsumed_by is not None:
        return f"{status}, subsumed by {found.subsumed_by}"
    if not brief and found.status is CheckpointState.DECIDED:
        return f"{status}, not settled"
    takes_in = f", subsumes micro-batches {batches_text(found.subsumes)}" if found.subsumes and not brief else ""
    return f"{status}{takes_in}"
