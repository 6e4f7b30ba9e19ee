"""Chooses where a query stops next: how many marks of each barrier topic it passes. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connector.kafka.marks.channel import disagree
from connector.kafka.marks.cuts import are_related, by_roundness, cut_behind, first_with, next_cut, pace
from connector.kafka.source.alignment.outlook import Outlook

FEW: Final = 8
"""If more marks than this are waiting, the query may pass several marks per topic in one step.

Otherwise, the query stops at every place where it can stop.
"""

TRIED: Final = 32
"""The maximum number of barriers to try as a stop. If the query can stop at none of them, a smaller step is tried."""


def resume(outlook: Outlook) -> dict[str, int]:
    """Return the cut up to which the query is already reading: for each barrier topic, the number of marks to pass."""
    new = sorted(outlook.channels.keys() - outlook.cut.toward.keys())
    if new:
        raise disagree(
            new[0],
            "this query is still reading up to a barrier that was chosen before this topic was added to alignOn. Start the "
            "query with the previous alignOn, wait until it has reached that barrier, and then add the topic",
        )
    cut = {}
    for name, checkpoint in outlook.cut.toward.items():
        if name not in outlook.channels:
            raise disagree(
                name, "this query is still reading up to a mark in this topic. Add the topic to alignOn again"
            )
        at = outlook.channels[name].at
        numbers = [mark.checkpoint.checkpoint for mark in outlook.channels[name].ahead]
        if at is not None and at.checkpoint == checkpoint:
            cut[name] = 0
        elif checkpoint in numbers:
            cut[name] = numbers.index(checkpoint) + 1
        else:
            raise disagree(
                name,
                f"this query is still reading up to the mark of checkpoint {checkpoint}, which the topic no longer contains",
            )
    return cut


def choose(outlook: Outlook) -> dict[str, int] | None:
    """Return where the query stops next: the number of marks to pass per barrier topic; None if it can't stop yet.

    If many marks are waiting, choose later marks, at which other lagging queries also stop.
    """
    least = outlook.least()
    cut = next_cut(outlook.at, outlook.ahead, least)
    if cut is None:
        return None
    one_by_one = len(cut) == 1 or are_related(outlook.lineages(cut))
    window = max(map(len, outlook.ahead.values()))
    while window > FEW:
        several = _together_rounded(outlook, cut, window) if one_by_one else _each_rounded(outlook, least, window)
        if several is not None and _fits(outlook, several):
            return several
        window //= 2
    first = {name: max(least[name], min(1, len(marks))) for name, marks in outlook.ahead.items()}
    return cut if one_by_one or are_related(outlook.lineages(first)) or not _fits(outlook, first) else first


def _together_rounded(outlook: Outlook, cut: Mapping[str, int], window: int) -> dict[str, int] | None:
    """Return a cut among the next `window` marks of each barrier topic; None if there is none.

    A cut has one mark per barrier topic. All topics that have barriers of the chosen origin get the same barrier of this
    origin. Prefer barrier numbers in the order of `by_roundness`.
    """
    lineages = dict(zip(cut, outlook.lineages(cut), strict=True))
    queries = {name: channel.newest.query for name, channel in outlook.channels.items() if channel.newest is not None}
    origin = pace(lineages, queries)
    if origin is None:
        return None
    marks = [mark for each in outlook.ahead.values() for mark in each[:window]]
    now = max(lineage.get(origin, 0) for lineage in lineages.values())
    numbers = {number for mark in marks if (number := mark.lineage.get(origin, 0)) > now}
    for number in by_roundness(numbers)[:TRIED]:
        start = {
            name: max(passed, 1 + first_with(outlook.ahead[name], {origin: number}))
            if origin in lineages[name]
            else passed
            for name, passed in cut.items()
        }
        found = cut_behind(outlook.at, outlook.ahead, start)
        if found is not None and all(lineage.get(origin, number) == number for lineage in outlook.lineages(found)):
            return found
    return None


def _each_rounded(outlook: Outlook, least: Mapping[str, int], window: int) -> dict[str, int] | None:
    """Return a cut (one mark per barrier topic) whose marks are chosen separately, in the order of `by_roundness`.

    Return None if the marks of two topics have a common origin, because these topics have to stop at the same barrier.
    """
    found = {}
    for name, all_marks in outlook.ahead.items():
        marks = all_marks[:window]
        found[name] = max(least[name], min(1, len(marks)))
        origin = pace({name: marks[-1].lineage}, {name: marks[-1].checkpoint.query}) if marks else None
        if origin is not None and len(marks) > FEW:
            best = by_roundness({mark.lineage[origin] for mark in marks[found[name] :] if origin in mark.lineage})[:1]
            found[name] = max([found[name], *(1 + first_with(marks, {origin: number}) for number in best)])
    return None if are_related(outlook.lineages(found)) else found


def _fits(outlook: Outlook, cut: Mapping[str, int]) -> bool:
    """Return whether one micro-batch can read up to these marks without exceeding the limit on offsets."""
    if outlook.limit is None:
        return True
    return (
        sum(end - outlook.begin.get(partition, 0) for partition, end in outlook.targets(cut).items()) <= outlook.limit
    )
