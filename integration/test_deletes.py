"""Rows that delete (``deleteColumn``), on real databases."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from integration.sql_bench import Bench, options_of, server_of, sink_of
from integration.sql_output import DatabaseServer
from transactional.errors import OptionError, RowRefusedError, StoreError

SCHEMA = pa.schema([("gone", pa.bool_()), ("id", pa.string()), ("value", pa.int64())])


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    with server_of(request.param) as server:
        yield server


POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def table(database: DatabaseServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name}")


def bench_of(database: DatabaseServer, table: str, schema: pa.Schema = SCHEMA, **options: str) -> Bench:
    return Bench(database, table, schema, upsertKey="id", deleteColumn="gone", **options)


@pytest.mark.parametrize("ignores_case", [False, True], ids=["exact", "any-case"])
@pytest.mark.parametrize("seed", range(3))
def test_the_table_is_what_the_changes_make_of_it_one_after_the_other(
    database: DatabaseServer, table: str, seed: int, ignores_case: bool
) -> None:
    """Random changes of few keys, in tasks and micro-batches of several checkpoints."""
    if ignores_case and database.FORMAT == "2pc-postgresql":  # not in the search path, where ``=`` is the one of text
        database.ask("CREATE SCHEMA IF NOT EXISTS away; CREATE EXTENSION IF NOT EXISTS citext SCHEMA away")
        database.ask(f"CREATE TABLE {table} (id away.citext PRIMARY KEY, value bigint)")
    elif ignores_case:
        collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
        database.ask(f"CREATE TABLE {table} (id varchar(9) {collation} PRIMARY KEY, value bigint)")
    chance, bench, wanted = random.Random(seed), bench_of(database, table), dict[str, int]()
    for checkpoint in range(6):
        handles = []
        for batch in range(chance.randint(1, 3)):
            for partition in range(2):
                rows: list[list[Any]] = []
                for _ in range(chance.choice([1, 5, 40])):
                    key, value = chance.choice("abcdefgABCDEFG" if ignores_case else "abcdefg"), chance.randrange(1000)
                    key = f"{key}{partition}"  # the rows of a key are in one task
                    gone = chance.random() < 0.4
                    rows.append([gone, key, None if gone else value])
                    if gone:
                        wanted.pop(key.lower(), None)
                    else:
                        wanted[key.lower()] = value
                handles.append(bench.prepare(rows, 10 * checkpoint + batch, partition))
        chance.shuffle(handles)
        bench.commit(*handles, after=checkpoint)
        assert sorted((key.lower(), value) for key, value in bench.rows()) == sorted(wanted.items())
    assert bench.staged() == 0


def test_a_row_that_deletes_needs_its_key_alone(database: DatabaseServer, table: str) -> None:
    database.ask(
        f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint NOT NULL CHECK (value > 0), day varchar(3) NOT NULL)"
    )
    schema = pa.schema([*SCHEMA, ("day", pa.string())])
    bench = bench_of(database, table, schema)
    bench.commit(bench.prepare([[False, "a", 1, "mon"], [False, "b", 2, "tue"], [False, "c", 3, "wed"]]))
    bench.commit(bench.prepare([[True, "a", None, None], [True, "b", -5, None], [True, "none", None, None]]), after=1)
    assert bench.rows() == [("c", 3, "wed")]
    for row in ([False, "d", None, "mon"], [False, "d", 1, None], [False, "d", -1, "mon"], [True, None, 1, "mon"]):
        with pytest.raises(RowRefusedError, match="ROW_REFUSED"):
            bench.prepare([row])
    assert bench.staged() == 0


def test_a_row_that_is_deleted_and_written_again_is_new_in_one_checkpoint_as_in_two(
    database: DatabaseServer, table: str
) -> None:
    """A column that the query does not write gets its default again, however rows are divided."""
    database.ask(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint, note varchar(9) DEFAULT 'new')")
    database.ask(f"INSERT INTO {table} VALUES ('a', 0, 'old'), ('b', 0, 'old'), ('c', 0, 'old'), ('d', 0, 'old')")
    bench = bench_of(database, table)
    bench.commit(bench.prepare([[True, "a", None]]))
    bench.commit(bench.prepare([[False, "a", 1]], 1), after=1)
    again = bench.prepare([[True, "b", None], [False, "b", 1], [False, "d", 1]], 2)
    bench.commit(again, bench.prepare([[True, "c", None]], 3), bench.prepare([[False, "c", 1]], 4), after=2)
    assert sorted(bench.rows()) == [("a", 1, "new"), ("b", 1, "new"), ("c", 1, "new"), ("d", 1, "old")]


def test_a_url_without_a_database_deletes(database: DatabaseServer, table: str) -> None:
    name = f"shop.{table}" if database.FORMAT == "2pc-mysql" else table
    url = database.url.removesuffix("/shop")
    database.ask(f"CREATE TABLE {name} (id varchar(9) PRIMARY KEY, value bigint)")
    bench = bench_of(database, name, url=url, transactionalIdPrefix=table)
    bench.commit(bench.prepare([[False, "a", 1]]))
    bench.commit(bench.prepare([[True, "a", None]], 1), after=1)
    assert bench.rows() == []


@pytest.mark.parametrize("trigger", [False, True])
def test_who_may_not_delete_is_refused_before_the_decision(database: DatabaseServer, table: str, trigger: bool) -> None:
    database.ask(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint)")
    mysql, user = database.FORMAT == "2pc-mysql", f"u_{table}"
    if trigger and mysql:
        database.ask(f"CREATE TRIGGER g_{table} BEFORE DELETE ON {table} FOR EACH ROW SET @x = 1")
    bench = bench_of(database, table, stagingSchema=f"s_{table}")
    database.ask(f"CREATE USER {user} IDENTIFIED BY 'x'" if mysql else f"CREATE ROLE {user} LOGIN PASSWORD 'x'")
    database.ask(f"GRANT SELECT, INSERT, UPDATE{', TRIGGER' if mysql else ''} ON {table} TO {user}")
    if mysql:
        database.ask(f"GRANT ALL ON s_{table}.* TO {user}")
    else:
        database.ask(f"GRANT ALL ON SCHEMA s_{table} TO {user}; GRANT ALL ON ALL TABLES IN SCHEMA s_{table} TO {user}")
    bench.options |= {"url": database.address, "user": user, "password": "x"}
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*(denied|permission)"):
        bench.prepare([[False, "a", 1]])
    database.ask(f"GRANT DELETE ON {table} TO {user}")
    bench.commit(bench.prepare([[False, "a", 1]]))
    assert bench.rows() == [("a", 1)]


def test_a_table_that_refers_to_itself_is_refused(database: DatabaseServer, table: str) -> None:
    reference = f"FOREIGN KEY (parent) REFERENCES {table} (id)"
    database.ask(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint, parent varchar(9), {reference})")
    sink = sink_of(database, options_of(database, table, upsertKey="id", deleteColumn="gone"), SCHEMA)
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*has a foreign key to itself"):
        sink.checkStart(None)


def test_a_handle_that_deletes_names_a_column_that_an_older_version_misses(
    database: DatabaseServer, table: str
) -> None:
    """Otherwise a version from before would insert the row that deletes."""
    bench = bench_of(database, table)
    handle = bench.prepare([[True, "a", None]])
    assert "barrier_deletes" in handle["more"]["columns"]
    handle["more"].pop("deletes")  # as that version reads it
    with pytest.raises(StoreError, match=r"TABLE_CHANGED.*barrier_deletes was boolean, and is gone"):
        bench.commit(handle)


def test_a_key_of_several_columns_deletes_only_its_row(database: DatabaseServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (value bigint NOT NULL, id varchar(9) NOT NULL, UNIQUE (value, id))")
    bench = Bench(database, table, SCHEMA, upsertKey="id, value", deleteColumn="GONE")
    bench.commit(bench.prepare([[False, "a", 1], [False, "a", 2], [False, "b", 1], [False, "b", 2]]))
    bench.commit(bench.prepare([[True, "a", 2], [True, "b", 1], [False, "c", 3], [True, "c", 4]]), after=1)
    assert sorted(bench.rows("id, value")) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_row_that_does_not_say_whether_it_deletes_is_refused(database: DatabaseServer, table: str) -> None:
    bench = bench_of(database, table)
    with pytest.raises(RowRefusedError, match=r"the column gone \(option deleteColumn\) is null"):
        bench.prepare([[False, "a", 1], [None, "b", 2]])
    assert bench.staged() == 0


@pytest.mark.parametrize(
    ("options", "schema", "columns", "said"),
    [
        ({"deleteColumn": "gone"}, SCHEMA, "", "INVALID_OPTION.*needs upsertKey"),
        ({"upsertKey": "id", "deleteColumn": "op"}, SCHEMA, "", "the query has no column with the name op"),
        ({"upsertKey": "id", "deleteColumn": "value"}, SCHEMA, "", "the query's column value is bigint"),
        ({"upsertKey": "id", "deleteColumn": "gone"}, SCHEMA, "gone boolean", "has the column gone"),
        ({"upsertKey": "gone", "deleteColumn": "gone"}, SCHEMA, "", "upsertKey names gone"),
        (
            {"upsertKey": "id", "deleteColumn": "gone"},
            pa.schema([*SCHEMA, ("barrier_deletes", pa.int64())]),
            "barrier_deletes bigint",
            "the column barrier_deletes, which the sink itself needs",
        ),
    ],
)
def test_what_can_not_be_meant_is_refused_before_the_first_row(
    database: DatabaseServer, table: str, options: dict[str, str], schema: pa.Schema, columns: str, said: str
) -> None:
    if columns:
        database.ask(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint, {columns})")
    with pytest.raises(OptionError, match=said):
        sink_of(database, options_of(database, table, **options), schema).checkStart(None)


def test_rows_that_others_refer_to_stop_the_commit_and_are_deleted_once_they_may(
    database: DatabaseServer, table: str
) -> None:
    database.ask(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, value bigint)")
    child = f"{table}_child"
    database.ask(f"CREATE TABLE {child} (parent varchar(9), FOREIGN KEY (parent) REFERENCES {table} (id))")
    try:
        bench = bench_of(database, table)
        bench.commit(bench.prepare([[False, "a", 1], [False, "b", 2]]))
        database.ask(f"INSERT INTO {child} VALUES ('a')")
        handle = bench.prepare([[True, "a", None], [False, "c", 3]], 1)
        with pytest.raises(RowRefusedError, match="ROW_REFUSED"):
            bench.commit(handle, after=1)
        assert sorted(bench.rows()) == [("a", 1), ("b", 2)]
        database.ask(f"DELETE FROM {child}")
        bench.number -= 1
        bench.commit(handle, after=1)
        assert sorted(bench.rows()) == [("b", 2), ("c", 3)]
    finally:
        database.ask(f"DROP TABLE {child}")


@POSTGRESQL
@pytest.mark.parametrize("way", ["trigger", "rule"])
def test_a_table_that_keeps_rows_stops_the_commit(database: DatabaseServer, table: str, way: str) -> None:
    database.ask(f"CREATE TABLE {table} (id text PRIMARY KEY, value bigint)")
    bench = bench_of(database, table)
    bench.commit(bench.prepare([[False, "a", 1]]))
    if way == "trigger":
        body = "BEGIN RETURN NULL; END"
        database.ask(f"CREATE FUNCTION f_{table}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        database.ask(f"CREATE TRIGGER keeps BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION f_{table}()")
    else:
        database.ask(f"CREATE RULE keeps AS ON DELETE TO {table} DO INSTEAD NOTHING")
    with pytest.raises(StoreError, match="the table still has 1 rows that the query deletes"):
        bench.prepare([[True, "a", None]], 1)


@POSTGRESQL
def test_rows_of_partitions_are_deleted_and_rows_of_tables_that_inherit_are_not(
    database: DatabaseServer, table: str
) -> None:
    database.ask(f"CREATE TABLE {table} (id text PRIMARY KEY, value bigint) PARTITION BY HASH (id)")
    for number in range(2):
        part = f"CREATE TABLE {table}_{number} PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER {number})"
        database.ask(part)
    bench = bench_of(database, table)
    bench.commit(bench.prepare([[False, name, 1] for name in "abcd"]))
    bench.commit(bench.prepare([[True, "a", None], [True, "b", None], [True, "c", None]], 1), after=1)
    assert bench.rows() == [("d", 1)]

    parent = f"{table}_parent"
    database.ask(f"CREATE TABLE {parent} (id text PRIMARY KEY, value bigint)")
    database.ask(f"CREATE TABLE {table}_heir () INHERITS ({parent}); INSERT INTO {table}_heir VALUES ('a', 9)")
    bench = bench_of(database, parent)
    bench.commit(bench.prepare([[False, "a", 1]]))
    bench.commit(bench.prepare([[True, "a", None]], 1), after=1)
    assert bench.rows() == [("a", 9)]
    database.ask(f"DROP TABLE {parent} CASCADE")


@POSTGRESQL
def test_a_policy_that_may_hide_rows_is_refused(database: DatabaseServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id text PRIMARY KEY, value bigint)")
    bench = bench_of(database, table)
    handle = bench.prepare([[True, "a", None]])
    user = f"u_{table}"
    database.ask(f"CREATE ROLE {user} LOGIN PASSWORD 'x'")
    database.ask(f"ALTER TABLE {table} OWNER TO {user}; ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    database.ask(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY; GRANT ALL ON SCHEMA barrier TO {user}")
    database.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA barrier TO {user}")
    bench.options |= {"user": user, "password": "x"}
    with pytest.raises(OptionError, match="row-level security could hide rows"):
        bench.sink().checkStart(None)
    with pytest.raises(StoreError, match=r"TABLE_CHANGED.*row-level security"):
        bench.commit(handle)
