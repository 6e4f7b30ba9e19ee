"""What Spark says of a query's micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["rows_per_second"]


def rows_per_second(progress: Sequence[Mapping[str, Any]]) -> float:
    """Rows of these micro-batches over the time that their triggers took."""
    rows = sum(int(each["numInputRows"]) for each in progress)
    return rows / (sum(float(each["durationMs"]["triggerExecution"]) for each in progress) / 1000)
