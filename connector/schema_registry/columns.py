"""Decodes values in the Schema Registry's wire format into columns: ``decode_avro`` and ``decode_json``.

Call these functions in the driver program. They need the extra ``barrier-kafka[schema-registry]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from connector.schema_registry.registry import MAGIC_BYTES, Registry
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import Column

Mode = Literal["FAILFAST", "PERMISSIVE", "ERRORS"]

MODES: Final = ("FAILFAST", "PERMISSIVE", "ERRORS")

_CORRUPT: Final = "__barrier_kafka_corrupt"
_RECORD: Final = "__barrier_kafka_record"
_END: Final = "__barrier_kafka_end"

_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = r"\\u[dD][89a-fA-F]"
_STRICT: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}


def subject_name(topic: str | None = None, record: str | None = None, *, key: bool = False) -> str:
    """Return the name that the registry's naming strategies give to the subject of a topic, a record name, or both.

    If `key` is true and only `topic` is given, return the name for the topic's keys.
    """
    if topic and record:
        return f"{topic}-{record}"
    if topic:
        return f"{topic}-{'key' if key else 'value'}"
    if record:
        return record
    raise OptionError(
        "MISSING_OPTION",
        owner="The registry's decoder",
        option="topic=",
        reason="set topic=, record= or both to name the subject, or set subject=",
    )


def decode_avro(
    column: Column | str,
    registry: Mapping[str, Any],
    *,
    topic: str | None = None,
    record: str | None = None,
    subject: str | None = None,
    key: bool = False,
    version: int | Literal["latest"] = "latest",
    mode: Literal["FAILFAST", "PERMISSIVE", "ERRORS"] = "FAILFAST",
    position: Sequence[Column | str] | None = None,
) -> Column:
    """Decode Avro records in the Schema Registry's wire format into a column that has the schema of a subject.

    The driver gets the subject's schema from the registry when you call this function; a running query keeps this schema.
    Executors fetch each writer's schema once, and convert every record to the column's schema by Avro's rules.

    Parameters
    ----------
    column : Column or str
        A binary column, such as ``value`` or ``key``.
    registry : Mapping[str, Any]
        Settings of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``, ``ssl.ca.location``, ...
    topic, record : str, optional
        The parts of the subject's name: `topic` alone gives ``<topic>-value``, `record` alone ``<record>``, both
        ``<topic>-<record>``.
    key : bool
        With `topic` alone: True for the subject ``<topic>-key``.
    subject : str, optional
        The full name of the subject, instead of `topic` and `record`.
    version : int or "latest"
        The version of the subject.
    mode : {"FAILFAST", "PERMISSIVE", "ERRORS"}
        How to handle a record that can't be decoded. FAILFAST fails the query; the error names the record if `position` is
        given. PERMISSIVE returns null. ERRORS makes the column ``struct<value, error>``, with the reason in ``error``.
    position : Sequence[Column or str], optional
        The columns with the topic, partition and offset of a record: ``("topic", "partition", "offset")``.

    Returns
    -------
    Column
        The decoded values; null where `column` is null.

    Raises
    ------
    OptionError
        ``UNSUPPORTED_SCHEMA``, ``INVALID_OPTION``, ``MISSING_OPTION``.
    StoreError
        ``REGISTRY_UNREACHABLE``, ``REGISTRY_REFUSED``: in this call, or in a task, in any mode. ``BAD_RECORD``: in a task, with
        FAILFAST.
    ImportError
        The extra ``barrier-kafka[schema-registry]`` is not installed.

    Examples
    --------
    >>> registry = {"url": "http://registry:8081"}
    >>> flights = rows.select(decode_avro("value", registry, topic="flights").alias("flight")).select("flight.*")
    """
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StringType, StructField, StructType

    from connector.schema_registry.avro_values import AvroDecoder, column_type

    _check_mode(mode)
    asked = Registry(registry)
    definition = asked.subject(subject or subject_name(topic, record, key=key), version, "AVRO")
    types = column_type(definition)
    spark = types.spark
    if mode == "ERRORS":
        spark = StructType([StructField("value", spark), StructField("error", StringType())])
    make: Any = arrow_udf  # PySpark's stubs do not know that arrow_udf takes a struct.
    decode: Callable[..., Column] = make(_as_function(AvroDecoder(asked, definition, types, mode)), spark)
    return decode(column, *_position(position))


def decode_json(
    column: Column | str,
    registry: Mapping[str, Any],
    *,
    topic: str | None = None,
    record: str | None = None,
    subject: str | None = None,
    key: bool = False,
    version: int | Literal["latest"] = "latest",
    mode: Literal["FAILFAST", "PERMISSIVE", "ERRORS"] = "FAILFAST",
    position: Sequence[Column | str] | None = None,
) -> Column:
    """Decode JSON records in the Schema Registry's wire format into a column that has the JSON Schema of a subject.

    Parameters, result and errors are those of `decode_avro`. Spark's ``from_json`` decodes the records, so only the driver
    needs the registry. A record is bad if it is not in the wire format, is not JSON, or has a value of a wrong type. Other
    rules of the schema (required, ranges, patterns) are not checked. Unknown fields are dropped, and missing fields are null.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

    from connector.schema_registry.json_values import json_type

    _check_mode(mode)
    definition = Registry(registry).subject(subject or subject_name(topic, record, key=key), version, "JSON")
    wanted = json_type(definition)
    # The record is put into another object, before its last field. Alone, from_json would stop after one value and ignore all
    # text after it, even a second record.
    spied = StructType(
        [
            StructField(_RECORD, ArrayType(wanted)),
            StructField(_END, BooleanType()),
            StructField(_CORRUPT, StringType()),
        ]
    )
    payload = f.col(column) if isinstance(column, str) else column
    number = f.conv(f.hex(f.substring(payload, 2, MAGIC_BYTES - 1)), 16, 10)
    text = f.substring(payload, MAGIC_BYTES + 1, 2**31 - 1).cast("string")
    wrapped = f.concat(f.lit(f'{{"{_RECORD}":['), text, f.lit(f'],"{_END}":true}}'))
    parsed = f.from_json(wrapped, spied, _STRICT)
    decoded = f.get(parsed[_RECORD], f.lit(0))
    is_one = parsed[_END].isNotNull() & parsed[_CORRUPT].isNull() & decoded.isNotNull() & (f.size(parsed[_RECORD]) == 1)
    # Jackson turns half of a surrogate pair into "?".
    paired = f.regexp_replace(f.regexp_replace(text, r"\\\\", "x"), rf"{_HIGH}{_LOW}", "x")
    is_half = text.rlike(_HALF) & paired.rlike(_HALF)
    reason = (
        f.when(f.octet_length(payload) < MAGIC_BYTES, f.lit("it is too short for the registry's wire format"))
        .when(
            f.substring(payload, 1, 1) != f.lit(b"\0"),
            f.lit("it does not begin with byte 0: it is not in the registry's wire format"),
        )
        .when(
            ~is_one | ~f.is_valid_utf8(text) | is_half,
            f.concat(f.lit("it is not JSON with the column's types (schema id "), number, f.lit(")")),
        )
    )
    value = f.when(payload.isNotNull() & reason.isNull(), decoded)
    if mode == "PERMISSIVE":
        return value
    if mode == "ERRORS":
        return f.struct(value.alias("value"), reason.alias("error"))
    if position is None:
        where = f.lit("a record (set position= to see which one)")
    else:
        at_topic, partition, offset = _position(position)
        where = f.concat(
            f.lit("the record of "),
            f.coalesce(at_topic, f.lit("?")),
            f.lit("-"),
            f.coalesce(partition.cast("string"), f.lit("?")),
            f.lit(" at offset "),
            f.coalesce(offset.cast("string"), f.lit("?")),
        )
    before, after = str(StoreError("BAD_RECORD", reason="\n")).split("\n")
    failure = f.raise_error(f.concat(f.lit(before), where, f.lit(": "), reason, f.lit(after)))
    return f.when(reason.isNotNull(), failure).otherwise(value)


def _as_function(decoder: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a decoder, with the annotations by which PySpark recognizes an Arrow function."""
    import pyarrow as pa

    def decode_avro(value: Any, topic: Any, partition: Any, offset: Any) -> Any:
        return decoder(value, topic, partition, offset)

    names = ("value", "topic", "partition", "offset", "return")
    decode_avro.__annotations__ = dict.fromkeys(names, pa.Array)
    return decode_avro


def _position(position: Sequence[Column | str] | None) -> tuple[Column, Column, Column]:
    from pyspark.sql import functions

    if position is None:
        return (
            functions.lit(None).cast("string"),
            functions.lit(None).cast("int"),
            functions.lit(None).cast("long"),
        )
    if isinstance(position, str) or len(position) != 3:
        raise OptionError(
            "INVALID_OPTION",
            owner="decode_avro",
            option="position",
            value=str(position),
            expectation="three columns: topic, partition and offset",
        )
    topic, partition, offset = (functions.col(column) if isinstance(column, str) else column for column in position)
    return topic, partition, offset


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise OptionError(
            "INVALID_OPTION",
            owner="decode_avro",
            option="mode",
            value=mode,
            expectation=f"{', '.join(MODES[:-1])} or {MODES[-1]}",
        )
