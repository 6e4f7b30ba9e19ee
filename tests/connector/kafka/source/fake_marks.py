"""Queries upstream, in memory: each writes rows to a topic of `FakeBrokers`, and a mark for each of its checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from connector.kafka.client.topics import Partition, short_id
from connector.kafka.marks.barrier_reader import Record
from connector.kafka.marks.mark import Mark
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from transactional.checkpoint import CheckpointMark


class Upstream:
    """A query that writes one topic, and its marks.

    Parameters
    ----------
    brokers : FakeBrokers
    topic : str
        Its marks go to ``<topic>-marks``.
    partitions : int
    query : str, optional
    """

    def __init__(self, brokers: FakeBrokers, topic: str, partitions: int = 1, query: str = "") -> None:
        self.brokers, self.topic, self.query = brokers, topic, query or f"query-{topic}"
        self.barriers, self.identity = f"{topic}-marks", str(uuid.uuid4())
        self.checkpoint = 0
        brokers.topics[topic] = {number: Log(0, 0) for number in range(partitions)}
        brokers.ids[topic] = short_id(self.identity)
        brokers.topics[self.barriers] = {0: Log(0, 0)}
        self.records: list[bytes] = []

    def rows(self, *counts: int) -> Upstream:
        """Write this many rows into each partition."""
        for log, count in zip(self.brokers.topics[self.topic].values(), counts, strict=False):
            log.last += count
        return self

    def mark(self, lineage: Mapping[str, int] | None = None, **changes: Any) -> Upstream:
        """Close a checkpoint: a mark at where the topic ends."""
        after = changes.pop("after", self.checkpoint)
        ends = changes.pop("ends", None)
        ids = changes.pop("ids", None)
        self.checkpoint = changes.pop("checkpoint", self.checkpoint + 1)
        query = changes.pop("query", self.query)
        given: dict[str, Any] = {"exact": True, "rows": 0, "timestamp": self.checkpoint, "restarted": False, **changes}
        checkpoint = CheckpointMark(
            query=query,
            checkpoint=self.checkpoint,
            after=after,
            lineage={**(lineage or {}), query: self.checkpoint},
            **given,
        )
        logs = self.brokers.topics[self.topic]
        where = ends or {number: log.last for number, log in logs.items()}
        mark = Mark(
            checkpoint, {Partition(self.topic, n): end for n, end in where.items()}, ids or {self.topic: self.identity}
        )
        self.records.append(mark.to_json())
        self.brokers.topics[self.barriers][0].last = len(self.records)
        return self


class FakeReaders:
    """In place of `BarrierReader`."""

    def __init__(self, *upstreams: Upstream) -> None:
        self.upstreams = {each.barriers: each for each in upstreams}
        self.opened: list[str] = []
        self.read = 0

    def open(self, settings: Mapping[str, Any], topic: str) -> FakeReader:
        """As the class is called."""
        self.opened.append(topic)
        return FakeReader(self, self.upstreams[topic])


class FakeReader:
    """Reads one of them."""

    def __init__(self, readers: FakeReaders, upstream: Upstream) -> None:
        self._readers, self._upstream, self._next = readers, upstream, 0

    def begin(self, offset: int) -> None:
        """Read from this offset on."""
        self._next = offset

    def read_to(self, end: int, most: int) -> Sequence[Record]:
        """Return records."""
        first = self._next
        self._next = max(first, min(end, first + most))
        self._readers.read += self._next - first
        return list(enumerate(self._upstream.records))[first : self._next]

    def close(self) -> None:
        """Do nothing."""
