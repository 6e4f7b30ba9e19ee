"""Encodes columns into values in the Schema Registry's wire format: ``encode_avro`` and ``encode_json``.

Call these functions in the driver program. They need the extra ``barrier-kafka[schema-registry]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from connector.schema_registry.columns import subject_name
from connector.schema_registry.registry import Definition, Registry, UnknownSchemaError, wire_header
from transactional.errors import OptionError, RowRefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column

_ALL_DIGITS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of ``to_json`` that keep microseconds; Spark's default formats cut them off."""


def encode_avro(
    column: Column | str,
    registry: Mapping[str, Any],
    *,
    topic: str | None = None,
    record: str | None = None,
    subject: str | None = None,
    key: bool = False,
    version: int | Literal["latest"] = "latest",
    schema: str | Mapping[str, Any] | None = None,
    schema_id: int | None = None,
) -> Column:
    """Encode a column as Avro in the Schema Registry's wire format, with one schema for all rows.

    Choose the schema in one of three ways: a `version` of the subject, a `schema_id`, or a `schema`, which is registered under
    the subject if it is new. The driver contacts the registry when you call this function; tasks never do.

    The column must have exactly the fields of the schema, by name and in any order. Values are never changed: an ``int``
    becomes a ``long``, but not a ``double``, and a timestamp with microseconds does not become a ``timestamp-millis``.

    Parameters
    ----------
    column : Column or str
        Usually a struct, such as ``struct("id", "amount")``.
    registry : Mapping[str, Any]
        The settings of the registry's client; see `decode_avro`.
    topic, record, subject, key
        The parts of the subject's name; see `decode_avro`.
    version : int or "latest"
        The version of the subject.
    schema : str or Mapping[str, Any], optional
        An Avro schema to register.
    schema_id : int, optional
        The id of a schema in the registry. If you give it, give no subject and no schema.

    Returns
    -------
    Column
        The encoded values, binary; null where `column` is null.

    Raises
    ------
    OptionError
        ``UNSUPPORTED_SCHEMA``, ``INVALID_OPTION``, ``MISSING_OPTION``.
    StoreError
        ``REGISTRY_UNREACHABLE``, ``REGISTRY_REFUSED`` (for example, an incompatible schema).
    RowRefusedError
        In a task: ``COLUMNS_MISMATCH`` before the first row, or ``ROW_NOT_ENCODED``, which names the field.
    ImportError
        The extra ``barrier-kafka[schema-registry]`` is not installed.

    Examples
    --------
    >>> value = encode_avro(struct("id", "amount"), registry, topic="orders")
    >>> orders.select("key", value.alias("value")).writeStream.format("2pc-kafka")
    """
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import BinaryType

    from connector.schema_registry.avro_encoder import AvroEncoder

    choice = _Choice(topic, record, subject, key, version, schema, schema_id)
    encoder = AvroEncoder(choice.definition(Registry(registry), "AVRO"))

    def encode_avro(value: Any) -> Any:
        return encoder(value)

    encode_avro.__annotations__ = {"value": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    encode: Callable[..., Column] = make(encode_avro, BinaryType())
    return encode(column)


def encode_json(
    column: Column | str,
    registry: Mapping[str, Any],
    *,
    topic: str | None = None,
    record: str | None = None,
    subject: str | None = None,
    key: bool = False,
    version: int | Literal["latest"] = "latest",
    schema: str | Mapping[str, Any] | None = None,
    schema_id: int | None = None,
) -> Column:
    """Encode a column as JSON in the Schema Registry's wire format, with the id of a JSON Schema.

    Parameters, result and errors are those of `encode_avro`. Spark's ``to_json`` encodes the rows in the JVM: it omits
    null fields and writes times with microseconds. A row with text that is not UTF-8 fails (``ROW_NOT_ENCODED``).
    Values are not validated against the schema, which is also the default of Confluent's serializer. The schema must be
    one that `decode_json` can read.
    """
    from pyspark.sql import functions as f

    from connector.schema_registry.json_values import json_type

    choice = _Choice(topic, record, subject, key, version, schema, schema_id)
    definition = choice.definition(Registry(registry), "JSON")
    json_type(definition)
    value = f.col(column) if isinstance(column, str) else column
    text = f.to_json(value, _ALL_DIGITS)
    is_changed = text.contains("\ufffd") & ~f.is_valid_utf8(value.cast("string"))  # Spark writes U+FFFD for other bytes
    refusal = RowRefusedError("ROW_NOT_ENCODED", schema=definition.id, reason="a string in the row is not UTF-8")
    encoded = f.concat(f.lit(wire_header(definition.id)), text.cast("binary"))
    return f.when(is_changed, f.raise_error(f.lit(str(refusal)))).otherwise(encoded)


@dataclass(frozen=True)
class _Choice:
    """The arguments that choose a schema; see `encode_avro`."""

    topic: str | None
    record: str | None
    subject: str | None
    key: bool
    version: int | str
    schema: str | Mapping[str, Any] | None
    schema_id: int | None

    def definition(self, registry: Registry, kind: str) -> Definition:
        """Return the chosen schema from the registry; register it first if it is new.

        Raise if it is not of this `kind`.
        """
        if self.schema_id is not None:
            return self._by_id(registry, self.schema_id, kind)
        name = self.subject or subject_name(self.topic, self.record, key=self.key)
        if self.schema is None:
            return registry.subject(name, self.version, kind)
        return registry.register(name, self.schema if isinstance(self.schema, str) else json.dumps(self.schema), kind)

    def _by_id(self, registry: Registry, schema_id: int, kind: str) -> Definition:
        if self.topic or self.record or self.subject or self.schema is not None:
            raise self._invalid("schema_id without a subject or a schema: the id alone names the schema")
        try:
            definition = registry.schema(schema_id)
        except UnknownSchemaError:
            raise self._invalid(f"the id of a schema that exists at {registry.url}") from None
        if definition.kind != kind:
            reason = f"schema {schema_id} at {registry.url} is of type {definition.kind}, not {kind}"
            raise OptionError("UNSUPPORTED_SCHEMA", reason=reason, found=definition.kind)
        return definition

    def _invalid(self, expected: str) -> OptionError:
        named = {"owner": "The registry's encoder", "option": "schema_id", "value": self.schema_id}
        return OptionError("INVALID_OPTION", **named, expectation=expected)
