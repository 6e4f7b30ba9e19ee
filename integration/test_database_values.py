"""Random values of every type, on real servers: an independent client reads what was sent, or the row was refused.

Which values a column takes is said here, and not asked of the sink: one of these that is refused is a mistake, too.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.postgresql import PostgresqlServer
from integration.random_values import (
    EXACT,
    Draw,
    batches,
    decimals,
    drawn,
    is_utf8,
    one_of,
    rarely,
    same,
    texts,
    value_of,
)
from integration.sql_bench import Bench
from integration.sql_output import DatabaseServer
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import RowRefusedError
from transactional.sink import TransactionContext

ROWS = 5_000
"""Of a checkpoint."""

QUICK, MANY = 150, 100_000

Fits = Callable[[Any], bool]


class Case(NamedTuple):
    """A column of a table, rows for it, and how a client reads it."""

    column: str
    kind: pa.DataType
    fits: Fits = lambda value: True
    """Whether the column holds a value; else its row must be refused."""
    read: str = "c"
    """The column as the client asks for it."""
    draw: Draw | None = None
    kept: Callable[[Any], Any] = lambda value: value
    """A value that was sent, to be compared with what was read."""
    got: Callable[[Any], Any] = lambda value: value
    """What was read, to be compared with the value that was sent."""
    as_text: Fits = lambda value: True
    """Whether a row that goes as text, as one with arrays does, may have the value."""


def within(least: int, most: int) -> Fits:
    return lambda value: least <= value <= most


def bits(count: int) -> Fits:
    return within(-(1 << count - 1), (1 << count - 1) - 1)


def below(limit: int, scale: int = 0) -> Fits:
    return lambda value: value.copy_abs() < Decimal(limit).scaleb(-scale, EXACT)


def text_of(
    most: int = 1 << 40, *, nul: bool = False, ends: bool = True, charset: str = "utf-8", unit: str = ""
) -> Fits:
    """Texts of at most `most` characters (or bytes), perhaps with NUL or blanks at the end."""

    def fits(value: str) -> bool:
        try:
            size = len(value.encode(charset)) if unit or charset != "utf-8" else len(value)
        except UnicodeEncodeError:
            return False
        return is_utf8(value) and size <= most and (nul or "\0" not in value) and (ends or not value.endswith(" "))

    return fits


def shorter(most: int) -> Fits:
    return lambda value: len(value) <= most


def is_number(text: str) -> bool:
    with suppress(InvalidOperation):
        return bool(Decimal(text) is not None)
    return False


def numbers(rng: random.Random) -> str:
    """Numbers as texts."""
    value = decimals(30, rng.randrange(-9, 30))(rng)
    return rng.choice(
        (str(value), f"{value:f}", f" {value}\t", "NaN", "-Infinity" if not rng.randrange(9) else f"{value:e}")
    )


def documents(rng: random.Random, depth: int = 0) -> Any:
    """JSON values."""
    form = rng.randrange(4 if depth > 2 else 6)
    if form < 2:
        text = texts(rng)
        return text if is_utf8(text) else "x"
    if form == 2:
        return drawn(pa.int64())(rng)
    if form == 3:
        return rng.choice((None, True, False, 0.5, -1e300, 5e-300))
    inside = [documents(rng, depth + 1) for _ in range(rng.randrange(4))]
    return inside if form == 4 else {f"{texts(rng)[:9]!a}{at}": each for at, each in enumerate(inside)}


def json_text(rng: random.Random) -> str:
    return json.dumps(documents(rng), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))


def parsed(text: str) -> Any:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def is_json(text: str) -> bool:
    with suppress(ValueError):
        json.loads(text, parse_constant=int)
        return is_utf8(text)
    return False


def no_nul_inside(text: str) -> bool:
    return is_json(text) and "\\u0000" not in text


def uuids(rng: random.Random) -> str:
    text = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return rng.choice((text, text.upper(), text.replace("-", "")))


def is_uuid(text: str) -> bool:
    return len(text.replace("-", "")) == 32 and text.isascii() and text.replace("-", "").isalnum()


def addresses(rng: random.Random) -> str:
    if rng.getrandbits(1):
        return f"{ipaddress.IPv4Address(rng.getrandbits(32))}/{rng.randrange(33)}"
    return f"{ipaddress.IPv6Address(rng.getrandbits(128))}/{rng.randrange(129)}"


def is_address(text: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_interface(text)) and "/" in text
    return False


def micros(rng: random.Random) -> int:
    ticks: int = drawn(pa.time64("us"))(rng)
    return ticks * 1000


def is_micros(value: int) -> bool:
    return value % 1000 == 0


MOOD = ("", "a", "A", "ä", "it's", 'q"\\,{}', "NULL", "1", "2")
MOODS = ", ".join("'{}'".format(each.replace("'", "''")) for each in MOOD)

SECOND = 10**6
NEAR_DAYS, NEAR = within(-719_162, 2_932_896), within(-719_162 * 86_400 * SECOND, 2_932_897 * 86_400 * SECOND - 1)
"""The years 1 to 9999."""
DAYS = within(-2_440_588, 2_145_042_905)
MOMENTS = within(-210_866_803_200 * SECOND, 9_224_318_016_000 * SECOND - 1)
"""PostgreSQL's, from 4714-11-24 BC."""
DAY = "c - date '2000-01-01' + 10957"
MICRO = "({0}::date - date '2000-01-01' + 10957) * 86400000000 + (extract(epoch FROM {0}::time) * 1000000)::bigint"
PLAIN = text_of()
US, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")

POSTGRESQL: Sequence[Case] = (
    Case("boolean", pa.bool_()),
    Case("smallint", pa.int8()),
    Case("smallint", pa.int16()),
    Case("smallint", pa.int64(), bits(16)),
    Case("integer", pa.int32()),
    Case("integer", pa.int64(), bits(32)),
    Case("bigint", pa.int16()),
    Case("bigint", pa.int64()),
    Case("numeric", pa.int64(), kept=Decimal),
    Case("numeric(5)", pa.int32(), within(-99_999, 99_999), kept=Decimal),
    Case("real", pa.float32(), read="c::float8"),
    Case("double precision", pa.float32()),
    Case("double precision", pa.float64()),
    Case("numeric", pa.decimal128(38, 38)),
    Case("numeric(18,6)", pa.decimal128(18, 6)),
    Case("numeric(18,16)", pa.decimal128(18, 16)),
    Case("numeric(38,10)", pa.decimal128(38, 10)),
    Case("numeric(38,38)", pa.decimal128(38, 38)),
    Case("numeric(9,2)", pa.decimal128(12, 2), below(10**9, 2)),
    Case("numeric(38,2)", pa.decimal128(38, 2)),
    Case("text", pa.string(), PLAIN),
    Case("text", pa.large_string(), PLAIN),
    Case('text COLLATE "C"', pa.string(), PLAIN),
    Case("varchar(3)", pa.large_string(), text_of(3)),
    Case("varchar", pa.string(), PLAIN),
    Case("char(3)", pa.string(), text_of(3, ends=False), "rtrim(c::text)"),
    Case(
        "numeric",
        pa.string(),
        is_number,
        "c::text",
        rarely(numbers, one_of("", "abc", "1,5", "1 2", "é")),
        Decimal,
        Decimal,
    ),
    Case("json", pa.string(), is_json, "c::text", rarely(json_text, texts)),
    Case("jsonb", pa.string(), no_nul_inside, "c::text", rarely(json_text, texts), parsed, parsed),
    Case("uuid", pa.string(), is_uuid, "c::text", rarely(uuids, texts), lambda value: str(uuid.UUID(value))),
    Case("mood", pa.string(), MOOD.__contains__, "c::text", rarely(one_of(*MOOD), texts)),
    Case(
        "inet",
        pa.string(),
        is_address,
        "c::text",
        rarely(addresses, texts),
        ipaddress.ip_interface,
        ipaddress.ip_interface,
    ),
    Case("bytea", pa.binary()),
    Case("bytea", pa.large_binary()),
    Case("date", pa.date32(), DAYS, DAY, as_text=NEAR_DAYS),
    Case("timestamp", US, MOMENTS, MICRO.format("c"), as_text=NEAR),
    Case("timestamptz", ZONED, MOMENTS, MICRO.format("(c AT TIME ZONE 'UTC')"), as_text=NEAR),
    Case("time", pa.time64("us"), read="(extract(epoch FROM c) * 1000000)::bigint"),
    Case(
        "time",
        pa.time64("ns"),
        is_micros,
        "(extract(epoch FROM c) * 1000000000)::bigint",
        rarely(micros, drawn(pa.time64("ns"))),
    ),
)

TICKS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c)"
ANY = text_of(nul=True)

MARIADB: Sequence[Case] = (
    Case("boolean", pa.bool_(), kept=int),
    Case("tinyint", pa.int8()),
    Case("tinyint unsigned", pa.int16(), within(0, 255)),
    Case("smallint", pa.int64(), bits(16)),
    Case("mediumint", pa.int32(), bits(24)),
    Case("int", pa.int32()),
    Case("int unsigned", pa.int64(), within(0, (1 << 32) - 1)),
    Case("bigint", pa.int64()),
    Case("bigint unsigned", pa.int64(), within(0, 1 << 63)),
    Case("decimal(19,0)", pa.int64(), kept=Decimal),
    Case("decimal(5,0)", pa.int32(), within(-99_999, 99_999), kept=Decimal),
    Case("float", pa.float32(), lambda value: abs(value) < float("inf"), "CAST(c AS DOUBLE)"),
    Case("double", pa.float32(), lambda value: abs(value) < float("inf")),
    Case("double", pa.float64(), lambda value: abs(value) < float("inf")),
    Case("decimal(18,6)", pa.decimal128(18, 6)),
    Case("decimal(38,10)", pa.decimal128(38, 10)),
    Case("decimal(38,38)", pa.decimal128(38, 38)),
    Case("decimal(9,2)", pa.decimal128(12, 2), below(10**9, 2)),
    Case("decimal(38,2)", pa.decimal128(38, 2)),
    Case("longtext CHARACTER SET utf8mb4", pa.string(), ANY),
    Case("text CHARACTER SET utf8mb4", pa.large_string(), text_of(65_535, nul=True, unit="byte")),
    Case("tinytext CHARACTER SET utf8mb4", pa.string(), text_of(255, nul=True, unit="byte")),
    Case("mediumtext CHARACTER SET utf8mb4", pa.string(), ANY),
    Case("varchar(3) CHARACTER SET utf8mb4", pa.large_string(), text_of(3, nul=True)),
    Case("char(3) CHARACTER SET utf8mb4", pa.string(), text_of(3, nul=True, ends=False)),
    Case("varchar(9) CHARACTER SET latin1", pa.string(), text_of(9, nul=True, charset="cp1252")),
    Case(
        "varchar(9) CHARACTER SET utf8mb3",
        pa.string(),
        lambda v: text_of(9, nul=True)(v) and max(v, default="") < "\U00010000",
    ),
    Case("json", pa.string(), is_json, draw=rarely(json_text, one_of("", "{", "nope", "[1,", "'a'", '"\ud800"'))),
    Case("uuid", pa.string(), is_uuid, "CAST(c AS CHAR)", rarely(uuids, texts), lambda value: str(uuid.UUID(value))),
    Case(
        f"enum({MOODS}) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin".replace("\\", "\\\\"),
        pa.string(),
        MOOD.__contains__,
        draw=rarely(one_of(*MOOD), texts),
    ),
    Case("longblob", pa.binary()),
    Case("blob", pa.large_binary(), shorter(65_535)),
    Case("tinyblob", pa.binary(), shorter(255)),
    Case("varbinary(3)", pa.large_binary(), shorter(3)),
    Case("date", pa.date32(), NEAR_DAYS, "DATEDIFF(c, '1970-01-01')"),
    Case("datetime(6)", US, NEAR, TICKS),
    Case("datetime(6)", ZONED, NEAR, TICKS),
    Case("timestamp(6)", ZONED, within(1, (1 << 31) * SECOND - 1), "CAST(UNIX_TIMESTAMP(c) * 1000000 AS SIGNED)"),
    Case("time(6)", pa.time64("us"), read="CAST(TIME_TO_SEC(c) * 1000000 AS SIGNED)"),
    Case(
        "time(6)",
        pa.time64("ns"),
        is_micros,
        "CAST(TIME_TO_SEC(c) * 1000000000 AS SIGNED)",
        rarely(micros, drawn(pa.time64("ns"))),
    ),
)

CASES: Mapping[str, Sequence[Case]] = {"postgresql": POSTGRESQL, "mariadb": MARIADB}


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], DatabaseServer]]:
    running: dict[str, Any] = {}

    def server(name: str) -> DatabaseServer:
        if name not in running:
            if name == "mariadb":
                mariadb_or_skip()
            running[name] = (MariadbServer() if name == "mariadb" else PostgresqlServer()).__enter__()
            if name == "postgresql":
                running[name].ask(f"CREATE TYPE mood AS ENUM ({MOODS})")
        found: DatabaseServer = running[name]
        return found

    yield server
    for each in running.values():
        each.__exit__(None, None, None)


class Table:
    """A table of one case: rows are sent through the sink, and read by a client."""

    COLUMN = "the_value"

    def __init__(self, database: DatabaseServer, case: Case, form: str, seed: str) -> None:
        self.name = f"t_{uuid.uuid4().hex[:8]}"
        self.case, self.as_array, self.rng = case, form == "arrays", random.Random(seed)
        self.sent = self.refused = self.batch = 0
        more = ", z integer[]" if form == "text" else ""
        database.ask(f"CREATE TABLE {self.name} (id bigint, {self.COLUMN} {kind_of(case, form)}{more})")
        kind = pa.list_(case.kind) if self.as_array else case.kind
        fields = [("id", pa.int64()), (self.COLUMN, kind), *([("z", pa.list_(pa.int32()))] if form == "text" else [])]
        self.bench, self.database = Bench(database, self.name, pa.schema(fields)), database
        self.sink = self.bench.sink()
        self.one = case.fits if form == "rows" else lambda value: case.fits(value) and case.as_text(value)
        each = value_of(case.draw or drawn(case.kind), self.one)
        self.draw = several(each) if self.as_array else each

    def check(self, count: int) -> None:
        """Send values: those that fit arrive, each other is refused, and the error names the column."""
        values = [None if not self.rng.randrange(20) else self.draw(self.rng) for _ in range(count)]
        good = [value for value in values if self._each(self.one, value, all)]
        for value in values:
            if not self._each(self.one, value, all):
                self._refuse([*good[:2], value, *good[2:4]])
        handle = self._prepared(good)
        self.database.ask(f"TRUNCATE TABLE {self.name}")
        self.bench.number += 1
        self.sink.commit([handle], DecidedCheckpoint(self.bench.number, (0,), 0, "q", self.bench.prefix))
        found = self.database.ask(self._query())
        assert [number for number, _ in found] == list(range(len(good)))
        signed = self.database.FORMAT != "2pc-mysql"
        for value, (_, got) in zip(good, found, strict=True):
            wanted, read = self._each(self.case.kept, value, list), self._each(self.case.got, got, list)
            assert same(wanted, read, signed), f"{self.case.column}: {str(wanted)[:300]} was read as {str(read)[:300]}"
        self.sent += len(values)

    def _each(self, call: Callable[[Any], Any], value: Any, gather: Callable[[Iterator[Any]], Any]) -> Any:
        if value is None:
            return gather is all or None
        if not self.as_array:
            return call(value)
        return gather(call(each) if each is not None else (True if gather is all else None) for each in value)

    def _refuse(self, values: Sequence[Any]) -> None:
        print(f"refused? {str(values)[:300]}")
        with pytest.raises(RowRefusedError) as refusal:
            self._prepared(values)
        assert refusal.value.getCondition() == "ROW_REFUSED"
        assert self.COLUMN in str(refusal.value), f"{str(values)[:300]}: {str(refusal.value)[:300]}"
        self.refused += 1

    def _prepared(self, values: Sequence[Any]) -> Any:
        self.batch += 1
        context = TransactionContext("q", self.batch, 0, 0, self.bench.prefix, os.urandom(8).hex(), 1)
        transaction = self.sink.beginTransaction(context)
        columns = [range(len(values)), values, [None] * len(values)][: len(self.bench.schema)]
        try:
            for batch in batches(self.rng, columns, self.bench.schema, 3):
                self.sink.write(transaction, batch)
            return self.sink.preCommit(transaction)
        except RowRefusedError:
            self.sink.rollback(transaction)
            raise

    def _query(self) -> str:
        read = self.case.read
        if self.as_array:
            inside = f"SELECT {read} FROM unnest(u.c) WITH ORDINALITY AS e (c, o) ORDER BY o"
            read = f"CASE WHEN c IS NOT NULL THEN ARRAY({inside}) END"
        return f"SELECT id, {read} FROM (SELECT id, {self.COLUMN} AS c FROM {self.name}) AS u ORDER BY id"


def kind_of(case: Case, form: str) -> str:
    name, *collation = case.column.split(" COLLATE ")
    return " COLLATE ".join([name + ("[]" if form == "arrays" else ""), *collation])


def several(draw: Draw) -> Draw:
    each = rarely(draw, one_of(None), 9)
    return lambda rng: [each(rng) for _ in range(rng.randrange(4))]


FORMS = ("rows", "text", "arrays")


def run(database: DatabaseServer, case: Case, form: str, count: int) -> Table:
    seed = f"{database.FORMAT} {case.column} {case.kind} {form} {count}"
    table = Table(database, case, form, seed)
    print(f"the seed is {seed!r}")
    try:
        while table.sent < count:
            table.check(min(ROWS, count))
    finally:
        table.sink.close()
        database.ask(f"DROP TABLE {table.name}")
    print(f"| `{case.column}` from {case.kind}, {form} | {table.sent} | {table.refused} |")
    return table


def cuts(case: Case) -> bool:
    return case.column.startswith(("varchar(", "char("))


def parameters() -> list[Any]:
    return [
        pytest.param(name, case, form, id=f"{name}-{number}-{case.column.split('(')[0]}-{form}")
        for name, cases in CASES.items()
        for number, case in enumerate(cases)
        for form in (FORMS if name == "postgresql" else FORMS[:1])
        if not (form == "arrays" and cuts(case))  # refused at the start: blanks would be cut
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_a_few_values_of_every_type_arrive_or_are_refused(servers: Callable[[str], DatabaseServer], name: str) -> None:
    for number, case in enumerate(CASES[name]):
        run(servers(name), case, FORMS[number % 3] if name == "postgresql" and not cuts(case) else "rows", QUICK)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "case", "form"), parameters())
def test_many_values_of_every_type_arrive_or_are_refused(
    servers: Callable[[str], DatabaseServer], name: str, case: Case, form: str
) -> None:
    table = run(servers(name), case, form, MANY)
    assert table.sent >= MANY
