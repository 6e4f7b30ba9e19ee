"""Queries without Spark that die and are started again: their work, their output, and an armed folder of faults."""

from __future__ import annotations

import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from barrier_kafka.reader import complete_offsets
from connector.cli import main
from connector.kafka.sink.handles import KafkaHandle
from connector.kafka.sink.kafka_sink import KafkaSink
from integration.broker import Cluster
from integration.delta_output import DeltaOutput
from integration.driver_process import Faults, Output, Place, SinkOutput, wait_until
from integration.engine import SCHEMA, Engine, Work, command
from integration.multi_output import MultiOutput
from integration.sql_output import SqlOutput
from integration.topic_output import COMMITTED, LiveReader, TopicOutput
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import LocationError
from transactional.faults import InjectedFault
from transactional.sink import Options, Outcome

__all__ = ["POINTS", "EngineQuery", "KafkaQuery", "MarkedQuery", "MultiQuery", "TableQuery", "reader"]

POINTS = [point for point in faults.POINTS if point not in ("journal.created", "source.latest")]
"""Those that the engine passes."""


class EngineQuery:
    """One query.

    Parameters
    ----------
    work : Work
    output : Output
    folder : Path
        Its faults are armed below this: the environment names that folder to the processes.
    """

    def __init__(self, work: Work, output: Output, folder: Path) -> None:
        self.work, self.output = work, output
        self.faults = Faults(folder / "faults")
        self.place = Place(Path(work.location), output)

    def engine(self, prepared: Callable[[int], None] = lambda batch: None, **options: Any) -> Engine:
        """A new driver, perhaps with other options; see `Engine`."""
        return Engine(replace(self.work, options={**self.work.options, **options}), prepared)

    def run(self, error: bool = False, **options: Any) -> None:
        """One driver's life."""
        self.engine(**options).run(error=error)

    def die(self, *points: str, error: bool = False, **options: Any) -> None:
        """Live until the points have fired."""
        for point in points:
            self.faults.arm(point, "raise")
        with pytest.raises(InjectedFault):
            self.run(error, **options)
        assert self.faults.armed() == []
        self.look()

    def be_killed(self, point: str) -> None:
        """Live in a process of its own until the point kills it."""
        self.faults.arm(point, "kill")
        life = subprocess.run(command(self.work), check=False, capture_output=True, text=True)
        assert self.faults.armed() == [], life.stderr
        assert life.returncode < 0, life.stderr
        self.look()

    def die_at(self, point: str, error: bool, *, kill: bool = False) -> None:
        """Die at the point, by the shortest way to it."""
        if point == "abort.journalled":
            if any(part.lost for batch in self.place.ledger().batches.values() for part in batch.parts):
                self.engine().run(1)  # a repair is of a decided micro-batch, which no abort touches
            self.die("task.written", point, error=True)
            return
        if point == "recovery.settling":
            self.die("decision.written")
        if point.startswith("repair."):
            self.die("commit.one")
            self.lose_some()
        if kill:
            self.be_killed(point)
        else:
            self.die(point, error=error)

    def lose_some(self) -> None:
        """Someone deletes decided rows that are not committed."""
        self.output.lose(self.output.open_transactions())

    def finish(self, engine: Engine | None = None) -> None:
        """Run a driver to the end of the work and check everything."""
        (engine or self.engine()).run()
        self.check()

    def look(self) -> None:
        """Nothing is wrong after a death."""
        self.place.check_partial(self.work.expected)

    def check(self) -> None:
        """Every row is where it should be, once; nothing is left anywhere."""
        self.place.check_whole(self.work.expected)

    def check_nothing_lost(self) -> None:
        """No decided transaction had to be written again: a repair would hide that one was aborted by mistake."""
        assert not {EntryKind.REPAIR, EntryKind.VOID, EntryKind.VERDICT} & set(self.place.kinds())

    def close(self) -> None:
        """End what reads all the time."""


class KafkaQuery(EngineQuery):
    """A query that writes a topic of its own, and a consumer that reads the topic all the time."""

    output: TopicOutput

    def __init__(
        self, cluster: Cluster, folder: Path, partitions: int = 4, prefix: str | None = None, **changes: Any
    ) -> None:
        topic = f"crashes-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic, partitions=partitions)
        self.prefix = prefix or f"q-{topic}"
        servers = changes.pop("servers", cluster.bootstrap_servers)
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "transactionalIdPrefix": self.prefix}
        work = Work(str(folder / f"location-{topic}"), options, partitions=partitions, **changes)
        super().__init__(work, TopicOutput(cluster.bootstrap_servers, topic, self.prefix), folder)
        self.reader: LiveReader | None = LiveReader(self.output)

    def check(self) -> None:
        """Exactly these rows are there, once, and nothing of ours is left at the broker."""
        super().check()
        if self.reader is not None:
            assert self.reader.finish(self.output.ends(COMMITTED)) == Counter(range(self.work.expected))

    def accept(self) -> None:
        """Start it where another query has had its prefix, which an older copy would look like; then accept the location."""
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*Another query used this query's prefix"):
            self.run()
        assert main(["restore", "--as-is", str(self.place.location), "--claim", "--yes"]) == 0

    def known(self) -> list[KafkaHandle]:
        """Handles of prepared and decided transactions that are not settled."""
        return cast("list[KafkaHandle]", self.place.ledger().known_handles())

    def sink(self) -> KafkaSink:
        """The bare sink, for who looks at transactions or meddles with them."""
        return KafkaSink(Options(self.work.options), SCHEMA)

    def outcomes(self, handles: Sequence[KafkaHandle]) -> list[Outcome]:
        """What the broker says of them."""
        with closing(self.sink()) as sink:
            return [state.outcome for state in sink.inspect(handles)]

    def wait_expired(self, handles: Sequence[KafkaHandle]) -> list[Outcome]:
        """Wait until the broker has given up what is still open of these; returns how all of them ended."""
        wait_until(lambda: Outcome.PREPARED not in self.outcomes(handles), "transactions expire")
        return self.outcomes(handles)

    def repaired(self) -> list[int]:
        """Partition of each part that was written again."""
        repairs = [entry for entry in self.place.entries() if entry.kind == EntryKind.REPAIR]
        return [part["partition"] for entry in repairs for part in entry.body["parts"]]

    def close(self) -> None:
        """End the reader: what it has read may be gone."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None


class MarkedQuery(EngineQuery):
    """A query that writes a topic, and its marks to another."""

    PARTITIONS = 3

    def __init__(self, kafka: Cluster, folder: Path, **changes: Any) -> None:
        name = uuid.uuid4().hex[:8]
        self.topic, self.barriers = f"rows-{name}", f"marks-{name}"
        kafka.create_topic(self.topic, partitions=self.PARTITIONS)
        self.servers = kafka.bootstrap_servers
        options = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.topic,
            "barrierTopic": self.barriers,
            "transactionalIdPrefix": f"q-{name}",
        }
        work = Work(str(folder / f"location-{name}"), options, partitions=self.PARTITIONS, **changes)
        super().__init__(work, TopicOutput(self.servers, self.topic, f"q-{name}"), folder)

    def complete(self) -> dict[str, dict[int, int]]:
        """Where the newest whole checkpoint ends."""
        with closing(reader(self.servers)) as consumer:
            return complete_offsets(consumer, self.barriers)

    def whole(self) -> Counter[int]:
        """What a reader sees that stops there; rows of whole checkpoints, each once."""
        ends = self.complete().get(self.topic, {})
        found: Counter[int] = Counter()
        with closing(reader(self.servers)) as consumer:
            for number, end in ends.items():
                place = TopicPartition(self.topic, number, 0)
                consumer.assign([place])
                while consumer.position([place])[0].offset < end:
                    message = consumer.poll(0.05)
                    if message is not None and message.error() is None and (message.offset() or 0) < end:
                        found[int(message.value() or b"")] += 1
        rows = self.work.rows
        assert found == Counter(range(found.total())), "whole checkpoints, in order"
        assert found.total() % rows == 0, found
        return found

    def look(self) -> None:
        """What the newest mark promises is there."""
        super().look()
        self.whole()

    def check(self) -> None:
        """All rows are there, and the newest mark is behind the last."""
        super().check()
        assert self.whole().total() == self.work.expected


def reader(servers: str) -> Consumer:
    """A plain consumer."""
    return Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})


class TableQuery(EngineQuery):
    """A query that writes one store, other than a topic."""

    def __init__(self, table: SinkOutput, folder: Path) -> None:
        options = table.options(transactionalIdPrefix=f"q-{uuid.uuid4().hex[:8]}")
        super().__init__(Work(str(folder / "location"), options, format=options.pop("format")), table, folder)
        self.table = table

    def check(self) -> None:
        """Every row is there, once; nothing is staged."""
        super().check()
        self.table.check()


class MultiQuery(EngineQuery):
    """A query that writes a topic, a Delta table and a table of PostgreSQL under one decision."""

    def __init__(self, kafka: Cluster, table: SqlOutput, folder: Path, **changes: Any) -> None:
        name = uuid.uuid4().hex[:8]
        kafka.create_topic(f"multi-{name}", partitions=2)
        self.table = table
        self.topic = TopicOutput(kafka.bootstrap_servers, f"multi-{name}", f"q-{name}-topic")
        self.files = DeltaOutput(folder / "table")
        options = {
            "sinks": "topic,files,table",
            "routeColumn": "route",
            "transactionalIdPrefix": f"q-{name}",
            "topic.format": "2pc-kafka",
            "topic.topic": f"multi-{name}",
            "topic.kafka.bootstrap.servers": kafka.bootstrap_servers,
            "files.format": "2pc-delta",
            "files.path": str(self.files.path),
            **{f"table.{key}": value for key, value in self.table.options().items()},
        }
        outputs: dict[str, Output] = {"topic": self.topic, "files": self.files, "table": self.table}
        work = Work(str(folder / "location"), options, partitions=2, routes=tuple(outputs), **changes)
        super().__init__(work, MultiOutput(outputs, work.route), folder)

    def lose_some(self) -> None:
        """The topic's transactions are aborted."""
        self.output.lose([name for name in self.output.open_transactions() if name.startswith("topic/")])

    def check(self) -> None:
        """Every row is where it should be, once; nothing is left anywhere."""
        super().check()
        self.table.check()

    def repaired(self) -> list[tuple[int, str]]:
        """Partition and sink of each part that was written again."""
        repairs = [entry for entry in self.place.entries() if entry.kind == EntryKind.REPAIR]
        return [(part["partition"], part["route"]) for entry in repairs for part in entry.body["parts"]]
