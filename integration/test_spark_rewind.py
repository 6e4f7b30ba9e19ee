"""Going back, with Spark itself: logs, state stores, sources. `connector.location.offset_log` says what it needs."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.location.location import CheckpointLocation
from connector.location.log_rewind import check_can_go_back, delete_after, replay
from connector.location.offset_log import newest, source_lines
from connector.spark.process import is_alive
from integration.driver_process import wait_until
from transactional import faults as points
from transactional.errors import LocationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

KEYS = 5
STORE = "spark.sql.streaming.stateStore"
PROVIDER = "org.apache.spark.sql.execution.streaming.state"

STORES = {
    "default": {},
    "rocksdb": {
        f"{STORE}.providerClass": f"{PROVIDER}.RocksDBStateStoreProvider",
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "false",
    },
    "rocksdb-changelog": {
        f"{STORE}.providerClass": f"{PROVIDER}.RocksDBStateStoreProvider",
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "rocksdb-changelog-v2": {
        f"{STORE}.providerClass": f"{PROVIDER}.RocksDBStateStoreProvider",
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{STORE}.checkpointFormatVersion": "2",
    },
}
OTHER_STORES = ("rocksdb", "rocksdb-changelog", "rocksdb-changelog-v2")


def steps_source() -> type[DataSource]:
    """A source of the numbers 0, 1, 2, .. that ends its micro-batches where its control file says.

    It returns planned ends first, as barrier-kafka does, and writes down what it is asked.
    """
    # Local classes are pickled whole: Spark's workers need not import this module and what it needs.
    import datetime as dt
    import json
    from pathlib import Path

    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Numbers(InputPartition):
        def __init__(self, begin: int, end: int) -> None:
            super().__init__((begin, end))
            self.numbers = range(begin, end)

    class StepsReader(DataSourceStreamReader):
        def __init__(self, folder: str) -> None:
            self.folder = Path(folder)

        def say(self, *said: Any) -> None:
            with (self.folder / "calls").open("a") as file:
                file.write(json.dumps(said) + "\n")

        def control(self, name: str) -> int:
            return int(json.loads((self.folder / "control").read_text())[name])

        def initialOffset(self) -> dict[str, Any]:
            from connector.spark.process import driver_process

            self.say("initialOffset", driver_process())
            return {"n": self.control("initial"), "source": "barrier-kafka"}

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
            self.say("latestOffset", start)
            if start.get("planned"):
                end, *rest = start["planned"]
                return {**end, "planned": rest} if rest else end
            end = min(start["n"] + self.control("step"), max(start["n"], self.control("until")))
            return start if end == start["n"] else {"n": end, "source": "barrier-kafka"}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            self.say("partitions", start, end)
            return [Numbers(start["n"], end["n"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, dt.datetime]]:
            assert isinstance(partition, Numbers)
            epoch = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - Spark takes it in the session's time zone
            for number in partition.numbers:
                yield number, epoch + dt.timedelta(seconds=number)

    class Steps(DataSource):
        @classmethod
        def name(cls) -> str:
            return "steps"

        def schema(self) -> str:
            return "value bigint, at timestamp"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return StepsReader(self.options["folder"])

    return Steps


def count_per_key(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(f"value % {KEYS} as key").groupBy("key").count()


class Query:
    """A query that is run to the end of its source, stopped, and run again, with its output by micro-batch."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session = session
        self.folder = folder
        self.output: dict[int, list[tuple[Any, ...]]] = {}
        self.frame: Callable[[DataFrame], DataFrame] = count_per_key
        self.mode = "update"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def location(self) -> CheckpointLocation:
        return CheckpointLocation(str(self.folder / "checkpoint"))

    def copy(self, name: str) -> Query:
        """The same query as it stands, in another place: it can go another way."""
        wait_stores_closed(self.session)  # files come and go until then
        shutil.copytree(self.folder, self.folder.parent / name)
        found = Query(self.session, self.folder.parent / name)
        found.output, found.frame, found.mode = dict(self.output), self.frame, self.mode
        return found

    def rows(self) -> DataFrame:
        return self.session.readStream.format("steps").option("folder", str(self.folder)).load()

    def control(self, *, until: int, step: int, initial: int = 0) -> None:
        control = self.folder / "control"
        control.with_suffix(".new").write_text(json.dumps({"until": until, "step": step, "initial": initial}))
        control.with_suffix(".new").rename(control)

    @contextmanager
    def running(self) -> Iterator[Callable[[], None]]:
        """Start it, and stop it in the end; gives what waits until the source has no more."""

        def keep(rows: DataFrame, batch: int) -> None:
            self.output[batch] = sorted(tuple(row) for row in rows.collect())

        writer = self.frame(self.rows()).writeStream.foreachBatch(keep).outputMode(self.mode)
        query = writer.option("checkpointLocation", self.location.path).start()
        try:
            yield query.processAllAvailable
        finally:
            query.stop()

    def run(self, until: int, step: int, initial: int = 0) -> None:
        """Run it until the source has no more; `step` rows a micro-batch."""
        self.control(until=until, step=step, initial=initial)
        with self.running() as drain:
            drain()

    def go_back(self, batch: int) -> None:
        wait_stores_closed(self.session)
        delete_after(self.location, batch)
        self.output = {number: rows for number, rows in self.output.items() if number <= batch}

    def calls(self) -> list[list[Any]]:
        """What the source was asked since the last time."""
        found = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        (self.folder / "calls").write_text("")
        return found

    def ends(self) -> dict[int, dict[str, Any]]:
        """What `offsets/` says, by micro-batch."""
        batches = sorted(int(name) for name in os.listdir(f"{self.location.path}/offsets") if name.isdigit())
        return {batch: json.loads(source_lines(self.location, batch)[0].text) for batch in batches}

    def state(self) -> list[tuple[Any, ...]]:
        rows = self.session.read.format("statestore").load(self.location.path)
        return sorted((row.key.key, row.value["count"]) for row in rows.collect())

    def check_counts(self, since: int = 0) -> None:
        """Output of every micro-batch and the state are those of a run that was never disturbed: numbers are counted once."""
        begin, ends = 0, self.ends()
        for batch, end in ends.items():
            counts = Counter(number % KEYS for number in range(end["n"]))
            changed = {number % KEYS for number in range(begin, end["n"])}
            if batch >= since:
                assert self.output[batch] == sorted((key, counts[key]) for key in changed), f"micro-batch {batch}"
            begin = end["n"]
        assert self.state() == sorted(Counter(number % KEYS for number in range(begin)).items())


@contextmanager
def settings(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            session.conf.unset(key)
            if old is not None and session.conf.get(key, None) != old:
                session.conf.set(key, old)


def maintained(session: SparkSession, *names: str) -> list[Any]:
    """Collections of Spark's object StateStore, by its fields."""
    jvm: Any = session._jvm
    fields = [jvm.java.lang.Class.forName(f"{PROVIDER}.StateStore$").getDeclaredField(name) for name in names]
    for field in fields:
        field.setAccessible(True)
    return [field.get(None) for field in fields]


def wait_stores_closed(session: SparkSession) -> None:
    """Wait until no store can write any more: those of a stopped query have one more maintenance, and are closed by it."""
    names = ("loadedProviders", "unloadedProvidersToClose", "maintenancePartitions")
    wait_until(lambda: all(found.isEmpty() for found in maintained(session, *names)), "end of the stores' maintenance")


def restart_maintenance(session: SparkSession) -> None:
    """Let the next query set its pace: of snapshots, and of what is purged.

    A partition that was noted as being maintained when the threads were stopped stays noted, and no maintenance would ever
    look at it, or close it, again.
    """
    jvm: Any = session._jvm
    getattr(jvm, f"{PROVIDER}.StateStore$").__getattr__("MODULE$").stopMaintenanceTaskWithoutLock()
    for partitions in maintained(session, "maintenancePartitions"):
        partitions.clear()


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(steps_source())
    restart_maintenance(spark)
    small = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with settings(spark, {f"{STORE}.maintenanceInterval": "100ms", f"{STORE}.minDeltasForSnapshot": "0", **small}):
        yield spark
    restart_maintenance(spark)


@pytest.fixture
def query(session: SparkSession, tmp_path: Path) -> Query:
    return Query(session, tmp_path / "query")


def later_snapshots(query: Query, version: int) -> set[int]:
    """Later versions of which some store has a snapshot."""
    files = [path for kind in ("snapshot", "zip") for path in Path(query.location.path, "state").rglob(f"*.{kind}")]
    return {number for path in files if path.name[0] != "." and (number := int(path.stem.split("_")[0])) > version}


def run_other_micro_batches(query: Query) -> None:
    """After micro-batch 4, at 50: no snapshots; not every key in each; a start that reads version 8 from its files."""
    with settings(query.session, {f"{STORE}.minDeltasForSnapshot": "1000"}):
        query.run(until=59, step=3)
        query.run(until=62, step=3)
    assert query.ends()[8]["n"] == 62


# -- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "store", ["default", *(pytest.param(store, marks=pytest.mark.matrix) for store in OTHER_STORES)]
)
def test_a_stateful_query_goes_back_three_micro_batches_and_on(store: str, query: Query) -> None:
    with settings(query.session, STORES[store]):
        query.control(until=80, step=10)
        with query.running() as drain:
            drain()
            wait_until(lambda: 8 in later_snapshots(query, 5), "a snapshot of a version that will be given up")
        query.go_back(4)
        assert not later_snapshots(query, 5)
        run_other_micro_batches(query)
        query.check_counts()


@pytest.mark.matrix
def test_a_snapshot_of_the_given_up_run_would_be_taken_for_the_new_one(query: Query) -> None:
    query.control(until=80, step=10)
    with query.running() as drain:
        drain()
        wait_until(lambda: 8 in later_snapshots(query, 5), "a snapshot of a version that will be given up")
    kept = query.copy("kept")
    query.go_back(4)
    shutil.rmtree(f"{query.location.path}/state")
    shutil.copytree(f"{kept.location.path}/state", f"{query.location.path}/state")
    run_other_micro_batches(query)
    with pytest.raises(AssertionError, match="micro-batch 8"):
        query.check_counts()


@pytest.mark.matrix
def test_what_spark_has_purged_is_refused_and_the_oldest_that_is_named_works(query: Query) -> None:
    with settings(query.session, {"spark.sql.streaming.minBatchesToRetain": "3"}):
        query.control(until=90, step=10)
        with query.running() as drain:
            drain()  # micro-batches 0 to 8
            wait_until(lambda: not Path(f"{query.location.path}/offsets/4").exists(), "Spark's purge")
            wait_until(lambda: not list(Path(query.location.path, "state").rglob("3.delta")), "purge of the state")
        for batch in (-1, 0, 5):
            with pytest.raises(LocationError, match=r"spark\.sql\.streaming\.minBatchesToRetain") as caught:
                check_can_go_back(query.location, batch)
            assert (caught.value.condition, caught.value.parameters["oldest"]) == ("REWIND_TOO_FAR", 6)
        query.go_back(6)
        query.run(until=100, step=10)
        query.check_counts(since=6)


# -- which files Spark needs -----------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_spark_stops_where_a_file_that_it_checks_for_is_gone(query: Query) -> None:
    query.run(until=20, step=10)
    for gone, error in (
        ("offsets/0", "batch 0 doesn't exist"),
        ("offsets/1", "CONCURRENT_STREAM_LOG_UPDATE"),  # commits/1 is still there
        ("*/?", "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"),
    ):
        other = query.copy(gone.translate(str.maketrans("/*?", "---")))
        files = [path for path in Path(other.location.path).glob(gone) if path.parent.name in ("offsets", "commits")]
        assert files
        for path in files:
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        with pytest.raises(Exception, match=error):
            other.run(until=30, step=10)


def test_the_beginning_is_micro_batch_0_again_not_a_new_start(query: Query) -> None:
    query.run(until=30, step=10)
    (_, driver), *_ = query.calls()
    assert driver["pid"] == query.session._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    assert is_alive(driver) is True
    end = source_lines(query.location, 0)
    query.go_back(-1)
    assert (newest(query.location, "offsets"), newest(query.location, "commits")) == (0, -1)
    query.run(until=30, step=10)
    assert source_lines(query.location, 0) == end
    query.check_counts()


def interrupt(monkeypatch: pytest.MonkeyPatch, death: int, step: Callable[[], None]) -> None:
    """Run a step until it passes a fault point for the n-th time, or to its end."""
    passed: list[str] = []

    def reach(point: str) -> None:
        passed.append(point)
        if len(passed) == death:
            raise points.InjectedFault(point)

    with monkeypatch.context() as patch, suppress(points.InjectedFault):
        patch.setattr(points, "reach", reach)
        step()


# -- planned ends ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_micro_batches_run_again_as_they_were_those_without_data_too(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.frame = lambda rows: rows.withWatermark("at", "5 seconds").groupBy("at").count()
    query.mode = "append"
    query.control(until=0, step=10)
    with query.running() as drain:
        for until in (10, 20, 30, 40):
            query.control(until=until, step=10)
            wait_until(lambda: newest(query.location, "commits") >= until // 5 - 1, f"a watermark at {until}")  # noqa: B023
            drain()
    recorded = query.ends()
    assert [end["n"] for end in recorded.values()] == [10, 10, 20, 20, 30, 30, 40, 40]
    query.calls()
    # From a micro-batch with data and from one without; from the beginning; not to the last.
    for first, last in ((2, 7), (3, 7), (0, 7), (2, 5)):
        other = query.copy(f"from-{first}-to-{last}")
        other.output = {}
        for death in (2, 3, 6, 9):  # in the plan, before, in, and after the first deletions
            interrupt(monkeypatch, death, partial(replay, other.location, first, last))
        replay(other.location, first, last)
        assert (newest(other.location, "offsets"), newest(other.location, "commits")) == (first, first - 1)
        text = source_lines(other.location, first)[0].text
        plan = [recorded[batch] for batch in range(first + 1, last + 1)]
        assert text == json.dumps({"n": recorded[first]["n"], "planned": plan, "source": "barrier-kafka"})

        other.run(until=40, step=10)
        ends = other.ends()
        assert [ends[batch]["n"] for batch in range(last + 1)] == [recorded[batch]["n"] for batch in range(last + 1)]
        for batch in range(first, last + 1):
            assert other.output[batch] == query.output[batch], f"micro-batch {batch}"
        asked = [call[1] for call in other.calls() if call[0] == "latestOffset"]
        assert asked[0] == json.loads(text), "handed to the source as it stands"
        assert [len(start.get("planned", [])) for start in asked[: last - first]] == list(range(last - first, 0, -1))


# -- other sources ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_sparks_file_source_goes_on_with_every_file_once(query: Query) -> None:
    files = query.folder / "files"
    files.mkdir()

    def put(begin: int, end: int) -> None:
        for number in range(begin, end):
            path = files / f"{number}.json"
            path.write_text("\n".join(json.dumps({"value": number}) for _ in range(KEYS)))
            os.utime(path, (number, number))  # Spark takes the oldest first

    stream = query.session.readStream.schema("value bigint").option("maxFilesPerTrigger", 1)
    query.frame = lambda rows: stream.json(str(files)).groupBy("value").count()
    put(0, 12)  # the tenth makes a compact file of the source's log
    query.run(until=0, step=1)
    assert query.output == {number: [(number, KEYS)] for number in range(12)}
    query.go_back(4)
    put(12, 14)
    query.run(until=0, step=1)
    assert query.output == {
        **{number: [(number, KEYS)] for number in range(5)},
        5: [(number, KEYS) for number in range(5, 13)],  # all files that its log holds, and one more
        6: [(13, KEYS)],
    }
