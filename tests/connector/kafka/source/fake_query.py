"""A query in memory: a stream reader as Spark drives it, on brokers that answer at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.reading.fetch import KafkaInputPartition
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from tests.connector.kafka.source.fake_marks import FakeReaders
from transactional.testing import FakeClock

LOG = "connector.kafka.data_loss"
Offset = dict[str, Any]


class Query:
    """A reader as Spark drives it: through text, one micro-batch after the other."""

    def __init__(self, brokers: FakeBrokers, readers: FakeReaders | None = None, **options: str) -> None:
        self.brokers, self.readers = brokers, readers or FakeReaders()
        self.clock = FakeClock()
        given = {"kafka.bootstrap.servers": "b:9092", "startingOffsets": "earliest", **options}
        if not {"subscribePattern", "assign"} & set(given):
            given.setdefault("subscribe", "t")
        self.options = given
        self.start: Offset = {}
        self.run()
        self.start = through_text(self.reader.initialOffset())

    def run(self, **options: str) -> Query:
        """Start the query again: another process, the same offsets."""
        self.options = {**self.options, **options}
        parsed = parse_read_options(self.options, "stream")
        seams = (self.brokers.connect, self.brokers.ask_each, self.readers.open)
        self.reader = BarrierKafkaStreamReader(parsed, self.clock, *seams)
        return self

    def ask(self, limit: Any = None) -> Offset | None:
        """The next end; None if it is the one before."""
        end = through_text(self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit()))
        return None if end == self.start else end

    def ranges(self, end: Offset) -> list[tuple[str, int, int]]:
        """Of the tasks between the position and an end."""
        return [each for task in self.tasks(end) for each in task]

    def tasks(self, end: Offset) -> list[list[tuple[str, int, int]]]:
        """Each task's ranges between the position and an end."""
        found = [each for each in self.reader.partitions(self.start, end) if isinstance(each, KafkaInputPartition)]
        return [[(str(each.partition), each.start, each.end) for each in task.ranges] for task in found]

    def go_on(self, limit: Any = None) -> list[tuple[str, int, int]]:
        """Run a micro-batch that must be there; returns its tasks' ranges."""
        end = self.ask(limit)
        assert end is not None
        ranges = self.ranges(end)
        self.start = end
        return ranges


def through_text(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


def brokers_of(**topics: Sequence[Log]) -> FakeBrokers:
    return FakeBrokers({topic: dict(enumerate(logs)) for topic, logs in topics.items()})


def begun(rows: int = 10, **options: str) -> tuple[Query, Log]:
    """A query that has read so many rows of a topic of one partition."""
    log = Log(0, rows)
    query = Query(brokers_of(t=[log]), None, **options)
    assert query.go_on() == ([("t-0", 0, rows)] if rows else [])
    return query, log


# -- ends, limits, barriers -----------------------------------------------------------------------------------------
