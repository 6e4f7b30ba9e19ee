"""Wrong options and columns of the Kafka sink are refused where it is built, before a broker is asked."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from connector.kafka.sink.kafka_sink import KafkaSink
from transactional.errors import OptionError
from transactional.sink import Options

VALUE = pa.schema([("value", pa.string())])
RIGHT = {"kafka.bootstrap.servers": "b:9092", "topic": "t", "transactionalIdPrefix": "p"}


def build(changed: Mapping[str, str | None], schema: pa.Schema = VALUE) -> KafkaSink:
    given = {key: text for key, text in {**RIGHT, **changed}.items() if text is not None}
    return KafkaSink(Options(given), schema)


def test_what_is_right_is_taken() -> None:
    build({}).close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kafka.bootstrap.servers": None}, r"MISSING_OPTION.*kafka\.bootstrap\.servers.*host:port"),
        ({"topic": None}, r"MISSING_OPTION.*option topic.*column topic"),
        ({"transactionIdPrefix": "x"}, "UNKNOWN_OPTION.*transactionidprefix.*did you mean transactionalIdPrefix"),
        ({"deliveryGuarantee": "most"}, "INVALID_OPTION.*deliveryGuarantee.*exactly-once or at-least-once"),
        ({"kafka.transactional.id": "x"}, r"FORBIDDEN_OPTION.*kafka\.transactional\.id.*transactionalIdPrefix"),
        ({"kafka.enable.auto.commit": "true"}, r"FORBIDDEN_OPTION.*kafka\.enable\.auto\.commit.*reads nothing"),
        ({"kafka.enable.idempotence": "false"}, r"FORBIDDEN_OPTION.*kafka\.enable\.idempotence.*need true"),
        ({"kafka.acks": "1"}, r"FORBIDDEN_OPTION.*kafka\.acks.*need all"),
        ({"kafka.key.serializer": "x"}, r"FORBIDDEN_OPTION.*kafka\.key\.serializer.*cast or parse"),
        ({"kafka.message.timeout.ms": "1"}, r"FORBIDDEN_OPTION.*message\.timeout\.ms.*transaction\.timeout"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, str | None], told: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){told}"):
        build(wrong)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"key": pa.string()}, "COLUMNS_MISMATCH.*column value is missing.*the query has key.*to_json"),
        ({"value": pa.string(), "number": pa.int64()}, "COLUMNS_MISMATCH.*number.*drop"),
        ({"key": pa.string(), "value": pa.int64()}, "COLUMNS_MISMATCH.*value is int64.*string or binary.*cast"),
        ({"value": pa.string(), "key": pa.float64()}, "COLUMNS_MISMATCH.*key is double.*string or binary.*cast"),
        ({"value": pa.string(), "partition": pa.string()}, "COLUMNS_MISMATCH.*partition is string.*int.*cast"),
        (
            {"value": pa.string(), "headers": pa.list_(pa.string())},
            "COLUMNS_MISMATCH.*headers is list.*array<struct.*cast",
        ),
        ({"value": pa.string(), "topic": pa.int64()}, "COLUMNS_MISMATCH.*topic is int64.*must be string.*cast"),
    ],
    ids=lambda given: ",".join(given) if isinstance(given, dict) else "",
)
def test_wrong_columns_are_refused_by_name(columns: dict[str, pa.DataType], told: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){told}"):
        build({}, pa.schema(list(columns.items())))
