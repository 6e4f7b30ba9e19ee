"""Where a micro-batch of a query that follows other queries' barriers may end, and what its end then contains. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from connector.kafka.client.topics import Partition
from connector.kafka.marks.channel import Channel, Followed, disagree, marks_before, marks_within
from connector.kafka.marks.cuts import (
    Lineage,
    are_related,
    by_roundness,
    cut_behind,
    first_with,
    newest_cut,
    next_cut,
    pace,
)
from connector.kafka.source.cut import Cut
from connector.kafka.source.offsets import Positions

__all__ = ["FEW", "Aim", "AlignOptions", "Field", "Mode", "aligned", "late_targets", "tracked", "unaligned"]

Mode = Literal["exactly-once", "at-least-once", "unaligned"]

FEW: Final = 8
"""As many marks ahead are passed one by one; of more, several at once."""

TRIED: Final = 32
"""Barriers at which a cut is looked for, the roundest first, before the next one is taken."""


@dataclass(frozen=True)
class AlignOptions:
    """Whose barriers a query follows.

    Parameters
    ----------
    topics : tuple[str, ...]
        Barrier topics, from ``alignOn``.
    mode : Mode
        From ``alignment``.
    timeout_ms : int
        From ``alignedTimeout``.
    """

    topics: tuple[str, ...]
    mode: Mode = "exactly-once"
    timeout_ms: int = 0


@dataclass(frozen=True)
class Aim:
    """Where a micro-batch may end.

    Parameters
    ----------
    ends : Positions
        It reads no further.
    cut_at : Callable[[Positions], Cut]
        What is complete at an end.
    closes_at_cuts : bool
        Whether a barrier may stand only where a cut is exact.
    is_last : bool
        Whether a run that ends by itself ends there.
    """

    ends: Positions
    cut_at: Callable[[Positions], Cut]
    closes_at_cuts: bool = False
    is_last: bool = True


@dataclass(frozen=True)
class Field:
    """What is there: channels, where the query stands in them, and what it could read.

    Parameters
    ----------
    channels : Mapping[str, Channel]
        By barrier topic.
    cut : Cut
        Where the query stands.
    begin : Positions
        The offsets to read next.
    visible : Positions
        Where reading could end.
    now : int
        Milliseconds since the epoch.
    limit : int or None
        Offsets that a micro-batch may have.
    final : Mapping[str, int] or None
        Of a run that ends by itself: the last mark of each channel that it reads, by checkpoint.
    """

    channels: Mapping[str, Channel]
    cut: Cut
    begin: Positions
    visible: Positions
    now: int
    limit: int | None = None
    final: Mapping[str, int] | None = None
    ahead: Mapping[str, Sequence[Followed]] = field(init=False)

    def __post_init__(self) -> None:
        ahead: dict[str, Sequence[Followed]] = {name: channel.ahead for name, channel in self.channels.items()}
        if self.final is not None:
            last = self.final
            ahead = {
                name: [mark for mark in marks if mark.checkpoint.checkpoint <= last.get(name, 0)]
                for name, marks in ahead.items()
            }
        object.__setattr__(self, "ahead", ahead)

    @property
    def at(self) -> dict[str, Lineage | None]:
        """What each channel's current mark contains."""
        return {name: None if c.at is None else c.at.lineage for name, c in self.channels.items()}

    def of(self, name: str, positions: Positions) -> dict[Partition, int]:
        """Return those of a channel's topics."""
        return {
            partition: offset for partition, offset in positions.items() if partition.topic in self.channels[name].ids
        }

    def behind(self, name: str, ends: Positions) -> dict[Partition, int]:
        """Return a mark's ends, none of them before the position; also of partitions that the mark does not have."""
        begin = self.of(name, {**dict.fromkeys(ends, 0), **dict.fromkeys(self.visible, 0), **self.begin})
        return {partition: max(offset, ends.get(partition, 0)) for partition, offset in begin.items()}

    def targets(self, cut: Mapping[str, int]) -> dict[Partition, int]:
        """Return where the channels' partitions end when this many marks are passed; none before its position."""
        found: dict[Partition, int] = {}
        for name, passed in cut.items():
            found |= self.behind(name, self.ahead[name][passed - 1].ends if passed else {})
        return found

    def least(self) -> dict[str, int]:
        """Return how many marks of each channel a cut passes at least that lies at or behind the position."""
        found = {}
        for name, channel in self.channels.items():
            begin, ends = self.of(name, self.begin), channel.at_ends
            known = self.cut.exact if ends is None else all(offset <= ends.get(p, 0) for p, offset in begin.items())
            stands = channel.at is not None and known
            found[name] = 0 if stands else marks_before(self.ahead[name], begin) + 1
        return found

    def has_cut(self) -> bool:
        """Return whether the marks that are read hold a cut."""
        return next_cut(self.at, self.ahead, self.least()) is not None

    def newest(self) -> dict[str, int] | None:
        """Return the newest cut that lies at or behind the position, and can be read now."""
        most = {name: marks_within(marks, self.of(name, self.visible)) for name, marks in self.ahead.items()}
        cut, least = newest_cut(self.at, self.ahead, most), self.least()
        return cut if cut is not None and all(passed >= least[name] for name, passed in cut.items()) else None

    def passing(self, cut: Mapping[str, int]) -> Cut:
        """Return the cut that is complete when this many marks of each channel are passed."""
        marks = dict(self.cut.marks)
        for name, passed in cut.items():
            if passed:
                marks[name] = self.ahead[name][passed - 1].passed
        return Cut(marks, exact=True, waited=self.waits(cut))

    def waits(self, cut: Mapping[str, int]) -> dict[str, int]:
        """Return how long the marks of each channel waited for the last one of a cut, in milliseconds."""
        seen = {name: self.ahead[name][passed - 1].seen for name, passed in cut.items() if passed}
        last = max(seen.values(), default=0)
        return {name: last - at for name, at in seen.items() if last > at}

    def complete(self, end: Positions) -> Cut:
        """Return the newest cut that lies within an end; exact if the end is there."""
        most = {name: marks_within(marks, self.of(name, end)) for name, marks in self.ahead.items()}
        cut = newest_cut(self.at, self.ahead, most)
        if cut is None:
            stays = end == self.begin
            marks, exact = self.cut.marks, stays and self.cut.exact
            if not stays and len(marks) == len(self.channels):
                exact = all(self._is_at(name, 0, end) for name in self.channels)
            return replace(self.cut, marks=marks, exact=exact, toward={}, waited={})
        exact = all(self._is_at(name, passed, end) for name, passed in cut.items())
        return replace(self.passing(cut), exact=exact, taken=self.cut.taken, late=self.cut.late)

    def _is_at(self, name: str, passed: int, end: Positions) -> bool:
        ends = self.ahead[name][passed - 1].ends if passed else self.channels[name].at_ends
        return ends is not None and all(ends.get(p, 0) == offset for p, offset in self.of(name, end).items())


def tracked(field: Field) -> Aim:
    """``alignment=at-least-once``: nothing is held back; a barrier is complete when all channels have passed it."""
    return Aim(field.visible, lambda end: replace(field.complete(end), taken={}, late={}))


def aligned(field: Field, *, at_once: bool) -> Aim:
    """``alignment=exactly-once``: read towards the next cut, and never past it.

    Parameters
    ----------
    field : Field
    at_once : bool
        Whether there is no further micro-batch: it reads towards the newest cut.
    """
    cut = field.newest() if at_once else _resumed(field) if field.cut.toward else _chosen(field)
    if cut is None:
        return Aim(field.begin, lambda end: replace(field.cut, waited={}), closes_at_cuts=True)
    targets, reached = field.targets(cut), field.passing(cut)

    def cut_at(end: Positions) -> Cut:
        if _is_reached(targets, end):
            return reached
        if end == field.begin:
            return replace(field.cut, waited={})
        return Cut(field.cut.marks, toward={name: mark.checkpoint for name, mark in reached.marks.items()})

    final = field.final is None or all(mark.checkpoint == field.final.get(name) for name, mark in reached.marks.items())
    return Aim(_capped(field, targets), cut_at, closes_at_cuts=True, is_last=final)


def unaligned(field: Field, timeout_ms: int, *, restored: bool) -> Aim:
    """``alignment=unaligned``: the checkpoint of a barrier is taken when its first mark has come, or `timeout_ms` later.

    What lies between the position and the marks of other channels is recorded (`Cut.late`).

    Parameters
    ----------
    field : Field
    timeout_ms : int
        How long the first mark waits for the others (``alignedTimeout``).
    restored : bool
        Whether a new run begins here: it reads what its checkpoint calls late before anything else.
    """
    if restored and (late := late_targets(field)):
        return Aim(_capped(field, {**field.begin, **late}), lambda end: _overtaken(field, end, field.cut.taken))
    cut, fresh = next_cut(field.at, field.ahead, field.least()), _fresh(field)
    first = min(fresh, key=lambda mark: mark.timestamp, default=None)
    overdue = first is not None and not 0 <= field.now - first.seen < timeout_ms
    taken = field.cut.taken if first is None else _together(field.cut.taken, first.lineage)
    if cut is not None and any(_is_beyond(at, field.cut.taken) for at in _lineages(field, cut)):
        targets, reached = field.targets(cut), field.passing(cut)
        whole = taken
        for mark in reached.marks.values():
            whole = _together(whole, mark.lineage)

        def cut_at(end: Positions) -> Cut:
            if _is_reached(targets, end):
                return replace(reached, taken=whole)
            return _overtaken(field, end, taken if overdue else field.cut.taken)

        return Aim(_capped(field, targets), cut_at)
    if timeout_ms and not overdue:
        return Aim(field.begin, lambda end: replace(field.cut, waited={}))
    known = {} if first is None else _marks_of(field, taken)
    return Aim(_capped(field, {**field.visible, **_ends(field, known)}), lambda end: _overtaken(field, end, taken))


def late_targets(field: Field) -> dict[Partition, int]:
    """Return the ends of what a checkpoint calls late, as far as it is known, and not read."""
    marks = {name: mark for name, mark in _marks_of(field, field.cut.taken).items() if name in field.cut.late}
    ends = _ends(field, marks)
    return ends if any(end > field.begin.get(partition, 0) for partition, end in ends.items()) else {}


def _resumed(field: Field) -> dict[str, int]:
    """Return the cut that was read towards."""
    new = sorted(field.channels.keys() - field.cut.toward.keys())
    if new:
        raise disagree(
            new[0], "this query has read towards a barrier without it: start it once as it was, until it stands there"
        )
    cut = {}
    for name, checkpoint in field.cut.toward.items():
        if name not in field.channels:
            raise disagree(name, "this query has read towards one of its marks, and alignOn does not name it any more")
        at = field.channels[name].at
        numbers = [mark.checkpoint.checkpoint for mark in field.channels[name].ahead]
        if at is not None and at.checkpoint == checkpoint:
            cut[name] = 0
        elif checkpoint in numbers:
            cut[name] = numbers.index(checkpoint) + 1
        else:
            raise disagree(name, f"this query has read towards the mark of checkpoint {checkpoint}, which is not there")
    return cut


def _chosen(field: Field) -> dict[str, int] | None:
    """Return the cut to read towards: the next one; of many, one of those at which others who are behind stop, too."""
    least = field.least()
    cut = next_cut(field.at, field.ahead, least)
    if cut is None:
        return None
    one_by_one = len(cut) == 1 or are_related(_lineages(field, cut))
    window = max(map(len, field.ahead.values()))
    while window > FEW:
        several = _together_rounded(field, cut, window) if one_by_one else _each_rounded(field, least, window)
        if several is not None and _fits(field, several):
            return several
        window //= 2
    first = {name: max(least[name], min(1, len(marks))) for name, marks in field.ahead.items()}
    return cut if one_by_one or are_related(_lineages(field, first)) or not _fits(field, first) else first


def _together_rounded(field: Field, cut: Mapping[str, int], window: int) -> dict[str, int] | None:
    """Return a cut at the roundest barrier among the next marks of channels that have to agree."""
    lineages = dict(zip(cut, _lineages(field, cut), strict=True))
    queries = {name: channel.newest.query for name, channel in field.channels.items() if channel.newest is not None}
    origin = pace(lineages, queries)
    if origin is None:
        return None
    marks = [mark for each in field.ahead.values() for mark in each[:window]]
    now = max(lineage.get(origin, 0) for lineage in lineages.values())
    numbers = {number for mark in marks if (number := mark.lineage.get(origin, 0)) > now}
    for number in by_roundness(numbers)[:TRIED]:
        start = {
            name: max(passed, 1 + first_with(field.ahead[name], {origin: number}))
            if origin in lineages[name]
            else passed
            for name, passed in cut.items()
        }
        found = cut_behind(field.at, field.ahead, start)
        if found is not None and all(lineage.get(origin, number) == number for lineage in _lineages(field, found)):
            return found
    return None


def _each_rounded(field: Field, least: Mapping[str, int], window: int) -> dict[str, int] | None:
    """Return a mark of each channel, at the roundest barrier of each, if the channels have nothing to do with each other."""
    found = {}
    for name, all_marks in field.ahead.items():
        marks = all_marks[:window]
        found[name] = max(least[name], min(1, len(marks)))
        origin = pace({name: marks[-1].lineage}, {name: marks[-1].checkpoint.query}) if marks else None
        if origin is not None and len(marks) > FEW:
            best = by_roundness({mark.lineage[origin] for mark in marks[found[name] :] if origin in mark.lineage})[:1]
            found[name] = max([found[name], *(1 + first_with(marks, {origin: number}) for number in best)])
    return None if are_related(_lineages(field, found)) else found


def _fits(field: Field, cut: Mapping[str, int]) -> bool:
    """Return whether one micro-batch may go there."""
    if field.limit is None:
        return True
    return sum(end - field.begin.get(partition, 0) for partition, end in field.targets(cut).items()) <= field.limit


def _lineages(field: Field, cut: Mapping[str, int]) -> list[Lineage]:
    return [field.ahead[name][passed - 1].lineage if passed else field.at[name] or {} for name, passed in cut.items()]


def _fresh(field: Field) -> list[Followed]:
    """Return the first mark of each channel for whose barrier no checkpoint was taken yet."""
    found = []
    for marks in field.ahead.values():
        mark = next((mark for mark in marks if _is_beyond(mark.lineage, field.cut.taken)), None)
        if mark is not None:
            found.append(mark)
    return found


def _together(one: Lineage, other: Lineage) -> Lineage:
    """Return the newer barrier of each origin."""
    return {origin: max(one.get(origin, 0), other.get(origin, 0)) for origin in {**one, **other}}


def _is_beyond(lineage: Lineage, taken: Lineage) -> bool:
    known = lineage.keys() & taken.keys()
    return not known or any(lineage[origin] > taken[origin] for origin in known)


def _marks_of(field: Field, taken: Lineage) -> dict[str, Followed | None]:
    """Return the mark of a barrier in each channel that it has not passed yet; None if it has not come."""
    found: dict[str, Followed | None] = {}
    for name, marks in field.ahead.items():
        at = field.channels[name].at
        if at is not None and _contains(at.lineage, taken):
            continue
        mark = next((mark for mark in marks if _contains(mark.lineage, taken)), None)
        if mark is None or marks_within([mark], field.of(name, field.begin)) == 0:
            found[name] = mark
    return found


def _contains(lineage: Lineage, taken: Lineage) -> bool:
    known = lineage.keys() & taken.keys()
    return bool(known) and all(lineage[origin] >= taken[origin] for origin in known)


def _ends(field: Field, marks: Mapping[str, Followed | None]) -> dict[Partition, int]:
    """Return where the marks are that are known, none before the position."""
    found: dict[Partition, int] = {}
    for name, mark in marks.items():
        if mark is not None:
            found |= field.behind(name, mark.ends)
    return found


def _overtaken(field: Field, end: Positions, taken: Lineage) -> Cut:
    """Return the cut at an end at which a barrier's checkpoint is taken whose marks are not all reached."""
    marks = _marks_of(field, taken) if taken else {}
    late = {
        name: None if mark is None else mark.checkpoint.checkpoint
        for name, mark in marks.items()
        if mark is None or marks_within([mark], field.of(name, end)) == 0
    }
    return replace(field.complete(end), taken=taken, late=late)


def _is_reached(targets: Positions, end: Positions) -> bool:
    return all(end.get(partition, 0) >= offset for partition, offset in targets.items())


def _capped(field: Field, targets: Positions) -> Positions:
    """Return the visible ends, none behind a target; a partition that no mark has is not read."""
    return {p: min(offset, targets.get(p, field.begin.get(p, 0))) for p, offset in field.visible.items()}
