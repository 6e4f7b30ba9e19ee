"""The PostgreSQL sink on a real server: the sinks' contract, and what only a database can do to it."""

from __future__ import annotations

import datetime as dt
import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.sql.binary_rows import as_binary
from connector.sql.csv_rows import as_csv, numbers, repeated
from connector.sql.fitting import create_statement
from connector.sql.postgresql_sink import PostgresqlSink
from connector.sql.postgresql_table import Postgresql
from integration.driver_process import wait_until
from integration.postgresql import PASSWORD, PostgresqlServer, StandBy
from integration.sql_bench import SCHEMA, Bench, options_of
from integration.table_copies import TableCopies
from transactional.errors import (
    AmbiguousOutcomeError,
    OptionError,
    RowRefusedError,
    StoreError,
    StoreReplacedError,
)
from transactional.history import History
from transactional.sink import Options, Outcome, TransactionContext, history_seen
from transactional.testing import SinkConformance


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server:
        yield server


@pytest.fixture
def table(database: PostgresqlServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name}")


class TestPostgresqlSink(TableCopies, SinkConformance):
    sink_type = PostgresqlSink
    golden_handles = Path(__file__).parent.parent / "tests" / "golden" / "2pc-postgresql"

    @pytest.fixture
    def sink_options(self, database: PostgresqlServer, table: str) -> Mapping[str, str]:
        self.database, self.table = database, table
        return options_of(database, table)

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return [int(value) for (value,) in self.database.ask(f"SELECT value FROM {self.table}")]

    def unfinished(self, options: Mapping[str, str]) -> int:
        prefix = options["transactionalidprefix"]
        statement = "SELECT count(*) FROM barrier.barrier_transactions WHERE state = 'prepared' AND prefix = %s"
        return int(self.database.ask(statement, prefix)[0][0])

    @staticmethod
    def renaming(name: str, other: str) -> str:
        """A table changes its schema, or its name."""
        schema, _, bare = other.rpartition(".")
        return f"ALTER TABLE {name} SET SCHEMA {schema}" if schema else f"ALTER TABLE {name} RENAME TO {bare}"

    def test_a_table_that_was_dropped_is_not_made_anew_if_its_address_is_spelled_otherwise(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """The control tables are the same: the two rows of before were missing, without a word."""
        query = self.begun(sink_options)
        query.options["url"] += "?application_name=another"
        self.database.ask(f"DROP TABLE {self.table}")
        with pytest.raises(StoreError, match=r"STORE_REPLACED.*table was"):
            query.run(2, [2])
        assert self.visible(query.options) == []


# -- rows ------------------------------------------------------------------------------------------------------------


def clock(*parts: int) -> dt.datetime:
    """Return a time without zone."""
    return dt.datetime(*parts, tzinfo=dt.timezone.utc).replace(tzinfo=None)  # type: ignore[misc, arg-type]


def test_every_type_arrives_as_it_was(database: PostgresqlServer, table: str) -> None:
    zone = dt.timezone.utc
    texts = ["", "a,b\"c'\\n\n\r\n\t", "\\.", "NULL", "äöü €", None]
    rows: dict[str, tuple[pa.DataType, list[Any]]] = {
        "flag": (pa.bool_(), [True, False, None, True, False, None]),
        "small": (pa.int16(), [-32768, 32767, None, 0, 1, 2]),
        "whole": (pa.int32(), [-(2**31), 2**31 - 1, None, 0, 1, 2]),
        "big": (pa.int64(), [-(2**63), 2**63 - 1, None, 0, 1, 2]),
        "near": (pa.float32(), [1.5, float("inf"), None, -0.0, 2.0**100, 2.0**-100]),
        "far": (pa.float64(), [0.1, -1e308, float("-inf"), None, 5e-324, 1 / 3]),
        "money": (
            pa.decimal128(38, 6),
            [Decimal("0.000001"), Decimal("-12345678901234567890.5"), None, *[Decimal(n) for n in range(3)]],
        ),
        "text": (pa.string(), texts),
        "data": (pa.binary(), [b"", b"\x00\xff\\", None, b"\"',\n", b"x", b"\\x00"]),
        "day": (
            pa.date32(),
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, *[dt.date(2026, 1, n) for n in (1, 2, 3)]],
        ),
        "moment": (
            pa.timestamp("us", "UTC"),
            [
                dt.datetime(2026, 11, 23, 1, 2, 3, 456789, zone),
                dt.datetime(1, 1, 1, tzinfo=zone),
                None,
                *[dt.datetime(1969, 12, 31, 23, 59, 59, n, zone) for n in (1, 2, 3)],
            ],
        ),
        "clock": (
            pa.timestamp("us"),
            [
                clock(2026, 11, 23, 1, 2, 3, 456789),
                clock(9999, 12, 31),
                None,
                *[clock(1969, 12, 31, 23, 59, 59, n) for n in (1, 2, 3)],
            ],
        ),
        "numbers": (pa.list_(pa.int32()), [[], [1, None, -3], None, [4], [5], [6]]),
        "words": (pa.list_(pa.string()), [["", "NULL", None], ["a,b", '"{}"', "\\"], None, [], ["x"], ["\n"]]),
        "parts": (pa.list_(pa.binary()), [[b"", b"\xff"], [None], None, [], [b"\\"], [b'"']]),
        "wide": (pa.float32(), [0.1, None, 1.5, 2.0, 3.0, 4.0]),
        "flags": (pa.list_(pa.bool_()), [[True, None], [False], None, [], [True], [False]]),
        "moments": (
            pa.list_(pa.timestamp("us", "UTC")),
            [[dt.datetime(2026, 1, 1, tzinfo=zone), None], [], None, [], [], []],
        ),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in rows.items()])
    kinds = {
        name: create_statement(Postgresql(), pa.schema([(name, kind)]), "t", ()).partition("(")[2][:-1]
        for name, (kind, _) in rows.items()
    }
    kinds["wide"] = '"wide" double precision'
    database.ask(f"CREATE TABLE {table} ({', '.join(kinds.values())})")
    batch = pa.RecordBatch.from_pydict({name: values for name, (_, values) in rows.items()}, schema=schema)
    for piece in (batch, batch.slice(1, 4), batch.slice(5), batch.slice(2, 0)):
        bench = Bench(database, table, schema)
        sink = bench.sink()
        transaction = sink.beginTransaction(
            TransactionContext(bench.query, 0, 0, 0, bench.options["transactionalIdPrefix"], os.urandom(8).hex(), 1)
        )
        sink.write(transaction, piece)
        bench.commit(sink.preCommit(transaction))
        widened = {"near": "near::float8"}  # as Python has it
        found = bench.rows(", ".join(widened.get(name, f'"{name}"') for name in schema.names))
        wanted = [tuple(row.values()) for row in piece.to_pylist()]
        assert found == wanted
        database.ask(f"DELETE FROM {table}")


def test_text_goes_into_what_the_database_can_read_it_as(database: PostgresqlServer, table: str) -> None:
    database.ask("CREATE TYPE mood AS ENUM ('good', 'bad')")
    database.ask(f"CREATE TABLE {table} (id uuid, doc jsonb, mood mood, address inet)")
    schema = pa.schema([(name, pa.string()) for name in ("ID", "doc", "mood", "address")])
    bench = Bench(database, table, schema)
    one = uuid.uuid4()
    bench.commit(bench.prepare([[str(one), '{"a": [1]}', "bad", "10.0.0.1"]]))
    assert [(row[0], row[1], row[2]) for row in bench.rows()] == [(one, {"a": [1]}, "bad")]
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*mood.*ugly"):
        bench.prepare([[str(one), "{}", "ugly", "10.0.0.1"]])


# -- refusals before the first row -----------------------------------------------------------------------------------

REFUSED: Sequence[tuple[str, str, pa.Schema, Mapping[str, str], str]] = (
    ("a column too many", "id bigint", SCHEMA, {}, "has no column value"),
    ("a column too few", "id bigint, value text, more text NOT NULL", SCHEMA, {}, "more of .* is NOT NULL"),
    ("numbers into text", "id text, value text", SCHEMA, {}, "the column id is bigint, and the table's column is text"),
    (
        "bytes into text",
        "id bigint, value text",
        pa.schema([("id", pa.int64()), ("value", pa.binary())]),
        {},
        "value is bytea",
    ),
    ("a moment without its zone", "at timestamp", pa.schema([("at", pa.timestamp("us", "UTC"))]), {}, "timestamp_ntz"),
    ("digits that would be cut", "n numeric(10,2)", pa.schema([("n", pa.decimal128(10, 3))]), {}, r"numeric\(10,2\)"),
    ("far into near", "n real", pa.schema([("n", pa.float64())]), {}, "the table's column is real"),
    (
        "a fraction that would be rounded",
        "at timestamp(0)",
        pa.schema([("at", pa.timestamp("us"))]),
        {},
        "which rounds",
    ),
    ("arrays in arrays", "s int[]", pa.schema([("s", pa.list_(pa.list_(pa.int32())))]), {}, "to_json"),
    ("a struct", "s jsonb", pa.schema([("s", pa.struct([("a", pa.int32())]))]), {}, "to_json"),
    ("a map", "s jsonb", pa.schema([("s", pa.map_(pa.string(), pa.int32()))]), {}, "to_json"),
    ("a length of time", "s interval", pa.schema([("s", pa.duration("us"))]), {}, "PostgreSQL has no such type"),
    (
        "a computed column",
        "id bigint, value text GENERATED ALWAYS AS ('x') STORED",
        SCHEMA,
        {},
        "computes the column value",
    ),
    ("an own identity", "id bigint GENERATED ALWAYS AS IDENTITY, value text", SCHEMA, {}, "computes the column id"),
    ("no unique index", "id bigint, value text", SCHEMA, {"upsertKey": "id"}, "no unique index on exactly id"),
    (
        "a partial one",
        "id bigint NOT NULL, value text, EXCLUDE (id WITH =)",
        SCHEMA,
        {"upsertKey": "id"},
        "no unique index",
    ),
    ("a key that may be null", "id bigint UNIQUE, value text", SCHEMA, {"upsertKey": "id"}, "allows null"),
    ("a key that is no column", "id bigint, value text", SCHEMA, {"upsertKey": "no"}, "upsertKey names no"),
)


@pytest.mark.parametrize(
    ("columns", "schema", "more", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_does_not_fit_is_refused_before_the_first_row(
    database: PostgresqlServer, table: str, columns: str, schema: pa.Schema, more: Mapping[str, str], said: str
) -> None:
    database.ask(f"CREATE TABLE {table} ({columns})")
    sink = PostgresqlSink(Options(options_of(database, table, **more)), schema)
    with pytest.raises(OptionError, match=rf"COLUMNS_MISMATCH.*{said}"):
        sink.checkStart(None)
    with pytest.raises(OptionError, match=rf"COLUMNS_MISMATCH.*{said}"):
        sink.identify()


def test_what_a_user_may_not_create_is_printed(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE ROLE r_{table} LOGIN PASSWORD 'other'")
    database.ask(f"GRANT SELECT, INSERT, UPDATE ON {table} TO r_{table}")
    options = {
        **options_of(database, table, stagingSchema=f"s_{table}"),
        "url": database.address,
        "user": f"r_{table}",
        "password": "other",
    }
    sink = PostgresqlSink(Options(options), SCHEMA)
    with pytest.raises(StoreError, match="MISSING_DDL") as refused:
        sink.identify()
    for statement in refused.value.parameters["statements"].split(";\n"):
        database.ask(statement)
    database.ask(f"GRANT USAGE ON SCHEMA s_{table} TO r_{table}")
    database.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA s_{table} TO r_{table}")
    bench = Bench(database, table, **{key: options[key] for key in ("url", "user", "password", "stagingSchema")})
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]
    database.ask(f"DROP SCHEMA s_{table} CASCADE")
    database.ask(f"DROP OWNED BY r_{table}")
    database.ask(f"DROP ROLE r_{table}")


@pytest.mark.parametrize("url", ["{jdbc}?user=tester&password={password}", "{plain}?user=tester&password={password}"])
def test_an_address_as_others_write_it(database: PostgresqlServer, table: str, url: str) -> None:
    address = url.format(jdbc=f"jdbc:{database.address}", plain=database.address, password=PASSWORD.replace(" ", "%20"))
    bench = Bench(database, table, url=address)
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]


# -- between prepare and commit ---------------------------------------------------------------------------------------


def test_a_row_that_the_table_would_refuse_is_refused_while_it_is_staged(
    database: PostgresqlServer, table: str
) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint CHECK (id > 0), value varchar(3) NOT NULL)")
    bench = Bench(database, table)
    for row, said in (([0, "a"], "check constraint"), ([1, None], "not-null"), ([1, "long"], "too long")):
        with pytest.raises(RowRefusedError, match=rf"ROW_REFUSED.*{said}"):
            bench.prepare([row])
    assert bench.staged() == 0


def test_a_table_that_was_replaced_is_not_taken_for_the_former(database: PostgresqlServer, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"ALTER TABLE {table} RENAME TO old_{table}")
    for missing in (True, False):
        if not missing:
            database.ask(f"CREATE TABLE {table} (id bigint, value text)")
        assert bench.sink().inspect([handle])[0].outcome is Outcome.UNKNOWN
        with pytest.raises(AmbiguousOutcomeError, match="target table was deleted, renamed or replaced"):
            bench.commit(handle)
    database.ask(f"DROP TABLE {table}")
    database.ask(f"ALTER TABLE old_{table} RENAME TO {table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


def test_a_pooler_that_hands_out_another_connection_each_time_changes_nothing(
    database: PostgresqlServer, table: str
) -> None:
    """No session state: a role's own settings, which would lose commits or misread dates, do not matter either."""
    database.ask("ALTER ROLE tester SET synchronous_commit = off")
    database.ask("ALTER ROLE tester SET datestyle = 'German'")
    database.ask("ALTER ROLE tester SET default_transaction_isolation = serializable")
    database.ask("ALTER ROLE tester SET default_transaction_read_only = on")
    try:
        schema = pa.schema([("day", pa.date32())])
        bench = Bench(database, table, schema)
        bench.commit(bench.prepare([[dt.date(2026, 2, 1)]]))
        assert bench.rows() == [(dt.date(2026, 2, 1),)]
    finally:
        with database.connect(options="-c default_transaction_read_only=off") as connection:
            connection.execute("ALTER ROLE tester RESET ALL")


# -- what hostile readers found ----------------------------------------------------------------------------------------


def test_a_table_that_is_swapped_while_the_commit_waits_gets_no_rows(database: PostgresqlServer, table: str) -> None:
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"CREATE TABLE new_{table} (id bigint, value text)")
    with database.connect() as other, ThreadPoolExecutor(1) as thread:
        with other.transaction():
            other.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
            other.execute(f"ALTER TABLE new_{table} RENAME TO {table}")
            commit = thread.submit(bench.commit, handle)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: database.ask(waiting)[0][0], "the commit waits")
        with pytest.raises(AmbiguousOutcomeError, match="target table was deleted, renamed or replaced"):
            commit.result()
    assert bench.rows() == []
    database.ask(f"DROP TABLE old_{table}")


@pytest.mark.matrix
def test_a_stand_by_that_was_behind_is_named_when_it_takes_over(table: str) -> None:
    with PostgresqlServer() as primary, StandBy(primary) as other:
        address = primary.url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{other.port}/")
        bench = Bench(primary, table, url=address)
        bench.commit(bench.prepare([[1, "a"]]))
        wait_until(lambda: other.ask(f"SELECT count(*) FROM {table}") == [(1,)], "the stand-by has it")
        other.fall_behind()
        bench.commit(bench.prepare([[2, "b"]], 1))
        handle = bench.prepare([[3, "c"]], 2)
        primary.kill()
        other.promote()
        bench.database = other
        for attempt in (
            lambda: bench.commit(handle),
            lambda: bench.prepare([[4, "d"]], 3),
            lambda: bench.sink().guardRun(bench.mark),
        ):
            with pytest.raises(StoreReplacedError, match="DATABASE_FAILED_OVER"):
                attempt()
        seen = History(bench.query, 100, True, known=100, seen={"checkpoint": 0}, newest=2)
        with pytest.raises(StoreError, match=r"STORE_WENT_BACK.*up to 1, .*checkpoint 2 was committed"):
            history_seen(bench.sink(), seen)
        assert bench.rows() == [(1, "a")], "nothing was written there"


def test_a_publication_of_all_tables_does_not_matter(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE PUBLICATION p_{table} FOR ALL TABLES")
    try:
        bench = Bench(database, table)
        first, second = bench.prepare([[1, "a"]]), bench.prepare([[2, "b"]], 1)
        bench.commit(first)
        bench.commit(second)
        assert sorted(bench.rows()) == [(1, "a"), (2, "b")]
    finally:
        database.ask(f"DROP PUBLICATION p_{table}")


def test_a_constraint_that_was_dropped_is_not_kept_in_the_staging_table(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text CONSTRAINT words CHECK (value IN ('new', 'paid')))")
    database.ask(f"ALTER TABLE {table} ADD CHECK (id > 0 AND {table} IS NOT NULL)")
    with pytest.raises(RowRefusedError, match="check constraint"):
        Bench(database, table).prepare([[1, "sent"]])
    database.ask(f"ALTER TABLE {table} DROP CONSTRAINT words")
    bench = Bench(database, table)
    bench.commit(bench.prepare([[1, "sent"]]))
    assert bench.rows() == [(1, "sent")]


def test_rows_that_a_rule_drops_are_not_called_committed(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE RULE r AS ON INSERT TO {table} DO INSTEAD NOTHING")
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*0 of 1 rows"):
        bench.commit(handle)
    database.ask(f"DROP RULE r ON {table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


def test_what_may_hurt_later_is_found(database: PostgresqlServer, table: str) -> None:
    database.ask(f"CREATE UNLOGGED TABLE {table} (id bigint PRIMARY KEY, value text)")
    found = {each.sentence for each in PostgresqlSink(Options(options_of(database, table)), SCHEMA).examine(None)}
    text = "\n".join(found)
    for said in ("PostgreSQL 18", "fsync is off", "UNLOGGED", "unique index on id", "all rights that it needs"):
        assert said in text, text


ALIKE = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "numeric": pa.int64(),
    "numeric(18,6)": pa.decimal128(18, 6),
    "numeric(7,0)": pa.decimal128(7, 0),
    "text": pa.string(),
    "varchar(40)": pa.large_string(),
    "json": pa.string(),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def some_values(chance: random.Random, name: str, kind: pa.DataType, count: int) -> pa.Array:
    """Values of a type, extremes and nulls among them."""

    def one() -> Any:
        if chance.random() < 0.2:
            return None
        if pa.types.is_boolean(kind):
            return chance.random() < 0.5
        if pa.types.is_integer(kind):
            edge = 2 ** (kind.bit_width - 1)
            return chance.choice([0, 1, -1, -edge, edge - 1, chance.randrange(-edge, edge)])
        if pa.types.is_floating(kind):
            return chance.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), chance.uniform(-1e30, 1e30)])
        if pa.types.is_decimal(kind):
            edge = 10**kind.precision - 1
            return Decimal(chance.choice([0, 1, -edge, edge, chance.randrange(-edge, edge)])).scaleb(-kind.scale)
        if "json" in name:
            return chance.choice(["null", '{"a": [1, "ä"]}', '"x"'])
        if pa.types.is_binary(kind):
            return chance.choice([b"", b"\0\xff\\x", chance.randbytes(9)])
        if pa.types.is_date(kind):
            return chance.choice([0, -719162, 2932896, chance.randrange(-90000, 90000)])
        if pa.types.is_timestamp(kind):
            return chance.choice([0, -1, -62135596800000000, 253402300799999999, chance.randrange(-(10**15), 10**15)])
        return chance.choice(["", " ", "a,b\n\"c'\\", "ä€😀", "NULL", "\\N"])

    return pa.array([one() for _ in range(count)], kind)


def test_binary_and_text_are_the_same_rows_to_the_server(database: PostgresqlServer, table: str) -> None:
    chance = random.Random(7)
    bases = [name.partition("(")[0] for name in ALIKE]
    columns = [some_values(chance, name, kind, 2_000) for name, kind in ALIKE.items()]
    own = "barrier_nonce text, barrier_row bigint"
    types = ", ".join(f"c{number} {name}" for number, name in enumerate(ALIKE))
    with database.connect() as connection:
        for name in ("as_text", "as_binary"):
            connection.execute(f"CREATE TEMP TABLE {name} ({own}, {types})")
        binary = as_binary(columns, bases, "n", 0)
        assert binary is not None
        names = [f"c{number}" for number in range(len(columns))]
        float4 = bases.index("float4")
        columns[float4] = columns[float4].cast(pa.float64())  # as text its digits would be a double's
        rows = pa.RecordBatch.from_arrays(columns, names)
        text = as_csv(rows, repeated("n", rows.num_rows), numbers(0, rows.num_rows))
        for name, form, pieces in (("as_text", "csv", [text]), ("as_binary", "binary", binary)):
            with connection.cursor().copy(f"COPY {name} FROM STDIN (FORMAT {form})") as copy:
                for piece in pieces:
                    copy.write(piece)
        for column, name in zip(names, ALIKE, strict=True):
            cast = f"{column}::text" if name == "json" else column
            one, other = (f"SELECT barrier_nonce, barrier_row, {cast} FROM {each}" for each in ("as_text", "as_binary"))
            for first, second in ((one, other), (other, one)):
                found = connection.execute(f"{first} EXCEPT ALL {second} LIMIT 3").fetchall()
                assert found == [], f"{name}: {found}"
        assert connection.execute("SELECT count(*) FROM as_binary").fetchone() == (2_000,)
