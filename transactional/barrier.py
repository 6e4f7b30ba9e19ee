"""Checkpoint barriers (like Flink's CheckpointBarrier), and the lines of ``offsets/N`` in which the source stores them."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transactional.entry import canonical


class BarrierKind(str, enum.Enum):
    """The reason for a barrier: a checkpoint is due, or the query is about to end."""

    CHECKPOINT = "checkpoint"
    FINAL = "final"


@dataclass(frozen=True)
class CheckpointBarrier:
    """The end of a checkpoint in the stream of micro-batches: all rows since the previous barrier belong to one checkpoint.

    A barrier's number is not a checkpoint id.

    Parameters
    ----------
    number : int
        The number of this barrier in its source, from 1.
    kind : BarrierKind
    timestamp : int
        When the source made the barrier, in milliseconds since the epoch.
    """

    number: int
    kind: BarrierKind
    timestamp: int

    def to_json(self) -> dict[str, Any]:
        """Return the barrier as JSON: the value of the key ``barrier`` in an end offset."""
        return {"kind": self.kind.value, "number": self.number, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointBarrier:
        """Build a barrier from the value of `to_json`."""
        return cls(int(value["number"]), BarrierKind(value["kind"]), int(value["timestamp"]))


@dataclass(frozen=True)
class SourceLine:
    """One source's line in the file ``offsets/N``: the end offset of a micro-batch."""

    text: str  # The line as the engine wrote it.
    # The parsed line; None if the source has no barriers (it is not ``barrier-kafka``).
    offset: Mapping[str, Any] | None = field(default=None, compare=False)
    # The source's name, with which the line began. Empty if the engine identifies sources by position.
    name: str = ""

    @classmethod
    def parse(cls, text: str, name: str = "") -> SourceLine:
        """Parse a line of any source.

        If a line of barrier-kafka is malformed, raise one of the errors in `transactional.entry.UNFIT`.
        """
        try:
            offset = json.loads(text)
        except ValueError:
            offset = None
        ours = isinstance(offset, dict) and offset.get("source") == "barrier-kafka"
        line = cls(text, offset if ours else None, name)
        line.check()
        return line

    def check(self) -> None:
        """Read every part of the line once, so that a malformed line fails here, where the caller knows the file's name."""
        _ = (self.barrier, self.ends, self.start, dict(self.topic_ids), self.longest_wait, is_between_cuts([self]))
        _ = cut_of([self])

    @property
    def barrier(self) -> CheckpointBarrier | None:
        """The last barrier at or before this offset; None if the source has made no barrier yet."""
        value = self._of("barrier")
        return CheckpointBarrier.from_json(value) if value else None

    @property
    def ends_with_barrier(self) -> bool:
        """True if there is no row between the last barrier and the end of the micro-batch."""
        return self.barrier is not None and not self._of("barrierRows")

    @property
    def topics(self) -> frozenset[str]:
        """The names of the topics whose positions the line contains."""
        return frozenset(self._of("topics") or ())

    @property
    def ends(self) -> dict[str, dict[str, int]]:
        """The offset of the next row after the micro-batch, by topic and by partition number (as a string)."""
        return _positions(self._of("topics"))

    @property
    def start(self) -> dict[str, dict[str, int]]:
        """The beginning of the micro-batch, in the same form as `ends`."""
        return _positions(self._of("start"))

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The topic ids, by topic name."""
        return self._of("ids") or {}

    @property
    def longest_wait(self) -> int:
        """The longest time that the source waits between two barriers, in milliseconds."""
        return max(self._of("interval") or 0, self._of("minPause") or 0)

    @property
    def is_reordered(self) -> bool:
        """True if the source gives the rows of one partition to several tasks, which write at the same time."""
        return bool(self._of("reordered"))

    @property
    def cut(self) -> Mapping[str, Any] | None:
        """The newest barriers of other queries that this offset includes, as JSON; None if the source follows no other query.

        The key `lineage` has the newest barrier of each query. The key `exact` is true if every row before this offset
        comes before these barriers.
        """
        found: Mapping[str, Any] | None = self._of("cut")
        return found

    @property
    def meaning(self) -> str:
        """The part of the line that must be the same when the micro-batch is replayed.

        For barrier-kafka, these are the positions, the barrier and the `cut`. For any other source, it is the whole
        line.
        """
        if self.offset is None:
            return self.text
        cut = {} if self.cut is None else {"cut": self.cut}
        return canonical({"barrier": self._of("barrier"), "topics": self._of("topics"), **cut})

    def _of(self, key: str) -> Any:
        return None if self.offset is None else self.offset.get(key)


def _positions(value: Mapping[str, Mapping[str, int]] | None) -> dict[str, dict[str, int]]:
    return {topic: {number: int(at) for number, at in of.items()} for topic, of in (value or {}).items()}


def by_name(lines: Sequence[SourceLine]) -> dict[str, SourceLine]:
    """Return a micro-batch's source lines in a dict, by source name.

    If a source has no name, the key is the source's position in the list (from 0). Spark does the same if a query's
    sources get names only later.
    """
    return {line.name or str(position): line for position, line in enumerate(lines)}


def new_barriers(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> list[CheckpointBarrier]:
    """Return the barriers that are in a micro-batch's source lines, but not in the previous micro-batch's lines."""
    before = {name: line.barrier for name, line in by_name(previous or ()).items()}
    pairs = ((line.barrier, before.get(name)) for name, line in by_name(lines).items())
    return [new for new, old in pairs if new is not None and new != old]


def is_between_cuts(lines: Sequence[SourceLine]) -> bool:
    """Return whether the sources of a query have not all reached the same cut.

    A cut is a set of other queries' marks, up to which all sources of this query read. Between two cuts, a barrier does
    not close a checkpoint. Only a stop, a checkpoint's age or the purging of old log files does.
    """
    cuts = [cut for line in lines if (cut := line.cut)]
    return any(cut.get("toward") for cut in cuts) or len({canonical(cut.get("marks", {})) for cut in cuts}) > 1


def cut_of(lines: Sequence[SourceLine]) -> dict[str, Any] | None:
    """Return the newest barriers of other queries that all sources of a micro-batch have reached, as JSON.

    Return None if no source follows other queries.
    """
    cuts = [cut for line in lines if (cut := line.cut) is not None]
    if not cuts:
        return None
    lineage: dict[str, int] = {}
    exact = all(cut["exact"] for cut in cuts)
    for cut in cuts:
        for origin, barrier in cut["lineage"].items():
            exact = exact and lineage.get(origin, barrier) == barrier  # else one source has read less than another
            lineage[origin] = min(barrier, lineage.get(origin, barrier))
    waited = {name: ms for cut in cuts for name, ms in cut.get("waited", {}).items()}
    return {"lineage": dict(sorted(lineage.items())), "exact": exact, "waited": waited}


def sources_digest(lines: Sequence[SourceLine]) -> str:
    """Return the digest of a micro-batch's source lines: 32 hexadecimal digits, equal for every replay."""
    named = sorted([line.name, line.meaning] for line in lines if line.name)
    meanings = [line.meaning for line in lines if not line.name]
    return hashlib.sha256(canonical([*meanings, *named]).encode()).hexdigest()[:32]


def closes_checkpoint(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> bool:
    """Return whether a micro-batch closes a checkpoint, according to its source lines."""
    if is_between_cuts(lines):
        return False
    barriers = {name: line.barrier for name, line in by_name(lines).items()}
    if previous is None or None in barriers.values() or sources_digest(lines) == sources_digest(previous):
        return True
    return barriers != {name: line.barrier for name, line in by_name(previous).items()}
