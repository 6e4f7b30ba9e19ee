"""No value changes on its way through Avro: nulls, logical types, defaults, promotions."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from connector.schema_registry.avro_encoder import AvroEncoder
from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.registry import Definition, Registry
from transactional.errors import RowRefusedError

TIMES = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    **{f"{kind}-{unit}": "long" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")},
}

NUMBER = 20_000_000
"""A whole number of milliseconds also if it counts nanoseconds."""


def logical(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def plain(schema: Any) -> Any:
    """The schema without logical types, for which fastavro writes what it is given."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if isinstance(schema, dict):
        return {key: plain(each) for key, each in schema.items() if key != "logicalType"}
    return schema


def read(monkeypatch: pytest.MonkeyPatch, writer: Any, reader: Any, *values: Any) -> list[dict[str, Any]]:
    """Values and errors of records that were written with one schema and are read with another."""
    monkeypatch.setattr(Registry, "schema", lambda self, number: Definition(json.dumps(writer), "AVRO", id=number))
    payloads = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(plain(writer)), value)
        payloads.append(struct.pack(">bI", 0, 7) + out.getvalue())
    found = Definition(json.dumps(reader), "AVRO", id=8)
    registry = Registry({"url": f"http://none/{json.dumps([writer, reader])}"})
    decode = AvroDecoder(registry, found, column_type(found), "ERRORS")
    nowhere = [pa.nulls(len(values), kind) for kind in (pa.string(), pa.int32(), pa.int64())]
    decoded = decode(pa.array(payloads, pa.binary()), *nowhere)
    kind = column_type(found).final
    numbers = decoded.field("value").cast(pa.int64()) if pa.types.is_timestamp(kind) else decoded.field("value")
    return [
        {"value": value, "error": error}
        for value, error in zip(numbers.to_pylist(), decoded.field("error").to_pylist(), strict=True)
    ]


def seconds(name: str) -> tuple[str, int]:
    family, _, unit = name.rpartition("-")
    return family, {"millis": 10**3, "micros": 10**6, "nanos": 10**9}.get(unit, 1)


@pytest.mark.parametrize(("written", "asked"), itertools.product(TIMES, TIMES))
def test_each_pair_of_times_is_read_exactly_or_refused(
    monkeypatch: pytest.MonkeyPatch, written: str, asked: str
) -> None:
    number = NUMBER // 1000 if TIMES[written] == "int" else NUMBER
    pair = logical(TIMES[written], written), logical(TIMES[asked], asked)
    (found,) = read(monkeypatch, *pair, number)
    alike = seconds(written)[0] == seconds(asked)[0]
    if not alike:
        assert found["value"] is None
        assert f"was written as {written}" in found["error"]
    elif written != asked and TIMES[asked] == "int":  # time-micros as time-millis: Avro makes no int of a long
        assert found["value"] is None
        assert found["error"]
    else:
        assert found["error"] is None
        columns_unit = 10**6 if "timestamp" in asked and "nanos" not in asked else seconds(asked)[1]
        if asked == "date":
            assert found["value"] == dt.date(1970, 1, 1) + dt.timedelta(number)
        else:
            assert found["value"] * seconds(written)[1] == number * columns_unit
    wrapped = [["null", each] for each in pair]
    assert read(monkeypatch, *wrapped, None) == [{"value": None, "error": None}]


@pytest.mark.parametrize("number", [1, -1, 2**63 - 1, -(2**63)])
def test_a_time_that_a_coarser_type_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    micros, millis = (logical("long", f"timestamp-{unit}") for unit in ("micros", "millis"))
    (found,) = read(monkeypatch, micros, millis, number)
    assert "was written as timestamp-micros, which can't be converted exactly to timestamp-millis" in found["error"]


@pytest.mark.parametrize("wrap", [lambda kind: record(field("x", kind)), lambda kind: {"type": "array", "items": kind}])
def test_a_pair_of_times_inside_another_type_is_compared_too(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    millis, micros = (wrap(["null", logical("long", f"timestamp-{unit}")]) for unit in ("millis", "micros"))
    value = {"x": 1795000000000} if wrap("int")["type"] == "record" else [1795000000000]
    (found,) = read(monkeypatch, millis, micros, value)
    assert found["error"] is None
    inner = found["value"]["x"] if isinstance(found["value"], dict) else found["value"][0]
    assert inner == dt.datetime.fromtimestamp(1795000000, dt.timezone.utc)


@pytest.mark.parametrize("kind", ["int", "long"])
@pytest.mark.parametrize(("wanted", "digits"), [("float", 24), ("double", 53)])
def test_a_number_that_becomes_a_float_keeps_its_digits_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, wanted: str, digits: int
) -> None:
    largest = 2**digits
    sent = [0, -7, *([largest, largest + 1, -largest - 1] if kind == "long" or digits < 31 else [])]
    found = read(monkeypatch, kind, wanted, *sent)
    for number, each in zip(sent, found, strict=True):
        if abs(number) > largest:
            assert f"was written as {kind}, which can't be converted exactly to {wanted}" in each["error"]
        else:
            assert each == {"value": float(number), "error": None}


def decimals(scale: int, precision: int = 9) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def test_a_decimal_of_another_scale_keeps_its_value_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (12345).to_bytes(2, "big")
    assert read(monkeypatch, decimals(2), decimals(3), raw) == [{"value": Decimal("123.450"), "error": None}]
    (cut,) = read(monkeypatch, decimals(2), decimals(1), raw)
    assert "out of its column's range" in cut["error"]
    assert read(monkeypatch, decimals(2), "bytes", raw) == [{"value": raw, "error": None}]
    assert "can't be converted exactly to string" in read(monkeypatch, decimals(2), "string", b"a")[0]["error"]


def test_a_decimal_with_more_digits_than_its_schema_says_is_never_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (12345).to_bytes(2, "big")
    (found,) = read(monkeypatch, decimals(0, 3), decimals(0, 3), raw)
    assert found["value"] is None
    assert "out of its column's range" in found["error"]
    assert read(monkeypatch, decimals(0, 3), decimals(0, 9), raw) == [{"value": Decimal(12345), "error": None}]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff\u0000a", b"\xff\0a"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ffa", b"\xffa"),
        (decimals(2), "\u00ff", Decimal("-0.01")),
        (logical("fixed", "decimal", name="F", size=2, precision=4, scale=1), "\u0000\u00ff", Decimal("25.5")),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": decimals(0)}, {"a": "\u0001"}, [("a", Decimal(1))]),
        (
            record(field("b", "bytes"), field("c", "bytes", default="\u00fe"), name="I"),
            {"b": "\u00ff"},
            {"b": b"\xff", "c": b"\xfe"},
        ),
        ("double", 1, 1.0),
        (logical("long", "timestamp-millis"), 1000, dt.datetime.fromtimestamp(1, dt.timezone.utc)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ],
    ids=str,
)
def test_a_default_is_a_value_of_its_type(monkeypatch: pytest.MonkeyPatch, kind: Any, default: Any, value: Any) -> None:
    reader = record(field("a", "int"), field("x", kind, default=default))
    assert read(monkeypatch, record(field("a", "int")), reader, {"a": 1}) == [
        {"value": {"a": 1, "x": value}, "error": None}
    ]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("bytes", "\u0100"),
        ({"type": "fixed", "name": "F", "size": 2}, "a"),
        ("float", 2**24 + 1),
        ({"type": "array", "items": "int"}, [1.5]),
        (record(field("b", "bytes"), name="I"), {}),
    ],
    ids=str,
)
def test_a_default_that_is_not_of_its_type_is_refused(monkeypatch: pytest.MonkeyPatch, kind: Any, default: Any) -> None:
    reader = record(field("a", "int"), field("x", kind, default=default))
    (found,) = read(monkeypatch, record(field("a", "int")), reader, {"a": 1})
    assert "No default value for field x" in found["error"]


def test_a_type_that_is_read_in_one_place_and_skipped_in_another_is_still_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def point(unit: str) -> dict[str, Any]:
        return record(field("at", logical("long", f"timestamp-{unit}")), name="P")

    writer = record(
        field("dropped", point("millis")), field("kept", "P"), field("more", {"type": "array", "items": "P"})
    )
    reader = record(field("kept", point("micros")), field("more", {"type": "array", "items": "P"}))
    (found,) = read(monkeypatch, writer, reader, {"dropped": {"at": 1}, "kept": {"at": 2}, "more": [{"at": 3}]})
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    later = [moment + dt.timedelta(milliseconds=number) for number in (2, 3)]
    assert found == {"value": {"kept": {"at": later[0]}, "more": [{"at": later[1]}]}, "error": None}


# -- Writing --------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Any, pa.DataType, Any]] = {
    "boolean": ("boolean", pa.bool_(), True),
    "int": ("int", pa.int32(), 1),
    "long": (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), 1),
    "double": ("double", pa.float64(), 1.5),
    "string": ("string", pa.string(), "a"),
    "bytes": ("bytes", pa.binary(), b"a"),
    "decimal": (decimals(2), pa.decimal128(9, 2), Decimal(1)),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string(), "A"),
    "array": ({"type": "array", "items": "int"}, pa.list_(pa.int32()), []),
    "record": (record(field("b", "boolean"), name="I"), pa.struct([("b", pa.bool_())]), {"b": True}),
}

PLACES: dict[str, Any] = {
    "field": lambda kind, arrow: (field("x", kind), arrow, lambda value: value),
    "default": lambda kind, arrow: (field("x", kind), arrow, lambda value: value),
    "array": lambda kind, arrow: (field("x", {"type": "array", "items": kind}), pa.list_(arrow), lambda v: [v]),
    "map": lambda kind, arrow: (
        field("x", {"type": "map", "values": kind}),
        pa.map_(pa.string(), arrow),
        lambda v: [("k", v)],
    ),
    "record": lambda kind, arrow: (
        field("x", record(field("y", kind), name="N")),
        pa.struct([("y", arrow)]),
        lambda v: {"y": v},
    ),
    "null or": lambda kind, arrow: (
        field("x", ["null", {"type": "array", "items": kind}]),
        pa.list_(arrow),
        lambda v: [v],
    ),
}

DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(["int", "long"], 5),
    **dict.fromkeys(["string", "bytes", "decimal"], "d"),
    "boolean": True,
    "double": 0.5,
    "array": [],
    "enum": "A",
    "record": {"b": True},
}


@pytest.mark.parametrize(("kind", "place"), itertools.product(KINDS, PLACES))
def test_a_null_where_the_schema_has_none_is_refused_and_never_a_default(kind: str, place: str) -> None:
    of, arrow, good = KINDS[kind]
    made, column, wrap = PLACES[place](of, arrow)
    if place == "default":
        made["default"] = DEFAULTS[kind]
    encode = AvroEncoder(Definition(json.dumps(record(made)), "AVRO", id=7))
    rows = pa.array([{"x": wrap(good)}] * 3 + [{"x": wrap(None)}], pa.struct([("x", column)]))
    assert len(encode(rows[1:3])) == 2  # a slice behind which the null lies
    with pytest.raises(RowRefusedError, match=r"ROW_NOT_ENCODED.*: the column\.x.* is null, which"):
        encode(rows[2:])


def test_far_years_are_encoded_exactly() -> None:
    schema = record(field("at", logical("long", "timestamp-micros")), field("day", logical("int", "date")))
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    sent = [{"at": at, "day": day} for at, day in ((2**63 - 1, 2**31 - 1), (-(2**63), -(2**31)), (0, 0))]
    found = AvroEncoder(Definition(json.dumps(schema), "AVRO", id=7))(pa.array(sent, kind)).to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(each[5:]), plain(schema), None) for each in found] == sent


def test_a_map_with_a_key_twice_and_a_text_that_is_not_utf8_are_refused() -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int32()))])
    encode = AvroEncoder(Definition(json.dumps(record(field("m", {"type": "map", "values": "int"}))), "AVRO", id=7))
    with pytest.raises(RowRefusedError, match=r"ROW_NOT_ENCODED.*the same key twice"):
        encode(pa.array([{"m": [("a", 1), ("a", 2)]}], kind))
    text = AvroEncoder(Definition('"string"', "AVRO", id=7))
    with pytest.raises(RowRefusedError, match=r"ROW_NOT_ENCODED.*not UTF-8"):
        text(pa.array([b"\xff"]).view(pa.string()))


@pytest.mark.parametrize("order", [("a", "z"), ("z", "a")])
def test_a_field_that_the_writer_has_by_its_name_and_by_its_alias_is_refused(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    """A producer that writes both while the field is renamed. Java refuses it; fastavro takes the first of the two."""
    writer = record(*(field(name, "int") for name in order))
    (found,) = read(monkeypatch, writer, record(field("z", "long", aliases=["a"])), {"a": 1, "z": 2})
    assert found["value"] is None
    assert found["error"]
    chain = record(field("z", "long", aliases=["a"]), field("y", "long", aliases=["z"]))
    (found,) = read(monkeypatch, writer, chain, {"a": 1, "z": 2})
    assert found["error"] or found["value"] == {"z": 1, "y": 2}
