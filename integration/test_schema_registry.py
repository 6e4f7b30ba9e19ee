"""Values of the Schema Registry's wire format as columns of real queries; the registry asks for a password over real HTTP."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import functions as f

from connector.schema_registry.columns import decode_avro, decode_json
from connector.schema_registry.dead_letters import dead_letters
from connector.schema_registry.encode import encode_avro, encode_json
from integration.broker import Cluster
from integration.schema_registry import RegistryServer
from transactional.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PASSWORD = "s3cret-of-the-registry"

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "departed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}

LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string", "default": "?"}]}

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "lines": {"type": "array", "items": {"type": "string"}}},
}

WHERE = ("topic", "partition", "offset")


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with RegistryServer("reader", PASSWORD) as found:
        yield found


@pytest.fixture(scope="module")
def registry(server: RegistryServer) -> dict[str, Any]:
    return {"url": server.url, "basic.auth.user.info": f"reader:{PASSWORD}", "max.retries": 0}


def rows(spark: SparkSession, *payloads: bytes | None) -> DataFrame:
    """As the source gives them."""
    data = [("flights", 3, offset, payload) for offset, payload in enumerate(payloads)]
    return spark.createDataFrame(data, "topic string, partition int, offset long, value binary").coalesce(1)


def framed(number: int, text: str | bytes) -> bytes:
    return struct.pack(">bI", 0, number) + (text.encode() if isinstance(text, str) else text)


def values(frame: DataFrame) -> list[Any]:
    return [row[0] for row in frame.collect()]


def test_what_confluents_serializer_wrote_is_read_with_the_columns_schema(
    kafka: Cluster, spark: SparkSession, registry: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name)
    client = SchemaRegistryClient(registry)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    departed = dt.datetime(2013, 1, 1, 5, 17, tzinfo=dt.timezone.utc)
    for number, schema in enumerate([FLIGHT, FLIGHT, LATER]):
        flight: dict[str, Any] = {"number": number, "departed": departed, "tags": {"a": "b"}}
        if schema is LATER:
            flight["gate"] = "B7"
        write = AvroSerializer(client, json.dumps(schema))
        producer.produce(topic_name, write(flight, SerializationContext(topic_name, MessageField.VALUE)))
    producer.produce(topic_name, None)
    assert producer.flush(30) == 0
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic_name}
    stream = spark.readStream.format("barrier-kafka").options(**options, startingOffsets="earliest").load()
    flights = stream.select(decode_avro("value", registry, topic=topic_name, position=WHERE).alias("flight"))
    query = flights.writeStream.format("memory").queryName("flights").trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(180)
    found = spark.table("flights").selectExpr(
        "flight.number", "unix_millis(flight.departed)", "flight.tags", "flight.gate"
    )
    millis = int(departed.timestamp() * 1000)
    assert [tuple(row) for row in found.orderBy("number", "gate").collect()] == [
        (None, None, None, None),
        (0, millis, {"a": "b"}, "?"),
        (1, millis, {"a": "b"}, "?"),
        (2, millis, {"a": "b"}, "B7"),
    ]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()


def test_a_bad_avro_record_goes_where_the_mode_says_and_no_plan_or_error_shows_the_password(
    spark: SparkSession, server: RegistryServer, registry: dict[str, Any]
) -> None:
    number = server.register("modes-value", FLIGHT)
    frame = rows(spark, None, framed(number, b"\x02"), b"no")
    column = {mode: decode_avro("value", registry, topic="modes", mode=mode) for mode in ("PERMISSIVE", "ERRORS")}
    assert values(frame.select(column["PERMISSIVE"])) == [None, None, None]
    found = values(frame.select(column["ERRORS"]))
    assert [row.value for row in found] == [None, None, None]
    assert found[0].error is None
    assert found[1].error == (
        f"it is not Avro with schema id {number}, or it can't be converted to the column's schema (EOFError)"
    )
    assert "2 bytes are too few" in found[2].error
    failing = frame.select(decode_avro("value", registry, topic="modes", position=WHERE))
    with pytest.raises(
        Exception, match=r"\[BAD_RECORD\] A record can't be read: the record of flights-3 at offset 1: it is not Avro"
    ) as caught:
        failing.collect()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        failing.explain(True)
    for text in (shown.getvalue(), str(caught.value), repr(column), str(column["ERRORS"])):
        assert PASSWORD not in text
    assert "decode_avro" in shown.getvalue()


def test_json_becomes_columns_and_a_bad_record_goes_where_the_mode_says(
    spark: SparkSession, server: RegistryServer, registry: dict[str, Any]
) -> None:
    number = server.register("orders-value", ORDER, "JSON")
    good = framed(number, '{"id": 1, "lines": ["a", "b"], "unknown": true}')
    short, wrong = framed(number, '{"id": 2}'), framed(number, '{"id": "two"}')
    frame = rows(spark, good, short, None)
    found = values(frame.select(decode_json("value", registry, topic="orders", position=WHERE)))
    assert [row and tuple(row) for row in found] == [(1, ["a", "b"]), (2, None), None]
    ends = (
        '{"id": 1}{"id": 2}',
        '{"id": 1} x',
        '{"id": 1}} x',
        '{"id": 1}]',
        '{"id": 1}, {"id": 2}',
        '{"id": 1}, "x": 2',
    )
    others = ('[{"id": 1}, {"id": 2}]', "[]", "null", " ", "{'id': 1}", b'{"id": 1, "x": "\xff"}')
    lost = rows(spark, *(framed(number, text) for text in (*ends, *others)), framed(number, ' {"id": 3}\n'))
    found = values(lost.select(decode_json("value", registry, topic="orders", mode="PERMISSIVE")))
    assert [row and row.id for row in found] == [*[None] * (len(ends) + len(others)), 3]
    bad = rows(spark, wrong, framed(number, "{"), framed(number, ""), b'{"id": 1}', b"", None, good)
    assert [
        row and row.id for row in values(bad.select(decode_json("value", registry, topic="orders", mode="PERMISSIVE")))
    ] == [
        *[None] * 6,
        1,
    ]
    found = values(bad.select(decode_json("value", registry, topic="orders", mode="ERRORS")))
    told = f"it is not JSON with the column's types (schema id {number})"
    assert [row.error for row in found[:3]] == [told] * 3
    assert "does not begin with byte 0" in found[3].error
    assert "too short" in found[4].error
    assert [(row.value and row.value.id, row.error) for row in found[5:]] == [(None, None), (1, None)]
    with pytest.raises(
        Exception, match=r"\[BAD_RECORD\] A record can't be read: the record of flights-3 at offset 0: it is not JSON"
    ):
        bad.select(decode_json("value", registry, topic="orders", position=WHERE)).collect()
    with pytest.raises(Exception, match="set position= to see which one"):
        bad.select(decode_json("value", registry, topic="orders")).collect()


def test_dead_letters_stand_beside_what_could_be_decoded(
    spark: SparkSession, server: RegistryServer, registry: dict[str, Any]
) -> None:
    number = server.register("letters-value", ORDER, "JSON")
    payloads = (framed(number, '{"id": 1, "lines": ["a"]}'), b"\xffraw bytes", None)
    kept = rows(spark, *payloads).selectExpr("binary('k') AS key", "*")
    decoded = decode_json("value", registry, topic="letters", mode="ERRORS")
    frame, options = dead_letters(kept, decoded, good="orders", bad="dead")
    assert options == {
        "sinks": "orders,dead",
        "routeColumn": "__route",
        "orders.columns": '["id", "lines"]',
        "dead.columns": '{"key": "__key", "value": "__value", "headers": "__headers"}',
    }
    good, bad, empty = frame.collect()
    assert (good.id, good.lines, good["__route"]) == (1, ["a"], "orders")
    assert (bad["__route"], bad["__key"], bad["__value"]) == ("dead", b"k", b"\xffraw bytes")
    assert (empty["__route"], empty["__value"]) == ("dead", None)
    said = [{header.key: bytes(header.value).decode() for header in row["__headers"]} for row in (bad, empty)]
    reasons = [each.pop("__connect.errors.exception.message") for each in said]
    places = [[each[f"__connect.errors.{name}"] for name in WHERE] for each in said]
    assert places == [["flights", "3", "1"], ["flights", "3", "2"]]
    assert "does not begin with byte 0" in reasons[0]
    assert "null" in reasons[1]
    tagged = kept.selectExpr("*", "array(struct('trace' AS key, binary('t') AS value)) AS headers")
    (row,) = dead_letters(tagged.where("offset = 1"), decoded, good="orders", bad="dead")[0].collect()
    assert [header.key for header in row["__headers"]][:2] == ["trace", "__connect.errors.topic"]
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*decoded.*mode=.ERRORS"):
        dead_letters(kept, decode_json("value", registry, topic="letters"), good="orders", bad="dead")


def test_what_is_encoded_is_read_back_and_mistakes_come_before_the_first_row(
    spark: SparkSession, server: RegistryServer, registry: dict[str, Any]
) -> None:
    flights = spark.sql(
        "SELECT id AS number, timestamp_millis(id) AS departed, map('gate', string(id)) AS tags FROM range(3)"
    )
    flight = f.struct("tags", "number", "departed")
    avro = encode_avro(flight, registry, topic="written", schema=FLIGHT)
    again = encode_avro(f.struct("departed", "tags", "number"), registry, topic="written")
    both = flights.select(avro.alias("a"), again.alias("b")).where("a = b")
    read = values(both.select(decode_avro("a", registry, topic="written")))
    assert [(row.number, row.tags) for row in read] == [(number, {"gate": str(number)}) for number in range(3)]
    json_value = encode_json(
        f.struct(f.lit(1).alias("id"), f.array(f.lit("ä")).alias("lines")), registry, topic="w", schema=ORDER
    )
    (found,) = values(spark.range(1).select(json_value.alias("j")).select(decode_json("j", registry, topic="w")))
    assert tuple(found) == (1, ["ä"])
    text = {"type": "string"}
    times = {"type": "object", "properties": {"at": text, "local": text, "day": text}}
    moments = spark.sql(
        "SELECT timestamp_micros(-1) AS at, timestamp_ntz'1969-12-31 23:59:59.999999' AS local, date'9999-12-31' AS day"
    )
    wire = encode_json(f.struct("at", "local", "day"), registry, topic="times", schema=times)
    (found,) = values(moments.select(wire.alias("j")).select(decode_json("j", registry, topic="times")))
    assert dt.datetime.fromisoformat(found.at.replace("Z", "+00:00")).microsecond == 999999
    assert (found.local, found.day) == ("1969-12-31T23:59:59.999999", "9999-12-31")
    number = server.register("elsewhere", ORDER, "JSON")
    with pytest.raises(OptionError, match=rf"UNSUPPORTED_SCHEMA.*{number}.*JSON, not AVRO"):
        encode_avro(flight, registry, schema_id=number)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*schema_id.*424242"):
        encode_avro(flight, registry, schema_id=424242)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*schema_id without a subject or a schema"):
        encode_avro(flight, registry, schema_id=number, topic="written")
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*unheard-value"):
        encode_json("value", registry, topic="unheard")
    with pytest.raises(OptionError, match="UNSUPPORTED_SCHEMA"):
        encode_avro(flight, registry, topic="odd", schema={"type": "no such type"})
    with pytest.raises(Exception, match=r"COLUMNS_MISMATCH.*number: the column does not have this field"):
        flights.select(encode_avro(f.struct("tags", "departed"), registry, topic="written")).collect()
