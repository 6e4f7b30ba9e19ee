"""Queries and batch writes into a database through Spark: each version once, whole checkpoints for readers, no secret shown."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.registration.sessions import register
from integration.driver_process import Faults, wait_until
from integration.sql_output import DatabaseServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ACCOUNTS, BALANCE = 10, 1045
"""Of a ledger, and the sum that no transfer changes."""

READS = 10_000

USERS = {
    "2pc-postgresql": (
        "CREATE ROLE {user} LOGIN PASSWORD '{secret}'",
        "GRANT CREATE ON DATABASE postgres TO {user}",
        "GRANT CREATE ON SCHEMA public TO {user}",
    ),
    "2pc-mysql": (
        "CREATE USER {user} IDENTIFIED BY '{secret}'",
        "GRANT ALL ON shop.* TO {user}",
        "GRANT ALL ON s_{table}.* TO {user}",
    ),
}
"""What makes a user who may write."""


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> DatabaseServer:
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def table(database: DatabaseServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name}")


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame([(number,) for number in numbers], "value long").repartition(2)


def save(frame: DataFrame, database: DatabaseServer, table: str, folder: Path, version: int, **more: str) -> None:
    options = {"url": database.url, "dbtable": table, "checkpointLocation": str(folder / "writes"), **more}
    options |= {"txnAppId": "app", "txnVersion": str(version)}
    frame.write.format(database.FORMAT).mode("append").options(**options).save()


def test_a_version_of_a_batch_write_is_written_once(
    spark: SparkSession, tmp_path: Path, database: DatabaseServer, table: str
) -> None:
    for version in (0, 0, 3, 3):
        save(rows(spark, version, version + 1), database, table, tmp_path, version)
    assert sorted(database.ask(f"SELECT value FROM {table}")) == [(0,), (1,), (3,), (4,)]
    with pytest.raises(Exception, match=r"LOCATION_TAKEN"):
        save(rows(spark, 9), database, f"other_{table}", tmp_path, 4)
    overwriting = rows(spark, 9).write.format(database.FORMAT).mode("overwrite").option("url", database.url)
    place = {"checkpointLocation": str(tmp_path / "o"), "txnAppId": "o", "txnVersion": "0"}
    with pytest.raises(Exception, match=r"OUTPUT_MODE.*overwrite"):
        overwriting.options(dbtable=table, **place).save()


def ledger(spark: SparkSession, batches: int) -> DataFrame:
    """In each micro-batch every account gets another balance; their sum is always the same."""
    stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ACCOUNTS), numPartitions="2").load()
    moved = f"100 + ((value % {ACCOUNTS} + value div {ACCOUNTS}) % {ACCOUNTS}) AS balance"
    return stream.where(f"value < {batches * ACCOUNTS}").selectExpr(f"value % {ACCOUNTS} AS account", moved)


@pytest.mark.slow
def test_a_reader_sees_whole_checkpoints_only(
    spark: SparkSession, tmp_path: Path, faults: Faults, database: DatabaseServer, table: str
) -> None:
    """Sums over a ledger, in many reads while the query runs, is killed in its commit, and runs again."""
    batches, location = 12, tmp_path / "checkpoint"
    database.ask(f"CREATE TABLE {table} (account bigint PRIMARY KEY, balance bigint)")
    seen: dict[Any, int] = {}
    enough = threading.Event()

    def read() -> None:
        with closing(database.connect()) as connection:
            cursor = connection.cursor()
            while not (enough.is_set() and sum(seen.values()) >= READS):
                cursor.execute(f"SELECT sum(balance), count(*) FROM {table}")
                found = cursor.fetchone()
                seen[found] = seen.get(found, 0) + 1

    def start() -> StreamingQuery:
        writer = ledger(spark, batches).writeStream.format(database.FORMAT)
        options = {"url": database.url, "dbtable": table, "upsertKey": "account", "checkpointLocation": str(location)}
        return writer.options(**options).start()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for point in ("decision.written", "commit.one", "settled.written"):
            faults.arm(point, "kill")
            query = start()
            wait_until(lambda query=query: not query.isActive, "the query dies")  # type: ignore[misc]
        query = start()
        last = [(number, 100 + (number + batches - 1) % ACCOUNTS) for number in range(ACCOUNTS)]
        look = f"SELECT account, balance FROM {table} ORDER BY account"
        wait_until(lambda: list(database.ask(look)) == last or not query.isActive, "the last balances", 40)
        assert list(database.ask(look)) == last, query.exception()
        query.stop()
    finally:
        enough.set()
        reader.join()
    assert sum(seen.values()) >= READS
    assert set(seen) <= {(None, 0), (BALANCE, ACCOUNTS)}, seen


@pytest.mark.parametrize(
    "how", ["jdbc", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("address", "option"))]
)
def test_no_secret_is_in_a_journal_a_plan_a_log_or_an_error(
    spark: SparkSession,
    tmp_path: Path,
    database: DatabaseServer,
    capfd: pytest.CaptureFixture[str],
    table: str,
    how: str,
) -> None:
    secret = f"hunter-{uuid.uuid4().hex}"
    user = f"u_{table}"
    scheme, _, server = database.address.partition("://")
    for statement in USERS[database.FORMAT]:
        database.ask(statement.format(user=user, secret=secret, table=table))
    options = {
        "address": {"url": f"{scheme}://{user}:{secret}@{server}"},
        "jdbc": {"url": f"jdbc:{scheme}://{server}?user={user}&password={secret}"},
        "option": {"url": database.address, "user": user, "password": secret},
    }[how]
    options |= {"dbtable": table, "stagingSchema": f"s_{table}"}
    register(spark)
    location = tmp_path / "checkpoint"
    frame = ledger(spark, 2)
    writer = frame.writeStream.format(database.FORMAT).options(**options, checkpointLocation=str(location))
    query = writer.start()
    wait_until(lambda: (location / "commits" / "1").exists() or not query.isActive, "two micro-batches")
    assert query.exception() is None
    plan = query._jsq.explainInternal(True)
    progress = "\n".join(map(str, query.recentProgress))
    query.stop()
    change = "ALTER USER {} IDENTIFIED BY 'another'" if scheme == "mysql" else "ALTER ROLE {} PASSWORD 'another'"
    database.ask(change.format(user))
    problems = []
    with pytest.raises(Exception, match="DATABASE_UNREACHABLE") as at_start:
        frame.writeStream.format(database.FORMAT).options(**options, checkpointLocation=str(location)).start()
    problems.append(repr(at_start.value) + str(at_start.value) + str(at_start.value.__cause__))
    with pytest.raises(Exception, match="DATABASE_UNREACHABLE") as in_batch:
        save(rows(spark, 1), database, table, tmp_path / "b", 0, **options)
    problems.append(str(in_batch.value))
    files = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    logged = capfd.readouterr()
    shown = {
        "files": "".join(files),
        "plan": plan,
        "progress": progress,
        "errors": "".join(problems),
        "logs": "".join(logged),
    }
    assert {place for place, text in shown.items() if secret in text} == set()
