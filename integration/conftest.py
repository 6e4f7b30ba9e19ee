"""What integration tests share: one broker for all of them, and topics of their own."""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.formats.discovery import ALLOW
from integration.broker import Cluster
from integration.driver_process import Faults
from integration.hdfs import HdfsServer, hdfs_for_users
from integration.jars import resolve_delta, resolve_spark_kafka
from integration.jobs import RAW_LOCAL_FILES, jvm_options
from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.object_store import ObjectStoreServer
from integration.postgresql import PostgresqlServer
from transactional.faults import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW_SECONDS = 15


@pytest.hookimpl(trylast=True)  # when the marks have deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In `make test`, where each worker takes a file at a time: the long ones first, or one would be left to one worker.

    How long a test takes is told by its marks: one with a timeout of its own takes a fraction of that.
    """
    if not hasattr(config, "workerinput"):
        return

    here = Path(__file__).parent

    def seconds(item: pytest.Item) -> float:
        limit = item.get_closest_marker("timeout")
        if limit is not None and limit.args:
            return float(limit.args[0]) / 6
        if item.get_closest_marker("slow"):
            return SLOW_SECONDS
        return 1 if here in item.path.parents else 0.01

    files: dict[Path, float] = defaultdict(float)
    for item in items:
        files[item.path] += seconds(item)
    # Within a file, too: a worker with two tests left is given its next file.
    items.sort(key=lambda item: (-files[item.path], item.path, -seconds(item)))


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that are killed leave temporary files: in a folder that pytest deletes."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("scratch"))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        # Commands run in processes of their own, where no program has registered these.
        patch.setenv(ALLOW, "integration.file_sink:FileSink,integration.probed_sink:ProbedFileSink")
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """One node for all tests. A test that kills, pauses or restarts it makes a `Cluster` of its own instead."""
    # Expired transactions are looked for every 10 s by default: a test of a timeout would wait that long.
    with Cluster(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStoreServer]:
    """An S3 for the tests of a module, and its credentials in the environment."""
    with ObjectStoreServer() as server, pytest.MonkeyPatch.context() as environment:
        for key, value in server.environment.items():
            environment.setenv(key, value)
        yield server


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsServer]:
    """An HDFS for the tests of a module, and a user of it in the environment."""
    with hdfs_for_users() as server:
        yield server


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    """One server for the tests of a module, which may kill it, and have to start it again."""
    with PostgresqlServer() as server:
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariadbServer]:
    """As `postgresql`."""
    mariadb_or_skip()
    with MariadbServer() as server:
        yield server


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses; the topic itself is for the test to create."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def armed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's Python workers look for armed fault points."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def faults(armed_folder: Path) -> Iterator[Faults]:
    """Fault points of the session's workers, all inert at the beginning and in the end."""
    found = Faults(armed_folder)
    found.reset()
    yield found
    found.release()


@pytest.fixture(scope="session")
def spark(armed_folder: Path) -> Iterator[SparkSession]:
    """One small session for all tests that kill no JVM. A task is tried twice, as on a cluster it is tried four times."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        # Spark's Python processes take the first python3 of the PATH otherwise, and need not find this tree.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
        environment.setenv(VARIABLE, str(armed_folder))
        session = (
            SparkSession.builder.master("local[2,2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.codegen.wholeStage", "false")  # to compile plans takes longer than to run them here
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.jars", ",".join(map(str, [*resolve_delta(), *resolve_spark_kafka()])))
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "2")
            # VACUUM lists a table's folder with so many tasks, several times: 10,000 by default.
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
            .config("spark.driver.memory", "1g")
            .config(map={**RAW_LOCAL_FILES})
            .config("spark.driver.extraJavaOptions", jvm_options())
            .config("spark.local.dir", tempfile.gettempdir())
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
