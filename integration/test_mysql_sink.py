"""The MySQL sink on a real MariaDB server: the sinks' contract, and what only this database can do to it."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from connector.sql.fitting import create_statement
from connector.sql.mysql_examination import examine_database
from connector.sql.mysql_sink import MysqlSink
from connector.sql.mysql_table import Mysql
from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.sql_bench import SCHEMA, Bench, options_of
from integration.table_copies import TableCopies
from transactional.errors import OptionError, RowRefusedError, StoreError
from transactional.sink import Options, TransactionContext
from transactional.testing import SinkConformance


@pytest.fixture(scope="module")
def database() -> Iterator[MariadbServer]:
    mariadb_or_skip()
    with MariadbServer(max_allowed_packet="2M") as server:
        yield server


@pytest.fixture
def table(database: MariadbServer) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    database.ask(f"DROP TABLE IF EXISTS {name}")


class TestMysqlSink(TableCopies, SinkConformance):
    sink_type = MysqlSink
    golden_handles = Path(__file__).parent.parent / "tests" / "golden" / "2pc-mysql"

    @pytest.fixture
    def sink_options(self, database: MariadbServer, table: str) -> Mapping[str, str]:
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
        """A table changes its database, or its name."""
        return f"RENAME TABLE {name} TO {other}"


# -- rows --------------------------------------------------------------------------------------------------------------

ZONE = dt.timezone.utc


def clock(*parts: int) -> dt.datetime:
    """Return a time without zone."""
    return dt.datetime(*parts, tzinfo=ZONE).replace(tzinfo=None)  # type: ignore[misc, arg-type]


ROWS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None, True]),
    "tiny": (pa.int8(), [-128, 127, None, 0]),
    "small": (pa.int16(), [-32768, 32767, None, 0]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, None, 0]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1, None, 0]),
    "near": (pa.float32(), [1.5, 2.0**100, None, 2.0**-100]),
    "far": (pa.float64(), [0.1, -1e308, None, 1 / 3]),
    "tiniest": (pa.float64(), [5e-324, 2.2250738585072014e-308, None, 1.7976931348623157e308]),
    "money": (pa.decimal128(38, 6), [Decimal("0.000001"), Decimal("-12345678901234567890.5"), None, Decimal(3)]),
    "fine": (pa.decimal128(38, 20), [Decimal("1E-20"), Decimal("-0.1"), None, Decimal(0)]),
    "text": (pa.string(), ["", "a,b\"c'\\n\n\r\n\t\0", None, "äöü €😀 "]),
    "quotes": (pa.large_string(), ["'", "''", None, "\\'"]),
    "data": (pa.binary(), [b"", b"\x00\xff\\'", None, b"\x1a"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(2026, 1, 1)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(2026, 11, 23, 1, 2, 3, 456789, ZONE),
            dt.datetime(1, 1, 1, tzinfo=ZONE),
            None,
            dt.datetime(1969, 12, 31, 23, 59, 59, 1, ZONE),
        ],
    ),
    "clock": (pa.timestamp("us"), [clock(2026, 11, 23, 1, 2, 3, 456789), clock(9999, 12, 31), None, clock(1970, 1, 1)]),
}


def test_every_type_arrives_as_it_was(database: MariadbServer, table: str) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in ROWS.items()])
    batch = pa.RecordBatch.from_pydict({name: values for name, (_, values) in ROWS.items()}, schema=schema)
    bench = Bench(database, table, schema)
    for piece in (batch, batch.slice(1, 2), batch.slice(3), batch.slice(2, 0)):
        bench.commit(bench.prepare_batches([piece]))
        widened = {"near": "CAST(near AS DOUBLE)"}  # its text has six digits
        found = bench.rows(", ".join(widened.get(name, f"`{name}`") for name in schema.names))
        wanted = [
            tuple(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row.values())
            for row in piece.to_pylist()
        ]
        assert found == wanted
        database.ask(f"DELETE FROM {table}")


def test_every_number_arrives_as_it_was(database: MariadbServer, table: str) -> None:
    """A double has one text that is read as it, and no other number."""
    chance = random.Random(17)
    far = [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300) for _ in range(5_000)]
    near = pa.array(far[:2_500] + [0.1, 1e-30, 3.4e38] * 833 + [7.0], pa.float32())
    near = pa.array([x if abs(x) < 3e38 else 1.0 for x in near.to_pylist()], pa.float32())
    schema = pa.schema([("id", pa.int64()), ("far", pa.float64()), ("near", pa.float32())])
    columns = [pa.array(range(5_000), pa.int64()), pa.array(far, pa.float64()), near]
    bench = Bench(database, table, schema)
    bench.commit(bench.prepare_batches([pa.RecordBatch.from_arrays(columns, schema=schema)]))
    found = database.ask(f"SELECT far, CAST(near AS DOUBLE) FROM {table} ORDER BY id")
    assert [row[0] for row in found] == far
    assert [row[1] for row in found] == near.to_pylist()


def test_text_goes_into_what_the_database_can_read_it_as(database: MariadbServer, table: str) -> None:
    mood, name = r"enum('good', 'bad', 'it''s', 'a\\b')", r"char(3) CHECK (name <> 'a\\b')"
    database.ask(f"CREATE TABLE {table} (id uuid, doc json, mood {mood}, address inet6, name {name})")
    schema = pa.schema([(name, pa.string()) for name in ("ID", "doc", "mood", "address", "name")])
    bench = Bench(database, table, schema)
    one = str(uuid.uuid4())
    rows = [[one, '{"a": [1]}', "it's", "fe80::1", "x"], [one, "[]", "a\\b", "::1", ""]]
    bench.commit(bench.prepare(rows))
    assert bench.rows() == [tuple(row) for row in rows]
    for column, value in (
        *(("doc", "{"), ("mood", "ugly"), ("mood", "1"), ("mood", "GOOD"), ("mood", "good ")),
        *(("name", "a "), ("name", "a\\b"), ("address", "x")),
    ):
        row = dict.fromkeys(schema.names) | {column: value}
        with pytest.raises(RowRefusedError, match="ROW_REFUSED"):
            bench.prepare([list(row.values())])


@pytest.mark.parametrize(
    ("column", "kind", "value", "said"),
    [
        ("varchar(3)", pa.string(), "abc ", "would change a value|Data too long"),
        ("varchar(3)", pa.string(), "abcd", "Data too long"),
        ("varchar(9) CHARACTER SET latin1", pa.string(), "漢", "Incorrect string value"),
        ("datetime(6)", pa.timestamp("us"), -(2**60), "Incorrect datetime"),
        ("tinyint", pa.int64(), 300, "Out of range"),
        ("int unsigned", pa.int64(), -1, "Out of range"),
        ("timestamp(6)", pa.timestamp("us", "UTC"), dt.datetime(1969, 1, 1, tzinfo=ZONE), "Incorrect datetime"),
        ("timestamp(6) NOT NULL", pa.timestamp("us", "UTC"), None, "CONSTRAINT"),
        ("int NOT NULL", pa.int32(), None, "cannot be null"),
        ("int CHECK (c > 0)", pa.int32(), 0, "CONSTRAINT"),
        ("double", pa.float64(), float("nan"), "contains NaN"),
        ("double", pa.float64(), float("-inf"), "contains NaN or an infinite number"),
        ("bigint AUTO_INCREMENT PRIMARY KEY", pa.int64(), None, "cannot be null"),
        ("longtext", pa.string(), "x" * (2 << 20), "max_allowed_packet"),
    ],
)
def test_a_value_that_the_table_would_refuse_or_change_is_refused_while_it_is_staged(
    database: MariadbServer, table: str, column: str, kind: pa.DataType, value: Any, said: str
) -> None:
    database.ask(f"CREATE TABLE {table} (c {column})")
    bench = Bench(database, table, pa.schema([("c", kind)]))
    with pytest.raises(RowRefusedError, match=f"(?s)ROW_REFUSED.*({said})"):
        bench.prepare([[value]])
    assert bench.staged() == 0


def test_zero_is_no_request_for_the_next_number(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint AUTO_INCREMENT PRIMARY KEY, value text)")
    bench = Bench(database, table)
    bench.commit(bench.prepare([[0, "zero"], [7, "seven"]]))
    assert sorted(bench.rows()) == [(0, "zero"), (7, "seven")]


def test_rows_that_need_many_statements_arrive_in_order(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint, value longtext)")
    bench = Bench(database, table)
    large = pa.RecordBatch.from_pydict(
        {"id": range(300), "value": [chr(97 + n % 26) * (n * 97 % 30_000) for n in range(300)]}, schema=SCHEMA
    )
    bench.commit(bench.prepare_batches([large.slice(0, 1), large.slice(1)]))
    found = database.ask(f"SELECT id, value FROM {table} ORDER BY n")
    assert found == list(zip(*large.to_pydict().values(), strict=True))


# -- refusals before the first row -------------------------------------------------------------------------------------

STRUCT = pa.struct([("a", pa.int32())])
REFUSED: Sequence[tuple[str, str, pa.Schema, Mapping[str, str], str]] = (
    ("a column too many", "id bigint", SCHEMA, {}, "has no column value"),
    ("a column too few", "id bigint, value text, more text NOT NULL", SCHEMA, {}, "more of .* is NOT NULL"),
    ("numbers into text", "id text, value text", SCHEMA, {}, "the column id is bigint, and the table's column is text"),
    ("text into numbers", "value int", pa.schema([("value", pa.string())]), {}, r"value is longtext, .* is int\(11\)"),
    ("text into a date", "value date", pa.schema([("value", pa.string())]), {}, "table's column is date"),
    (
        "text into a time",
        "value datetime(6)",
        pa.schema([("value", pa.string())]),
        {},
        r"table's column is datetime\(6\)",
    ),
    ("no columns", "value int", pa.schema([]), {}, "the query has no columns"),
    ("text into a set", "value set('a')", pa.schema([("value", pa.string())]), {}, r"table's column is set\('a'\)"),
    ("bytes into text", "value text", pa.schema([("value", pa.binary())]), {}, "value is longblob"),
    ("bytes that get zeros", "value binary(4)", pa.schema([("value", pa.binary())]), {}, r"binary\(4\)"),
    ("a clock as a moment", "at timestamp(6)", pa.schema([("at", pa.timestamp("us"))]), {}, 'cast it to "timestamp"'),
    ("digits that would be cut", "n decimal(10,2)", pa.schema([("n", pa.decimal128(10, 3))]), {}, r"decimal\(10,2\)"),
    ("far into near", "n float", pa.schema([("n", pa.float64())]), {}, "the table's column is float"),
    ("a float that rounds", "n float(7,2)", pa.schema([("n", pa.float32())]), {}, "which rounds"),
    ("a time that rounds", "at datetime", pa.schema([("at", pa.timestamp("us"))]), {}, "which rounds"),
    ("an array", "s json", pa.schema([("s", pa.list_(pa.int32()))]), {}, "an array, .*to_json"),
    ("a struct", "s json", pa.schema([("s", STRUCT)]), {}, "a struct, .*to_json"),
    ("a map", "s json", pa.schema([("s", pa.map_(pa.string(), pa.int32()))]), {}, "a map, .*to_json"),
    ("a length of time", "s time", pa.schema([("s", pa.duration("us"))]), {}, "no such type"),
    ("a computed column", "id bigint, value text AS ('x') STORED", SCHEMA, {}, "computes the column value"),
    ("no unique index", "id bigint NOT NULL, value text", SCHEMA, {"upsertKey": "id"}, "no unique index on exactly id"),
    (
        "an index of the first characters",
        "id bigint, value varchar(99) NOT NULL, UNIQUE (value(3))",
        SCHEMA,
        {"upsertKey": "value"},
        "no unique index",
    ),
    (
        "another unique index",
        "id bigint PRIMARY KEY, value varchar(9), UNIQUE other (value)",
        SCHEMA,
        {"upsertKey": "id"},
        r"another unique index \(other\)",
    ),
    ("a key that may be null", "id bigint UNIQUE, value text", SCHEMA, {"upsertKey": "id"}, "allows null"),
    ("a key that is no column", "id bigint, value text", SCHEMA, {"upsertKey": "no"}, "upsertKey names no"),
)


@pytest.mark.parametrize(
    ("columns", "schema", "more", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_does_not_fit_is_refused_before_the_first_row(
    database: MariadbServer, table: str, columns: str, schema: pa.Schema, more: Mapping[str, str], said: str
) -> None:
    database.ask(f"CREATE TABLE {table} ({columns})")
    sink = MysqlSink(Options(options_of(database, table, **more)), schema)
    with closing(sink):
        looks = [lambda: sink.checkStart(None), sink.identify]  # the first passes over columns that are not known
        for look in looks if schema.names else looks[1:]:
            with pytest.raises(OptionError, match=rf"COLUMNS_MISMATCH.*{said}"):
                look()


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_a_table_without_transactions_is_refused(database: MariadbServer, table: str, engine: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value varchar(9)) ENGINE={engine}")
    with pytest.raises(OptionError, match=r"dbtable.*InnoDB"):
        MysqlSink(Options(options_of(database, table)), SCHEMA).checkStart(None)


def test_a_number_that_the_database_counts_is_no_other_key(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint NOT NULL UNIQUE, value text)")
    bench = Bench(database, table, upsertKey="id")
    bench.commit(bench.prepare([[1, "a"], [2, "b"], [1, "c"]]))
    assert sorted(bench.rows("id, value")) == [(1, "c"), (2, "b")]


def test_no_database_is_named(database: MariadbServer, table: str) -> None:
    options = options_of(database, table)
    options["url"] = database.url.removesuffix("/shop")
    with pytest.raises(OptionError, match=r"dbtable.*database\.table"):
        MysqlSink(Options(options), SCHEMA)
    bench = Bench(database, f"shop.{table}", url=options["url"], transactionalIdPrefix=table)
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]


def test_what_a_user_may_not_create_is_printed(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE USER r_{table} IDENTIFIED BY 'other'")
    database.ask(f"GRANT SELECT, INSERT, UPDATE ON shop.{table} TO r_{table}")
    given = {"url": database.address, "user": f"r_{table}", "password": "other", "stagingSchema": f"s_{table}"}
    sink = MysqlSink(Options(options_of(database, table, **given)), SCHEMA)
    with closing(sink), pytest.raises(StoreError, match="MISSING_DDL") as refused:
        sink.identify()
    for statement in refused.value.parameters["statements"].removesuffix(";").split(";\n"):
        database.ask(statement)
    database.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON s_{table}.* TO r_{table}")
    bench = Bench(database, table, **given)
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]
    database.ask(f"DROP DATABASE s_{table}")
    database.ask(f"DROP USER r_{table}")


@pytest.mark.parametrize("scheme", ["mariadb", "jdbc:mysql", "jdbc:mariadb"])
def test_an_address_as_others_write_it(database: MariadbServer, table: str, scheme: str) -> None:
    address = database.address.replace("mysql", scheme, 1)
    bench = Bench(database, table, url=f"{address}?user=tester&password=not%20a%20secret&useSSL=false")
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows() == [(1, "a")]


# -- what servers are told otherwise -----------------------------------------------------------------------------------


def test_settings_of_the_server_do_not_change_rows(database: MariadbServer, table: str) -> None:
    """As a pooler, an init_connect or a my.cnf could have them."""
    settings = {
        "sql_mode": "'ANSI_QUOTES,NO_UNSIGNED_SUBTRACTION'",
        "time_zone": "'+05:00'",
        "sql_select_limit": "1",
        "tx_isolation": "'SERIALIZABLE'",
        "check_constraint_checks": "0",
        "sql_safe_updates": "1",
        "sql_notes": "0",
        "completion_type": "'RELEASE'",
        "sql_big_selects": "0",
        "max_join_size": "1",
    }
    before = {name: database.ask(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    database.ask("SET " + ", ".join(f"GLOBAL {name} = {value}" for name, value in settings.items()))
    try:
        schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.string())])
        moment = dt.datetime(2026, 2, 1, 12, tzinfo=ZONE)
        database.ask(f"CREATE TABLE {table} (id bigint, at datetime(6), value varchar(4))")
        bench = Bench(database, table, schema)
        handles = [bench.prepare([[n, moment, "a\\'b"]], partition=n) for n in range(3)]
        bench.commit(*handles)
        database.ask(f"ALTER TABLE {table} ADD CHECK (id > 0)")
        with pytest.raises(RowRefusedError, match="CONSTRAINT"):
            Bench(database, table, schema).prepare([[-1, moment, ""]])
        with pytest.raises(RowRefusedError, match="would change a value"):
            Bench(database, table, schema).prepare([[9, moment, "four "]])
    finally:
        for name, value in before.items():
            database.ask(f"SET GLOBAL {name} = %s", value)
    assert sorted(bench.rows()) == [(n, moment.replace(tzinfo=None), "a\\'b") for n in range(3)]


def test_a_server_that_is_read_only_is_away(database: MariadbServer, table: str) -> None:
    """It is a replica now, or about to be: its successor, or itself, is waited for."""
    bench = Bench(database, table, commitTimeoutMs="1000")  # its user may write nevertheless
    handle = bench.prepare([[1, "a"]])
    database.ask("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreError, match=r"DATABASE_UNREACHABLE.*read-only"):
            bench.commit(handle)
    finally:
        database.ask("SET GLOBAL read_only = 0")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


@pytest.mark.parametrize(
    ("state", "number", "condition"),
    [
        ("HY000", 1021, "DATABASE_REFUSED"),
        ("HY000", 1205, "DATABASE_SLOW"),
        ("40001", 1213, "DATABASE_UNREACHABLE"),
        ("42000", 1203, "DATABASE_UNREACHABLE"),
        ("08S01", 1053, "DATABASE_UNREACHABLE"),
        ("22001", 1406, "ROW_REFUSED"),
        ("23000", 1062, "ROW_REFUSED"),
        ("42000", 1118, "ROW_REFUSED"),
        ("40001", 1644, "ROW_REFUSED"),
        ("42000", 1142, "DATABASE_REFUSED"),
        ("42S02", 1146, "DATABASE_REFUSED"),
        ("HY000", 1105, "DATABASE_REFUSED"),
    ],
)
def test_an_error_is_judged_by_its_number_and_its_sqlstate(
    database: MariadbServer, state: str, number: int, condition: str
) -> None:
    with pytest.raises(pymysql.err.Error) as raised:
        database.ask(f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'x'")
    found = MysqlSink(Options(options_of(database, "t")), SCHEMA).translated(raised.value)
    assert found is not None
    assert found.condition == condition


def test_what_may_hurt_later_is_found(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value text)")
    with closing(MysqlSink(Options(options_of(database, table)), SCHEMA)) as sink:
        text = "\n".join(each.sentence for each in sink.examine(None))
    for said in (
        "MariaDB",
        "innodb_flush_log_at_trx_commit is not 1",
        "unique index on id",
        "It was not checked whether",
    ):
        assert said in text, text


def test_a_float_is_the_same_number_in_a_column_of_doubles(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (n double)")
    bench = Bench(database, table, pa.schema([("n", pa.float32())]))
    bench.commit(bench.prepare([[0.1]]))
    assert bench.rows() == [(0.10000000149011612,)]


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        ("id bigint NOT NULL, value varchar(9), UNIQUE u (id)", "DROP INDEX u", "no unique index on exactly id"),
        ("id bigint PRIMARY KEY, value varchar(9)", "ADD UNIQUE v (value)", r"another unique index \(v\)"),
        (
            "id bigint PRIMARY KEY, value varchar(9) COLLATE utf8mb4_bin",
            "MODIFY value varchar(9) COLLATE utf8mb4_general_ci",
            "value was .*utf8mb4_bin, and is .*utf8mb4_general_ci",
        ),
    ],
)
def test_a_key_that_was_altered_since_the_rows_were_prepared_is_named(
    database: MariadbServer, table: str, before: str, change: str, said: str
) -> None:
    database.ask(f"CREATE TABLE {table} ({before})")
    bench = Bench(database, table, upsertKey="id")
    handle = bench.prepare([[1, "a"], [1, "b"]])
    database.ask(f"ALTER TABLE {table} {change}")
    with pytest.raises(StoreError, match=f"TABLE_CHANGED.*{said}"):
        bench.commit(handle)
    assert bench.rows() == []


def test_who_sees_only_some_columns_sees_only_some_indexes_and_is_refused(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value varchar(9), code int DEFAULT 0, UNIQUE (code))")
    user = f"r_{table}"
    for statement in (
        f"CREATE USER {user} IDENTIFIED BY 'x'",
        f"GRANT SELECT (id, value), INSERT (id, value), UPDATE (id, value) ON shop.{table} TO {user}",
        f"GRANT ALL ON s_{table}.* TO {user}",
    ):
        database.ask(statement)
    given = {"url": database.address, "user": user, "password": "x", "stagingSchema": f"s_{table}", "upsertKey": "id"}
    sink = MysqlSink(Options(options_of(database, table, **given)), SCHEMA)
    with closing(sink), pytest.raises(StoreError, match=r"DATABASE_REFUSED.*denied"):
        sink.checkStart(None)


def test_a_commit_of_many_tasks_does_not_wait_for_those_that_are_at_work(database: MariadbServer, table: str) -> None:
    bench = Bench(database, table, commitTimeoutMs="5000")
    handles = [bench.prepare([[number, "x"]], partition=number) for number in range(60)]
    working = bench.sink()
    with closing(working):
        transaction = working.beginTransaction(TransactionContext(bench.query, 1, 0, 0, bench.prefix, "ab" * 8, 1))
        rows = {"id": range(50), "value": ["w"] * 50}
        working.write(transaction, pa.RecordBatch.from_pydict(rows, schema=SCHEMA))
        bench.commit(*handles[:50])
        assert bench.sweep() == 10
    assert len(bench.rows()) == 50


def test_a_user_without_rights_on_the_database_is_named(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE USER r_{table} IDENTIFIED BY 'x'")
    given = {"url": database.address, "user": f"r_{table}", "password": "x"}
    sink = MysqlSink(Options(options_of(database, table, **given)), SCHEMA)
    with closing(sink), pytest.raises(StoreError, match=r"DATABASE_REFUSED.*Access denied"):
        sink.identify()


@pytest.mark.parametrize("password", ["pässword", "s€cret'\\"])
def test_any_password_will_do(database: MariadbServer, table: str, password: str) -> None:
    database.ask(f"CREATE USER r_{table} IDENTIFIED BY %s", password)
    database.ask(f"GRANT ALL ON *.* TO r_{table}")
    bench = Bench(database, table, url=database.address, user=f"r_{table}", password=password)
    bench.commit(bench.prepare([[1, "a"]]))
    assert password not in repr(bench.sink().__dict__["_address"])


def test_what_mysql_calls_otherwise() -> None:
    """Not run on a server here: its names of variables and collations."""
    mysql = Mysql(mariadb=False)
    assert "utf8mb4_0900_bin" in create_statement(mysql, SCHEMA, "t", ())
    assert (mysql.isolation, mysql.server) == ("transaction_isolation", "SELECT @@server_uuid, @@read_only")


def test_of_keys_that_are_equal_the_last_spelling_is_kept(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY)")
    bench = Bench(database, table, upsertKey="value")
    bench.commit(bench.prepare([[1, "a"]]))
    bench.commit(bench.prepare([[2, "A"]], batch=1))
    assert bench.rows() == [(2, "A")]


# -- before the decision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        ("id bigint UNIQUE, value text", [[1, "a"], [1, "b"]], "Duplicate entry '1'"),
        ("id bigint, value text, UNIQUE (value(2))", [[1, "abc"], [2, "abd"]], "Duplicate entry 'ab'"),
        (
            "id bigint, value text) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5)",
            [[9, "a"]],
            "no partition",
        ),
        ("id bigint, value text, n tinyint AS (id * 100) STORED", [[2, "b"], [1, "a"]], "'n'"),
        ("id bigint, value text, n int DEFAULT 5, CHECK (id < n)", [[9, "a"]], "CONSTRAINT"),
    ],
)
def test_what_the_table_would_refuse_at_the_commit_is_refused_before_the_decision(
    database: MariadbServer, table: str, columns: str, rows: list[list[Any]], said: str
) -> None:
    """It was decided, and then no start could commit it until someone had altered the table."""
    database.ask(f"CREATE TABLE {table} ({columns})")
    bench = Bench(database, table)
    with pytest.raises(RowRefusedError, match=f"ROW_REFUSED.*{said}"):
        bench.prepare(rows)
    assert bench.staged() == 0
    assert bench.sweep() == 0
    bench.commit(bench.prepare(rows[1:] or [[1, "a"]]))
    assert len(bench.rows()) == 1


def test_a_right_that_the_commit_needs_is_missed_before_the_decision(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    user = f"u_{table}"
    database.ask(f"CREATE USER {user}@'%' IDENTIFIED BY 'other'")
    database.ask(f"GRANT ALL ON barrier.* TO {user}@'%'")
    database.ask(f"GRANT SELECT, TRIGGER ON {table} TO {user}@'%'")
    bench = Bench(database, table, url=database.address, user=user, password="other")
    with pytest.raises(StoreError, match=r"DATABASE_REFUSED.*INSERT command denied"):
        bench.prepare([[1, "a"]])


def test_a_row_whose_parent_comes_with_its_checkpoint_is_not_refused(database: MariadbServer, table: str) -> None:
    """Another sink of the checkpoint writes the parents: only the commit can judge a foreign key."""
    database.ask(f"CREATE TABLE p_{table} (id bigint PRIMARY KEY)")
    database.ask(f"CREATE TABLE {table} (id bigint, value text, FOREIGN KEY (id) REFERENCES p_{table} (id))")
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    database.ask(f"INSERT INTO p_{table} VALUES (1)")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]
    database.ask(f"DROP TABLE {table}")
    database.ask(f"DROP TABLE p_{table}")


def test_a_key_that_another_session_holds_proves_nothing(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, value text)")
    bench = Bench(database, table)
    with closing(database.connect(autocommit=False)) as other:
        other.cursor().execute(f"INSERT INTO {table} VALUES (1, 'theirs')")
        handle = bench.prepare([[1, "a"]])
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]


@pytest.mark.parametrize("sees", [True, False])
def test_what_a_trigger_writes_to_a_table_without_transactions_is_not_tried(
    database: MariadbServer, table: str, sees: bool
) -> None:
    """A trial could not take it back. MariaDB shows triggers to any user of the table."""
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE TABLE seen_{table} (id bigint) ENGINE = MyISAM")
    database.ask(
        f"CREATE TRIGGER g_{table} AFTER INSERT ON {table} FOR EACH ROW INSERT INTO seen_{table} VALUES (NEW.id)"
    )
    user = f"u_{table}"
    database.ask(f"CREATE USER {user}@'%' IDENTIFIED BY 'other'")
    database.ask(f"GRANT ALL ON barrier.* TO {user}@'%'")
    database.ask(f"GRANT SELECT, INSERT{', TRIGGER' if sees else ''} ON {table} TO {user}@'%'")
    bench = Bench(database, table, url=database.address, user=user, password="other")
    bench.commit(bench.prepare([[1, "a"]]))
    assert bench.rows("id") == database.ask(f"SELECT id FROM seen_{table}") == [(1,)]
    assert any("has a trigger" in each.sentence for each in bench.sink().examine(None))
    database.ask(f"DROP TABLE seen_{table}")


@pytest.mark.parametrize("on", ["*.*", "`sh%`.*", "{table}", ""])
def test_who_may_see_triggers_of_mysql_is_known(database: MariadbServer, table: str, on: str) -> None:
    """MySQL hides them without the right TRIGGER, so that rows are not tried."""
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    user, mysql = f"u_{table}", Mysql(mariadb=False)
    database.ask(f"CREATE USER {user}@'%' IDENTIFIED BY 'other'")
    database.ask(f"GRANT SELECT ON {table} TO {user}@'%'")
    if on:
        database.ask(f"GRANT TRIGGER ON {on.format(table=table)} TO {user}@'%'")
    with closing(database.connect(user, "other")) as connection, connection.cursor() as cursor:
        target = Mysql(mariadb=True).describe(cursor, f"shop.{table}")
        assert target is not None
        assert mysql.has_trigger(cursor, target) is (False if on else None)
        said = [each.remedy for each in examine_database(cursor, table, target, (), mysql, False)]
        assert any("GRANT TRIGGER" in remedy for remedy in said) is (not on)


def test_a_commit_that_a_trigger_stops_says_what_to_alter(database: MariadbServer, table: str) -> None:
    database.ask(f"CREATE TABLE {table} (id bigint, value text)")
    database.ask(f"CREATE TRIGGER g_{table} BEFORE INSERT ON {table} FOR EACH ROW SIGNAL SQLSTATE '40001'")
    bench = Bench(database, table)
    handle = bench.prepare([[1, "a"]])
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED(.|\n)*drop the constraint, index, policy or trigger"):
        bench.commit(handle)
    database.ask(f"DROP TRIGGER g_{table}")
    bench.commit(handle)
    assert bench.rows() == [(1, "a")]
