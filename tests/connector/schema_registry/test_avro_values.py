"""Records in the Schema Registry's wire format, decoded without Spark; the registry answers over HTTP."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.columns import decode_avro, subject_name
from connector.schema_registry.json_values import json_type
from connector.schema_registry.registry import Definition, Registry
from integration.schema_registry import RegistryServer
from transactional.errors import OptionError, StoreError
from transactional.failure import Remedy, failure_of

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [{"name": "number", "type": "int"}, {"name": "origin", "type": "string"}],
}

LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "delay", "type": ["null", "long"], "default": None}]}

NOWHERE = [pa.nulls(9, kind) for kind in (pa.string(), pa.int32(), pa.int64())]


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        yield found


def encoded(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, number) + stream.getvalue()


def decoder(server: RegistryServer, subject: str, mode: str = "ERRORS", **settings: Any) -> AvroDecoder:
    registry = Registry({"url": server.url, **settings})
    definition = registry.subject(subject, "latest", "AVRO")
    made = AvroDecoder(registry, definition, column_type(definition), mode)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def decoded(of: AvroDecoder, *payloads: bytes | None) -> list[Any]:
    found: list[Any] = of(pa.array(payloads, pa.binary()), *NOWHERE).to_pylist()
    return found


def test_every_record_is_resolved_to_the_columns_schema_and_each_id_is_asked_for_once(server: RegistryServer) -> None:
    old, new = server.register("flights-value", FLIGHT), server.register("flights-value", LATER)
    made = decoder(server, "flights-value", "FAILFAST")
    server.asked.clear()
    first = encoded(old, FLIGHT, {"number": 7, "origin": "JFK"})
    second = encoded(new, LATER, {"number": 8, "origin": "LGA", "delay": 5})
    assert decoded(made, *[first] * 3, None, second) == [
        *[{"number": 7, "origin": "JFK", "delay": None}] * 3,
        None,
        {"number": 8, "origin": "LGA", "delay": 5},
    ]
    again = pickle.loads(pickle.dumps(made))
    assert len(decoded(again, first, second)) == 2
    assert [path.partition("?")[0] for path in server.asked] == [f"/schemas/ids/{old}", f"/schemas/ids/{new}"]


def test_an_id_of_one_registry_is_none_of_another() -> None:
    """A worker decodes for several queries. Both registries give the same ids, and the columns have the same schema."""
    value = {"number": 7, "origin": "JFK"}
    with RegistryServer() as one, RegistryServer() as two:
        for server, fields in ((one, FLIGHT["fields"]), (two, FLIGHT["fields"][::-1])):
            writer = {**FLIGHT, "fields": fields}
            assert server.register("read-value", LATER) + 1 == (number := server.register("written-value", writer))
            made = decoder(server, "read-value", "FAILFAST")
            assert decoded(made, encoded(number, writer, value)) == [{**value, "delay": None}]


def test_a_renamed_field_is_found_by_its_alias_and_a_number_is_widened(server: RegistryServer) -> None:
    old = server.register("renamed", FLIGHT)
    fields = [{"name": "id", "aliases": ["number"], "type": "long"}, {"name": "by", "type": "string", "default": "?"}]
    server.register("renamed", {**FLIGHT, "fields": fields})
    made = decoder(server, "renamed", "FAILFAST")
    assert decoded(made, encoded(old, FLIGHT, {"number": 7, "origin": "JFK"})) == [{"id": 7, "by": "?"}]
    assert made._type.spark.simpleString() == "struct<id:bigint,by:string>"


def test_all_types_become_columns_and_times_are_exact(server: RegistryServer) -> None:
    def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "logicalType": name, **more}

    types: dict[str, Any] = {
        "yes": "boolean",
        "small": "int",
        "big": "long",
        "near": "float",
        "far": "double",
        "raw": "bytes",
        "maybe": ["null", "string"],
        "wide": ["int", "long", "null"],
        "color": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
        "same": "Color",
        "code": {"type": "fixed", "name": "Code", "size": 2},
        "list": {"type": "array", "items": {"type": "map", "values": "int"}},
        "inner": {"type": "record", "name": "Inner", "fields": [{"name": "day", "type": logical("int", "date")}]},
        "millis": logical("long", "timestamp-millis"),
        "micros": ["null", logical("long", "timestamp-micros")],
        "local": logical("long", "local-timestamp-millis"),
        "clock": logical("int", "time-millis"),
        "price": logical("bytes", "decimal", precision=9, scale=2),
        "id": logical("string", "uuid"),
    }
    schema = {
        "type": "record",
        "name": "All",
        "fields": [{"name": name, "type": kind} for name, kind in types.items()],
    }
    now = dt.datetime(2026, 5, 4, 3, 2, 1, 987000, tzinfo=dt.timezone.utc)
    value = {
        "yes": True,
        "small": -3,
        "big": 2**40,
        "near": 0.5,
        "far": 0.1,
        "raw": b"\xff",
        "maybe": None,
        "wide": 2**40,
        "color": "BLUE",
        "same": "RED",
        "code": b"ab",
        "list": [{"a": 1}, {}],
        "inner": {"day": dt.date(2026, 1, 2)},
        "millis": now,
        "micros": now,
        "local": now.replace(tzinfo=None),
        "clock": dt.time(0, 0, 1),
        "price": Decimal("-12.34"),
        "id": "9f6c5b0a-0000-4000-8000-000000000000",
    }
    number = server.register("all", schema)
    made = decoder(server, "all", "FAILFAST")
    (found,) = decoded(made, encoded(number, schema, value))
    assert found == {**value, "list": [[("a", 1)], []], "clock": 1000}
    assert made._type.spark.simpleString() == (
        "struct<yes:boolean,small:int,big:bigint,near:float,far:double,raw:binary,maybe:string,wide:bigint,color:string,"
        "same:string,code:binary,list:array<map<string,int>>,inner:struct<day:date>,millis:timestamp,micros:timestamp,"
        "local:timestamp_ntz,clock:int,price:decimal(9,2),id:string>"
    )


def test_what_is_wrong_with_a_record_is_said_and_the_others_are_decoded(server: RegistryServer) -> None:
    number = server.register("bad-value", FLIGHT)
    other = server.register("bad-other", {"type": "string"})
    json_id = server.register("bad-json", {"type": "object"}, "JSON")
    good = encoded(number, FLIGHT, {"number": 7, "origin": "JFK"})
    payloads = {
        b"": "0 bytes are too few",
        b"\0\0": "2 bytes are too few",
        b"\1" + good[1:]: "begins with byte 1, not 0",
        b"{ not avro }": "begins with byte 123, not 0",
        struct.pack(">bI", 0, 9999) + b"x": "does not know its schema id 9999",
        struct.pack(">bI", 0, json_id) + b"{}": f"its schema (schema id {json_id}) is of type JSON",
        good[:-1]: f"not Avro with schema id {number}",
        good + b"!": f"1 bytes are left after a record with schema id {number}",
        encoded(other, {"type": "string"}, "x"): "SchemaResolutionError",
    }
    found = decoded(decoder(server, "bad-value"), good, *payloads, good)
    assert [each["error"] for each in found[:: len(found) - 1]] == [None, None]
    assert found[0]["value"] == found[-1]["value"] == {"number": 7, "origin": "JFK"}
    for row, expected in zip(found[1:-1], payloads.values(), strict=True):
        assert row["value"] is None
        assert expected in row["error"]
        assert "JFK" not in row["error"]
    assert decoded(decoder(server, "bad-value", "PERMISSIVE"), good[:-1], None, good) == [None, None, found[0]["value"]]


def test_a_failure_names_the_record_where_its_position_is_given(server: RegistryServer) -> None:
    number = server.register("fail-value", FLIGHT)
    made = decoder(server, "fail-value", "FAILFAST")
    payloads = pa.array([None, struct.pack(">bI", 0, number)], pa.binary())
    position = [pa.array(["flights"] * 2), pa.array([3, 3], pa.int32()), pa.array([16, 17])]
    with pytest.raises(
        StoreError,
        match=r"\[BAD_RECORD\] A record can't be read: the record of flights-3 at offset 17: it is not Avro with schema",
    ):
        made(payloads, *position)
    with pytest.raises(StoreError, match="a record \\(set position= to see which one\\)"):
        made(payloads, *NOWHERE)


def test_a_value_out_of_its_columns_range_is_that_records_fault(server: RegistryServer) -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    number = server.register("times", schema)
    late = encoded(number, "long", 2**62)
    good, bad = decoded(decoder(server, "times"), encoded(number, "long", 1000), late)
    assert good["value"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)
    assert "out of its column's range" in bad["error"]


def test_references_to_other_subjects_are_followed(server: RegistryServer) -> None:
    airport = {"type": "record", "name": "air.Airport", "fields": [{"name": "code", "type": "string"}]}
    server.register("airports", airport)
    leg = {"type": "record", "name": "air.Leg", "fields": [{"name": "to", "type": "air.Airport"}]}
    server.register("legs", leg, references=[{"name": "air.Airport", "subject": "airports", "version": 1}])
    trip = {
        "type": "record",
        "name": "Trip",
        "fields": [{"name": "legs", "type": {"type": "array", "items": "air.Leg"}}],
    }
    references = [{"name": "air.Leg", "subject": "legs", "version": 1}]
    number = server.register("trips", trip, references=references)
    made = decoder(server, "trips", "FAILFAST")
    # As a writer sees it, with everything in one schema.
    leg["fields"] = [{"name": "to", "type": airport}]
    trip["fields"] = [{"name": "legs", "type": {"type": "array", "items": leg}}]
    payload = encoded(number, trip, {"legs": [{"to": {"code": "JFK"}}]})
    assert decoded(made, payload) == [{"legs": [{"to": {"code": "JFK"}}]}]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (["string", "int"], "the schema is a union of int, string"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
            "R, which contains itself",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}, "a decimal of 50 digits"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "Unknown"}]}, "UnknownType"),
    ],
)
def test_a_schema_that_no_column_holds_is_refused_by_name(schema: Any, told: str) -> None:
    with pytest.raises(OptionError, match="UNSUPPORTED_SCHEMA") as caught:
        column_type(Definition(json.dumps(schema), "AVRO"))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("status", "condition", "remedy"),
    [
        (500, "REGISTRY_UNREACHABLE", Remedy.RESTART),
        (503, "REGISTRY_UNREACHABLE", Remedy.RESTART),
        (429, "REGISTRY_UNREACHABLE", Remedy.RESTART),
        (404, "REGISTRY_UNREACHABLE", Remedy.RESTART),  # of what stands before it: a registry says 40403
        (401, "REGISTRY_REFUSED", Remedy.NONE),
        (403, "REGISTRY_REFUSED", Remedy.NONE),
    ],
)
def test_a_registry_that_does_not_answer_or_refuses_is_no_bad_record(
    server: RegistryServer, status: int, condition: str, remedy: Remedy
) -> None:
    number = server.register(f"down-{status}-value", {**FLIGHT, "name": f"Down{status}"})
    made = decoder(server, f"down-{status}-value", "PERMISSIVE", **{"max.retries": 0})
    server.status = status
    try:
        with pytest.raises(StoreError, match=f"{condition}.*{status}") as problem:
            decoded(made, struct.pack(">bI", 0, number))
    finally:
        server.status = None
    assert failure_of(problem.value).remedy is remedy


def test_a_registry_that_is_not_there_is_no_bad_record() -> None:
    with pytest.raises(StoreError, match="REGISTRY_UNREACHABLE"):
        Registry({"url": "http://127.0.0.1:1", "max.retries": 0}).subject("s", "latest", "AVRO")


def test_no_secret_is_shown(server: RegistryServer) -> None:
    with RegistryServer("me", "hunter2") as closed:
        closed.register("s", FLIGHT)
        for settings in (
            {"url": closed.url, "basic.auth.user.info": "me:hunter3"},
            {"url": closed.url.replace("//", "//me:hunter3@")},
            {"url": "http://me:hunter3@127.0.0.1:1", "max.retries": 0},
            {"url": closed.url, "basic.auth.user.info": "hunter3"},
            {"url": closed.url, "ssl.certificate.location": "/nowhere", "ssl.key.password": "hunter3"},
        ):
            registry = Registry(settings)
            with pytest.raises((StoreError, OptionError)) as caught:
                registry.subject("s", "latest", "AVRO")
            for text in (
                str(caught.value),
                repr(caught.value.__cause__),
                repr(registry),
                repr(caught.value.parameters),
            ):
                assert "hunter3" not in text
        right = Registry({"url": closed.url, "basic.auth.user.info": "me:hunter2"})
        assert right.subject("s", "latest", "AVRO").kind == "AVRO"


def test_a_password_in_an_address_is_masked_as_it_stands_there_and_as_it_is_meant() -> None:
    registry = Registry({"url": "http://a:1, http://me:hunter%333@b:1"})
    said = registry.scrub("no answer of http://me:hunter%333@b:1 to me with hunter33")
    assert "hunter" not in said + repr(registry)
    assert "no answer of" in said


def test_options_are_refused_by_name(server: RegistryServer) -> None:
    registry = {"url": server.url}
    server.register("typed-value", {"type": "object"}, "JSON")
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*nothing-value.*in version latest"):
        decode_avro("value", registry, topic="nothing")
    with pytest.raises(OptionError, match=r"UNSUPPORTED_SCHEMA.*use decode_json"):
        decode_avro("value", registry, topic="typed")
    with pytest.raises(OptionError, match="FAILFAST, PERMISSIVE or ERRORS"):
        decode_avro("value", registry, topic="typed", mode="permissive")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="name the subject"):
        decode_avro("value", registry)
    with pytest.raises(OptionError, match="needs the option url"):
        decode_avro("value", {}, topic="typed")
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*basic.auth.nothing"):
        decode_avro("value", {**registry, "basic.auth.nothing": 1}, topic="typed")


def test_subjects_are_named_as_the_strategies_do() -> None:
    assert subject_name("t") == "t-value"
    assert subject_name("t", key=True) == "t-key"
    assert subject_name(record="air.Flight") == "air.Flight"
    assert subject_name("t", "air.Flight") == "t-air.Flight"


def test_who_lacks_the_extra_is_told_its_name() -> None:
    program = (
        "import sys\n"
        "sys.modules['httpx2'] = sys.modules['httpx'] = None\n"
        "from connector.schema_registry.columns import decode_avro\n"
        "decode_avro('value', {'url': 'http://127.0.0.1:1'}, topic='t')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: " in run.stderr
    assert "pip install 'barrier-kafka[schema-registry]'" in run.stderr


# -- JSON Schema ----------------------------------------------------------------------------------------------------


def test_a_json_schema_becomes_columns() -> None:
    address = {"type": "object", "properties": {"city": {"type": "string"}}}
    schema = {
        "$defs": {"tag": {"enum": ["a", "b"]}},
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "weight": {"type": ["integer", "number"]},
            "open": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
            "address": {"$ref": "address.json"},
        },
    }
    found = json_type(Definition(json.dumps(schema), "JSON", (("address.json", json.dumps(address)),)))
    assert found.simpleString() == (
        "struct<id:bigint,price:double,weight:double,open:boolean,tags:array<string>,more:map<string,bigint>,"
        "address:struct<city:string>>"
    )


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "array", "items": {"type": "string"}}, "of the type array<string>, not an object with properties"),
        ({"properties": {"x": {}}}, "the schema.x is of any type"),
        ({"properties": {"x": True}}, "the schema.x is a schema that allows any value"),
        ({"properties": {"x": {"type": ["string", "integer"]}}}, "of several types (string, integer)"),
        ({"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, "one of several schemas"),
        ({"properties": {"x": {"$ref": "#"}}}, "which contains itself"),
        ({"properties": {"x": {"$ref": "#/$defs/y"}}}, "a reference to #/$defs/y, which does not exist"),
        ({"properties": {"x": {"$ref": "other.json"}}}, "does not list as a reference"),
        ({"type": "object"}, "an object without named properties"),
    ],
)
def test_a_json_schema_that_no_column_holds_is_refused_by_name(schema: Any, told: str) -> None:
    with pytest.raises(OptionError, match="UNSUPPORTED_SCHEMA") as caught:
        json_type(Definition(json.dumps(schema), "JSON"))
    assert told in str(caught.value)
