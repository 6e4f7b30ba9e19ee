"""Crashes of a query that writes a topic, a Delta table and a table of PostgreSQL under one decision.

Its calls are Spark's, made by `integration.engine`; real broker, real database, real files. In the end every row is once in
each store that it was routed to, in none else, and nothing is open or staged in any.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine_query import MultiQuery
from integration.postgresql import PostgresqlServer
from integration.sql_output import SqlOutput
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import StoreError

SHORT_MS = "5000"
"""A transaction's timeout that a test can wait for."""


MakeQuery = Callable[..., MultiQuery]


@pytest.fixture
def make_query(
    kafka: Cluster, postgresql: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeQuery:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    return lambda **changes: MultiQuery(kafka, SqlOutput.new(postgresql), tmp_path, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ms", [SHORT_MS, pytest.param("600000", marks=[pytest.mark.matrix, pytest.mark.timeout(1200)])]
)
def test_what_expired_while_another_store_was_away_is_written_again_there_only(
    make_query: MakeQuery, postgresql: PostgresqlServer, ms: str
) -> None:
    """The database is down when the driver comes back, so nothing can be settled, and the topic's transactions expire."""
    query = make_query(batches=1)
    short: Any = {"topic.kafka.transaction.timeout.ms": ms}
    query.die("decision.written", **short)
    postgresql.stop()
    try:
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            query.run(**short)
        wait_until(lambda: not query.topic.open_transactions(), "the topic's transactions expire", 180 + int(ms) / 1000)
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            query.run(**short)
    finally:
        postgresql.start()
    files = query.files.files()
    assert query.table.staged() > 0
    query.run(**short)
    query.check()
    assert sorted(query.repaired()) == [(0, "topic"), (1, "topic"), (2, "topic")]
    assert query.files.files() == files, "no file was written again"
    assert EntryKind.VOID not in query.place.kinds()


@pytest.mark.slow
def test_a_store_that_is_away_at_the_commit_leaves_its_part_to_the_next_start(
    make_query: MakeQuery, postgresql: PostgresqlServer
) -> None:
    query = make_query(batches=1)
    query.faults.arm("decision.written", "pause")
    with ThreadPoolExecutor(1) as pool:
        life = pool.submit(query.run, commitTimeoutMs="2000")
        wait_until(lambda: query.faults.fired("decision.written") or life.done(), "the decision")
        postgresql.stop()
        query.faults.resume("decision.written")
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*Sink table of 2pc-multi"):
            life.result()
    assert query.topic.rows().total() == query.files.rows().total() == query.work.rows // 2, "the others have committed"
    postgresql.start()
    query.finish()
    assert query.repaired() == []
