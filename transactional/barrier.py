"""The checkpoint barrier, a mark in a micro-batch's end offset (Flink's CheckpointBarrier), and the lines that hold it."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from transactional.entry import canonical

__all__ = [
    "BarrierKind",
    "CheckpointBarrier",
    "SourceLine",
    "closes_checkpoint",
    "cut_of",
    "new_barriers",
    "sources_digest",
]


class BarrierKind(str, enum.Enum):
    """The reason why the source made the barrier."""

    CHECKPOINT = "checkpoint"
    FINAL = "final"


@dataclass(frozen=True)
class CheckpointBarrier:
    """A mark in the stream of micro-batches: everything before it belongs to one checkpoint. It does not identify one.

    Parameters
    ----------
    number : int
        The source's own running number, from 1.
    kind : BarrierKind
    timestamp : int
        Milliseconds since the epoch when the source made it.
    """

    number: int
    kind: BarrierKind
    timestamp: int

    def to_json(self) -> dict[str, Any]:
        """Return the barrier as it stands in an end offset, under the key ``barrier``."""
        return {"kind": self.kind.value, "number": self.number, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointBarrier:
        """Return a barrier from what `to_json` returned."""
        return cls(int(value["number"]), BarrierKind(value["kind"]), int(value["timestamp"]))


@dataclass(frozen=True)
class SourceLine:
    """One source's line of ``offsets/N``: the end offset of a micro-batch.

    Parameters
    ----------
    text : str
        As the engine wrote it.
    offset : Mapping[str, Any] or None
        The same, parsed; None if the source carries no barriers.
    """

    text: str
    offset: Mapping[str, Any] | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str) -> SourceLine:
        """Parse a line, of any source."""
        try:
            offset = json.loads(text)
        except ValueError:
            offset = None
        ours = isinstance(offset, dict) and offset.get("source") == "barrier-kafka"
        line = cls(text, offset if ours else None)
        line.check()
        return line

    def check(self) -> None:
        """Read each part once: who needs it later can't say which file it is of. Raises as `parse`."""
        _ = (self.barrier, self.topics, dict(self.topic_ids), self.longest_wait, self.is_within_cut, cut_of([self]))

    @property
    def barrier(self) -> CheckpointBarrier | None:
        """The last barrier at or before the offset; None if there is none."""
        value = self._of("barrier")
        return CheckpointBarrier.from_json(value) if value else None

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose positions it holds."""
        return frozenset(self._of("topics") or ())

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of its topics, by their names."""
        return self._of("ids") or {}

    @property
    def longest_wait(self) -> int:
        """How long the source may leave its micro-batches undecided, in milliseconds."""
        return max(self._of("interval") or 0, self._of("minPause") or 0)

    @property
    def is_reordered(self) -> bool:
        """Whether the source gives the rows of one partition to several tasks, which write at the same time."""
        return bool(self._of("reordered"))

    @property
    def cut(self) -> Mapping[str, Any] | None:
        """Of a source that follows other queries' barriers: the newest that it contains (`lineage`), and if nothing more."""
        found: Mapping[str, Any] | None = self._of("cut")
        return found

    @property
    def is_within_cut(self) -> bool:
        """Whether it lies between two barriers of other queries, on the way to the next: no checkpoint ends here."""
        return bool((self.cut or {}).get("toward"))

    @property
    def meaning(self) -> str:
        """The parts that a replay of the micro-batch repeats: our positions and barriers, another source's whole line."""
        if self.offset is None:
            return self.text
        cut = {} if self.cut is None else {"cut": self.cut}
        return canonical({"barrier": self._of("barrier"), "topics": self._of("topics"), **cut})

    def _of(self, key: str) -> Any:
        return None if self.offset is None else self.offset.get(key)


def new_barriers(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> list[CheckpointBarrier]:
    """Return the barriers that stand in these lines, and not in the same line of the micro-batch before."""
    pairs = zip_longest((line.barrier for line in lines), (line.barrier for line in previous or ()))
    return [new for new, old in pairs if new is not None and new != old]


def cut_of(lines: Sequence[SourceLine]) -> dict[str, Any] | None:
    """Return where a micro-batch ends among the barriers of other queries, as JSON; None if none of its sources follows any."""
    cuts = [cut for line in lines if (cut := line.cut) is not None]
    if not cuts:
        return None
    lineage: dict[str, int] = {}
    exact = all(cut["exact"] for cut in cuts)
    for cut in cuts:
        for origin, barrier in cut["lineage"].items():
            exact = exact and lineage.get(origin, barrier) == barrier  # else one source is behind another's barrier
            lineage[origin] = min(barrier, lineage.get(origin, barrier))
    waited = {name: ms for cut in cuts for name, ms in cut.get("waited", {}).items()}
    return {"lineage": dict(sorted(lineage.items())), "exact": exact, "waited": waited}


def sources_digest(lines: Sequence[SourceLine]) -> str:
    """Return the digest of a micro-batch's source lines."""
    return hashlib.sha256(canonical([line.meaning for line in lines]).encode()).hexdigest()[:32]


def closes_checkpoint(lines: Sequence[SourceLine], previous: Sequence[SourceLine] | None) -> bool:
    """Return whether the micro-batch with these source lines closes a checkpoint."""
    if any(line.is_within_cut for line in lines):
        return False
    barriers = [line.barrier for line in lines]
    if previous is None or None in barriers or sources_digest(lines) == sources_digest(previous):
        return True
    return barriers != [line.barrier for line in previous]
