"""What runs while the faults strike: rows that are fed, queries that carry them, and who judges what came out.

The truth is the input topic itself, read to its end. Every row of it has to be in the output once; in a topic also in its
order, and Java's consumer has to see the same as librdkafka's.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
from confluent_kafka import Producer

from integration.broker import Cluster
from integration.dag import read_rows
from integration.delta_output import DeltaOutput
from integration.driver_process import Output
from integration.faults.query import Query
from integration.jars import java_executable, resolve_kafka
from integration.sql_output import DatabaseServer, SqlOutput
from integration.topic_output import OPEN, TopicOutput, transactional_ids

__all__ = ["WORKLOADS", "Feed", "Workload", "make_workload"]

PARTITIONS = 2

ROWS_A_SECOND = 60
"""Enough for rows in each micro-batch, little enough for two cores with three brokers and a driver."""

WORKLOADS = ("kafka", "delta", "postgresql", "mysql", "multi", "chain", "transfers")

INTERVAL = "3s"

CHAIN = 3

NUMBER = "CAST(CAST(value AS STRING) AS LONG)"

TO_TOPIC, TO_TABLE = ("key", "value", "partition"), (f"{NUMBER} AS value",)
"""What a query selects."""


class Feed:
    """Writes rows to a topic, so many a second, until it is asked to finish. A thread.

    Parameters
    ----------
    servers, topic : str
    rows : Callable[[int], Sequence[tuple[str, int]]]
        Of a number that counts up from 0: what is written then, values with their partitions.
    """

    def __init__(self, servers: str, topic: str, rows: Callable[[int], Sequence[tuple[str, int]]]) -> None:
        self.servers, self.topic, self._rows = servers, topic, rows
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop, when all that was written is there."""
        self._over.set()
        self._thread.join()
        left = self._producer.flush(300)
        assert left == 0, f"{left} rows could not be fed"

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.1):
            for each in range(number, number + ROWS_A_SECOND // 10):
                for value, partition in self._rows(each):
                    self._producer.produce(self.topic, value, value, partition=partition)
            number += ROWS_A_SECOND // 10
            self._producer.poll(0)


def _numbers(number: int) -> Sequence[tuple[str, int]]:
    return [(str(number), number % PARTITIONS)]


def _numbers_repeated(number: int) -> Sequence[tuple[str, int]]:
    """One of five comes once more, a little later."""
    again = _numbers(number - 40) if number % 5 == 0 and number >= 40 else ()
    return [*_numbers(number), *again]


@dataclass
class Workload:
    """Queries with their input and outputs."""

    # The brokers, and the input topic.
    servers: str
    source: str
    queries: Sequence[Query]  # In the order of the rows' way.
    topics: Mapping[str, Callable[[int], bool]]  # Output topics with the rows that belong there.
    outputs: Mapping[str, tuple[Output, Callable[[int], bool]]]  # Other outputs, likewise.
    ordered: bool  # Whether the order of the input has to be kept.

    def feed(self) -> Feed:
        """Begin to write the input."""
        return Feed(self.servers, self.source, _numbers if self.ordered else _numbers_repeated)

    def expected(self) -> dict[int, list[int]]:
        """Rows that the input holds, by partition, in order; those that are repeated, once."""
        found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        for partition, value in self.values():
            found[partition].append(int(value))
        return {number: list(dict.fromkeys(rows)) for number, rows in found.items()}

    def values(self) -> list[tuple[int, str]]:
        """Return the input: partitions and values."""
        return [(partition, value) for partition, _, value in read_rows(self.servers, self.source)]

    def fed(self) -> int:
        """How many different rows the input holds."""
        return sum(map(len, self.expected().values()))

    def is_whole(self, rows: int) -> bool:
        """Whether the last output holds so many rows already: the end is near."""
        if self.topics:
            name, belongs = list(self.topics.items())[-1]
            return len(read_rows(self.servers, name)) >= sum(map(belongs, range(rows)))
        output, belongs = next(iter(self.outputs.values()))
        return output.rows().total() >= sum(map(belongs, range(rows)))

    def wrong(self) -> list[str]:
        """Compare every output with the input; return what is wrong."""
        expected = self.expected()
        found: list[str] = []
        for topic, belongs in self.topics.items():
            seen = read_rows(self.servers, topic)
            by_java = read_with_java(self.servers, topic)
            if seen != by_java:
                found.append(f"{topic}: librdkafka's consumer sees {len(seen)} rows, Java's {len(by_java)}: others")
            for number, rows in expected.items():
                wanted = [row for row in rows if belongs(row)]
                there = [int(value) for partition, _, value in seen if partition == number]
                found += _compared(f"{topic} {number}", wanted, there, ordered=self.ordered)
            if held := TopicOutput(self.servers, topic, "").held_back():
                found.append(f"{topic}: readers are held back: {held}")
        everything = [row for rows in expected.values() for row in rows]
        for name, (output, belongs) in self.outputs.items():
            wanted = [row for row in everything if belongs(row)]
            found += _compared(name, wanted, list(output.rows().elements()), ordered=False)
            if not output.is_quiet():
                found.append(f"{name}: open: {output.open_transactions()[:5]}")
        return [*found, *self.left_open()]

    def left_open(self) -> list[str]:
        """Say which transactions are open in the cluster: there are no others than these queries'."""
        opened = transactional_ids(self.servers, OPEN)
        return [f"open transactions: {opened[:5]}"] if opened else []


def _compared(name: str, wanted: Sequence[int], there: Sequence[int], *, ordered: bool) -> list[str]:
    count, due = Counter(there), Counter(wanted)
    problems = []
    if lost := sorted(due - count):
        problems.append(f"{name}: {len(lost)} of {len(wanted)} rows are missing: {lost[:10]}")
    if extra := sorted(count - due):
        problems.append(f"{name}: {len(extra)} rows too many: {extra[:10]}")
    if not problems and ordered and list(wanted) != list(there):
        at = next(place for place, (a, b) in enumerate(zip(wanted, there, strict=True)) if a != b)
        problems.append(f"{name}: out of order from row {at}: {there[at : at + 5]} for {wanted[at : at + 5]}")
    return problems


def read_with_java(servers: str, topic: str) -> list[tuple[int, int, str]]:
    """Return what `integration.dag.read_rows` does, as Java's consumer sees it."""
    program = str(Path(__file__).with_name("read_committed.java"))
    jars = f"{resolve_kafka()}/*:{Path(pyspark.__file__).parent}/jars/*"
    command = [java_executable(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "org.codehaus.janino.SimpleCompiler", program]
    done = subprocess.run(
        [*command, "ReadCommitted", servers, topic], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    return sorted((int(partition), int(offset), value) for partition, offset, value in lines)


def _all(_: int) -> bool:
    return True


def make_workload(
    kind: str,
    cluster: Cluster,
    folder: Path,
    database: DatabaseServer | None,
    name: str,
    *,
    interval: bool,
    stateful: bool,
) -> Workload:
    """Make the topics of a workload, and say what its queries are.

    Parameters
    ----------
    kind : str
        One of `WORKLOADS`.
    cluster : Cluster
    folder : Path
        For locations and tables.
    database : DatabaseServer, optional
        For those that need one.
    name : str
        Makes its topics and tables its own.
    interval : bool
        Whether checkpoints have several micro-batches.
    stateful : bool
    """
    brokers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    config = {"min.insync.replicas": "2"}

    def topic(suffix: str, partitions: int = PARTITIONS) -> str:
        cluster.create_topic(f"{name}-{suffix}", partitions, replication=3, config=config)
        return f"{name}-{suffix}"

    source = topic("in")
    first = {
        **brokers,
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "2000",
        **({"barrierInterval": INTERVAL} if interval else {}),
    }
    topics: dict[str, Callable[[int], bool]] = {}
    outputs: dict[str, tuple[Output, Callable[[int], bool]]] = {}
    queries: list[Query] = []

    def add(reads: Mapping[str, str], sink: Mapping[str, str], select: Sequence[str]) -> None:
        place = str(folder / f"location-{len(queries)}")
        queries.append(Query(place, reads, sink, select, stateful))

    def to_topic(target: str) -> dict[str, str]:
        return {**brokers, "format": "2pc-kafka", "topic": target}

    def to_table() -> SqlOutput:
        assert database is not None
        own = name.replace("-", "_")
        return SqlOutput(database, f"t_{own}", f"s_{own}")

    if kind == "kafka":
        target = topic("out")
        topics[target] = _all
        add(first, to_topic(target), TO_TOPIC)
    elif kind == "delta":
        outputs["delta"] = DeltaOutput(folder / "table"), _all
        add(first, {"format": "2pc-delta", "path": str(folder / "table")}, TO_TABLE)
    elif kind in ("postgresql", "mysql"):
        table = to_table()
        outputs[kind] = table, _all
        add(first, table.options(), TO_TABLE)
    elif kind == "multi":
        assert database is not None
        target = topic("out")
        table = SqlOutput(database, f"t_{name.replace('-', '_')}", f"s_{name.replace('-', '_')}")
        parts: dict[str, Mapping[str, str]] = {
            "topic": to_topic(target),
            "files": {"format": "2pc-delta", "path": str(folder / "table")},
            "table": table.options(),
        }
        belongs = {each: _routed(place, len(parts)) for place, each in enumerate(parts)}
        topics[target] = belongs["topic"]
        outputs.update(files=(DeltaOutput(folder / "table"), belongs["files"]), table=(table, belongs["table"]))
        options = {f"{each}.{key}": text for each, given in parts.items() for key, text in given.items()}
        cases = " ".join(f"WHEN {place} THEN '{each}'" for place, each in enumerate(parts))
        route = f"CASE {NUMBER} % {len(parts) + 1} {cases} END AS route"
        text = ("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", route)
        add(first, {"format": "2pc-multi", "sinks": ",".join(parts), "routeColumn": "route", **options}, text)
    else:
        reads: dict[str, str] = dict(first)
        for stage in range(CHAIN):
            target, marks = topic(f"out-{stage}"), topic(f"marks-{stage}", 1)
            topics[target] = _all
            add(reads, {**to_topic(target), "barrierTopic": marks}, TO_TOPIC)
            reads = {**brokers, "subscribe": target, "startingOffsets": "earliest", "alignOn": marks}
    return Workload(cluster.bootstrap_servers, source, queries, topics, outputs, ordered=not stateful)


def _routed(place: int, sinks: int) -> Callable[[int], bool]:
    return lambda row: row % (sinks + 1) in (place, sinks)
