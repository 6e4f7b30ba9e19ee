"""Random values of every type, on real servers: an independent client reads what was sent, or the row was refused."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.postgresql import PostgresqlServer
from integration.sql_bench import Bench
from integration.sql_output import DatabaseServer
from transactional.errors import RowRefusedError


class Case(NamedTuple):
    """A column of a table, rows for it, and how a client reads it."""

    column: str
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    read: str = "c"
    """The column as the client asks for it."""


def whole(bits: int) -> st.SearchStrategy[int]:
    edges = st.sampled_from([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
    return edges | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    edges = st.sampled_from([0, 1, -1, most, -most, min(10**scale, most)])
    return (edges | st.integers(-most, most)).map(lambda digits: Decimal((digits < 0, _digits(digits), -scale)))


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


FLOATS = st.floats(width=64) | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, 0.1])
NEAR = st.floats(width=32)
FINITE = st.floats(width=64, allow_nan=False, allow_infinity=False) | FLOATS
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["", " ", "a ", "NULL", "\\N", "\0", "\\", '"{},', "'", "\r\n", "x" * 70_000]
)
DATA = st.binary(max_size=12) | st.sampled_from([b"", b"\0", b"\\x41", b"'\xff"])
DAYS = whole(32) | st.integers(-800_000, 3_000_000)
MICROS = whole(64) | st.integers(-(10**17), 3 * 10**17)
DAY, MICRO = (
    "c - date '2000-01-01' + 10957",
    ("({0}::date - date '2000-01-01' + 10957) * 86400000000 + (extract(epoch FROM {0}::time) * 1000000)::bigint"),
)

POSTGRESQL: Sequence[Case] = (
    Case("boolean", pa.bool_(), st.booleans()),
    Case("smallint", pa.int16(), whole(16)),
    Case("smallint", pa.int64(), whole(64) | whole(17)),
    Case("integer", pa.int32(), whole(32)),
    Case("bigint", pa.int64(), whole(64)),
    Case("numeric", pa.int64(), whole(64)),
    Case("real", pa.float32(), NEAR, "c::float8"),
    Case("double precision", pa.float32(), NEAR),
    Case("double precision", pa.float64(), FLOATS),
    Case("numeric(18,6)", pa.decimal128(18, 6), decimals(18, 6)),
    Case("numeric(38,10)", pa.decimal128(38, 10), decimals(38, 10)),
    Case("numeric(38,38)", pa.decimal128(38, 38), decimals(38, 38)),
    Case("numeric(9,2)", pa.decimal128(12, 2), decimals(12, 2)),
    Case("text", pa.string(), TEXTS),
    Case("varchar(3)", pa.large_string(), TEXTS),
    Case("char(3)", pa.string(), TEXTS, "CASE WHEN length(c) < 4 THEN c::text END"),
    Case("numeric", pa.string(), decimals(20, 9).map(str) | TEXTS, "c::text"),
    Case("bytea", pa.binary(), DATA),
    Case("bytea", pa.large_binary(), DATA),
    Case("date", pa.date32(), DAYS, DAY),
    Case("timestamp", pa.timestamp("us"), MICROS, MICRO.format("c")),
    Case("timestamptz", pa.timestamp("us", "UTC"), MICROS, MICRO.format("(c AT TIME ZONE 'UTC')")),
)

MARIADB: Sequence[Case] = (
    Case("boolean", pa.bool_(), st.booleans()),
    Case("tinyint", pa.int8(), whole(8)),
    Case("smallint", pa.int64(), whole(64) | whole(17)),
    Case("int", pa.int32(), whole(32)),
    Case("bigint", pa.int64(), whole(64)),
    Case("bigint unsigned", pa.int64(), whole(64)),
    Case("decimal(19,0)", pa.int64(), whole(64)),
    Case("float", pa.float32(), NEAR, "CAST(c AS DOUBLE)"),
    Case("double", pa.float32(), NEAR),
    Case("double", pa.float64(), FINITE),
    Case("decimal(18,6)", pa.decimal128(18, 6), decimals(18, 6)),
    Case("decimal(38,10)", pa.decimal128(38, 10), decimals(38, 10)),
    Case("decimal(38,38)", pa.decimal128(38, 38), decimals(38, 38)),
    Case("decimal(9,2)", pa.decimal128(12, 2), decimals(12, 2)),
    Case("longtext", pa.string(), TEXTS),
    Case("varchar(3)", pa.large_string(), TEXTS),
    Case("char(3)", pa.string(), TEXTS),
    Case("longblob", pa.binary(), DATA),
    Case("varbinary(3)", pa.large_binary(), DATA),
    Case("date", pa.date32(), DAYS, "DATEDIFF(c, '1970-01-01')"),
    Case("datetime(6)", pa.timestamp("us"), MICROS, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c)"),
    Case("datetime(6)", pa.timestamp("us", "UTC"), MICROS, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c)"),
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
        found: DatabaseServer = running[name]
        return found

    yield server
    for each in running.values():
        each.__exit__(None, None, None)


def same(sent: Any, found: Any, has_negative_zero: bool) -> bool:
    """Whether two values are the same, with the sign of a zero if the database has it; a NaN is a NaN."""
    if isinstance(sent, float) and isinstance(found, float):
        if sent == found == 0 and not has_negative_zero:
            return True
        return (sent != sent and found != found) or struct.pack("d", sent) == struct.pack("d", found)
    if isinstance(sent, bool):
        return found in (sent, int(sent))
    return bool(sent == found)


class Table:
    """A table of one case: rows are sent through the sink, and read by a client."""

    def __init__(self, database: DatabaseServer, case: Case, as_text: bool, as_array: bool) -> None:
        self.name = f"t_{uuid.uuid4().hex[:8]}"
        self.case, self.as_array = case, as_array
        self.sent = self.refused = self.batch = 0
        suffix, more = "[]" if as_array else "", ", z integer[]" if as_text else ""
        database.ask(f"CREATE TABLE {self.name} (id bigint, c {case.column}{suffix}{more})")
        kind = pa.list_(case.kind) if as_array else case.kind
        fields = [("id", pa.int64()), ("c", kind), *([("z", pa.list_(pa.int32()))] if as_text else [])]
        self.bench, self.database = Bench(database, self.name, pa.schema(fields)), database

    def check(self, values: Sequence[Any]) -> None:
        """Send values; those that are refused together are sent apart."""
        schema = self.bench.schema
        columns = [pa.array([0, *range(len(values))], pa.int64()), pa.array([None, *values], schema.field("c").type)]
        if len(schema) > 2:
            columns.append(pa.nulls(len(values) + 1, schema.field("z").type))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema).slice(1)
        self.batch += 1
        try:
            handle = self.bench.prepare_batches([rows.slice(0, 3), rows.slice(3)], self.batch)
        except RowRefusedError:
            if len(values) == 1:
                self.sent, self.refused = self.sent + 1, self.refused + 1
                return
            half = len(values) // 2
            self.check(values[:half])
            self.check(values[half:])
            return
        self.database.ask(f"TRUNCATE TABLE {self.name}")
        self.bench.commit(handle)
        found = self.database.ask(f"SELECT id, {self._read()} FROM {self.name} ORDER BY id")
        signed = self.database.FORMAT != "2pc-mysql"
        kept = [None if value is None else _as_sent(self.case.kind, value, self.as_array) for value in values]
        assert [number for number, _ in found] == list(range(len(values)))
        for wanted, (_, got) in zip(kept, found, strict=True):
            pairs = (
                zip(wanted, got, strict=True) if isinstance(wanted, list) and isinstance(got, list) else [(wanted, got)]
            )
            assert all(same(one, other, signed) for one, other in pairs), (self.case.column, wanted, got)
        self.sent += len(values)

    def _read(self) -> str:
        if not self.as_array:
            return self.case.read
        each = self.case.read
        return f"CASE WHEN c IS NOT NULL THEN ARRAY(SELECT {each} FROM unnest(c) WITH ORDINALITY AS u (c, o) ORDER BY o) END"


def _as_sent(kind: pa.DataType, value: Any, as_array: bool) -> Any:
    if as_array:
        return [None if each is None else _as_sent(kind, each, False) for each in value]
    if pa.types.is_float32(kind):
        return pa.scalar(value, pa.float32()).as_py()
    return value


FORMS = ("rows", "text", "arrays")


def run(database: DatabaseServer, case: Case, form: str, examples: int, size: int) -> Table:
    table = Table(database, case, form == "text", form == "arrays")
    one = st.none() | case.values
    values = st.none() | st.lists(one, max_size=3) if form == "arrays" else one

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # to shrink an example takes many commits
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(values, min_size=1, max_size=size))
    def check(found: list[Any]) -> None:
        table.check(found)

    try:
        check()
    finally:
        database.ask(f"DROP TABLE {table.name}")
    return table


def parameters() -> list[Any]:
    return [
        pytest.param(name, case, form, id=f"{name}-{number}-{case.column}-{form}")
        for name, cases in CASES.items()
        for number, case in enumerate(cases)
        for form in (FORMS if name == "postgresql" else FORMS[:1])
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_a_few_values_of_every_type_arrive_or_are_refused(servers: Callable[[str], DatabaseServer], name: str) -> None:
    for number, case in enumerate(CASES[name]):
        form = FORMS[number % 3] if name == "postgresql" and not case.column.startswith(("varchar", "char")) else "rows"
        run(servers(name), case, form, 2, 12)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "case", "form"), parameters())
def test_many_values_of_every_type_arrive_or_are_refused(
    servers: Callable[[str], DatabaseServer], name: str, case: Case, form: str
) -> None:
    if form == "arrays" and case.column.startswith(("varchar", "char")):
        pytest.skip("refused at the start: blanks would be cut")
    table = run(servers(name), case, form, 100, 1_000)
    print(f"{name} {case.column} {form}: {table.sent} values, {table.refused} refused")
