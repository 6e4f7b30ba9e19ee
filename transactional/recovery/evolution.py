"""Pure functions for a query whose sources change: a source is added, removed or renamed.

If Spark does not know a source's name, the source begins where its options say. If the query no longer has a source,
Spark forgets the source. Spark does not check this, so a source with a new name would read its topics again from their
beginning, or skip rows. Therefore the journal records the offsets at which removed sources stopped. A source that reads
one of their topics later has to begin at these offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transactional.barrier import SourceLine, by_name
from transactional.entry import canonical
from transactional.errors import LocationError, OptionError

EARLIEST = -2
"""The number that means the first offset of a partition in the option ``startingOffsets``."""

Left = Mapping[str, Mapping[str, Any]]
"""The offsets at which removed sources stopped: name → topic → ``{"id": topic id, "ends": {partition: offset}}``.

A source whose positions can't be read has no topics.
"""


def ends_left(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> dict[str, Any]:
    """Return the offsets at which removed sources stopped, for all sources that were removed up to this micro-batch.

    `left` is the result for the previous micro-batch. If another source begins to read a topic where the removed source
    stopped (`check_beginnings`), that topic is no longer in the result.
    """
    lost = _lost(lines, previous, left)
    if not lost:
        return {}
    found, now = {name: dict(topics) for name, topics in lost.items()}, by_name(lines)
    for name, topic in _beginnings(lines, previous):
        for source, at in _candidates(topic, now[name], found):
            if source == name or _stands(now[name], topic, at):
                del found[source][topic]
                break
    return {name: topics for name, topics in found.items() if topics or not lost[name]}


def check_beginnings(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> None:
    """Check that a source that takes over a removed source's topic begins where the removed source stopped.

    For `left`, see `ends_left`.
    """
    if previous is None or not any(line.name for line in lines):
        return
    lost, now, before = _lost(lines, previous, left), by_name(lines), by_name(previous)
    if now.keys() != before.keys() and any(line.cut is not None for line in (*lines, *previous)):
        raise OptionError(
            "INVALID_OPTION",
            owner="barrier-kafka",
            option="alignOn",
            value="(set)",
            expectation="no value, because sources were added, removed or renamed: a query that follows barriers must keep "
            "its sources. Start the query with the previous sources, or at a new location",
        )
    unseen = sorted(name for name, topics in lost.items() if not topics)
    for name in sorted(now.keys() - before.keys()):
        if unseen or (lost and now[name].offset is None):
            raise LocationError("SOURCE_END_UNKNOWN", source=name, lost=(unseen or sorted(lost))[0])
    for name, topic in _beginnings(lines, previous):
        # A source may read a topic again that it had lost itself: it keeps its positions.
        itself = name if name in before else None
        candidates = [(source, at) for source, at in _candidates(topic, now[name], lost) if source != itself]
        if candidates and not any(_stands(now[name], topic, at) for _, at in candidates):
            raise _elsewhere(name, now[name], topic, *candidates[0])


def check_running(
    lines: Sequence[SourceLine],
    previous: Sequence[SourceLine] | None,
    running: Collection[str] | None,
    batch: int,
    *,
    is_open: bool = False,
) -> None:
    """Check that the query still has each source whose rows are not committed yet.

    Without a removed source, Spark would run a planned micro-batch without the rows of that source, and never read
    them.

    Parameters
    ----------
    lines, previous : Sequence[SourceLine]
        The source lines of the micro-batch and of the previous micro-batch.
    running : Collection[str] or None
        The names of the sources with which the program started the query; None if they are not known.
    batch : int
    is_open : bool
        True if earlier micro-batches are undecided, or were undone by a rewind.
    """
    if running is None or not any(line.name for line in lines):
        return  # without names, the engine itself compares the number of sources
    before = by_name(previous or ())
    changed = {name for name, line in by_name(lines).items() if name not in before or before[name] != line}
    needed = changed | (before.keys() if is_open else set())
    removed = sorted(needed - set(running))
    if removed:
        raise LocationError("SOURCE_REMOVED", batch=batch, sources=removed, names=", ".join(removed))


def _beginnings(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> list[tuple[str, str]]:
    """Return pairs of a source and a topic that the source reads in this micro-batch, but not in the previous one."""
    before = {name: line.topics for name, line in by_name(previous or ()).items()}
    return [
        (name, topic)
        for name, line in sorted(by_name(lines).items())
        for topic in sorted(line.topics - before.get(name, frozenset()))
    ]


def _lost(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> dict[str, Any]:
    """Return `left`, plus the sources and topics that the previous micro-batch had and this one does not have."""
    now, found = by_name(lines), dict(left)
    for name, line in by_name(previous or ()).items():
        if not line.name:
            continue
        gone = line.topics - (now[name].topics if name in now else frozenset())
        if name not in now or gone:
            ids, ends = line.topic_ids, line.ends
            topics = {topic: {"id": ids.get(topic, ""), "ends": ends[topic]} for topic in sorted(gone)}
            found[name] = {**found.get(name, {}), **topics}
    return found


def _candidates(topic: str, line: SourceLine, lost: Left) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the removed sources that read this topic, and the offsets at which each stopped.

    A topic that was created again (another id) does not count. `line` has the topic's present id.
    """
    identity = line.topic_ids.get(topic, "")
    return [
        (source, topics[topic])
        for source, topics in sorted(lost.items())
        if topic in topics and topics[topic]["id"] == identity
    ]


def _stands(line: SourceLine, topic: str, at: Mapping[str, Any]) -> bool:
    """Return whether a source begins to read a topic at the offsets in `at`, where another source stopped."""
    begins = line.start.get(topic, {})
    return all(begins.get(number) == offset for number, offset in at["ends"].items())


def _elsewhere(name: str, line: SourceLine, topic: str, source: str, at: Mapping[str, Any]) -> LocationError:
    begins = line.start.get(topic, {})
    number = next(number for number, offset in sorted(at["ends"].items()) if begins.get(number) != offset)
    reason = (
        f"the source {name} begins to read {topic}-{number} at offset {begins.get(number, 'unknown')}, but the source "
        f"{source}, which the query no longer has, stopped at offset {at['ends'][number]}"
    )
    # A partition that was created later is read from its first row.
    wanted = canonical({topic: {**dict.fromkeys(begins, EARLIEST), **at["ends"]}})
    return LocationError("SOURCE_BEGINS_ELSEWHERE", source=name, reason=reason, wanted=wanted)
