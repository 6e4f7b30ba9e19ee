"""Arrow to Avro and back: equal values, or an error that names the field and shows no value."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fastavro")

from connector.schema_registry.avro_encoder import AvroEncoder
from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.registry import Definition, Registry
from transactional.errors import RowRefusedError

SCHEMA = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "f", "type": "double"}]}},
    ],
}

TYPE = pa.struct(  # in another order, and narrower, as Spark may have them
    [
        ("inner", pa.struct([("f", pa.float32())])),
        ("id", pa.int32()),
        ("name", pa.large_string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", "America/New_York")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("tags", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("kind", pa.string()),
    ]
)

ROW: dict[str, Any] = {
    "inner": {"f": 0.5},
    "id": 7,
    "name": None,
    "raw": b"\0\xff",
    "price": Decimal("12.500"),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.timezone.utc),
    "local": dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - a time without zone
    "day": dt.date(2026, 1, 2),
    "tags": [("a", ["x", "y"]), ("b", [])],
    "kind": "B",
}


def definition(schema: Any, number: int = 7) -> Definition:
    return Definition(json.dumps(schema), "AVRO", id=number)


def encoded(rows: list[Any], kind: pa.DataType = TYPE, schema: Any = SCHEMA) -> pa.Array:
    encoder: AvroEncoder = pickle.loads(pickle.dumps(AvroEncoder(definition(schema))))
    return encoder(pa.array(rows, kind))


def test_what_is_encoded_is_decoded_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "schema", lambda self, number: definition(SCHEMA, number))
    values = encoded([ROW, None, {**ROW, "name": "n", "id": -1}])
    assert values.type == pa.binary()
    assert values[0].as_py()[:5] == b"\0\0\0\0\x07"
    found = definition(SCHEMA)
    decode = AvroDecoder(Registry({"url": "http://none"}), found, column_type(found), "FAILFAST")
    first, none, third = decode(values).to_pylist()
    assert none is None
    assert first == {**ROW, "price": Decimal("12.50")}
    assert (third["name"], third["id"]) == ("n", -1)


def test_a_value_that_is_no_record_is_encoded_too() -> None:
    assert encoded(["a"], pa.string(), "string").to_pylist() == [b"\0\0\0\0\x07\x02a"]


def changed(name: str, kind: pa.DataType | None) -> pa.DataType:
    """The type with another field."""
    kept = [(field.name, field.type) for field in TYPE if field.name != name]
    return pa.struct([*kept, *([(name, kind)] if kind is not None else [])])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (changed("id", None), r"the column\.id: the column does not have this field"),
        (changed("more", pa.string()), r"the column\.more: the schema does not have this field"),
        (changed("id", pa.string()), r"the column\.id: it is string in the column, but int64 in the schema"),
        (changed("id", pa.float64()), r"the column\.id: it is double"),
        (changed("inner", pa.struct([("f", pa.int64())])), r"the column\.inner\.f: it is int64"),
        (changed("tags", pa.map_(pa.string(), pa.list_(pa.int32()))), r"the column\.tags{}\[\]: it is int32"),
        (changed("at", pa.timestamp("us")), r"the column\.at: it is timestamp\[us\]"),
        (pa.int64(), "the column: it is int64"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused_before_its_first_row(kind: pa.DataType, told: str) -> None:
    with pytest.raises(RowRefusedError, match=f"COLUMNS_MISMATCH.*encode_avro.*{told}"):
        encoded([], kind)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [(pa.float64(), "float"), (pa.int64(), "int"), (pa.int32(), "float"), (pa.float32(), "long")],
    ids=str,
)
def test_a_number_that_the_schema_could_not_keep_is_refused_whatever_its_value(kind: pa.DataType, schema: str) -> None:
    with pytest.raises(RowRefusedError, match=f"COLUMNS_MISMATCH.*it is {kind} in the column"):
        AvroEncoder(definition(schema))(pa.array([1], kind))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"id": None}, "column.id is null"),
        ({"kind": "secret"}, "field.*kind does not fit"),
        ({"inner": {"f": None}}, "inner.f is null"),
        ({"price": Decimal("1.234")}, "digits that the schema does not keep"),
        (
            {"at": dt.datetime(2026, 1, 1, microsecond=1, tzinfo=dt.timezone.utc)},
            "digits that the schema does not keep",
        ),
    ],
    ids=str,
)
def test_a_value_that_would_change_or_does_not_fit_is_refused_and_not_shown(value: dict[str, Any], told: str) -> None:
    with pytest.raises(RowRefusedError, match=f"ROW_NOT_ENCODED.*id 7.*{told}") as refused:
        encoded([ROW, {**ROW, **value}])
    assert "secret" not in str(refused.value)
