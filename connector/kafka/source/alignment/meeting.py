"""Lets the sources of a query agree on the next cut: where they stop next. A cut has one mark from each barrier topic.

This runs in the driver's source processes. Spark asks one source after the other where the micro-batch ends, each in
its own process, and writes all ends together into ``offsets/N``. So the newest file shows where every source is. All
sources are at one cut, or on their way from this cut to the next one:

1. A source at a cut leaves it only if no other source is still on its way to that cut.
2. If another source has left the cut, this source reads to the cut that the other source is reading to, or has reached.
3. Otherwise this source chooses the next cut, and creates ``barrier/cuts/<N>-<digest of the present cut>.json``
   exclusively. The sources that Spark asks later find this file.

If the driver dies before Spark has written the next ``offsets/N``, no source has moved. The next driver finds the same file, or
chooses again. Between two cuts, the coordinator closes no checkpoint (`transactional.barrier.is_between_cuts`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.marks.channel import disagree
from connector.kafka.source.alignment.cut import Cut
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from transactional.entry import UNFIT, canonical
from transactional.errors import LocationError

FOLDER: Final = "barrier/cuts"

_FILE = re.compile(r"(-?\d+)-[0-9a-f]+\.json")

Checkpoints = Mapping[str, int]
"""The checkpoints that identify a cut: barrier topic → the checkpoint of the cut's mark in this topic."""


@dataclass(frozen=True)
class Situation:
    """The state of a query's other sources before a micro-batch, as one source sees it.

    A cut is a place where all sources can stop: one mark from each barrier topic.
    """

    batch: int  # The newest micro-batch in Spark's offset log; -1 if there is none.
    waits: bool = False  # Whether another source is still on its way to the source's cut.
    target: Checkpoints | None = None  # The cut to read to; None if no source has chosen it yet.
    closing: Sequence[Checkpoints] = ()  # The cuts at which another source has put a barrier.


class Meeting:
    """Lets the sources of one query, each in its own process, agree on the barriers at which they stop next.

    Parameters
    ----------
    location : CheckpointLocation
        The query's checkpoint location.
    driver : Callable[[], str]
        Returns an identifier that all processes of one driver share.
    """

    def __init__(self, location: CheckpointLocation, driver: Callable[[], str]) -> None:
        self._location, self._driver = location, driver
        self._query: str | None = None

    @property
    def query(self) -> str:
        """Spark's id of the query."""
        if self._query is None:
            self._query = self._location.query_id()
        return self._query

    def look(self, own: Cut, topics: Collection[str]) -> Situation:
        """Return the state of the query's other sources before the next micro-batch.

        `own` is this source's cut (one mark per barrier topic); `topics` are the query's barrier topics.
        """
        batch = newest(self._location, "offsets")
        mine, ahead, left, closing = own.checkpoints, [], None, []
        lines = source_lines(self._location, batch) if batch >= 0 else []
        for line, other in ((line, Cut.from_json(line.cut)) for line in lines if line.cut is not None):
            theirs = {topic: number for topic, number in other.checkpoints.items() if topic in topics}
            if other.exact and line.ends_with_barrier:
                closing.append(theirs)
            if own.toward:
                continue
            if theirs == mine:
                left = {topic: number for topic, number in other.toward.items() if topic in topics} or left
            elif _is_before(mine, theirs):
                ahead.append(theirs)
            elif _is_before(theirs, mine):
                return Situation(batch, waits=True)
            else:
                reason = (
                    f"two sources of this query are at the cuts {mine} and {theirs}, and neither is before the other"
                )
                raise disagree(", ".join(sorted({*mine, *theirs})), reason)
        if own.toward:
            target: Checkpoints | None = own.toward
        elif ahead:
            target = min(ahead, key=lambda cut: sum(cut.values()))
        else:
            target = left or self._read(_name(batch, mine))
        return Situation(batch, target=target, closing=tuple(closing))

    def agree(self, situation: Situation, own: Cut, chosen: Checkpoints) -> Checkpoints:
        """Record `chosen` as the cut (one mark per barrier topic) after `own`, and return `chosen`.

        If another source has already recorded a cut, return that cut.
        """
        name = _name(situation.batch, own.checkpoints)
        return self._create(name, dict(chosen), situation.batch) or {}

    def start(self, choose: Callable[[], Checkpoints | None]) -> Checkpoints | None:
        """Return the cut (one mark per barrier topic) at which all sources of a new query begin; None if they have no cut.

        The first source that calls this method chooses the cut with `choose`. The driver's other sources get the same cut.
        """
        driver = hashlib.sha256(self._driver().encode()).hexdigest()[:32]
        name = f"-1-{driver}.json"
        if self._location.files.exists(f"{FOLDER}/{name}"):
            return self._read(name)
        chosen = choose()
        return self._create(name, None if chosen is None else dict(chosen), -1)

    def _create(self, name: str, cut: dict[str, int] | None, batch: int) -> Checkpoints | None:
        files = self._location.files
        if not files.create(f"{FOLDER}/{name}", canonical({"cut": cut}).encode()):
            return self._read(name)
        matches = [match for match in map(_FILE.fullmatch, files.names(FOLDER)) if match]
        files.delete([f"{FOLDER}/{match[0]}" for match in matches if int(match[1]) < batch])
        return cut

    def _read(self, name: str) -> Checkpoints | None:
        path = f"{FOLDER}/{name}"
        try:
            cut: Any = json.loads(self._location.files.read(path))["cut"]
            return None if cut is None else {str(topic): int(number) for topic, number in cut.items()}
        except FileNotFoundError:
            return None
        except UNFIT as problem:
            shown = self._location.files.shown(path)
            reason = f"{shown} can't be read ({problem!r}): delete it, and start the query again"
            raise LocationError("LOGS_INCONSISTENT", reason=reason, path=shown) from problem


def _is_before(one: Checkpoints, other: Checkpoints) -> bool:
    """Return whether `one` is before `other`: they differ, and `one` has no later mark than `other` in any barrier topic.

    A missing mark counts as earlier than any other mark.
    """
    return one != other and all(number <= other.get(topic, 0) for topic, number in one.items())


def _name(batch: int, cut: Checkpoints) -> str:
    return f"{batch}-{hashlib.sha256(canonical(dict(cut)).encode()).hexdigest()[:32]}.json"
