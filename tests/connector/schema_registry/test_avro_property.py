"""Random values through Avro: each is equal to the sent one, or its row is refused. fastavro reads and writes bytes only.

fastavro does not validate, so what it says is always compared with the value that was sent.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from connector.schema_registry.avro_encoder import AvroEncoder
from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.registry import Definition, Registry
from integration.random_values import (
    EXACT,
    Draw,
    batches,
    decimals,
    floats,
    is_utf8,
    octets,
    plain,
    rarely,
    same,
    texts,
    whole,
)
from transactional.errors import RowRefusedError

BATCH = 50
QUICK, MANY = 400, 100_000


@dataclass(frozen=True)
class Kind:
    """A type of the schema, of the column, and its values: as the column has them, and as Avro's bytes have them."""

    avro: Any
    arrow: pa.DataType
    draw: Draw
    raw: Callable[[Any], Any] = lambda value: value
    """A column's value → what is in Avro's bytes; raises ValueError for one that must be refused."""


def utf8(value: str) -> str:
    if not is_utf8(value):
        raise ValueError
    return value


def more_digits(precision: int, scale: int, more: int) -> Draw:
    exact, longer = decimals(precision, scale), decimals(min(precision + more, 38), scale + more)
    return rarely(lambda rng: exact(rng).quantize(Decimal(1).scaleb(-scale - more), context=EXACT), longer)


def fixed_decimal(precision: int, scale: int) -> Callable[[Decimal], Any]:
    def raw(value: Decimal) -> Decimal:
        number = value.scaleb(scale, EXACT)
        if number != number.to_integral_value() or number.copy_abs() >= 10**precision:
            raise ValueError
        return value

    return raw


def millis(value: int) -> int:
    if value % 1000:
        raise ValueError
    return value // 1000


def among(*allowed: Any) -> Callable[[Any], Any]:
    def raw(value: Any) -> Any:
        if value not in allowed:
            raise ValueError
        return value

    return raw


def two_bytes(value: bytes) -> bytes:
    if len(value) != 2:
        raise ValueError
    return value


def whole_millis(rng: random.Random) -> int:
    number: int = whole(64)(rng)
    return number if not rng.randrange(50) else number // 1000 * 1000 if number > -(2**63) + 1000 else 0


def logical(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


KINDS: dict[str, Kind] = {
    "boolean": Kind("boolean", pa.bool_(), lambda rng: rng.random() < 0.5),
    "int": Kind("int", pa.int32(), whole(32)),
    "byte as int": Kind("int", pa.int8(), whole(8)),
    "long": Kind("long", pa.int64(), whole(64)),
    "int as long": Kind("long", pa.int32(), whole(32)),
    "int or long": Kind(["int", "long"], pa.int64(), whole(64)),
    "float": Kind("float", pa.float32(), floats(32)),
    "double": Kind("double", pa.float64(), floats(64)),
    "float as double": Kind("double", pa.float32(), floats(32)),
    "float or double": Kind(["float", "double"], pa.float64(), floats(64)),
    "string": Kind("string", pa.string(), texts, utf8),
    "large string": Kind("string", pa.large_string(), texts, utf8),
    "bytes": Kind("bytes", pa.binary(), octets),
    "fixed": Kind(
        {"type": "fixed", "name": "F", "size": 2},
        pa.binary(),
        rarely(lambda rng: rng.randbytes(2), octets),
        two_bytes,
    ),
    "enum": Kind(
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        pa.string(),
        rarely(lambda rng: rng.choice("AB"), texts),
        among("A", "B"),
    ),
    "uuid": Kind(logical("string", "uuid"), pa.string(), texts, utf8),
    "date": Kind(logical("int", "date"), pa.date32(), whole(32)),
    "time-millis": Kind(logical("int", "time-millis"), pa.int32(), whole(32)),
    "time-micros": Kind(logical("long", "time-micros"), pa.int64(), whole(64)),
    "timestamp-micros": Kind(logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), whole(64)),
    "timestamp-millis": Kind(logical("long", "timestamp-millis"), pa.timestamp("us", "UTC"), whole_millis, millis),
    "timestamp-nanos": Kind(logical("long", "timestamp-nanos"), pa.int64(), whole(64)),
    "local-timestamp-micros": Kind(logical("long", "local-timestamp-micros"), pa.timestamp("us"), whole(64)),
    "local-timestamp-millis": Kind(logical("long", "local-timestamp-millis"), pa.timestamp("us"), whole_millis, millis),
    **{
        f"decimal({precision},{scale}) of {kind}": Kind(
            logical(
                kind,
                "decimal",
                precision=precision,
                scale=scale,
                **({"name": "D", "size": 16} if kind == "fixed" else {}),
            ),
            pa.decimal128(38, scale + more),
            more_digits(precision, scale, more),
            fixed_decimal(precision, scale),
        )
        for kind in ("bytes", "fixed")
        for precision, scale, more in ((38, 0, 0), (38, 38, 0), (38, 10, 0), (9, 2, 1), (1, 0, 1))
    },
}


@dataclass(frozen=True)
class Shape:
    """What is around a value in its row."""

    avro: Callable[[Any], Any]
    arrow: Callable[[pa.DataType], pa.DataType]
    wrap: Callable[[Any], Any]
    unwrap: Callable[[Any], Any]
    nulls: bool = False


def nullable(kind: Any) -> Any:
    return ["null", *(kind if isinstance(kind, list) else [kind])]


SHAPES = [
    Shape(lambda kind: kind, lambda kind: kind, lambda v: v, lambda v: v),
    Shape(
        lambda kind: {"type": "record", "name": "R", "fields": [{"name": "a", "type": nullable(kind)}]},
        lambda kind: pa.struct([("a", kind)]),
        lambda v: {"a": v},
        lambda v: v["a"],
        nulls=True,
    ),
    Shape(
        lambda kind: {"type": "array", "items": kind},
        pa.list_,
        lambda v: [v],
        lambda v: v[0],
    ),
    Shape(
        lambda kind: {"type": "map", "values": nullable(kind)},
        lambda kind: pa.map_(pa.string(), kind),
        lambda v: [("k", v)],
        lambda v: dict(v)["k"],
        nulls=True,
    ),
]


def without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if isinstance(schema, dict):
        return {key: without_logical(each) for key, each in schema.items() if key != "logicalType"}
    return schema


def in_bytes(kind: Kind, value: Any) -> Any:
    """What fastavro reads or writes for a value, without any logical type."""
    if value is None:
        return None
    raw = kind.raw(value)
    if not isinstance(raw, Decimal):
        return raw
    number = int(raw.scaleb(kind.avro["scale"], EXACT))
    return number.to_bytes(kind.avro.get("size", (number.bit_length() + 8) // 8), "big", signed=True)


def number_of(data: Any, kind: Kind) -> Any:
    """Bytes of a decimal as a number: writers may use more of them than they need."""
    decimal = isinstance(kind.avro, dict) and kind.avro.get("logicalType") == "decimal"
    return int.from_bytes(data, "big", signed=True) if decimal and isinstance(data, bytes) else data


def column(rng: random.Random, values: list[Any], kind: pa.DataType) -> pa.Array:
    """A slice of a longer array."""
    return next(batches(rng, [values], pa.schema([("v", kind)]), 1)).column(0)


def fits(kind: Kind, value: Any, nulls: bool) -> bool:
    try:
        return nulls if value is None else kind.raw(value) is not None
    except ValueError:
        return False


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", KINDS)
def test_each_value_is_equal_or_its_row_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    kind, rng = KINDS[name], random.Random(f"{name} {count}")
    made = {}
    for shape in SHAPES:
        schema = shape.avro(kind.avro)
        found = Definition(json.dumps(schema), "AVRO", id=7)
        registry = Registry({"url": f"http://none/{found.text}"})
        decode = AvroDecoder(registry, found, column_type(found), "FAILFAST")
        made[shape] = AvroEncoder(found), decode, fastavro.parse_schema(without_logical(schema)), found
    equal = refused = 0
    while equal + refused < count:
        shape = rng.choice(SHAPES)
        encode, decode, schema, found = made[shape]
        monkeypatch.setattr(Registry, "schema", lambda self, number, found=found: found)
        values = [
            None if not rng.randrange(100 if shape.arrow(kind.arrow) != kind.arrow else 10**9) else kind.draw(rng)
            for _ in range(BATCH)
        ]
        good = [value for value in values if fits(kind, value, shape.nulls)]
        bad = [value for value in values if not fits(kind, value, shape.nulls)]
        arrow = shape.arrow(kind.arrow)
        for value in bad:
            with pytest.raises(RowRefusedError, match="ROW_NOT_ENCODED"):
                encode(column(rng, [shape.wrap(value)], arrow))
        refused += len(bad)
        payloads = encode(column(rng, [shape.wrap(value) for value in good], arrow))
        for value, payload, again in zip(good, payloads.to_pylist(), plain(decode(payloads)), strict=True):
            stream = io.BytesIO(payload[5:])
            read = shape.unwrap(fastavro.schemaless_reader(stream, schema, None))
            assert not stream.read()
            assert same(number_of(read, kind), number_of(in_bytes(kind, value), kind)), (value, read)
            assert same(shape.unwrap(again), value), (value, again)
        written = []
        for value in good:
            out = io.BytesIO(payloads[0].as_py()[:5] if good else b"")
            out.seek(5)
            wrapped = shape.wrap(in_bytes(kind, value))
            fastavro.schemaless_writer(out, schema, dict(wrapped) if pa.types.is_map(arrow) else wrapped)
            written.append(out.getvalue())
        for value, again in zip(good, plain(decode(pa.array(written, pa.binary()))), strict=True):
            assert same(shape.unwrap(again), value), (value, again)
        equal += len(good)
    assert equal > count // 2
