"""Quantiles by nearest rank: a value that was measured, never one between two."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["quantile"]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values do not exceed.

    Parameters
    ----------
    ordered : Sequence[float]
        Ascending, not empty.
    share : float
        Over 0, up to 1: ``0.99`` for the 99th percentile.
    """
    if not ordered:
        raise ValueError("There are no values to take a quantile of.")
    if not 0 < share <= 1:
        raise ValueError(f"A share is over 0 and at most 1, not {share}.")
    # 0.999 * 1000 is a little more than 999 in binary: rank 1000 would be one too many.
    return ordered[math.ceil(round(share * len(ordered), 9)) - 1]
