"""What PostgreSQL may refuse, cut or drop once the rows are decided: it is seen before, or said by its name."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from connector.sql.postgresql_sink import PostgresqlSink
from integration.postgresql import PostgresqlServer
from integration.sql_bench import SCHEMA, Bench, options_of
from transactional.errors import OptionError, RowRefusedError, StoreError
from transactional.sink import Options

LONG = "".join(uuid.UUID(int=number * 2**64 + number**5).hex for number in range(300))
"""A text of 9,600 bytes that does not compress to what an index can hold."""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server:
        yield server


@pytest.fixture
def table(database: PostgresqlServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name} CASCADE")


def raising(database: PostgresqlServer, table: str, body: str, when: str = "BEFORE INSERT") -> None:
    """Give a table a trigger."""
    database.ask(f"CREATE FUNCTION f_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    database.ask(f"CREATE TRIGGER g_{table} {when} ON {table} FOR EACH ROW EXECUTE FUNCTION f_{table}()")


# -- before the decision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "value"])
def test_a_text_that_no_index_can_hold_is_refused_while_it_is_staged(
    database: PostgresqlServer, table: str, more: str
) -> None:
    """It was decided, and then its commit failed and was tried again for ever."""
    key = "PRIMARY KEY" if more else ""
    database.ask(f"CREATE TABLE {table} (id bigint, value text {key})")
    if not more:
        database.ask(f"CREATE INDEX ON {table} (value)")
    bench = Bench(database, table, **({"upsertKey": more} if more else {}))
    whole = pa.RecordBatch.from_pydict({"id": range(5000), "value": [*map(str, range(4999)), LONG]}, schema=SCHEMA)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*index row"):
        bench.prepare_batches([whole])
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]


def test_what_a_trigger_a_policy_or_a_partition_refuses_is_refused_while_it_is_staged(
    database: PostgresqlServer, table: str
) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    raising(
        database,
        table,
        "IF NEW.id = 1 THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '40001'; END IF; RETURN NEW;",
    )
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*not this one"):
        Bench(database, table).prepare([[2, "b"], [1, "a"]])
    database.ask(f"DROP TABLE {table} CASCADE")
    database.ask(f"CREATE TABLE {table} (id bigint, value text) PARTITION BY RANGE (id)")
    database.ask(f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (9)")
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*no partition"):
        Bench(database, table).prepare([[2, "b"], [10, "a"]])


def test_a_double_key_is_refused_while_it_is_staged(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, value text)")
    bench = Bench(database, table)
    bench.commit(bench.prepare([[1, "a"]]))
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*duplicate key"):
        bench.prepare([[2, "b"], [1, "b"]], batch=1)
    assert bench.staged() == 0


def test_a_row_whose_parent_comes_with_its_checkpoint_is_not_refused(database: PostgresqlServer, table: str) -> None:
    """Another sink of the checkpoint writes the parents: only the commit can judge a foreign key."""
    database.ask(f"CREATE TABLE p_{table} (id bigint PRIMARY KEY)")
    database.ask(f"CREATE TABLE {table} (id bigint REFERENCES p_{table}, value text)")
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"INSERT INTO p_{table} VALUES (1)")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]
    database.ask(f"DROP TABLE p_{table} CASCADE")


def test_a_policy_refuses_a_row_by_its_condition(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE ROLE r_{table} LOGIN PASSWORD 'other'")
    database.ask(f"GRANT SELECT, INSERT, UPDATE ON {table} TO r_{table}")
    database.ask(f"GRANT CREATE ON DATABASE postgres TO r_{table}")
    database.ask(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    database.ask(f"CREATE POLICY few ON {table} USING (true) WITH CHECK (id < 5)")
    more = {"url": database.address, "user": f"r_{table}", "password": "other", "stagingSchema": f"s_{table}"}
    bench = Bench(database, table, **more)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*row-level security"):
        bench.prepare([[7, "a"]])
    database.ask(f"DROP OWNED BY r_{table} CASCADE")
    database.ask(f"DROP ROLE r_{table}")


# -- after it -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "condition"),
    [
        ("54000", "ROW_REFUSED"),
        ("53100", "DATABASE_REFUSED"),
        ("53200", "DATABASE_REFUSED"),
        ("53400", "DATABASE_REFUSED"),
        ("55006", "DATABASE_REFUSED"),
        ("58030", "DATABASE_REFUSED"),
        ("53300", "DATABASE_UNREACHABLE"),
        ("57P01", "DATABASE_UNREACHABLE"),
        ("40P01", "DATABASE_UNREACHABLE"),
        ("25006", "DATABASE_UNREACHABLE"),
        ("21000", "ROW_REFUSED"),
        ("44000", "ROW_REFUSED"),
        ("23505", "ROW_REFUSED"),
        ("57014", "DATABASE_SLOW"),
        ("42501", "DATABASE_REFUSED"),
        ("XX001", "DATABASE_REFUSED"),
    ],
)
def test_an_error_is_judged_by_its_sqlstate(database: PostgresqlServer, state: str, condition: str) -> None:
    import psycopg

    sink = PostgresqlSink(Options(options_of(database, "t")), SCHEMA)
    found = sink.translated(psycopg.errors.lookup(state)("x"))
    assert found is not None
    assert found.condition == condition


def test_a_commit_that_a_row_stops_says_what_to_alter(database: PostgresqlServer, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    raising(database, table, "RAISE EXCEPTION 'closed'; RETURN NEW;")
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*closed") as refused:
        bench.commit(handle)
    assert "Alter the table" in str(refused.value)
    database.ask(f"DROP TRIGGER g_{table} ON {table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


@pytest.mark.parametrize("columns", [["id", "value"], ["id"]])
@pytest.mark.parametrize("staged_first", [True, False])
def test_rows_that_a_trigger_drops_are_not_called_committed(
    database: PostgresqlServer, table: str, columns: list[str], staged_first: bool
) -> None:
    """Of upserts, too."""
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value text)")
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    bench = Bench(database, table, schema, upsertKey="id")
    rows = [[each, "x"][: len(columns)] for each in (1, 2, 2, 3)]
    if staged_first:
        handle = bench.prepare(rows)
    raising(database, table, "IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW;")
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*2 of 3 rows"):
        bench.commit(handle if staged_first else bench.prepare(rows))
    database.ask(f"DROP TRIGGER g_{table} ON {table}")
    bench.commit(bench.prepare([rows[0]], batch=1))
    assert bench.rows("id") == [(1,)]


def test_a_synchronous_stand_by_that_is_away_does_not_hold_the_commit_for_ever() -> None:
    with PostgresqlServer() as server:
        bench = Bench(server, "t", commitTimeoutMs="2000")
        handle = bench.prepare([[1, "a"]])
        server.ask("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        server.ask("SELECT pg_reload_conf()")
        begin = time.monotonic()
        with pytest.raises(StoreError, match=r"DATABASE_SLOW.*standby"):
            bench.commit(handle)
        assert time.monotonic() - begin < 60  # without a limit it waits for ever
        server.ask("ALTER SYSTEM RESET synchronous_standby_names")
        server.ask("SELECT pg_reload_conf()")
        bench.commit(handle)
        assert bench.rows() == [(1, "a")]


# -- keys and columns ---------------------------------------------------------------------------------------------------


def test_of_keys_that_are_equal_and_not_the_same_the_last_is_kept(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value numeric PRIMARY KEY)")
    bench = Bench(database, table, upsertKey="value")
    bench.commit(bench.prepare([[1, "1.0"], [2, "2"]]))
    bench.commit(bench.prepare([[3, "1.00"], [4, "2.00"], [5, "2.0"]], batch=1))
    assert sorted(bench.rows("id, value::text")) == [(3, "1.00"), (5, "2.0")]


def test_text_into_a_domain_of_bytes_is_refused_at_the_start(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE DOMAIN d_{table} AS bytea")
    database.ask(f"CREATE DOMAIN e_{table} AS d_{table}")
    try:
        for kind in (f"d_{table}", f"e_{table}"):
            database.ask(f"CREATE TABLE {table} (id bigint, value {kind})")
            with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*value"):
                PostgresqlSink(Options(options_of(database, table)), SCHEMA).checkStart(None)
            database.ask(f"DROP TABLE {table}")
        database.ask(f"CREATE TABLE {table} (id bigint, value e_{table})")
        bench = Bench(database, table, pa.schema([("id", pa.int64()), ("value", pa.binary())]))
        bench.commit(bench.prepare([[1, b"\0\xff"]]))
        assert bench.rows() == [(1, b"\0\xff")]
    finally:
        database.ask(f"DROP DOMAIN d_{table} CASCADE")


def test_an_interval_means_what_it_means_by_default(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value interval)")
    database.ask("ALTER ROLE tester SET IntervalStyle = 'sql_standard'")
    try:
        bench = Bench(database, table)
        bench.commit(bench.prepare([[1, "-1 2:03:04"]]))
    finally:
        database.ask("ALTER ROLE tester RESET IntervalStyle")
    assert bench.rows("value = '-1 days +02:03:04'") == [(True,)]


def test_the_doctor_names_what_can_stop_a_commit(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE DOMAIN d_{table} AS text")
    database.ask(f"CREATE TABLE {table} (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, value d_{table})")
    database.ask(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    database.ask(f"CREATE INDEX x_{table} ON {table} (lower(value))")
    raising(database, table, "RETURN NEW;")
    found = PostgresqlSink(Options(options_of(database, table)), SCHEMA).examine(None)
    text = "\n".join(each.sentence for each in found)
    for said in (
        "row-level security",
        f"the trigger g_{table}",
        "the deferred constraint",
        f"the index x_{table} on an expression",
        "the domain of value",
    ):
        assert said in text, text
    database.ask(f"DROP DOMAIN d_{table} CASCADE")


# -- values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("numeric(5,2)", r"decimal\(5,2\)"),
        ("numeric(5,-2)", "make the column numeric"),
        ("money", "numeric"),
        ("time", "text"),
        ("timestamp", "timestamp_ntz"),
        ("timestamptz", '"timestamp"'),
        ("date", '"date"'),
        ("real", '"float"'),
        ("float8", '"double"'),
        ("name", "column text"),
        ('"char"', "column text"),
        ("oid", "bigint"),
        ("d_{table}", "cuts spaces"),
        ("numeric(5,2)[]", "an array"),  # of the text {1.239} the server makes {1.24}
        ("numeric(5,2)[][]", "an array"),
        ("varchar(3)[]", "an array"),
        ("name[]", "an array"),
        ("date[]", "an array"),
        ("interval(0)", "column interval"),
        ("interval day", "column interval"),
    ],
)
def test_text_into_a_type_that_changes_some_texts_is_refused_at_the_start(
    database: PostgresqlServer, table: str, kind: str, said: str
) -> None:
    database.ask(f"CREATE DOMAIN d_{table} AS varchar(3)")
    database.ask(f"CREATE TABLE {table} (id bigint, value {kind.format(table=table)})")
    with pytest.raises(OptionError, match=f"COLUMNS_MISMATCH.*value.*{said}"):
        PostgresqlSink(Options(options_of(database, table)), SCHEMA).checkStart(None)
    database.ask(f"DROP DOMAIN d_{table} CASCADE")


@pytest.mark.parametrize(("kind", "value"), [("varchar(3)", "ab  "), ("char(3)", "a  "), ("char(3)", "ab  ")])
def test_blanks_are_not_cut(database: PostgresqlServer, table: str, kind: str, value: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value {kind})")
    bench = Bench(database, table)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*too long for char.*: value"):
        bench.prepare([[1, value]])
    bench.commit(bench.prepare([[1, "ab"], [2, "abc"]]))
    assert bench.rows("rtrim(value)") == [("ab",), ("abc",)]
    handle = bench.prepare([[3, "abc"]], batch=1)
    database.ask(f"DELETE FROM {table}")
    database.ask(f"ALTER TABLE {table} ALTER COLUMN value TYPE varchar(2)")
    with pytest.raises(StoreError, match=r"TABLE_CHANGED.*value was character.*\(3\)"):
        bench.commit(handle)


def test_floats_in_arrays_are_the_same_numbers_as_doubles(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (value float8[])")
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32())):
        bench = Bench(database, table, pa.schema([("value", kind)]))
        bench.commit(bench.prepare([[[0.1, None, 3e38]], [None], [[]]]))
        wanted = pa.array([0.1, 3e38], pa.float32()).to_pylist()
        assert bench.rows() == [([wanted[0], None, wanted[1]],), (None,), ([],)]
        database.ask(f"DELETE FROM {table}")


@pytest.mark.parametrize("years", [-1, 0, 10_000, 40_000, 290_000])
@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("in_array", [True, False])
def test_a_far_year_is_the_same_year_or_refused(
    database: PostgresqlServer, table: str, years: int, kind: pa.DataType, in_array: bool
) -> None:
    """Also where another column leaves the rows to text."""
    days = (years - 1970) * 146_097 // 400
    value = days if kind == pa.date32() else days * 86_400_000_000
    column = kind if not in_array else pa.list_(kind)
    schema = pa.schema([("at", column), ("numbers", pa.list_(pa.int32()))])
    bench = Bench(database, table, schema)
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*(column at|date/time)"):
        bench.prepare([[[value] if in_array else value, [1]]])


def test_names_that_the_server_would_cut_are_refused(database: PostgresqlServer) -> None:
    """Two tables whose names agree in 63 bytes were one."""
    for long in ("t" * 64, "ä" * 32, f'public."{"t" * 64}"'):
        with pytest.raises(OptionError, match=r"INVALID_OPTION.*dbtable.*63 bytes"):
            PostgresqlSink(Options(options_of(database, long)), SCHEMA)
    PostgresqlSink(Options(options_of(database, f'{"s" * 63}."{"t" * 63}"')), SCHEMA)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*stagingSchema"):
        PostgresqlSink(Options(options_of(database, "t", stagingSchema="s" * 64)), SCHEMA)
