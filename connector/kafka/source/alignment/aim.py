"""Decides where a micro-batch may end if its query follows the barriers of other queries. All functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from connector.kafka.client.topics import Partition
from connector.kafka.marks.channel import Followed, marks_within
from connector.kafka.marks.cuts import Lineage, next_cut
from connector.kafka.source.alignment.cut import Cut
from connector.kafka.source.alignment.outlook import Outlook
from connector.kafka.source.alignment.stops import choose, resume
from connector.kafka.source.offsets import Positions

Mode = Literal["exactly-once", "at-least-once", "unaligned"]


@dataclass(frozen=True)
class AlignOptions:
    """The options of a query that follows the barriers of other queries."""

    topics: tuple[str, ...]  # The barrier topics in ``alignOn``.
    mode: Mode = "exactly-once"  # The option ``alignment``.
    timeout_ms: int = 0  # The option ``alignedTimeout``, in milliseconds.
    # The options that name the checkpoint location, where the query's sources agree on cuts. None if the query has one source.
    location: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Aim:
    """The offsets at which a micro-batch may end, and the cut that the query then reaches: one mark from each barrier topic."""

    ends: Positions  # For each partition, the highest offset at which the micro-batch may end.
    cut_at: Callable[[Positions], Cut]  # Returns the query's `Cut` at the end that was picked for the micro-batch.
    closes_at_cuts: bool = False  # Whether the micro-batch may carry a barrier only if it ends exactly at a cut.
    is_last: bool = True  # Whether a run that ends by itself (availableNow) ends when it has read up to `ends`.
    next: Mapping[str, int] | None = None  # The cut to read up to: barrier topic → the checkpoint of the cut's mark.
    # Whether another source of the query has already put a barrier at that cut: this source then does the same.
    joins: bool = False
    # The offsets at which the next cut is reached, as far as they are known.
    targets: Positions = field(default_factory=dict)


def tracked(outlook: Outlook) -> Aim:
    """Return the `Aim` for ``alignment=at-least-once``: the query reads all visible rows.

    The query has reached a barrier when it has passed the barrier's mark in every barrier topic.
    """
    return Aim(outlook.visible, lambda end: replace(outlook.complete(end), taken={}, late={}))


def aligned(outlook: Outlook, *, at_once: bool) -> Aim:
    """Return the `Aim` for ``alignment=exactly-once``: the query reads up to the next cut, or, if `at_once`, up to the newest.

    A cut has one mark from each barrier topic. If there is no such cut yet, the query reads nothing.
    """
    cut = outlook.newest() if at_once else resume(outlook) if outlook.cut.toward else choose(outlook)
    return stay(outlook) if cut is None else toward(outlook, cut)


def stay(outlook: Outlook, *, is_last: bool = True) -> Aim:
    """Return an `Aim` with which the query reads nothing. For `is_last`, see `Aim`."""
    return Aim(outlook.begin, lambda end: replace(outlook.cut, waited={}), closes_at_cuts=True, is_last=is_last)


def toward(outlook: Outlook, cut: Mapping[str, int]) -> Aim:
    """Return the `Aim` with which the query reads up to certain marks: `cut` maps barrier topics to numbers of marks."""
    targets, reached = outlook.targets(cut), outlook.passing(cut)
    name = reached.checkpoints

    def cut_at(end: Positions) -> Cut:
        if _is_reached(targets, end):
            return reached
        if end == outlook.begin:
            return replace(outlook.cut, waited={})
        return Cut(outlook.cut.marks, toward=name, query=outlook.cut.query)

    final = outlook.final is None or all(outlook.final.get(topic) == number for topic, number in name.items())
    return Aim(_capped(outlook, targets), cut_at, closes_at_cuts=True, is_last=final, next=name, targets=targets)


def unaligned(outlook: Outlook, timeout_ms: int, *, restored: bool) -> Aim:
    """Return the `Aim` for ``alignment=unaligned``.

    When the first mark of a barrier has arrived, the query waits up to `timeout_ms` for the barrier's marks in the other
    barrier topics. Then the query takes the checkpoint. `Cut.late` records the barrier topics in which the query has not
    reached the barrier's mark. If `restored`, the query first reads the rows that an earlier run recorded as late.
    """
    if restored and (late := late_targets(outlook)):
        return Aim(_capped(outlook, {**outlook.begin, **late}), lambda end: _overtaken(outlook, end, outlook.cut.taken))
    cut, fresh = next_cut(outlook.at, outlook.ahead, outlook.least()), _fresh(outlook)
    first = min(fresh, key=lambda mark: mark.timestamp, default=None)
    overdue = first is not None and not 0 <= outlook.now - first.seen < timeout_ms
    taken = outlook.cut.taken if first is None else _together(outlook.cut.taken, first.lineage)
    if cut is not None and any(_is_beyond(at, outlook.cut.taken) for at in outlook.lineages(cut)):
        targets, reached = outlook.targets(cut), outlook.passing(cut)
        whole = taken
        for mark in reached.marks.values():
            whole = _together(whole, mark.lineage)

        def cut_at(end: Positions) -> Cut:
            if _is_reached(targets, end):
                return replace(reached, taken=whole)
            return _overtaken(outlook, end, taken if overdue else outlook.cut.taken)

        return Aim(_capped(outlook, targets), cut_at)
    if timeout_ms and not overdue:
        return Aim(outlook.begin, lambda end: replace(outlook.cut, waited={}))
    known = {} if first is None else _marks_of(outlook, taken)
    return Aim(
        _capped(outlook, {**outlook.visible, **_ends(outlook, known)}), lambda end: _overtaken(outlook, end, taken)
    )


def late_targets(outlook: Outlook) -> dict[Partition, int]:
    """Return the offsets up to which late rows (`Cut.late`) must be read, as far as known; empty if the query has read them."""
    marks = {name: mark for name, mark in _marks_of(outlook, outlook.cut.taken).items() if name in outlook.cut.late}
    ends = _ends(outlook, marks)
    return ends if any(end > outlook.begin.get(partition, 0) for partition, end in ends.items()) else {}


def _fresh(outlook: Outlook) -> list[Followed]:
    """Return each barrier topic's first mark that contains a barrier for which the query has taken no checkpoint yet."""
    found = []
    for marks in outlook.ahead.values():
        mark = next((mark for mark in marks if _is_beyond(mark.lineage, outlook.cut.taken)), None)
        if mark is not None:
            found.append(mark)
    return found


def _together(one: Lineage, other: Lineage) -> Lineage:
    """Merge two mappings of origins to barrier numbers: keep the newer barrier of each origin."""
    return {origin: max(one.get(origin, 0), other.get(origin, 0)) for origin in {**one, **other}}


def _is_beyond(lineage: Lineage, taken: Lineage) -> bool:
    known = lineage.keys() & taken.keys()
    return not known or any(lineage[origin] > taken[origin] for origin in known)


def _marks_of(outlook: Outlook, taken: Lineage) -> dict[str, Followed | None]:
    """Map barrier topics to their first mark with all barriers in `taken`, or to None if this mark has not arrived yet.

    The result omits topics in which the query has already passed this mark.
    """
    found: dict[str, Followed | None] = {}
    for name, marks in outlook.ahead.items():
        at = outlook.channels[name].at
        if at is not None and _contains(at.lineage, taken):
            continue
        mark = next((mark for mark in marks if _contains(mark.lineage, taken)), None)
        if mark is None or marks_within([mark], outlook.of(name, outlook.begin)) == 0:
            found[name] = mark
    return found


def _contains(lineage: Lineage, taken: Lineage) -> bool:
    known = lineage.keys() & taken.keys()
    return bool(known) and all(lineage[origin] >= taken[origin] for origin in known)


def _ends(outlook: Outlook, marks: Mapping[str, Followed | None]) -> dict[Partition, int]:
    """Return, per partition, the mark's offset or the query's position, whichever is later. Ignore marks that are None."""
    found: dict[Partition, int] = {}
    for name, mark in marks.items():
        if mark is not None:
            found |= outlook.behind(name, mark.ends)
    return found


def _overtaken(outlook: Outlook, end: Positions, taken: Lineage) -> Cut:
    """Return the `Cut` of a query that has read up to `end` and has taken checkpoints for the barriers in `taken`.

    A barrier topic is late if its mark for these barriers lies after `end`, or has not arrived.
    """
    marks = _marks_of(outlook, taken) if taken else {}
    late = {
        name: None if mark is None else mark.checkpoint.checkpoint
        for name, mark in marks.items()
        if mark is None or marks_within([mark], outlook.of(name, end)) == 0
    }
    return replace(outlook.complete(end), taken=taken, late=late)


def _is_reached(targets: Positions, end: Positions) -> bool:
    return all(end.get(partition, 0) >= offset for partition, offset in targets.items())


def _capped(outlook: Outlook, targets: Positions) -> Positions:
    """Return, per partition, the target or the end of the visible rows, whichever is earlier.

    A partition without a target ends at the query's position.
    """
    return {p: min(offset, targets.get(p, outlook.begin.get(p, 0))) for p, offset in outlook.visible.items()}
