"""What a database can do to a sink that stages in it, on real servers: the same for all of them."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from integration.driver_process import wait_until
from integration.sql_bench import SCHEMA, Bench, options_of, server_of, sink_of
from integration.sql_output import DatabaseServer
from tests.connector.cli_place import answer, option_words
from transactional.errors import (
    FencedError,
    LocationError,
    OptionError,
    RowRefusedError,
    StoreError,
    StoreReplacedError,
    TransactionLostError,
    TwoPhaseCommitError,
)
from transactional.history import History
from transactional.sink import Cutoff, Outcome, history_seen, restorable


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    with server_of(request.param) as server:
        yield server


@pytest.fixture
def mariadb(database: DatabaseServer) -> bool:
    return database.FORMAT == "2pc-mysql"


@pytest.fixture
def table(database: DatabaseServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name}")


def waiting(database: DatabaseServer) -> int:
    """How many sessions wait for a lock."""
    if database.FORMAT == "2pc-mysql":
        rows = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        whole = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%%lock'"
        return int(database.ask(rows)[0][0]) + int(database.ask(whole)[0][0])
    return int(database.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[0][0])


def lock_table(connection: Any, mariadb: bool, table: str) -> None:
    """Lock a table until the connection is closed."""
    statements = [f"LOCK TABLES {table} WRITE"] if mariadb else ["BEGIN", f"LOCK TABLE {table}"]
    for statement in statements:
        connection.cursor().execute(statement)


def test_a_sink_that_is_dropped_drops_its_connection(database: DatabaseServer, table: str) -> None:
    """At once, not when garbage is collected next: a server has few connections."""
    sink = sink_of(database, options_of(database, table))
    sink.identify()
    connection = weakref.ref(sink.database.connection())
    gc.disable()
    try:
        del sink
        assert connection() is None
    finally:
        gc.enable()


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_of_one_key_replace_each_other_in_order(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table, upsertKey="id")
    late = bench.prepare([[1, "batch 1"], [3, "only"]], batch=1)
    first = bench.prepare([[1, "a"], [1, "b"], [2, "x"]], batch=0, partition=0)
    second = bench.prepare([[2, "y"]], batch=0, partition=1)
    bench.commit(late, second, first)
    assert sorted(bench.rows()) == [(1, "batch 1"), (2, "y"), (3, "only")]
    bench.commit(bench.prepare([[3, "again"], [4, "new"]], batch=2))
    assert sorted(bench.rows()) == [(1, "batch 1"), (2, "y"), (3, "again"), (4, "new")]
    assert bench.staged() == 0


def test_a_table_of_keys_alone_takes_each_once(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table, pa.schema([("id", pa.int64())]), upsertKey="id")
    bench.commit(bench.prepare([[1], [1], [2]]))
    bench.commit(bench.prepare([[2], [3]], batch=1))
    assert sorted(bench.rows()) == [(1,), (2,), (3,)]


def test_texts_are_one_key_only_if_they_are_equal(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table, pa.schema([("id", pa.string()), ("n", pa.int64())]), upsertKey="id")
    names = ["a", "A", "a ", "ä", "a\u0308", ""]
    bench.commit(bench.prepare([[name, number] for number, name in enumerate(names)]))
    assert sorted(bench.rows()) == sorted((name, number) for number, name in enumerate(names))


def test_rows_are_appended_in_order(database: DatabaseServer, mariadb: bool, table: str) -> None:
    number = "BIGINT AUTO_INCREMENT PRIMARY KEY" if mariadb else "serial"
    database.ask(f"CREATE TABLE {table} (number {number}, id bigint, value varchar(9) DEFAULT 'none')")
    bench = Bench(database, table)
    handles = [
        bench.prepare([[batch * 10 + part, "x"], [batch * 10 + part, "y"]], batch, part)
        for batch in (0, 1)
        for part in (0, 1)
    ]
    bench.commit(*reversed(handles))
    rows = list(database.ask(f"SELECT id, value FROM {table} ORDER BY number"))
    assert rows == [(key, value) for key in (0, 1, 10, 11) for value in "xy"]


@pytest.mark.parametrize(
    "name", ["number", "place", "turn", "nonce", "s", "o", 'we"ird', "50%", "what?", "select", "é", "b`t"]
)
@pytest.mark.parametrize("upsert", [True, False])
def test_any_name_of_a_column_will_do(database: DatabaseServer, table: str, name: str, upsert: bool) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.string())])
    bench = Bench(database, table, schema, **({"upsertKey": "id"} if upsert else {}))
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]


# -- before the first row ----------------------------------------------------------------------------------------------


def test_a_check_creates_nothing_and_the_first_planning_does(database: DatabaseServer, table: str) -> None:
    sink = sink_of(database, options_of(database, table, stagingSchema=f"s_{table}"))
    exists = "SELECT count(*) FROM information_schema.tables WHERE table_name = %s OR table_schema = %s"
    with closing(sink):
        sink.checkStart(None)
        assert database.ask(exists, table, f"s_{table}")[0][0] == 0
        sink.identify()
    assert database.ask(exists, table, f"s_{table}")[0][0] == 6


def test_a_view_takes_no_rows(database: DatabaseServer, table: str) -> None:
    database.ask(f"CREATE VIEW v_{table} AS SELECT 1 AS id, 'x' AS value")
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*dbtable.*view"):
        sink_of(database, options_of(database, f"v_{table}")).checkStart(None)


def test_queries_that_begin_at_once_create_their_tables(database: DatabaseServer, table: str) -> None:
    for number in range(4):
        options = options_of(database, table, stagingSchema=f"s_{table}_{number}")

        def identify(options: dict[str, str] = options) -> str:
            with closing(sink_of(database, options)) as sink:
                return sink.identify()["cluster"]

        with ThreadPoolExecutor(4) as threads:
            assert len({each.result() for each in [threads.submit(identify) for _ in range(4)]}) == 1
        database.ask(f"DROP SCHEMA {options['stagingSchema']}{'' if database.FORMAT == '2pc-mysql' else ' CASCADE'}")


def test_rows_in_a_table_can_not_be_taken_back(database: DatabaseServer, table: str) -> None:
    """``barrier rewind --restore-tables`` asks before it begins anything."""
    with pytest.raises(StoreError, match=rf"NOT_RESTORABLE.*{database.FORMAT}"):
        restorable(sink_of(database, options_of(database, table)))


# -- between prepare and commit ----------------------------------------------------------------------------------------


def test_a_double_key_stops_the_commit_and_can_be_mended(database: DatabaseServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value varchar(9))")
    bench = Bench(database, table)
    handle = bench.prepare([[1, "b"]])
    database.ask(f"INSERT INTO {table} VALUES (1, 'another')")
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*(unique constraint|Duplicate entry)"):
        bench.commit(handle)
    assert bench.sink().inspect([handle])[0].ready
    database.ask(f"DELETE FROM {table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "b")]


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        (
            "MODIFY id int | ALTER COLUMN id TYPE integer",
            "MODIFY id bigint | ALTER COLUMN id TYPE bigint",
            "id was bigint",
        ),
        ("RENAME COLUMN value TO other", "RENAME COLUMN other TO value", "value was .*, and is gone"),
    ],
)
def test_a_table_that_was_altered_is_named(
    database: DatabaseServer, mariadb: bool, table: str, change: str, back: str, said: str
) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"ALTER TABLE {table} {change.split(' | ')[0 if mariadb else -1]}")
    with pytest.raises(StoreError, match=rf"TABLE_CHANGED.*{said}"):
        bench.commit(handle)
    database.ask(f"ALTER TABLE {table} {back.split(' | ')[0 if mariadb else -1]}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


def test_another_column_does_not_matter(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"ALTER TABLE {table} ADD COLUMN more varchar(9) DEFAULT 'm'")
    again = Bench(database, table).prepare([[2, "b"]], batch=1)
    bench = Bench(database, table)
    bench.commit(handle, again)
    assert sorted(bench.rows()) == [(1, "a", "m"), (2, "b", "m")]


@pytest.mark.parametrize("how", ["DELETE FROM", "TRUNCATE", "DROP TABLE"])
def test_staged_rows_that_someone_deleted_are_lost_and_never_half_committed(
    database: DatabaseServer, table: str, how: str
) -> None:
    bench = Bench(database, table)
    handles = [bench.prepare([[1, "a"]]), bench.prepare([[2, "b"]], partition=1)]
    database.ask(
        f"{how} {handles[0]['staging']}"
        + (f" WHERE barrier_nonce = '{handles[0]['nonce']}'" if "DELETE" in how else "")
    )
    with pytest.raises(TransactionLostError) as lost:
        bench.commit(*handles)
    gone = handles[:1] if "DELETE" in how else handles
    assert lost.value.handles == gone
    assert [state.outcome for state in bench.sink().inspect(gone)] == [Outcome.LOST] * len(gone)
    assert bench.rows() == []


@pytest.mark.parametrize("key", ["", "id"])
def test_staged_rows_that_someone_deletes_while_they_are_committed_are_lost_and_said_to_be(
    database: DatabaseServer, table: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After they were counted, before they are copied: both see only what is committed, each as it is then."""
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value varchar(9))")
    bench = Bench(database, table, **({"upsertKey": key} if key else {}))
    handles = [bench.prepare([[1, "a"], [2, "b"]]), bench.prepare([[3, "c"]], partition=1)]
    sink_type = type(bench.sink())
    lock = sink_type.lock

    def then_deleted(sink: Any, cursor: Any) -> None:
        lock(sink, cursor)
        database.ask(f"DELETE FROM {handles[0]['staging']} WHERE barrier_nonce = '{handles[0]['nonce']}' AND id = 1")

    monkeypatch.setattr(sink_type, "lock", then_deleted)
    with pytest.raises(TransactionLostError) as lost:
        bench.commit(*handles)
    assert lost.value.handles == handles[:1]
    assert bench.rows() == []
    assert [state.outcome for state in bench.sink().inspect(handles)] == [Outcome.LOST, Outcome.PREPARED]


def test_a_sweep_touches_only_what_is_over(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    earlier, same, later = (
        bench.prepare([[1, "a"]], 1, run=3),
        bench.prepare([[2, "b"]], 2, run=3),
        bench.prepare([[3, "c"]], run=4),
    )
    assert bench.sink().sweep([], Cutoff("other", 9, 9)) == 0
    assert bench.sink().sweep([], Cutoff(bench.query, 3, 2)) == 1
    outcomes = [state.outcome for state in bench.sink().inspect([earlier, same, later])]
    assert outcomes == [Outcome.LOST, Outcome.PREPARED, Outcome.PREPARED]
    bench.commit(same)
    assert bench.sink().sweep([later], Cutoff(bench.query, 5, 0)) == 0
    assert bench.staged() == 1
    count = "SELECT count(*) FROM barrier.barrier_transactions WHERE prefix = %s"
    assert database.ask(count, bench.prefix)[0][0] == 1


def test_a_commit_that_a_lock_holds_up_says_so(database: DatabaseServer, mariadb: bool, table: str) -> None:
    bench = Bench(database, table, commitTimeoutMs="1000")
    handle = bench.prepare([[1, "a"]])
    with closing(database.connect()) as other:
        lock_table(other, mariadb, table)
        with pytest.raises(StoreError, match=r"DATABASE_SLOW.*commitTimeoutMs = 1000"):
            bench.commit(handle)
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


def test_a_transaction_that_is_committed_while_a_sweep_waits_is_not_forgotten(
    database: DatabaseServer, mariadb: bool, table: str
) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    with ThreadPoolExecutor(2) as threads:
        with closing(database.connect()) as other:
            lock_table(other, mariadb, table)
            commit = threads.submit(bench.commit, handle)
            wait_until(lambda: waiting(database) == 1, "the commit waits")
            sweep = threads.submit(bench.sweep)
            wait_until(lambda: waiting(database) == 2, "the sweep waits")
        commit.result()
        assert sweep.result() == 0
    assert [state.outcome for state in bench.sink().inspect([handle])] == [Outcome.COMMITTED]
    assert list(bench.sink().abort([handle])) == [handle]


def test_a_table_that_is_gone_is_named(database: DatabaseServer, mariadb: bool, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"ALTER TABLE {table} RENAME TO old_{table}")
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*no longer exists"):
        bench.prepare([[1, "a"]])
    with pytest.raises(TwoPhaseCommitError, match="DATABASE_REFUSED" if mariadb else "OUTCOME_UNKNOWN"):
        bench.commit(handle)
    database.ask(f"ALTER TABLE old_{table} RENAME TO {table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


# -- another database under the same address ---------------------------------------------------------------------------


def history(bench: Bench, **known: Any) -> History:
    return replace(History(bench.query, 100, True, known=100, seen={"checkpoint": 0}), **known)


def test_a_database_that_went_back_is_named(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    for batch in range(3):
        bench.commit(bench.prepare([[batch, "a"]], batch))
    assert history_seen(bench.sink(), history(bench, newest=3)) == {"checkpoint": 3}
    # As in a backup of then.
    database.ask("UPDATE barrier.barrier_queries SET checkpoint = 2 WHERE prefix = %s", bench.prefix)
    with pytest.raises(StoreError, match=r"STORE_WENT_BACK.*up to 2, .*checkpoint 3 was committed"):
        history_seen(bench.sink(), history(bench, newest=3))
    assert history_seen(bench.sink(), history(bench, binding=False)) == {"checkpoint": 2}


def test_no_commit_covers_up_that_an_earlier_one_is_gone(database: DatabaseServer, table: str) -> None:
    """As after a failover that no look at the server's id has noticed."""
    bench = Bench(database, table)
    bench.commit(bench.prepare([[0, "a"]]))
    handle = bench.prepare([[1, "a"]], 1)
    with pytest.raises(StoreError, match=r"STORE_WENT_BACK.*up to 1, .*checkpoint 2 was committed"):
        bench.commit(handle, after=2)
    assert bench.rows() == [(0, "a")]


def test_a_database_that_is_further_is_named(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    bench.number = 100
    bench.commit(bench.prepare([[1, "a"]]))
    with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*checkpoint 101"):
        history_seen(bench.sink(), history(bench))


def test_nothing_is_written_after_a_failover_before_it_was_looked_at(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask("UPDATE barrier.barrier_prefixes SET server = 'another' WHERE prefix = %s", bench.prefix)
    for attempt in (
        lambda: bench.commit(handle),
        lambda: bench.prepare([[2, "b"]]),
        lambda: bench.sink().guardRun(bench.mark),
    ):
        with pytest.raises(StoreReplacedError, match="DATABASE_FAILED_OVER"):
            attempt()
    assert bench.rows() == []
    bench.mark = bench.sink().guardRun(None)
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


def test_another_query_that_takes_the_prefix_stops_the_first(database: DatabaseServer, table: str) -> None:
    bench = Bench(database, table)
    assert bench.sink().guardRun(bench.mark) == bench.mark
    Bench(database, table)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        bench.sink().guardRun(bench.mark)


def test_first_runs_that_take_a_prefix_at_once_have_it_one_after_the_other(
    database: DatabaseServer, table: str
) -> None:
    """None of them finds a row that it could lock."""
    bench = Bench(database, table)
    database.ask("DELETE FROM barrier.barrier_prefixes WHERE prefix = %s", bench.prefix)
    sinks = [bench.sink() for _ in range(8)]
    with ThreadPoolExecutor(len(sinks)) as pool:
        marks = list(pool.map(lambda sink: sink.guardRun(None), sinks))
    owners = []
    for mark in marks:
        with suppress(FencedError):
            owners.append(bench.sink().guardRun(mark))
    assert len(owners) == 1
    for sink in sinks:
        sink.close()


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["url", "option", "jdbc"])
def test_a_wrong_password_is_named_and_not_shown(database: DatabaseServer, table: str, how: str) -> None:
    secret = "wrong-and-secret"
    scheme, _, server = database.address.partition("://")
    given: Mapping[str, str] = {
        "url": {"url": f"{scheme}://tester:{secret}@{server}"},
        "option": {"url": database.address, "user": "tester", "password": secret},
        "jdbc": {"url": f"jdbc:{database.address}?user=tester&password={secret}"},
    }[how]
    with pytest.raises(StoreError, match="DATABASE_UNREACHABLE") as refused:
        sink_of(database, {**options_of(database, table), **given}, SCHEMA).checkStart(None)
    assert secret not in str(refused.value)
    assert secret not in repr(refused.value.__cause__)


def test_the_doctor_knows_the_database_by_its_address(
    capsys: pytest.CaptureFixture[str], database: DatabaseServer, table: str
) -> None:
    _, document, _ = answer(capsys, "doctor", *option_words(options_of(database, table)))
    findings = document["findings"]
    version = {"2pc-mysql": "MariaDB", "2pc-postgresql": "PostgreSQL"}[database.FORMAT]
    assert any(version in each["sentence"] for each in findings if each["check"] == "database"), findings
