"""The crash matrix: what a query writes, where its lives end, how they end, and one judge of what is found afterwards.

A `Cell` is one such query. `CELLS` has all of them, and `make matrix` runs all; `make test` runs those in `QUICK`. Each cell
ends with a life that nothing disturbs: then every row is there once, nothing is open or staged, and all decisions are settled.

A cell of the engine takes a quarter of the time of a cell with real Spark. So the engine has every point with every way, once
and twice in a row, and every pair of points. With real Spark, each sink meets every point, and each point is the first and the
second of some pairs.
"""

from __future__ import annotations

import itertools
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from integration.broker import Cluster
from integration.delta_output import DeltaOutput, TableOnS3, WholeReader
from integration.driver_process import DriverProcess, Faults, FolderOutput, Output, Place, wait_until
from integration.engine import MortalSink
from integration.engine_query import POINTS as ENGINE_POINTS
from integration.engine_query import EngineQuery, KafkaQuery, MarkedQuery, MultiQuery, TableQuery
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.object_store import BUCKET, ObjectStoreServer
from integration.sql_output import DatabaseServer, SqlOutput
from integration.topic_jobs import produce_keyed, topic_to_topic
from transactional import faults as product

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CELLS",
    "LIVES",
    "POINTS",
    "QUICK",
    "REPAIRS",
    "TABLES",
    "Cell",
    "database_of",
    "make_target",
    "nothing_is_open",
    "provoke",
    "run",
]

# -- points -----------------------------------------------------------------------------------------------------------

POINTS = [point for point in product.POINTS if point != "source.latest"]
"""Those that every query passes; ``source.latest`` is passed by the Kafka source only."""

PROVOKED_BY = {
    "abort.journalled": ("task.written", 4),  # two tasks, tried twice each
    "recovery.settling": ("decision.written", 1),
    "repair.verdict": ("commit.one", 1),
    "repair.handles": ("commit.one", 1),
}
"""Points that are passed only after another point has raised, so often for each time."""

REPAIRS = ("repair.verdict", "repair.handles")

ONE_COMMIT = [point for point in POINTS if point not in REPAIRS]
"""Of a sink whose checkpoint is one commit: where all its micro-batches are at hand, none of it is committed and some lost."""

ENGINE_COMMITS = [point for point in ENGINE_POINTS if point in ONE_COMMIT]

COMMITS = ["task.prepared", "decision.written", "commit.one", "commit.done", "settled.written"]

LIVES = ["task.prepared", "decision.written", "commit.one", "settled.written"]
"""Before a decision, between it and its commit, in the commit, behind it."""

RESTARTS = 12
"""More than any cell needs: two faults at a point, with what provokes them, and their pairs."""

# -- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crash:
    """The end of a life."""

    point: str
    # In a session: ``kill`` of the process that passes the point, ``raise``, or ``server``, the database's death. Of a driver
    # process: ``kill-jvm``, or a signal's name. Of the engine: ``death``, ``error``, or ``kill``.
    way: str


@dataclass(frozen=True)
class Cell:
    """A query whose lives end so."""

    sink: str  # See `make_target` and `make_query`.
    # ``session``: real Spark in the tests' own session. ``process``: real Spark in a process of its own. ``engine``: Spark's
    # calls, made by `integration.engine`.
    life: str
    crashes: tuple[Crash, ...]
    times: int = 1  # How often each comes in a row.

    def __str__(self) -> str:
        crashes = "+".join(f"{crash.point}-{crash.way}" for crash in self.crashes)
        return f"{self.sink}-{self.life}-{crashes}" + (f"-{self.times}" if self.times > 1 else "")


def grid(
    sinks: Sequence[str], life: str, points: Sequence[str], ways: Sequence[str], times: Sequence[int] = (1,)
) -> list[Cell]:
    """Every sink, point, way and number of times with each other."""
    each = itertools.product(sinks, points, ways, times)
    return [Cell(sink, life, (Crash(point, way),), number) for sink, point, way, number in each]


def in_turn(sinks: Sequence[str], life: str, points: Sequence[str], ways: Sequence[str]) -> list[Cell]:
    """Every point once; sinks take turns, and so do ways."""
    return [
        Cell(sinks[number % len(sinks)], life, (Crash(point, ways[number // len(sinks) % len(ways)]),))
        for number, point in enumerate(points)
    ]


def session_pairs() -> Iterator[Cell]:
    """Every point before two others and after two others, with ways that are drawn by their names."""
    for apart, number in itertools.product((1, 5), range(len(POINTS))):
        points = POINTS[number], POINTS[(number + apart) % len(POINTS)]
        chance = random.Random(" ".join(points))
        yield Cell("files", "session", tuple(Crash(point, chance.choice(FAILURES)) for point in points))


def engine_pairs(sinks: Sequence[str]) -> Iterator[Cell]:
    """Any two points; sinks take turns, and so do ways."""
    for number, (first, then) in enumerate(itertools.permutations(ENGINE_POINTS, 2)):
        one, other = ENDS if number // len(sinks) % 2 == 0 else reversed(ENDS)
        yield Cell(sinks[number % len(sinks)], "engine", (Crash(first, one), Crash(then, other)))


FAILURES = ["kill", "raise"]
ENDS = ["death", "error"]
TWICE = (1, 2)
DATABASES = ["postgresql", "mariadb"]
UPSERTS = [f"{name}-upsert" for name in DATABASES]
TABLES = [*DATABASES, *UPSERTS]
KAFKA = ["kafka-1", "kafka-4"]
SERVER_DIES = ["task.prepared", "decision.written", "commit.one"]
MARKED = ["commit.looked", "decision.written", "commit.one", "commit.done", "mark.published", "settled.written"]
"""Around the record of a checkpoint in a barrier topic: before it, between it and `settled`, and behind."""

QUICK = {
    *grid(["files"], "session", REPAIRS, ["kill"]),
    *grid(["files"], "process", ["task.written"], ["SIGTERM"]),
    *in_turn(["delta"], "session", ONE_COMMIT, FAILURES),
    *grid(["delta-s3"], "session", ["task.written", "commit.one"], ["kill"]),
    *grid(DATABASES, "session", SERVER_DIES, ["server"]),
    *(cell for name in DATABASES for cell in in_turn([name], "engine", ENGINE_COMMITS, ENDS)),
    *in_turn(KAFKA, "engine", ENGINE_POINTS, ENDS),
    *in_turn(["multi"], "engine", ENGINE_POINTS, ENDS),
    *in_turn(["marks"], "engine", [*MARKED, "repair.handles"], ENDS),
}
"""Those of `make test`."""

CELLS = dict.fromkeys(
    [
        *grid(["files"], "session", POINTS, FAILURES, TWICE),
        *session_pairs(),
        *grid(["files"], "process", POINTS, ["kill-jvm"], TWICE),
        *grid(["files"], "process", POINTS, ["SIGTERM", "SIGINT"]),
        *grid(["delta"], "session", ONE_COMMIT, FAILURES),
        *grid(["delta-partitioned"], "session", COMMITS, FAILURES),
        *grid(["delta-s3"], "session", ["task.written", "commit.one", "decision.written", "settled.written"], ["kill"]),
        *grid(["delta-s3"], "session", ["task.prepared"], ["raise"]),
        Cell("delta", "process", tuple(Crash(point, "kill-jvm") for point in ("task.written", *LIVES[1:]))),
        *grid(DATABASES, "session", ONE_COMMIT, FAILURES),
        *in_turn(UPSERTS, "session", ONE_COMMIT, FAILURES),
        *grid(DATABASES, "session", [*SERVER_DIES, "task.written", "settled.written"], ["server"]),
        *grid(DATABASES, "engine", ENGINE_COMMITS, ENDS, TWICE),
        *grid(["kafka"], "session", product.POINTS, FAILURES),
        *grid(KAFKA, "engine", ENGINE_POINTS, ENDS, TWICE),
        *engine_pairs(KAFKA),
        *grid(["multi", "marks"], "engine", ENGINE_POINTS, [*ENDS, "kill"], TWICE),
    ]
)
"""Those of `make matrix`: all."""

# -- sinks of real Spark ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A job of real Spark, ten rows a checkpoint, and what it writes."""

    job: Job
    output: Output
    check: Callable[[], None] = lambda: None  # What else has to hold in the end.
    # What a reader sees that must see whole checkpoints only, all the time.
    look: Callable[[], Counter[int]] | None = None

    @contextmanager
    def watched(self, rows: int) -> Iterator[None]:
        """Look all the time; in the end there are so many rows."""
        reader = WholeReader(self.look, self.job.rows) if self.look else None
        try:
            yield
        finally:
            if reader:
                reader.stop()
        if reader:
            reader.finish(rows)
        self.check()


def make_target(sink: str, life: str, request: pytest.FixtureRequest) -> Target:
    """A new one, on the servers that it needs."""
    folder: Path = request.getfixturevalue("tmp_path")
    if sink == "files":
        return Target(Job("", ""), FolderOutput(folder / "output"))
    if sink in ("delta", "delta-partitioned"):
        return delta_target(sink, life, folder, request)
    if sink == "delta-s3":
        return s3_target(folder, request.getfixturevalue("s3"))
    if sink == "kafka":
        return kafka_target(request.getfixturevalue("topic_name"), request.getfixturevalue("kafka"))
    table = SqlOutput.new(database_of(sink, request))
    if sink == "multi":
        query = MultiQuery(request.getfixturevalue("kafka"), table, folder)
        job = Job(query.work.location, "", "routed", sink=dict(query.work.options))
        return Target(job, query.output, table.check)
    upsert = {"upsertKey": "value"} if sink.endswith("-upsert") else {}
    return Target(Job("", "", sink=table.options(**upsert)), table, table.check)


def kafka_target(topic: str, kafka: Cluster) -> Target:
    """A topic, copied from another one."""
    job, output = topic_to_topic(kafka, topic)
    produce_keyed(kafka, f"{topic}-in", range(job.batches * job.rows))
    return Target(job, output)


def database_of(sink: str, request: pytest.FixtureRequest) -> DatabaseServer:
    """The server in which it has a table."""
    found: DatabaseServer = request.getfixturevalue("mariadb" if sink.startswith("mariadb") else "postgresql")
    return found


def delta_target(sink: str, life: str, folder: Path, request: pytest.FixtureRequest) -> Target:
    """A table in a folder; delta-spark reads what the tests' own session writes."""
    output = DeltaOutput(folder / "table")
    job = Job("", str(output.path), sink={"format": "2pc-delta"})
    if sink == "delta-partitioned":  # by times, which have colons
        job = replace(job, sink={**job.sink, "partitionBy": "timestamp"})

        def check_escaped() -> None:
            assert any("%3A" in name for name in output.files())
            check_versions(output, job.batches)

        return Target(job, output, check_escaped)

    if life != "session":
        return Target(job, output, lambda: check_versions(output, job.batches), output.rows)
    spark: SparkSession = request.getfixturevalue("spark")

    def read_by_spark() -> Counter[int]:
        if not (output.path / "_delta_log" / f"{0:020d}.json").exists():
            return Counter()
        return Counter(row.value for row in spark.read.format("delta").load(str(output.path)).select("value").collect())

    return Target(job, output, lambda: check_versions(output, job.batches), read_by_spark)


def check_versions(output: DeltaOutput, checkpoints: int) -> None:
    """As many versions as checkpoints with rows, besides the creation and the marks of excluded transactions."""
    marks = [mark["outcome"] for mark in output.marks()]
    assert marks.count("committed") == checkpoints
    assert DeltaTable(str(output.path)).version() == len(marks)
    listed = DeltaTable(str(output.path)).get_add_actions().column("path").to_pylist()
    assert sorted(output.files()) == sorted(map(unquote, listed))


def s3_target(folder: Path, s3: ObjectStoreServer) -> Target:
    """A table in an object store, whose secret must not lie in the location."""
    output = TableOnS3(f"s3://{BUCKET}/query-{uuid.uuid4().hex[:8]}/table")
    store = {f"storage.{key}": value for key, value in s3.environment.items()}

    def check() -> None:
        listed = {str(path) for path in DeltaTable(output.path).get_add_actions().column("path").to_pylist()}
        assert output.files() == listed
        for file in folder.rglob("*.json"):
            assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in file.read_text(errors="replace"), file

    return Target(Job("", output.path, sink={"format": "2pc-delta", **store}), output, check)


# -- sinks of the engine ----------------------------------------------------------------------------------------------


def make_query(sink: str, request: pytest.FixtureRequest) -> EngineQuery:
    """A new query without Spark, on the servers that it needs."""
    folder: Path = request.getfixturevalue("tmp_path")
    if sink in DATABASES:
        return TableQuery(SqlOutput.new(database_of(sink, request)), folder)
    kafka: Cluster = request.getfixturevalue("kafka")
    if sink == "marks":
        return MarkedQuery(kafka, folder, batches=3)
    if sink == "multi":
        return MultiQuery(kafka, SqlOutput.new(database_of(sink, request)), folder)
    return KafkaQuery(kafka, folder, partitions=int(sink.removeprefix("kafka-")))


# -- lives ------------------------------------------------------------------------------------------------------------


def run(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Let the cell's lives end as it says, then run to the end of the work and judge."""
    {"session": run_sessions, "process": run_processes, "engine": run_engines}[cell.life](cell, request)


def provoke(faults: Faults, point: str, times: int) -> None:
    """Arm what leads to the point."""
    if point in PROVOKED_BY:
        other, each = PROVOKED_BY[point]
        faults.arm(other, "raise", each * times if point == "abort.journalled" else each)
    if point == "repair.verdict" and times > 1:
        faults.arm("repair.handles", "raise", times - 1)  # a verdict is judged anew only when its repair is lost, too


def losing(faults: Faults, place: Place, cell: Cell) -> Callable[[], None]:
    """Between two lives: what a half committed checkpoint has left is lost, each time, where a repair is to come."""
    left = [cell.times if {crash.point for crash in cell.crashes} & set(REPAIRS) else 0]

    def lose() -> None:
        pending = place.output.open_transactions()
        if left[0] and pending and faults.fired("commit.one") and place.ledger().unsettled():
            left[0] -= 1
            place.output.lose(pending)

    return lose


def run_sessions(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Real Spark in the tests' session: a query that fails is started again."""
    spark: SparkSession = request.getfixturevalue("spark")
    faults: Faults = request.getfixturevalue("faults")
    found = make_target(cell.sink, cell.life, request)
    first, *more = cell.crashes
    job = replace(found.job, batches=4) if more else found.job
    query = LiveQuery(spark, request.getfixturevalue("tmp_path"), job, found.output)
    with found.watched(query.expected), query:
        if first.way == "server":
            kill_server(query, faults, first.point, database_of(cell.sink, request))
            return
        provoke(faults, first.point, cell.times)
        faults.arm(first.point, first.way, cell.times)
        lose = losing(faults, query.place, cell)

        def between() -> None:
            lose()
            if more and faults.fired(first.point):
                second = more.pop()
                provoke(faults, second.point, 1)
                faults.arm(second.point, second.way)

        query.finish(RESTARTS, between)
        if len(cell.crashes) == 1:
            assert len(faults.fired(first.point)) == cell.times


def kill_server(query: LiveQuery, faults: Faults, point: str, database: DatabaseServer) -> None:
    """The database dies while the query stands at the point."""
    faults.arm(point, "pause")
    query.start()
    wait_until(lambda: faults.fired(point), point)
    database.kill()
    database.start()
    faults.resume(point)
    wait_until(lambda: query.place.committed() >= query.job.batches - 1 or not query.query.isActive, "the query")
    query.stop()
    query.finish(3)


PLAIN = ("-m", "integration.jobs")
SUPERVISED = ("-m", "integration.supervised")


def run_processes(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Real Spark in a process a life. A driver of its own tries a task once."""
    found = make_target(cell.sink, cell.life, request)
    with DriverProcess(request.getfixturevalue("tmp_path"), found.job, found.output, PLAIN) as driver:
        lose = losing(driver.faults, driver.place, cell)

        def die(point: str) -> None:
            before = len(driver.faults.fired(point))
            driver.faults.arm(point, "kill-jvm")
            driver.start()
            driver.wait_death(point, before + 1)
            driver.place.check_partial(driver.expected)
            driver.faults.clear()
            lose()

        with found.watched(driver.expected):
            for crash, number in itertools.product(cell.crashes, range(cell.times)):
                if number == 0 and crash.point in (*REPAIRS, "recovery.settling"):
                    die(PROVOKED_BY[crash.point][0])
                if number and crash.point == "repair.verdict":
                    die("repair.handles")  # a verdict is judged anew only when its repair is lost, too
                if crash.point == "abort.journalled":
                    driver.faults.arm("task.written", "raise")
                if crash.way == "kill-jvm":
                    die(crash.point)
                else:
                    end_by_signal(driver, crash.point, signal.Signals[crash.way])
            driver.finish()


def end_by_signal(driver: DriverProcess, point: str, number: signal.Signals) -> None:
    """A supervised life that gets the signal at the point leaves nothing open."""
    driver.program = SUPERVISED
    driver.faults.arm(point, "pause")
    driver.start()
    driver.wait_fired(point)
    driver.signal(number)
    driver.faults.resume(point)
    assert driver.wait_exit() == 0, driver.tail()
    driver.faults.clear()
    driver.program = PLAIN
    nothing_is_open(driver.place)
    driver.place.check_partial(driver.expected)


def nothing_is_open(place: Place) -> None:
    """As it has to be after a stop."""
    wait_until(place.output.is_quiet, "nothing is open")
    ledger = place.ledger()
    assert (ledger.undecided(), ledger.unsettled()) == ([], [])
    if ledger.newest_run is not None:
        assert ledger.newest_run.ended is not None


def run_engines(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Spark's calls without Spark: a death, an error after which Spark aborts, or SIGKILL to a process."""
    request.getfixturevalue("monkeypatch").setenv(product.VARIABLE, str(request.getfixturevalue("tmp_path") / "faults"))
    query = make_query(cell.sink, request)
    try:
        for _ in range(cell.times):
            for crash in cell.crashes:
                query.die_at(crash.point, crash.way == "error", kill=crash.way == "kill")
        query.finish()
        if not any(crash.point in REPAIRS for crash in cell.crashes):
            query.check_nothing_lost()
    finally:
        query.close()
        MortalSink.bury()
