"""Cuts: one mark of each channel, such that channels that share an origin agree on its barrier. Pure.

A channel's marks contain ever newer barriers. So of two cuts the later marks are a cut, too, and so are the earlier ones:
there is a newest cut, and a least one behind each mark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = [
    "Lineage",
    "Marked",
    "are_related",
    "by_roundness",
    "cut_behind",
    "first_with",
    "newest_cut",
    "next_cut",
    "pace",
]

Lineage = Mapping[str, int]
"""The newest barrier of each origin that is contained."""


class Marked(Protocol):
    """A mark that is not passed yet."""

    @property
    def lineage(self) -> Lineage:
        """What it contains."""

    @property
    def timestamp(self) -> int:
        """When its checkpoint was decided."""


def next_cut(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], least: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the least cut behind the current one; of several that have nothing to do with each other the oldest."""
    starts = [least] if any(least.values()) else [{**least, channel: 1} for channel in sorted(at)]
    found = [cut for start in starts if (cut := cut_behind(at, ahead, start)) is not None]

    def age(cut: Mapping[str, int]) -> tuple[int, int]:
        return max(ahead[channel][passed - 1].timestamp for channel, passed in cut.items() if passed), sum(cut.values())

    return min(found, key=age, default=None)


def newest_cut(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], most: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Return the newest cut behind the current one, as `next_cut` does; among this many marks of each channel, if given."""
    cut = dict(most) if most is not None else {channel: len(marks) for channel, marks in ahead.items()}
    while True:
        if any(not passed and at[channel] is None for channel, passed in cut.items()):
            return None
        lineages = {channel: _lineage(at, ahead, channel, passed) for channel, passed in cut.items()}
        lowest: dict[str, int] = {}
        for lineage in lineages.values():
            for origin, barrier in lineage.items():
                lowest[origin] = min(barrier, lowest.get(origin, barrier))
        beyond = [c for c, lineage in lineages.items() if any(b > lowest[origin] for origin, b in lineage.items())]
        if not beyond:
            return cut if any(cut.values()) else None
        for channel in beyond:
            if not cut[channel]:
                return None
            cut[channel] -= 1


def cut_behind(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], start: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the least cut that passes at least this many marks of each channel; None if there is none yet."""
    cut = dict(start)
    while True:
        if any(passed > len(ahead[channel]) for channel, passed in cut.items()):
            return None
        lineages = {channel: _lineage(at, ahead, channel, passed) for channel, passed in cut.items()}
        highest: dict[str, int] = {}
        for lineage in lineages.values():
            for origin, barrier in lineage.items():
                highest[origin] = max(barrier, highest.get(origin, barrier))
        behind = [channel for channel, lineage in lineages.items() if _is_behind(lineage, highest)]
        if not behind:
            return cut
        for channel in behind:
            cut[channel] = 1 + first_with(ahead[channel], highest, cut[channel])


def first_with(marks: Sequence[Marked], barriers: Lineage, start: int = 0) -> int:
    """Return the index of a channel's first mark, from `start` on, that contains all of these barriers that it knows of."""
    return bisect_left(marks, 1, lo=start, key=lambda mark: int(not _is_behind(mark.lineage, barriers)))


def are_related(lineages: Sequence[Lineage]) -> bool:
    """Return whether two channels' lineages have an origin in common, so that the channels have to agree."""
    return len({origin for lineage in lineages for origin in lineage}) < sum(map(len, lineages))


def pace(lineages: Mapping[str, Lineage], queries: Mapping[str, str]) -> str | None:
    """Return the origin by whose barriers channels are passed that have to agree, if it is clear which one that is."""
    counted = Counter(origin for lineage in lineages.values() for origin in lineage)
    topics = [origin for origin in counted if "/" in origin]
    shared = [origin for origin, channels in counted.items() if channels > 1]
    others = [origin for origin in counted if origin not in queries.values()]
    found = topics or shared or others or [*counted]
    return found[0] if len(found) == 1 else None


def by_roundness(numbers: Iterable[int]) -> list[int]:
    """Return barriers' numbers, those with the most factors of two first.

    A query that is far behind need not stop at each barrier. But queries that follow the same origin, and that a third one
    joins, have to stop at the same barriers now and then, each at its own pace: so all of them prefer the same ones.
    """
    return sorted(numbers, key=lambda number: (number & -number, number), reverse=True)


def _is_behind(lineage: Lineage, highest: Lineage) -> bool:
    return any(barrier < highest.get(origin, barrier) for origin, barrier in lineage.items())


def _lineage(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], channel: str, passed: int
) -> Lineage:
    return ahead[channel][passed - 1].lineage if passed else at[channel] or {}
