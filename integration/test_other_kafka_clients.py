"""Other Kafka clients read a topic: which setting hides rows of aborted and open transactions, and what lag they show.

docs/read.md has the table.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration import ROOT
from integration.broker import Cluster
from integration.go_programs import FOLDER, go_program
from integration.jars import KAFKA_VERSION, java_executable, kept_folder, pip_install, resolve_kafka

PAGE = ROOT / "docs" / "read.md"
PYTHON = ("kafka-python==3.0.12", "aiokafka==0.14.0")
PARTITIONS = 2
TRAILING = 5
"""Rows of the aborted transaction at the end of each partition. With its marker and the one before, this is the lag of a client
that commits the offset after the last row."""

MARKER = "\0" * 6
"""The value of a marker."""

Rows = dict[int, list[str]]
"""The values of each partition."""


@dataclass
class Topic:
    """A topic with random transactions."""

    servers: str
    name: str
    committed: Rows = field(default_factory=lambda: {each: [] for each in range(PARTITIONS)})
    all: Rows = field(default_factory=lambda: {each: [] for each in range(PARTITIONS)})

    def write(self, producer: Producer, value: str, partition: int, committed: bool) -> None:
        producer.produce(self.name, value, partition=partition)
        self.all[partition].append(value)
        if committed:
            self.committed[partition].append(value)

    def transact(self, producer: Producer, number: int, rows: int, commits: bool) -> None:
        producer.begin_transaction()
        for row in range(rows):
            self.write(producer, f"{number}:{row}", row % PARTITIONS, commits)
        assert producer.flush(30) == 0
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


@dataclass(frozen=True)
class Client:
    """A client, and what the page says of it."""

    command: Callable[[], list[str]]
    default: str  # The isolation level that it has without a setting.
    lag_ends: bool  # Whether its lag becomes 0 if the last transaction was aborted.
    hides_aborted: bool = True  # Whether read_committed hides aborted rows.
    shows_markers: bool = False  # Whether it returns the markers of transactions as rows.


def python() -> list[str]:
    folder = kept_folder(
        f"clients-{'-'.join(PYTHON).replace('=', '')}", lambda folder: pip_install("--target", folder, *PYTHON)
    )
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(folder)!r}); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    return [sys.executable, "-c", code, str(FOLDER / "python_clients.py")]


def java() -> list[str]:
    jars = f"{resolve_kafka()}/*:{Path(pyspark.__file__).parent}/jars/*"
    source = str(FOLDER / "ReadTopic.java")
    return [java_executable(), "-Xmx128m", "-cp", jars, "org.codehaus.janino.SimpleCompiler", source, "ReadTopic"]


def go() -> list[str]:
    return [str(go_program("read"))]


def node() -> list[str]:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    package = (FOLDER / "package.json").read_text()

    def fill(folder: Path) -> None:
        (folder / "package.json").write_text(package)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)

    modules = kept_folder(f"clients-kafkajs-{version_in(package, 'kafkajs')}", fill) / "node_modules"
    return ["env", f"NODE_PATH={modules}", "KAFKAJS_NO_PARTITIONER_WARNING=1", "node", str(FOLDER / "kafkajs.js")]


COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
COMMITTED_END, HIGH_END = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CLIENTS: Mapping[str, Client] = {
    "java": Client(java, UNCOMMITTED, lag_ends=True),
    "confluent-kafka": Client(python, COMMITTED, lag_ends=True),
    "kafka-python": Client(python, UNCOMMITTED, lag_ends=True),
    "aiokafka": Client(python, UNCOMMITTED, lag_ends=True),
    "franz-go": Client(go, UNCOMMITTED, lag_ends=False),
    "sarama": Client(go, UNCOMMITTED, lag_ends=False),
    "kafka-go": Client(go, UNCOMMITTED, lag_ends=False, hides_aborted=False, shows_markers=True),
    "kafkajs": Client(node, COMMITTED, lag_ends=False),
}


def version_in(text: str, package: str) -> str:
    """The version of a package in package.json, go.mod, or a list of requirements."""
    found = re.search(rf'{re.escape(package)}(?:": "| v|==)([\d.]+)', text)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> Topic:
    """Transactions of three producers, in turn, a third of them aborted; at the end an aborted one."""
    cluster.create_topic("settled", partitions=PARTITIONS)
    made = Topic(cluster.bootstrap_servers, "settled")
    rng = random.Random("transactions")
    producers = [producer_of(cluster, f"settled-{number}") for number in range(3)]
    for number in range(150):
        made.transact(rng.choice(producers), number, rng.randrange(PARTITIONS, 40), commits=bool(rng.randrange(3)))
    made.transact(producers[0], 150, PARTITIONS, commits=True)
    made.transact(producers[0], 151, TRAILING * PARTITIONS, commits=False)
    return made


@pytest.fixture(scope="module")
def open_topic(cluster: Cluster) -> Iterator[Topic]:
    """Rows, then an open transaction of one partition, then rows without a transaction."""
    cluster.create_topic("open", partitions=PARTITIONS)
    made = Topic(cluster.bootstrap_servers, "open")
    ended, left, plain = producer_of(cluster, "ended"), producer_of(cluster, "left"), producer_of(cluster)
    made.transact(ended, 0, 10, commits=True)
    left.begin_transaction()
    made.write(left, "open", 0, committed=False)
    assert left.flush(30) == 0
    for partition in range(PARTITIONS):
        made.write(plain, "after", partition, committed=partition > 0)
    assert plain.flush(30) == 0
    yield made
    left.abort_transaction(30)


def producer_of(cluster: Cluster, transactional_id: str = "") -> Producer:
    settings: dict[str, str | int] = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    more = {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000} if transactional_id else {}
    producer = Producer({**settings, **more})
    if transactional_id:
        producer.init_transactions(30)
    return producer


def read(client: str, topic: Topic, isolation: str) -> Rows:
    """The rows that a client returns, in its order."""
    command = [*CLIENTS[client].command(), client, topic.servers, topic.name, isolation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows: Rows = {each: [] for each in range(PARTITIONS)}
    for line in done.stdout.splitlines():
        partition, _, value = line.split("\t")
        rows[int(partition)].append(value)
    return rows


def without_markers(client: str, rows: Rows) -> Rows:
    """Rows without the markers, which are there only if the client shows them."""
    found = {number: [value for value in values if value != MARKER] for number, values in rows.items()}
    assert (found != rows) == CLIENTS[client].shows_markers
    return found


def lag_of(group: str, topic: Topic, level: IsolationLevel = COMMITTED_END) -> int:
    """The offsets up to the last stable one, or up to the last one, that a group has not committed."""
    admin = AdminClient({"bootstrap.servers": topic.servers})
    places = [TopicPartition(topic.name, each) for each in range(PARTITIONS)]
    latest = admin.list_offsets({each: OffsetSpec.latest() for each in places}, isolation_level=level)
    asked = [ConsumerGroupTopicPartitions(group, places)]
    committed = admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions or []
    return int(sum(future.result(30).offset for future in latest.values()) - sum(each.offset for each in committed))


@pytest.mark.matrix
@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED, "default"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_hides_aborted_rows_with_read_committed_and_its_lag_ends_or_not(
    topic: Topic, client: str, isolation: str
) -> None:
    what = CLIENTS[client]
    level = what.default if isolation == "default" else isolation
    rows = read(client, topic, isolation)
    assert without_markers(client, rows) == (
        topic.committed if level == COMMITTED and what.hides_aborted else topic.all
    )
    if level == COMMITTED and what.hides_aborted:
        lag = lag_of(f"{client}-{isolation}", topic)
        assert lag == (0 if what.lag_ends else (TRAILING + 2) * PARTITIONS)


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_waits_at_an_open_transaction_with_read_committed(open_topic: Topic, client: str) -> None:
    assert without_markers(client, read(client, open_topic, COMMITTED)) == open_topic.committed
    stable, high = (lag_of(f"{client}-{COMMITTED}", open_topic, level) for level in (COMMITTED_END, HIGH_END))
    assert stable < high, "a tool that counts up to the last row shows more"


def test_the_page_has_the_versions_and_what_the_tests_found() -> None:
    ours = (f"java=={KAFKA_VERSION}", f"confluent-kafka=={confluent_kafka.__version__}")
    texts = "\n".join([*ours, *PYTHON, *((FOLDER / name).read_text() for name in ("go.mod", "package.json"))])
    page = PAGE.read_text()
    for name, client in CLIENTS.items():
        row = next(line for line in page.splitlines() if line.startswith("| ") and f"`{name}`" in line)
        assert f" {version_in(texts, name)} " in row
        _, _, default, _, hides, lag, _ = (cell.strip() for cell in row.split("|"))
        assert default == f"`{client.default}`"
        assert hides == ("yes" if client.hides_aborted else "**no**")
        assert lag == ("yes" if client.lag_ends else "no")
