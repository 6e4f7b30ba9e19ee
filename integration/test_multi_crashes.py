"""Crashes of a query that writes a topic, a Delta table and a table of PostgreSQL under one decision.

Its calls are Spark's, made by `integration.engine`; real broker, real database, real files. In the end every row is once in
each store that it was routed to, in none else, and nothing is open or staged in any.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.broker import Cluster
from integration.delta_output import DeltaOutput
from integration.driver_process import DriverProcess, Output, wait_until
from integration.engine import Work
from integration.engine_query import POINTS, EngineQuery, kill_twelve_times
from integration.jobs import Job
from integration.multi_output import MultiOutput
from integration.postgresql import PostgresqlServer
from integration.sql_output import SqlOutput
from integration.topic_output import TopicOutput
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import StoreError

SHORT_MS = "5000"
"""A transaction's timeout that a test can wait for."""


class Query(EngineQuery):
    """One query with three stores."""

    def __init__(self, kafka: Cluster, database: PostgresqlServer, folder: Path, **changes: Any) -> None:
        name = uuid.uuid4().hex[:8]
        kafka.create_topic(f"multi-{name}", partitions=2)
        self.database = database
        self.table = SqlOutput(database, f"t_{name}", f"s_{name}")
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
        assert self.table.staged() == 0

    def repaired(self) -> list[tuple[int, str]]:
        """Partition and sink of each part that was written again."""
        repairs = [entry for entry in self.place.entries() if entry.kind == EntryKind.REPAIR]
        return [(part["partition"], part["route"]) for entry in repairs for part in entry.body["parts"]]


MakeQuery = Callable[..., Query]


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server:
        yield server


@pytest.fixture
def make_query(
    kafka: Cluster, database: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeQuery:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    return lambda **changes: Query(kafka, database, tmp_path, **changes)


@pytest.mark.parametrize(("number", "point"), list(enumerate(POINTS)), ids=POINTS)
def test_every_row_is_where_it_was_routed_wherever_the_driver_dies(
    make_query: MakeQuery, number: int, point: str
) -> None:
    query = make_query()
    query.die_at(point, error=bool(number % 2))
    query.finish()


@pytest.mark.matrix
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", ["death", "error", "kill"])
@pytest.mark.parametrize("point", POINTS)
def test_every_row_is_where_it_was_routed_after_one_and_two_deaths(
    make_query: MakeQuery, point: str, how: str, times: int
) -> None:
    query = make_query()
    for _ in range(times):
        query.die_at(point, how == "error", kill=how == "kill")
    query.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ms", [SHORT_MS, pytest.param("600000", marks=[pytest.mark.matrix, pytest.mark.timeout(1200)])]
)
def test_what_expired_while_another_store_was_away_is_written_again_there_only(make_query: MakeQuery, ms: str) -> None:
    """The database is down when the driver comes back, so nothing can be settled, and the topic's transactions expire."""
    query = make_query(batches=1)
    short: Any = {"topic.kafka.transaction.timeout.ms": ms}
    query.die("decision.written", **short)
    query.database.stop()
    try:
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            query.run(**short)
        wait_until(lambda: not query.topic.open_transactions(), "the topic's transactions expire", 180 + int(ms) / 1000)
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            query.run(**short)
    finally:
        query.database.start()
    files = query.files.files()
    assert query.table.staged() > 0
    query.run(**short)
    query.check()
    assert sorted(query.repaired()) == [(0, "topic"), (1, "topic"), (2, "topic")]
    assert query.files.files() == files, "no file was written again"
    assert EntryKind.VOID not in query.place.kinds()


@pytest.mark.slow
def test_a_store_that_is_away_at_the_commit_leaves_its_part_to_the_next_start(make_query: MakeQuery) -> None:
    query = make_query(batches=1)
    query.faults.arm("decision.written", "pause")
    with ThreadPoolExecutor(1) as pool:
        life = pool.submit(query.run, commitTimeoutMs="2000")
        wait_until(lambda: query.faults.fired("decision.written") or life.done(), "the decision")
        query.database.stop()
        query.faults.resume("decision.written")
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            life.result()
    assert query.topic.rows().total() == query.files.rows().total() == query.work.rows // 2, "the others have committed"
    query.database.start()
    query.finish()
    assert query.repaired() == []


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_three_stores_equal_an_undisturbed_run_after_twelve_kills(
    kafka: Cluster, database: PostgresqlServer, tmp_path: Path
) -> None:
    """Driver, workers and the database itself, in turn, under Spark."""
    query = Query(kafka, database, tmp_path)
    job = Job(query.work.location, "", "routed", batches=8, restarts=3, sink=dict(query.work.options))
    with DriverProcess(tmp_path, job, query.output) as driver:
        kill_twelve_times(driver, database)
    assert query.table.staged() == 0
