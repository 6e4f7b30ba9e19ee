"""The record of a mark in a barrier topic. A mark says where one checkpoint of a query ends in the query's output topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.topics import Partition
from transactional.checkpoint import CheckpointMark
from transactional.errors import StoreError

VERSION: Final = 1
"""The format version of the records in barrier topics."""


@dataclass(frozen=True)
class Mark:
    """A record of a barrier topic: a checkpoint, and the offsets at which it ends in the output topic."""

    checkpoint: CheckpointMark
    # For each partition, the offset between this checkpoint and the next: all rows of this checkpoint and of earlier ones are
    # before the offset, and no row of a later checkpoint is.
    ends: Mapping[Partition, int]
    ids: Mapping[str, str]  # The name of each topic in `ends` → the topic's id.

    @property
    def key(self) -> bytes:
        """The record's key: the query and the number of the checkpoint, as JSON."""
        return json.dumps([self.checkpoint.query, self.checkpoint.checkpoint]).encode()

    def to_json(self) -> bytes:
        """Return the record's value, as JSON."""
        topics: dict[str, Any] = {name: {"id": self.ids[name], "ends": {}} for name in sorted(self.ids)}
        for (topic, number), end in sorted(self.ends.items()):
            topics[topic]["ends"][str(number)] = end
        mark = self.checkpoint
        value = {
            "version": VERSION,
            "query": mark.query,
            "checkpoint": mark.checkpoint,
            "after": mark.after,
            "lineage": dict(sorted(mark.lineage.items())),
            "exact": mark.exact,
            "rows": mark.rows,
            "time": mark.timestamp,
            "restarted": mark.restarted,
            "topics": topics,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes | None, where: str) -> Mark:
        """Parse a record's value. `where` names the record in errors."""
        try:
            read = json.loads(value or b"")
            version = read["version"]
        except (ValueError, TypeError, KeyError):
            raise _unknown(where, "no version that can be read") from None
        if version != VERSION:
            raise _unknown(where, f"version {version}")
        try:
            mark = CheckpointMark(
                query=str(read["query"]),
                checkpoint=int(read["checkpoint"]),
                after=int(read["after"]),
                lineage={str(origin): int(barrier) for origin, barrier in read["lineage"].items()},
                exact=bool(read["exact"]),
                rows=int(read["rows"]),
                timestamp=int(read["time"]),
                restarted=bool(read["restarted"]),
            )
            topics = read["topics"].items()
            ends = {Partition(name, int(n)): int(end) for name, topic in topics for n, end in topic["ends"].items()}
            return cls(mark, ends, {name: str(topic["id"]) for name, topic in topics})
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _unknown(where, "missing or wrong fields") from None


def _unknown(where: str, found: str) -> StoreError:
    return StoreError("FORMAT_UNKNOWN", what=f"The record at {where}", found=found, known=f"marks of version {VERSION}")
