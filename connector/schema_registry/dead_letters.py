"""Puts decoded rows and rows that can't be decoded into one frame, for two sinks of ``2pc-multi``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from transactional.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROUTE, KEY, VALUE, HEADERS = "__route", "__key", "__value", "__headers"

NO_RECORD = "the record's value is null"


def dead_letters(rows: DataFrame, decoded: Column, *, good: str, bad: str) -> tuple[DataFrame, dict[str, str]]:
    """Split rows into decoded rows and dead letters, for two sinks of ``2pc-multi``. Call this in the driver program.

    A dead letter is a row for ``2pc-kafka`` with the unchanged key and value of a bad record. Headers name
    the record's origin and the error, as in Kafka Connect: ``__connect.errors.topic``, ``.partition``, ``.offset`` and
    ``.exception.message``. If `rows` has headers, the record's own headers come first. A record without a value is also a
    dead letter.

    Parameters
    ----------
    rows : DataFrame
        Rows from ``barrier-kafka``, with the columns ``key``, ``value``, ``topic``, ``partition`` and ``offset``.
    decoded : Column
        The result of `decode_avro` or `decode_json` in mode ERRORS: ``struct<value, error>``. ``error`` is null if the record
        is good; ``value`` is a struct.
    good, bad : str
        Your names for the sink of decoded rows and for the sink of dead letters.

    Returns
    -------
    DataFrame
        The frame for ``writeStream.format("2pc-multi")``.
    dict[str, str]
        The options that this frame needs: ``sinks``, ``routeColumn``, and the columns of both sinks.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: `decoded` has a different type.

    Examples
    --------
    >>> flight = decode_avro("value", registry, topic="flights", mode="ERRORS")
    >>> frame, options = dead_letters(rows, flight, good="flights", bad="dead")
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    spread = rows.withColumn("__decoded", decoded)
    kind = spread.schema["__decoded"].dataType
    if not (isinstance(kind, StructType) and kind.names == ["value", "error"]):
        raise _not_decoded(kind.simpleString())
    record = kind["value"].dataType
    if not isinstance(record, StructType):
        raise _not_decoded(kind.simpleString())
    error = f.coalesce(
        f.when(f.col("value").isNull(), f.lit(NO_RECORD)),
        f.col("__decoded.error"),
        f.when(f.col("__decoded.value").isNull(), f.lit("it was decoded to null")),
    )

    def header(name: str, value: Column) -> Column:
        return f.struct(
            f.lit(f"__connect.errors.{name}").alias("key"), value.cast("string").cast("binary").alias("value")
        )

    headers = f.array(
        *(header(name, f.col(name)) for name in ("topic", "partition", "offset")), header("exception.message", error)
    )
    if "headers" in rows.columns:
        headers = f.concat(f.coalesce(f.col("headers"), f.array().cast(rows.schema["headers"].dataType)), headers)
    frame = spread.select(
        *(f.col("__decoded.value").getField(name).alias(name) for name in record.names),
        f.when(error.isNull(), f.lit(good)).otherwise(f.lit(bad)).alias(ROUTE),
        f.col("key").alias(KEY),
        f.col("value").alias(VALUE),
        headers.alias(HEADERS),
    )
    return frame, {
        "sinks": f"{good},{bad}",
        "routeColumn": ROUTE,
        f"{good}.columns": json.dumps(record.names),
        f"{bad}.columns": json.dumps({"key": KEY, "value": VALUE, "headers": HEADERS}),
    }


def _not_decoded(found: str) -> OptionError:
    expected = 'struct<value:struct<...>,error:string>, as decode_avro(..., mode="ERRORS") returns it'
    return OptionError("INVALID_OPTION", owner="dead_letters", option="decoded", value=found, expectation=expected)
