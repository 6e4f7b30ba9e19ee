"""The programs in ``examples/``, as a reader runs them; only the folder is another one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable

from integration import ROOT
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.jars import resolve_delta
from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.postgresql import PostgresqlServer
from integration.session import kill_group, output_of

EXAMPLES = ROOT / "examples"
ROWS = 500
SECONDS = 240


class Reader:
    """Runs examples in a folder of its own, against a broker."""

    def __init__(self, brokers: str, folder: Path) -> None:
        self.folder = folder
        for example in EXAMPLES.glob("*.py"):
            text = example.read_text().replace("/tmp/barrier", str(folder))
            (folder / example.name).write_text(text)
        self.environment = {
            **os.environ,
            "BROKERS": brokers,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start(self, example: str, *arguments: str, jars: str = "") -> subprocess.Popen[str]:
        """Start an example."""
        environment = {**self.environment, **({"PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell"} if jars else {})}
        return subprocess.Popen(
            [sys.executable, str(self.folder / f"{example}.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=self.folder,
            text=True,
            start_new_session=True,
        )

    def run(self, example: str, *arguments: str, jars: str = "") -> str:
        """Run an example to its end; return what it prints."""
        process = self.start(example, *arguments, jars=jars)
        out, err = output_of(process, SECONDS)
        assert process.returncode == 0, err[-3000:]
        return out

    def rows(self, topic: str) -> list[str]:
        """Return what a reader sees of a topic."""
        return self.run("read", topic).splitlines()


@pytest.fixture(scope="module")
def reader(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Orders are there."""
    reader = Reader(kafka.bootstrap_servers, tmp_path_factory.mktemp("examples"))
    assert reader.run("feed", str(ROWS)) == f"{ROWS} rows written to orders\n"
    return reader


def committed(kafka: Cluster, topic: str, count: int) -> list[Any]:
    """Return the first records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        return consumer.consume(count, 60)
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_start_from_top_to_bottom(reader: Reader) -> None:
    """Also README's example: one row after another, kill -9, the same again."""
    assert reader.run("orders") == f"{ROWS} rows committed\n"
    first = reader.rows("orders-upper")
    assert len(first) == ROWS
    assert '{"ID": 0, "CUSTOMER": "C0", "AMOUNT": 0.5, "TIME": "2026-01-01 00:00:00"}' in first
    more = 100_000
    reader.run("feed", str(more), str(ROWS))
    killed = reader.start("orders")
    assert reader.run("read", "orders-upper", "--wait") == "orders-upper has rows that are not committed yet\n"
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    reader.run("orders")
    assert reader.run("read", "orders-upper", "--count") == f"{ROWS + more} rows, {ROWS + more} different ones\n"


@pytest.mark.parametrize("page", ["README.md", "docs/quick-start.md"])
def test_the_page_s_example_is_the_one_that_is_run(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.split("```python\n")[1].split("```")[0] == (EXAMPLES / "orders.py").read_text()


@pytest.mark.parametrize(("page", "section"), [("stateful", "## Aggregations"), ("sink", "## Several topics")])
def test_the_code_of_a_guide_is_part_of_an_example(page: str, section: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text().partition(f"\n{section}\n")[2]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    programs = [example.read_text() for example in EXAMPLES.glob("*.py")]
    assert blocks
    for block in blocks:
        assert any(block in program for program in programs), block


def produce_changes(brokers: str, chance: random.Random, table: dict[int, float]) -> None:
    """Change a table at random, and write what Debezium writes of it."""
    producer = Producer({"bootstrap.servers": brokers, "partitioner": "murmur2"})
    for _ in range(400):
        number, amount = chance.randrange(40), chance.randrange(1000) / 4
        before, after = ({"id": number, "customer": "c", "amount": each} for each in (table.get(number), amount))
        key = json.dumps({"id": number}).encode()
        if number not in table or chance.random() < 0.5:
            event: dict[str, Any] = {"before": before if number in table else None, "after": after}
            event["op"] = "u" if number in table else "c"
            table[number] = amount
        else:
            event = {"before": before, "after": None, "op": "d"}
            del table[number]
        producer.produce("shop.public.orders", key=key, value=json.dumps(event).encode())
        if event["op"] == "d":
            producer.produce("shop.public.orders", key=key, value=None)
    assert producer.flush(60) == 0


@pytest.mark.matrix
@pytest.mark.timeout(900)
class TestMatrix:
    """The others; `orders` may have more rows by then."""

    def orders(self, reader: Reader) -> list[dict[str, object]]:
        return [json.loads(row) for row in reader.rows("orders")]

    def test_windows(self, reader: Reader) -> None:
        reader.run("windows")
        minutes = [json.loads(row) for row in reader.rows("minutes")]
        assert len({(row["start"], row["customer"]) for row in minutes}) == len(minutes) > 7

    def test_table(self, reader: Reader) -> None:
        reader.run("table")
        table = DeltaTable(str(reader.folder / "tables" / "orders"))
        ids = table.to_pyarrow_table()["id"].to_pylist()
        assert sorted(ids) == sorted(row["id"] for row in self.orders(reader))  # type: ignore[type-var]

    def test_upsert(self, reader: Reader) -> None:
        with PostgresqlServer() as server:
            server.ask("CREATE ROLE writer LOGIN PASSWORD 'w'")
            server.ask("GRANT CREATE ON DATABASE postgres TO writer")
            server.ask("GRANT CREATE ON SCHEMA public TO writer")
            program = reader.folder / "upsert.py"
            program.write_text(program.read_text().replace("localhost:5432", f"127.0.0.1:{server.port}"))
            reader.environment["PGPASSWORD"] = "w"
            for _ in range(2):
                reader.run("upsert")
                reader.run("feed", "7", "0")
            newest = dict(server.ask("SELECT customer, max(id) FROM newest_orders GROUP BY customer"))
            assert sorted(newest) == [f"c{number}" for number in range(7)]
            assert server.ask("SELECT count(*) FROM newest_orders") == [(7,)]

    def test_cdc(self, reader: Reader, kafka: Cluster) -> None:
        chance, table = random.Random(1), dict[int, float]()
        kafka.create_topic("shop.public.orders", partitions=2)
        with PostgresqlServer() as server:
            server.ask("CREATE ROLE writer LOGIN PASSWORD 'w'")
            server.ask("GRANT CREATE ON DATABASE postgres TO writer; GRANT CREATE ON SCHEMA public TO writer")
            program = reader.folder / "cdc.py"
            program.write_text(program.read_text().replace("localhost:5432", f"127.0.0.1:{server.port}"))
            reader.environment["PGPASSWORD"] = "w"
            for _ in range(2):
                produce_changes(kafka.bootstrap_servers, chance, table)
                reader.run("cdc")
                assert dict(server.ask("SELECT id, amount FROM orders_copy")) == table

    def test_mysql_table(self, reader: Reader) -> None:
        mariadb_or_skip()
        with MariadbServer() as server:
            server.ask("CREATE USER writer IDENTIFIED BY 'w'")
            for database in ("shop", "barrier"):
                server.ask(f"GRANT ALL ON {database}.* TO writer")
            program = reader.folder / "mysql_table.py"
            program.write_text(program.read_text().replace("localhost:3306", f"127.0.0.1:{server.port}"))
            reader.environment["MYSQL_PASSWORD"] = "w"
            reader.run("mysql_table")
            ids = sorted(number for (number,) in server.ask("SELECT id FROM orders"))
        assert ids == sorted(row["id"] for row in self.orders(reader))  # type: ignore[type-var]

    def test_merge(self, reader: Reader) -> None:
        jars = ",".join(map(str, resolve_delta()))
        for _ in range(2):
            reader.run("merge", jars=jars)
            reader.run("feed", "7", "0")
        newest = {
            row["customer"]: row["id"]
            for row in DeltaTable(str(reader.folder / "tables" / "newest")).to_pyarrow_table().to_pylist()
        }
        assert sorted(newest) == [f"c{number}" for number in range(7)]

    def test_route(self, reader: Reader) -> None:
        reader.run("route")
        found = {topic: [json.loads(row)["amount"] for row in reader.rows(topic)] for topic in ("small", "large")}
        assert max(found["small"]) < 25 <= min(found["large"])
        assert sum(map(len, found.values())) == len(self.orders(reader))
        assert reader.rows("dead") == []

    def test_fan_out(self, reader: Reader, kafka: Cluster) -> None:
        kafka.create_topic("mixed")
        program = reader.folder / "fan_out.py"
        program.write_text(program.read_text().replace('"subscribe", "orders"', '"subscribe", "mixed"'))
        reader.run("feed", "20", "0", "mixed")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for value in (b"no JSON", None):
            producer.produce("mixed", key=b"k", value=value)
        assert producer.flush(60) == 0
        reader.run("fan_out")
        table = DeltaTable(str(reader.folder / "tables" / "good-orders")).to_pyarrow_table()
        assert sorted(table["id"].to_pylist()) == list(range(20))
        dead = committed(kafka, "dead-orders", 2)
        reasons = {message.value(): dict(message.headers())["__connect.errors.exception.message"] for message in dead}
        assert reasons == {None: b"the record's value is null", b"no JSON": b"it is no JSON"}
        assert {dict(message.headers())["__connect.errors.topic"] for message in dead} == {b"mixed"}

    def test_join(self, reader: Reader) -> None:
        reader.run("feed", "50", "0", "payments")
        reader.run("join")
        paid = Counter(json.loads(row)["id"] for row in reader.rows("paid"))
        assert set(paid) == set(range(50))

    def test_stateful(self, reader: Reader) -> None:
        reader.run("stateful")
        numbered = reader.rows("numbered")
        assert len(set(numbered)) == len(numbered) == len(self.orders(reader))

    def test_interval(self, reader: Reader) -> None:
        said = reader.run("interval")
        assert "checkpoint " in said
        assert len(reader.rows("copies")) == len(self.orders(reader))

    def test_batch(self, reader: Reader) -> None:
        for _ in range(2):
            reader.run("batch")
        assert len(reader.rows("counts")) == 7

    def test_kept_running(self, reader: Reader) -> None:
        process = reader.start("kept_running")
        try:
            wait_until(lambda: len(reader.rows("kept")) == len(self.orders(reader)), "all rows", 120)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            kill_group(process)
