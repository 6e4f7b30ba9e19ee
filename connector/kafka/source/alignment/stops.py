"""Which cut a query reads towards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connector.kafka.marks.channel import disagree
from connector.kafka.marks.cuts import are_related, by_roundness, cut_behind, first_with, next_cut, pace
from connector.kafka.source.alignment.outlook import Outlook

__all__ = ["FEW", "choose", "resume"]

FEW: Final = 8
"""As many marks ahead are passed one by one; of more, several at once."""

TRIED: Final = 32
"""Barriers at which a cut is looked for, the roundest first, before the next one is taken."""


def resume(outlook: Outlook) -> dict[str, int]:
    """Return the cut that was read towards."""
    new = sorted(outlook.channels.keys() - outlook.cut.toward.keys())
    if new:
        raise disagree(
            new[0],
            "this query is on its way to a barrier without it: start it once with the former alignOn, until it is there",
        )
    cut = {}
    for name, checkpoint in outlook.cut.toward.items():
        if name not in outlook.channels:
            raise disagree(name, "this query is on its way to one of its marks, but alignOn does not name it any more")
        at = outlook.channels[name].at
        numbers = [mark.checkpoint.checkpoint for mark in outlook.channels[name].ahead]
        if at is not None and at.checkpoint == checkpoint:
            cut[name] = 0
        elif checkpoint in numbers:
            cut[name] = numbers.index(checkpoint) + 1
        else:
            raise disagree(
                name, f"this query is on its way to the mark of checkpoint {checkpoint}, which does not exist"
            )
    return cut


def choose(outlook: Outlook) -> dict[str, int] | None:
    """Return the cut to read towards: the next one; of many, one of those at which others who are behind stop, too."""
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
    """Return a cut at the roundest barrier among the next marks of channels that have to agree."""
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
    """Return a mark of each channel, at the roundest barrier of each, if the channels have nothing to do with each other."""
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
    """Return whether one micro-batch may go there."""
    if outlook.limit is None:
        return True
    return (
        sum(end - outlook.begin.get(partition, 0) for partition, end in outlook.targets(cut).items()) <= outlook.limit
    )
