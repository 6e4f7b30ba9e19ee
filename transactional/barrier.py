"""The checkpoint barrier: a mark in a micro-batch's end offset (Flink's CheckpointBarrier)."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transactional.entry import canonical

__all__ = [
    "BarrierKind",
    "CheckpointBarrier",
    "barrier_of_line",
    "closes_checkpoint",
    "new_barriers",
    "offset_of_line",
    "sources_digest",
]


class BarrierKind(str, enum.Enum):
    """The reason why the source made the barrier."""

    CHECKPOINT = "checkpoint"
    FINAL = "final"


@dataclass(frozen=True)
class CheckpointBarrier:
    """A label in the stream of micro-batches: everything before it belongs to one checkpoint. Never a key.

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


def offset_of_line(line: str) -> dict[str, Any] | None:
    """Return the end offset in one source line of the offset log; None if the source carries no barriers."""
    try:
        offset = json.loads(line)
    except ValueError:
        return None
    return offset if isinstance(offset, dict) and offset.get("source") == "barrier-kafka" else None


def barrier_of_line(line: str) -> CheckpointBarrier | None:
    """Return the last barrier at or before one source line of the offset log; None if there is none."""
    offset = offset_of_line(line)
    return CheckpointBarrier.from_json(offset["barrier"]) if offset and offset.get("barrier") else None


def new_barriers(lines: Sequence[str], previous: Sequence[str] | None) -> list[CheckpointBarrier]:
    """Return the barriers that stand in these lines, and not in the same line of the micro-batch before."""
    before = [barrier_of_line(line) for line in previous or ()]
    before += [None] * (len(lines) - len(before))
    now = [barrier_of_line(line) for line in lines]
    return [new for new, old in zip(now, before, strict=False) if new is not None and new != old]


def sources_digest(lines: Sequence[str]) -> str:
    """Return the digest of a micro-batch's source lines: our positions and barrier, other sources' lines as text."""
    parts = []
    for line in lines:
        offset = offset_of_line(line)
        if offset is not None:
            parts.append(canonical({"barrier": offset.get("barrier"), "topics": offset.get("topics")}))
        else:
            parts.append(line)
    return hashlib.sha256(canonical(parts).encode()).hexdigest()[:32]


def closes_checkpoint(lines: Sequence[str], previous: Sequence[str] | None) -> bool:
    """Return whether the micro-batch with these source lines closes a checkpoint.

    Parameters
    ----------
    lines : Sequence[str]
        Source lines of ``offsets/N``.
    previous : Sequence[str] or None
        Those of ``offsets/N-1``; None for the first batch.

    Returns
    -------
    bool
        True when (1) one source is not ours, (2) all lines equal those of N-1 (a no-data batch), or (3) one of our
        lines holds a barrier that the same line of N-1 does not.
    """
    barriers = [barrier_of_line(line) for line in lines]
    if previous is None or None in barriers or sources_digest(lines) == sources_digest(previous):
        return True
    before = [barrier_of_line(line) for line in previous]
    return len(before) != len(barriers) or any(new != old for new, old in zip(barriers, before, strict=True))
