"""The product in a world: a sink and a hook over the simulated store, and everything of a machine that it meets, replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connector.delta import sink as delta_sink
from connector.delta.sink import DeltaSink
from connector.formats import discovery
from connector.kafka.client import connection
from connector.kafka.sink import kafka_sink, transaction
from connector.kafka.sink.fates import margin_of
from connector.kafka.sink.handles import KafkaHandle
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.location import location
from connector.location.location import CheckpointLocation
from connector.operations import recovery
from connector.savepoints import manifest, restore, take
from connector.spark import exclusion, hosted_sink, internals
from connector.sql.staged_sink import StagedHandle, StagedSqlSink, StagedTransaction
from tests.simulation.auditor import KEYS
from tests.simulation.database import STAGING, TARGET, Session, SimulatedDatabase
from tests.simulation.delta_table import SimulatedDataFiles, SimulatedDelta, SimulatedFolder
from tests.simulation.kafka_client import TIMEOUT_MS, SimulatedKafka
from tests.simulation.kafka_cluster import TOPIC
from tests.simulation.moves import OneByOne
from tests.simulation.processes import Process
from tests.simulation.stores import LIFETIME, MARGIN, SimulatedFiles, SimulatedTransactions
from tests.simulation.world import HOT, Setup, World
from transactional.capabilities import Expires, Routes
from transactional.clock import SystemClock
from transactional.hooks import CheckpointHook, HookContext
from transactional.journal import Journal
from transactional.sink import HandleState, Options
from transactional.testing import RecordingSink

__all__ = ["IN_DELTA", "IN_KAFKA", "IN_MEMORY", "IN_SQL", "SETUPS", "SimulatedSqlSink", "play", "violation"]


class SimulatedSink(Expires, RecordingSink):
    """The sink of a simulated query: over the world's store."""

    world: ClassVar[World]

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.world.store)  # type: ignore[arg-type]
        self.margin = MARGIN

    def lifetime(self) -> float | None:
        """Return the seconds that the store keeps a transaction."""
        return LIFETIME


class RoutedSink(Routes, SimulatedSink):
    """It is two."""

    routes = ("left", "right")

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Return each second row of a key to the same of both."""
        for number, route in enumerate(self.routes):
            rows = [place for place, row in enumerate(batch["value"].to_pylist()) if int(row) // KEYS % 2 == number]
            if rows:
                yield route, batch.take(rows)


class SimulatedKafkaSink(KafkaSink):
    """Kafka's own sink. What it finds too old by the clock of its machine is lost."""

    world: ClassVar[World]

    def inspect(self, handles: Sequence[KafkaHandle]) -> Sequence[HandleState]:
        """Look at all."""
        states = super().inspect(handles)
        process = self.world.scheduler.current
        now = self.world.time + (process.skew if process else 0.0)
        for handle in handles:
            left = (handle["startedAt"] + handle["timeoutMs"]) / 1000 - now
            self.world.did["loss"] += left < margin_of(handle["timeoutMs"])
        return states


class SimulatedSqlSink(StagedSqlSink):
    """The base of all databases' sinks, over the simulated one."""

    world: ClassVar[World]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "2pc-simulated-sql"

    def connect(self) -> Session:
        """Connect."""
        assert isinstance(self.world.store, SimulatedDatabase)
        return self.world.store.connect()

    def begin(self, cursor: Any, seconds: float | None) -> None:
        """Say how long a statement, and a pause, may take."""
        cursor.limit = seconds

    def create(self, cursor: Any) -> None:
        """Create both tables."""
        self.run(cursor, f"CREATE TABLE IF NOT EXISTS {STAGING} (PRIMARY KEY (barrier_nonce, place))")
        self.run(cursor, f"CREATE TABLE IF NOT EXISTS {TARGET} (value BIGINT NOT NULL)")

    def has(self, cursor: Any, name: str) -> bool:
        """Return whether there is such a table."""
        return bool(self.run(cursor, "SELECT name FROM tables WHERE name = ?", (name,)))

    def has_target(self, cursor: Any) -> bool:
        """Return whether there is a target."""
        return self.has(cursor, TARGET)

    def server(self, cursor: Any) -> str:
        """Return which server it is."""
        return str(self.run(cursor, "SELECT id FROM servers")[0][0])

    def staging(self, cursor: Any) -> str:
        """Return the staging table's name."""
        return STAGING

    def stage(self, transaction: StagedTransaction, batch: pa.RecordBatch) -> None:
        """Insert the rows, one by one."""
        statement = f"INSERT INTO {STAGING} (barrier_nonce, place, value) VALUES (?, ?, ?)"
        for place, value in enumerate(batch["value"].to_pylist(), transaction.rows):
            self.run(transaction.cursor, statement, (transaction.context.nonce, place, value))

    def publish(self, cursor: Any, handles: Sequence[StagedHandle]) -> None:
        """Copy the rows, one by one."""
        for handle in handles:
            select = f"SELECT value FROM {STAGING} WHERE barrier_nonce = ? ORDER BY place"
            for row in self.run(cursor, select, (handle["nonce"],)):
                self.run(cursor, f"INSERT INTO {TARGET} (value) VALUES (?)", row)


class SimulatedDeltaSink(DeltaSink):
    """The Delta sink over a simulated table."""

    world: ClassVar[World]

    def _create(self) -> None:
        assert isinstance(self.world.store, SimulatedDelta)
        SimulatedFolder(self.world.store).make()


class SimulatedHook(CheckpointHook):
    """It fails now and then, and must never get back more or less than what is decided."""

    world: ClassVar[World]

    def identifier(self) -> str:
        """Return its name."""
        return "hook"

    def trigger(self, context: HookContext) -> bytes:
        """Return how far the rows of the checkpoint go."""
        world = self.world
        world.step("hook.trigger")
        if world.weights["hook fails"] and world.choices.below(4) == 3:
            world.did["hook"] += 1
            world.see("hook fails")
            raise ValueError("hook")
        return b"%d" % world.query.end_of(max(context.batches), world.here)

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        """See that readers see no row behind it."""
        world = self.world
        world.step("hook.restore")
        if not world.did["rival"]:
            world.auditor.restored(int(state or 0))


OPTIONS: Mapping[str, str] = {
    "maxBatchesPerCheckpoint": "5",
    "retainedCheckpoints": "4",
    "commitTimeoutMs": "500",
    "tolerableFailedCheckpoints": "2",
    "checkpointHooks": f"{__name__}:SimulatedHook",
}
KAFKA_OPTIONS: Mapping[str, str] = {
    **OPTIONS,
    "commitTimeoutMs": "5000",
    "topic": TOPIC,
    "kafka.bootstrap.servers": "simulated:9092",
    "kafka.transaction.timeout.ms": str(TIMEOUT_MS),
}
IN_COMMITS = (
    "commit.looked",
    "decision.written",
    "EndTxn",
    "commit.one",
    "commit.done",
    "DescribeProducers",
    "ListOffsets",
)
ANYWHERE = (*HOT, "EndTxn", "EndTxn", "Describe", "Fetch", "ListOffsets", "Produce", "InitProducerId", "Metadata")
DELTA_OPTIONS: Mapping[str, str] = {**OPTIONS, "path": SimulatedFolder.uri}
IN_DELTA_ANYWHERE = (*HOT, "create log", "create log", "read log", "open the table", "put", "delete", "look at files")
IN_SQL_ANYWHERE = (*HOT, "COMMIT", "COMMIT", "COMMIT", "SELECT", "INSERT", "UPDATE", "DELETE", "CONNECT")
IN_MEMORY = (
    Setup(SimulatedSink, OPTIONS, SimulatedTransactions),
    Setup(RoutedSink, OPTIONS, SimulatedTransactions),
)
IN_KAFKA = (
    Setup(SimulatedKafkaSink, KAFKA_OPTIONS, SimulatedKafka, hot=ANYWHERE),
    Setup(SimulatedKafkaSink, KAFKA_OPTIONS, SimulatedKafka, "store is hurt", IN_COMMITS),
)
IN_SQL = (
    Setup(SimulatedSqlSink, OPTIONS, SimulatedDatabase, hot=IN_SQL_ANYWHERE),
    Setup(SimulatedSqlSink, OPTIONS, SimulatedDatabase, "store is hurt", IN_SQL_ANYWHERE),
)
IN_DELTA = (
    Setup(SimulatedDeltaSink, DELTA_OPTIONS, SimulatedDelta, hot=IN_DELTA_ANYWHERE),
    Setup(SimulatedDeltaSink, DELTA_OPTIONS, SimulatedDelta, "store is hurt", IN_DELTA_ANYWHERE),
)
SETUPS = (*IN_MEMORY, *IN_KAFKA, *IN_SQL, *IN_DELTA)
FOLD_EVERY = 8  # entries: a run meets several snapshots, and deleted numbers


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    """Let the product meet this world in the place of the machine."""

    def current() -> Process:
        process = world.scheduler.current
        assert process is not None
        return process

    def this_process() -> dict[str, str]:
        return {"driver": current().driver}

    def journal(place: Sequence[tuple[str, str]], _: int) -> Journal:
        process = current()
        process.journal = process.journal or CheckpointLocation.from_options(dict(place)).journal()
        return process.journal

    schema = pa.schema([("value", pa.string())])
    with pytest.MonkeyPatch.context() as patch:
        for owner in (SimulatedSink, SimulatedKafkaSink, SimulatedSqlSink, SimulatedDeltaSink, SimulatedHook):
            patch.setattr(owner, "world", world, raising=False)
        patch.setattr(location, "LocalFiles", lambda path, private=False: SimulatedFiles(world, path))
        patch.setattr(SystemClock, "now", lambda _: world.time + (p.skew if (p := world.scheduler.current) else 0.0))
        patch.setattr(SystemClock, "monotonic", lambda _: world.time)
        patch.setattr(SystemClock, "sleep", lambda _, seconds: world.sleep(seconds))
        patch.setattr(internals, "driver_identity", lambda: current().driver)
        patch.setattr(internals, "task_batch", lambda: current().task)
        patch.setattr(internals, "arrow_schema", lambda _: schema)
        patch.setattr(hosted_sink, "driver_process", this_process)
        patch.setattr(hosted_sink, "_journal", journal)
        for module in (recovery, exclusion):
            patch.setattr(module, "this_process", this_process)
        for module in (recovery, exclusion, take):
            patch.setattr(module, "is_alive", world.is_alive)
        for module in (take, restore, manifest):
            patch.setattr(module, "ThreadPoolExecutor", OneByOne)
        patch.setattr(take, "LocalFiles", lambda path, private=False: SimulatedFiles(world, path))
        patch.setattr(recovery, "exclusive_access", world.exclusive_access)
        patch.setattr("transactional.faults.reach", world.step)
        patch.setattr("os.urandom", world.random.randbytes)
        patch.setattr(Journal.fold, "__defaults__", (FOLD_EVERY,))
        if isinstance(world.store, SimulatedKafka):
            _connect(patch, world, world.store)
        if isinstance(world.store, SimulatedDelta):
            _lay(patch, world.store, schema)
        patch.setitem(discovery._registered, world.sink.name(), world.sink)
        yield


def _connect(patch: pytest.MonkeyPatch, world: World, kafka: SimulatedKafka) -> None:
    """Let Kafka's sink meet the simulated brokers."""

    def shuffle(nodes: list[int]) -> None:
        for end in range(len(nodes), 1, -1):
            nodes.append(nodes.pop(world.choices.below(end)))

    patch.setattr(kafka_sink, "borrow_admin", kafka.admin)
    patch.setattr(connection, "random", SimpleNamespace(shuffle=shuffle))
    for module in (kafka_sink, connection):
        patch.setattr(module, "check_brokers", lambda *_: None)
    for module in (kafka_sink, transaction):
        patch.setattr(module, "give_back", lambda _: None)
        patch.setattr(module, "make_producer", kafka.producer)


def _lay(patch: pytest.MonkeyPatch, store: SimulatedDelta, schema: pa.Schema) -> None:
    """Let the Delta sink meet the simulated table."""
    patch.setattr(delta_sink, "TableFolder", lambda _: SimulatedFolder(store))
    patch.setattr(delta_sink, "DataFiles", SimulatedDataFiles)
    patch.setattr(delta_sink, "arrow_schema", lambda _: schema)
    patch.setattr(delta_sink, "columns_digest", lambda _: "")
    for name in ("check_protocol", "check_unchanged"):
        patch.setattr(delta_sink, name, lambda *_: None)


def play(source: int | Sequence[int], setups: Sequence[Setup] = SETUPS, *, trace: bool = False) -> World:
    """Play one run, of a seed or of choices, and return its world; with `trace`, it has kept its steps."""
    world = World(source, setups)
    world.scheduler.trace = [] if trace else None
    with inhabited(world):
        world.play()
    return world


def violation(broken: str) -> str:
    """Return the kind of what is broken: the text before the first colon, without who, when and which."""
    return broken.partition(": ")[0]
