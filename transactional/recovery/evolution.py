"""A query whose sources change: it gets or loses a source, or a source gets another name. Pure functions.

If the engine does not know a source's name, the source begins where its options say. If the query no longer has a source, the
engine forgets it. Nothing is checked: a source with a new name would read its topics again from their beginning, or skip rows.
So the journal keeps where the lost sources stopped, and a source that reads one of their topics later has to begin there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transactional.barrier import SourceLine, by_name
from transactional.entry import canonical
from transactional.errors import LocationError

Left = Mapping[str, Mapping[str, Any]]
"""Where lost sources stopped: name → topic → ``{"id": topic id, "ends": {partition: offset}}``.

A source whose positions can't be read has no topics.
"""


def ends_left(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> dict[str, Any]:
    """Return where the sources that the query no longer has stopped, after a micro-batch.

    `left` is the result for the micro-batch before. A topic that another source now reads is no longer in the result, because
    that source began where the lost one stopped (`check_beginnings`).
    """
    begun = {topic for new in _new_topics(lines, previous).values() for topic in new}
    found: dict[str, Any] = {}
    for name, topics in _lost(lines, previous, left).items():
        kept = {topic: at for topic, at in topics.items() if topic not in begun}
        if kept or not topics:
            found[name] = kept
    return found


def check_beginnings(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> None:
    """Check that a source begins a topic where a lost source stopped to read it. For `left`, see `ends_left`."""
    if previous is None:
        return
    lost, now, before = _lost(lines, previous, left), by_name(lines), by_name(previous)
    for name, new in _new_topics(lines, previous).items():
        line = now[name]
        if name not in before and name in left and (line.offset is None or not left[name]):
            reason = f"the source {name} comes back, and it can't be seen where it begins"
            raise LocationError("SOURCE_BEGINS_ELSEWHERE", source=name, reason=reason, wanted="{}")
        _check_beginning(name, line, new, lost)


def check_running(
    lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, running: Collection[str] | None, batch: int
) -> None:
    """Check that the query still has each source whose rows a planned micro-batch contains.

    The engine would run the micro-batch without the rows of a source that the query no longer has, and never read them.

    Parameters
    ----------
    lines, previous : Sequence[SourceLine]
        The source lines of the micro-batch, and of the one before.
    running : Collection[str] or None
        The names of the query's sources, as the program has started it; None if they are not known.
    batch : int
    """
    if running is None or not any(line.name for line in lines):
        return  # without names, the engine itself compares the number of sources
    before = by_name(previous or ())
    changed = {name for name, line in by_name(lines).items() if name not in before or before[name] != line}
    removed = sorted(changed - set(running))
    if removed:
        raise LocationError("SOURCE_REMOVED", batch=batch, sources=removed, names=", ".join(removed))


def _new_topics(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> dict[str, frozenset[str]]:
    """Return the topics that each source reads in this micro-batch, but did not read in the previous one."""
    before = {name: line.topics for name, line in by_name(previous or ()).items()}
    return {name: line.topics - before.get(name, frozenset()) for name, line in by_name(lines).items()}


def _lost(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None, left: Left) -> dict[str, Any]:
    """Return `left`, with the sources of the previous micro-batch that this one does not have."""
    now, found = by_name(lines), dict(left)
    for name, line in by_name(previous or ()).items():
        if name not in now:
            ids = line.topic_ids
            topics = {topic: {"id": ids.get(topic, ""), "ends": ends} for topic, ends in sorted(line.ends.items())}
            found[name] = {**found.get(name, {}), **topics}
    return found


def _check_beginning(name: str, line: SourceLine, new: Collection[str], lost: Left) -> None:
    """Check the topics that are new to a source. After a topic was deleted and created again, it may begin anywhere."""
    start, ids = line.start, line.topic_ids
    for source, topics in sorted(lost.items()):
        for topic, at in sorted(topics.items()):
            begins = start.get(topic, {})
            elsewhere = [number for number, offset in sorted(at["ends"].items()) if begins.get(number) != offset]
            if topic not in new or at["id"] != ids.get(topic, "") or not elsewhere:
                continue
            number = elsewhere[0]
            reason = (
                f"the source {name} begins {topic}-{number} at offset {begins.get(number, 'unknown')}, but the source "
                f"{source}, which the query no longer has, stopped there at offset {at['ends'][number]}"
            )
            wanted = canonical({topic: {**begins, **at["ends"]}})
            raise LocationError("SOURCE_BEGINS_ELSEWHERE", source=name, reason=reason, wanted=wanted)
