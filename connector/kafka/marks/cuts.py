"""Cuts: one mark of each channel, such that channels that share an origin agree on its barrier. Pure.

A channel's marks contain ever newer barriers. So of two cuts the later marks are a cut, too, and so are the earlier ones:
there is a newest cut, and a least one behind each mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["Lineage", "Marked", "are_related", "newest_cut", "next_cut", "roundest"]

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
    """Return the least cut behind the current one; of several that have nothing to do with each other the oldest.

    Parameters
    ----------
    at : Mapping[str, Lineage or None]
        What the current mark of each channel contains; None before a channel's first.
    ahead : Mapping[str, Sequence[Marked]]
        The marks behind it, in order.
    least : Mapping[str, int]
        How many marks each channel has to pass at least: those that its position is behind, and a channel's first.

    Returns
    -------
    dict[str, int] or None
        How many marks each channel passes to get there; None if there is no such cut yet.
    """
    starts = [least] if any(least.values()) else [{**least, channel: 1} for channel in sorted(at)]
    found = [cut for start in starts if (cut := _raised(at, ahead, start)) is not None]

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


def are_related(lineages: Sequence[Lineage]) -> bool:
    """Return whether two channels' lineages have an origin in common, so that the channels have to agree."""
    return len({origin for lineage in lineages for origin in lineage}) < sum(map(len, lineages))


def roundest(marks: Sequence[Marked]) -> int:
    """Return how many marks of a channel to pass at once: up to the one whose barrier's number is the roundest.

    A query that is far behind need not stop at each mark. But queries that follow the same origin, and that a third one joins,
    have to stop at the same barriers now and then, each at its own pace: all of them prefer those whose number has the most
    factors of two.

    Parameters
    ----------
    marks : Sequence[Marked]
        Not empty.
    """
    origin = min(marks[0].lineage, key=lambda name: ("/" not in name, name))  # a topic's own barriers, if it has some

    def zeros(index: int) -> tuple[int, int]:
        number = marks[index].lineage.get(origin, 1)
        return number & -number, index

    return max(range(len(marks)), key=zeros) + 1


def _raised(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], start: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the least cut at or behind these marks."""
    cut = dict(start)
    while True:
        if any(passed > len(ahead[channel]) for channel, passed in cut.items()):
            return None
        lineages = {channel: _lineage(at, ahead, channel, passed) for channel, passed in cut.items()}
        highest: dict[str, int] = {}
        for lineage in lineages.values():
            for origin, barrier in lineage.items():
                highest[origin] = max(barrier, highest.get(origin, barrier))
        behind = [c for c, lineage in lineages.items() if any(b < highest[origin] for origin, b in lineage.items())]
        if not behind:
            return cut
        for channel in behind:
            cut[channel] += 1


def _lineage(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], channel: str, passed: int
) -> Lineage:
    return ahead[channel][passed - 1].lineage if passed else at[channel] or {}
