"""Queries that read what other queries write, without Spark: the real source, the real sink, and Spark's calls between them.

A `Stage` is one query of such a graph. It can die at every point that `integration.engine` passes, also in its source.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from integration.broker import Cluster
from integration.engine import SCHEMA, Engine, MortalSink, Work
from integration.jobs import newest

__all__ = ["Reading", "SourcedEngine", "Stage", "read_rows", "write_rows"]

Rows = Callable[[str, str], "Sequence[tuple[str, str]]"]
"""What a query makes of a row: of its topic and value, rows of key and value."""


@dataclass(frozen=True)
class Reading:
    """What a query reads and makes of it; see `Work` for the rest."""

    sources: Sequence[Mapping[str, str]]  # The options of each source.
    rows: Rows


class SourcedEngine(Engine):
    """An `Engine` whose rows come from ``barrier-kafka``: one driver's life.

    Parameters
    ----------
    work : Work
        Its number of micro-batches counts, and its sink.
    reading : Reading
    available_now : bool
    """

    def __init__(self, work: Work, reading: Reading, *, available_now: bool = False) -> None:
        super().__init__(work)
        self._reading = reading
        self.readers = [BarrierKafkaStreamReader(parse_read_options(each, "stream")) for each in reading.sources]
        for reader in self.readers if available_now else ():
            reader.prepareForTriggerAvailableNow()

    @property
    def reader(self) -> BarrierKafkaStreamReader:
        """The only source."""
        (reader,) = self.readers
        return reader

    def stop(self) -> None:
        """Close the sources' clients."""
        for reader in self.readers:
            reader.stop()

    def ends(self, batch: int) -> list[dict[str, Any]]:
        """Where each source was at the end of a micro-batch."""
        if batch < 0:
            return [reader.initialOffset() for reader in self.readers]
        lines = (Path(self.work.location) / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines[2:]]

    def end(self, batch: int) -> dict[str, Any]:
        """Where the only source was at the end of a micro-batch."""
        (end,) = self.ends(batch)
        return end

    def _line(self, batch: int) -> str | None:
        starts = self.ends(batch - 1)
        ends = [
            json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            for reader, start in zip(self.readers, starts, strict=True)
        ]
        return None if ends == starts else "\n".join(map(json.dumps, ends))

    def _rows(self, batch: int) -> Sequence[Iterator[pa.RecordBatch]]:
        tasks: list[Iterator[pa.RecordBatch]] = []
        for reader, start, end in zip(self.readers, self.ends(batch - 1), self.ends(batch), strict=True):
            tasks += [self._task_rows(reader, part) for part in reader.partitions(start, end)]
        return tasks or [iter(())]

    def _task_rows(self, reader: BarrierKafkaStreamReader, part: Any) -> Iterator[pa.RecordBatch]:
        for read in reader.read(part):
            rows = [
                row
                for topic, value in zip(read.column("topic").to_pylist(), read.column("value").to_pylist(), strict=True)
                for row in self._reading.rows(topic, value.decode())
            ]
            columns = {
                "key": [key for key, _ in rows],
                "value": [value for _, value in rows],
                "partition": [sum(key.encode()) % self.work.partitions for key, _ in rows],
            }
            yield pa.RecordBatch.from_pydict(cast("dict[str, Any]", columns), schema=SCHEMA)


@dataclass
class Stage:
    """A query of a graph: it reads topics, and writes one, with its marks."""

    kafka: Cluster
    folder: Path
    name: str
    inputs: Sequence[Any]
    rows: Rows
    partitions: int = 2  # Of its topic.
    options: Mapping[str, str] = field(default_factory=dict)  # Further ones, of the source.
    follows: bool = True  # Whether it aligns on the marks of its inputs.
    # Whether it has a source for each input; they agree on cuts unless `agrees` is false.
    divided: bool = False
    agrees: bool = True

    def __post_init__(self) -> None:
        unique = f"{self.name}-{uuid.uuid4().hex[:8]}"
        self.topic, self.barriers = unique, f"{unique}-marks"
        self.kafka.create_topic(self.topic, partitions=self.partitions)
        self.kafka.create_topic(self.barriers, partitions=1)
        servers = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers}
        sink = {
            **servers,
            "topic": self.topic,
            "barrierTopic": self.barriers,
            "transactionalIdPrefix": unique,
        }
        self.work = Work(str(self.folder / unique), sink, batches=1_000_000, partitions=self.partitions)
        common = {**servers, "startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "50", **self.options}
        if self.divided and self.agrees:
            common["checkpointLocation"] = self.work.location
        parts = [[each] for each in self.inputs] if self.divided else [self.inputs]
        sources = []
        for part in parts:
            barriers = ",".join(each.barriers for each in (self.inputs if self.agrees else part))
            follows = {"alignOn": barriers} if self.follows else {}
            sources.append({**common, "subscribe": ",".join(each.topic for each in part), **follows})
        self.reading = Reading(sources, self.rows)

    def run(self, micro_batches: int = 1_000_000, *, error: bool = False) -> None:
        """Live until there is nothing to read, or this many more micro-batches are committed."""
        engine = SourcedEngine(self.work, self.reading)
        done = max(newest(self.work.location, "commits"), -1) + 1
        try:
            engine.run(done + micro_batches, error=error)
        finally:
            engine.stop()

    def with_options(self, **options: str) -> Stage:
        """Other options of the source, from now on."""
        self.reading = replace(self.reading, sources=[{**each, **options} for each in self.reading.sources])
        return self

    def marks(self) -> list[dict[str, Any]]:
        """The records of its barrier topic."""
        return [json.loads(value) for _, _, value in read_rows(self.kafka.bootstrap_servers, self.barriers)]

    def contents(self, *, exact: bool = True) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Each checkpoint once, and all rows up to its mark, in order; only those that stand exactly at barriers, or all."""
        rows = read_rows(self.kafka.bootstrap_servers, self.topic)
        seen: set[int] = set()
        for mark in self.marks():
            if (mark["exact"] or not exact) and mark["checkpoint"] not in seen:
                seen.add(mark["checkpoint"])
                ends = mark["topics"][self.topic]["ends"]
                yield mark, [value for partition, offset, value in rows if offset < ends[str(partition)]]

    @staticmethod
    def bury() -> None:
        """Drop what dead drivers have left in this process."""
        MortalSink.bury()


def write_rows(servers: str, topic: str, rows: Sequence[tuple[str, str]]) -> None:
    """Write keys and values with a plain producer, in order."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    for key, value in rows:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def read_rows(servers: str, topic: str) -> list[tuple[int, int, str]]:
    """Return partition, offset and value of all rows that a `read_committed` reader sees, by partition and offset."""
    settings = {"bootstrap.servers": servers, "group.id": "dag", "enable.auto.commit": False}
    found: list[tuple[int, int, str]] = []
    with closing(Consumer(settings)) as consumer:
        for number in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            place = TopicPartition(topic, number, 0)
            _, high = consumer.get_watermark_offsets(place, timeout=30)
            consumer.assign([place])
            while high and consumer.position([place])[0].offset < high:
                messages = [message for message in consumer.consume(1000, 0.05) if message.error() is None]
                found += [(number, int(each.offset() or 0), (each.value() or b"").decode()) for each in messages]
    return found
