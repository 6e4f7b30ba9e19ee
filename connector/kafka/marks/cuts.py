"""Finds cuts: sets of one mark from each channel, whose marks agree on barriers. All functions are pure.

A channel is the marks of one barrier topic. An origin is a query or topic at which barriers begin. In a cut, marks with a
common origin contain the same barrier of that origin. In a channel, later marks never contain older barriers. So if you have
two cuts and take the later of the two marks of each channel, you get a cut again. The same holds for the earlier marks. So
there is a newest cut, and a first cut after each mark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

Lineage = Mapping[str, int]
"""Origin (a query or topic at which barriers begin) → the number of its newest barrier that a checkpoint contains."""


class Marked(Protocol):
    """A mark that the query has not passed yet."""

    @property
    def lineage(self) -> Lineage:
        """Origin (a query or topic at which barriers begin) → the number of its newest barrier in the mark's checkpoint."""

    @property
    def timestamp(self) -> int:
        """The time at which the mark's checkpoint was decided, in milliseconds since the epoch."""


def next_cut(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], least: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the first cut (one mark per barrier topic) after the current cut; None if there is none yet.

    The result maps each barrier topic to the number of marks in `ahead` that the cut passes, at least the number in
    `least`. If unrelated topics have different first cuts, the oldest of these cuts is returned.
    """
    starts = [least] if any(least.values()) else [{**least, channel: 1} for channel in sorted(at)]
    found = [cut for start in starts if (cut := cut_behind(at, ahead, start)) is not None]

    def age(cut: Mapping[str, int]) -> tuple[int, int]:
        return max(ahead[channel][passed - 1].timestamp for channel, passed in cut.items() if passed), sum(cut.values())

    return min(found, key=age, default=None)


def _lowest(lineages: Iterable[Lineage]) -> dict[str, int]:
    """Return the lowest barrier number of each origin (a query or topic at which barriers begin)."""
    lowest: dict[str, int] = {}
    for lineage in lineages:
        for origin, barrier in lineage.items():
            lowest[origin] = min(barrier, lowest.get(origin, barrier))
    return lowest


def newest_cut(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], most: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Return the newest cut (one mark per barrier topic) after the current cut; None if there is none yet.

    The result maps each barrier topic to the number of marks in `ahead` that the cut passes. If `most` is given, this
    number is at most the number in `most`.
    """
    cut = dict(most) if most is not None else {channel: len(marks) for channel, marks in ahead.items()}
    while True:
        if any(not passed and at[channel] is None for channel, passed in cut.items()):
            return None
        lineages = {channel: _lineage(at, ahead, channel, passed) for channel, passed in cut.items()}
        lowest = _lowest(lineages.values())
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
    """Return the first cut (one mark per barrier topic) that passes at least `start[topic]` marks of each topic.

    Return None if there is no such cut yet.
    """
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
    """Return the index of the first mark, from `start` on, whose barriers are all at least as new as those in `barriers`.

    If there is none, return the number of marks.
    """
    return bisect_left(marks, 1, lo=start, key=lambda mark: int(not _is_behind(mark.lineage, barriers)))


def are_related(lineages: Sequence[Lineage]) -> bool:
    """Return whether any two of these mappings (origin → barrier) have a common origin.

    If so, their barrier topics have to agree on barriers.
    """
    return len({origin for lineage in lineages for origin in lineage}) < sum(map(len, lineages))


def pace(lineages: Mapping[str, Lineage], queries: Mapping[str, str]) -> str | None:
    """Return the origin whose barrier numbers decide where a lagging query stops; None if no single origin does.

    An origin is a query or topic at which barriers begin. `lineages` maps each barrier topic to its origins and their
    barriers. `queries` maps each barrier topic to the query that wrote the marks.
    """
    counted = Counter(origin for lineage in lineages.values() for origin in lineage)
    topics = [origin for origin in counted if "/" in origin]
    shared = [origin for origin, channels in counted.items() if channels > 1]
    others = [origin for origin in counted if origin not in queries.values()]
    found = topics or shared or others or [*counted]
    return found[0] if len(found) == 1 else None


def by_roundness(numbers: Iterable[int]) -> list[int]:
    """Return barrier numbers, sorted by the highest power of two that divides them, then by size, both descending.

    A lagging query may skip barriers. But if a third query joins the outputs of two queries that follow the same origin,
    these two must sometimes stop at the same barriers. So all queries prefer the same numbers.
    """
    return sorted(numbers, key=lambda number: (number & -number, number), reverse=True)


def _is_behind(lineage: Lineage, highest: Lineage) -> bool:
    return any(barrier < highest.get(origin, barrier) for origin, barrier in lineage.items())


def _lineage(
    at: Mapping[str, Lineage | None], ahead: Mapping[str, Sequence[Marked]], channel: str, passed: int
) -> Lineage:
    return ahead[channel][passed - 1].lineage if passed else at[channel] or {}
