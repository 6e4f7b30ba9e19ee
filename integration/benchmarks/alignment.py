"""``make bench-alignment``: what it costs to follow other queries' barriers, and how long a slow query holds up a join.

How to read it. *Planning*: the median of `latestOffset` (once per trigger, in the driver) with `alignOn` and without it, on
one topic, and the length of its offset in Spark's log. *Behind*: how many micro-batches a query needs that is 10,000 marks
behind, if nothing has to agree with it; their rows are not read. *A slow query*: A and B read one topic, B is late by a fixed
time, and C joins what they write, in each way of alignment. The waits are from the moment at which A's checkpoint is published:
until A's rows are in a checkpoint of C, and until a checkpoint of C names the barrier as complete. The queries run without
Spark (`integration.dag`), all in one thread, so that little but the waiting counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.marks.mark import Mark
from connector.kafka.sink.injector import Injector
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from integration.broker import Cluster
from integration.dag import SourcedEngine, Stage, write_rows
from transactional.checkpoint import CheckpointMark

MARKS_A_MINUTE = 200

WAYS = {
    "exactly-once": {},
    "at-least-once": {"alignment": "at-least-once"},
    "unaligned": {"alignment": "unaligned"},
    "unaligned, alignedTimeout=2s": {"alignment": "unaligned", "alignedTimeout": "2s"},
}


def main() -> int:
    """Measure all, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.alignment", description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--behind", type=int, default=10_000, help="marks")
    parser.add_argument("--late", type=float, default=5.0, help="seconds by which B is behind A")
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    console = Console()
    with Cluster() as kafka, tempfile.TemporaryDirectory() as folder:
        console.print(planning(kafka, chosen.partitions))
        console.print(behind(kafka, chosen.behind))
        console.print(slow(kafka, Path(folder), chosen.late, chosen.rounds))
    return 0


class Marked:
    """A topic, and marks that a program writes: as many rows and marks as wanted, at no cost of a query."""

    def __init__(self, kafka: Cluster, partitions: int) -> None:
        name = uuid.uuid4().hex[:8]
        self.topic, self.barriers, self.partitions = f"rows-{name}", f"marks-{name}", partitions
        self.servers = kafka.bootstrap_servers
        kafka.create_topic(self.topic, partitions=partitions)
        kafka.create_topic(self.barriers)
        admin = KafkaAdmin(ClientConfig("bench", {"bootstrap.servers": self.servers}))
        self._identity = admin.topics([self.topic])[self.topic].topic_id
        admin.close()
        self._checkpoint = 0

    def mark(self, ends: list[int]) -> None:
        """Write marks, the ends of all partitions alike."""
        producer = Producer({"bootstrap.servers": self.servers, "queue.buffering.max.kbytes": 1 << 20})
        for end in ends:
            self._checkpoint += 1
            number = self._checkpoint
            checkpoint = CheckpointMark("query", number, number - 1, {"query": number}, True, 1, number, False)
            where = {Partition(self.topic, partition): end for partition in range(self.partitions)}
            mark = Mark(checkpoint, where, {self.topic: self._identity})
            producer.produce(self.barriers, mark.to_json(), mark.key)
            producer.poll(0)
        producer.flush(60)

    def reader(self, **options: str) -> BarrierKafkaStreamReader:
        """A reader of the topic."""
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **options,
        }
        return BarrierKafkaStreamReader(parse_read_options(given, "stream"))


def ask(reader: BarrierKafkaStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The next end, and how long that took, in seconds."""
    begin = time.perf_counter()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return json.loads(json.dumps(end)), time.perf_counter() - begin


def planning(kafka: Cluster, partitions: int) -> Table:
    """One channel of many partitions, with the marks of a minute."""
    topic = Marked(kafka, partitions)
    table = Table("planning", "latestOffset, ms", "offset, bytes", title=f"{partitions} partitions")
    for name, options in (("without alignOn", {}), ("with alignOn", {"alignOn": topic.barriers})):
        reader = topic.reader(**options)
        end, seconds = reader.initialOffset(), []
        for number in range(60):
            if options:
                topic.mark([0] * (MARKS_A_MINUTE // 60))
            end, took = ask(reader, end)
            if number > 5:
                seconds.append(took)
        reader.stop()
        table.add_row(name, f"{statistics.median(seconds) * 1000:.1f}", f"{len(json.dumps(end)):,}")
    return table


def behind(kafka: Cluster, marks: int) -> Table:
    """A query that has a backlog of marks, each of a row in each partition."""
    topic = Marked(kafka, 4)
    write_rows(topic.servers, topic.topic, [(str(number), "row") for number in range(6 * marks)])
    topic.mark([1 + number for number in range(marks)])
    table = Table("maxOffsetsPerTrigger", "micro-batches", "seconds of planning", title=f"{marks:,} marks behind")
    for limit in ("", str(4 * marks // 10)):
        reader = topic.reader(alignOn=topic.barriers, **({"maxOffsetsPerTrigger": limit} if limit else {}))
        end, batches, seconds = reader.initialOffset(), 0, 0.0
        while True:
            start = end
            end, took = ask(reader, start)
            if end == start:
                break
            batches, seconds = batches + 1, seconds + took
        reader.stop()
        table.add_row(limit or "none", str(batches), f"{seconds:.2f}")
    return table


Seen = tuple[float, "dict[str, dict[str, int]]", "dict[str, int]"]
"""When a checkpoint was committed, where it ends, and which barriers it contains."""


class Looks:
    """A query, and its checkpoints."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._engine, self._batch = stage, SourcedEngine(stage.work, stage.reading), 0
        self.seen: list[Seen] = []

    def step(self) -> None:
        """Run a micro-batch, if there is one."""
        self._engine.run(self._batch + 1)
        if (Path(self._stage.work.location) / "commits" / str(self._batch)).exists():
            end = self._engine.end(self._batch)
            self.seen.append((time.monotonic(), end["topics"], end["cut"]["lineage"]))
            self._batch += 1

    def close(self) -> None:
        """Close its source's clients."""
        self._engine.stop()

    def rows_of(self, topic: str, ends: dict[str, int]) -> float:
        """When all of these rows were in a checkpoint."""
        return next(at for at, where, _ in self.seen if all(where[topic][n] >= end for n, end in ends.items()))

    def complete(self, origin: str, barrier: int) -> float:
        """When a barrier was complete."""
        return next(
            at
            for at, _, lineage in self.seen
            if any(name.startswith(origin) and number >= barrier for name, number in lineage.items())
        )


@contextmanager
def injecting(kafka: Cluster, topic: str) -> Iterator[Injector]:
    """An injector for a topic."""
    with Injector(
        ClientConfig("bench", {"bootstrap.servers": kafka.bootstrap_servers}), topic, f"{topic}-marks"
    ) as found:
        yield found


@dataclass
class Input:
    """A topic that no query writes."""

    topic: str

    @property
    def barriers(self) -> str:
        """Of its marks."""
        return f"{self.topic}-marks"


def slow(kafka: Cluster, folder: Path, late: float, rounds: int) -> Table:
    """A and B read one topic, B late; C joins them in each way."""
    source = Input(f"s-{uuid.uuid4().hex[:8]}")
    kafka.create_topic(source.topic)
    kafka.create_topic(source.barriers)
    a = Stage(kafka, folder, "a", [source], lambda topic, value: [(value, f"a {value}")])
    b = Stage(kafka, folder, "b", [source], lambda topic, value: [(value, f"b {value}")])
    joins = {
        way: Looks(Stage(kafka, folder, "c", [a, b], lambda topic, value: [(value, value)], options=options))
        for way, options in WAYS.items()
    }

    def wait(seconds: float) -> None:
        """Let the joins run."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for join in joins.values():
                join.step()
            time.sleep(0.01)

    published: list[tuple[float, dict[str, int]]] = []
    with injecting(kafka, source.topic) as injector:
        for number in range(rounds):
            write_rows(kafka.bootstrap_servers, source.topic, [(str(n), str(n)) for n in range(100)])
            injector.inject()
            a.run()
            published.append((time.monotonic(), a.marks()[-1]["topics"][a.topic]["ends"]))
            wait(late if number else 0)
            b.run()
            wait(3.0)
    for join in joins.values():
        join.close()
    table = Table(
        "C",
        "A's rows in a checkpoint, s",
        "barrier complete, s",
        title=f"B late by {late:g} s, medians of {rounds - 1} rounds",
    )
    for way, looks in joins.items():
        rows = [looks.rows_of(a.topic, ends) - at for at, ends in published[1:]]
        complete = [looks.complete(source.topic, number) - at for number, (at, _) in enumerate(published, 1)][1:]
        table.add_row(way, f"{statistics.median(rows):.2f}", f"{statistics.median(complete):.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
