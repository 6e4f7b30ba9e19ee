"""Avro in the Schema Registry's wire format: a schema's Spark and Arrow types, and the decoder of a column.

fastavro reads each record in C with the schema that the record was written with. It resolves the record to the reader's
schema by Avro's rules; `avro_resolution` handles the cases in which these rules would change a value. Dates and times are
read as numbers; one call then converts a whole Arrow column of them to times.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connector.schema_registry.avro_resolution import (
    HOOKS,
    SchemaResolutionError,
    with_default_values,
    writers_schema,
)
from connector.schema_registry.registry import MAGIC_BYTES, Definition, Registry, UnknownSchemaError, missing_extra
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_HEADER: Final = struct.Struct(">bI")

_TIMES: Final[Mapping[str, tuple[str, str | None]]] = {
    "timestamp-millis": ("ms", "UTC"),
    "timestamp-micros": ("us", "UTC"),
    "local-timestamp-millis": ("ms", None),
    "local-timestamp-micros": ("us", None),
}

MOST_DIGITS: Final = 38
"""Maximum number of digits of a decimal in Spark."""


@dataclass(frozen=True)
class ColumnType:
    """The Spark and Arrow types of a column that holds the values of a schema."""

    spark: DataType
    raw: pa.DataType  # The Arrow type that the decoder makes, with times in the schema's unit.
    final: pa.DataType  # The Arrow type that Spark gets, with times in microseconds.


def column_type(definition: Definition) -> ColumnType:
    """Return the Spark and Arrow types of a column that holds the values of a schema."""
    named: dict[str, Any] = {}
    schema = _parsed(definition, named, times=True)
    return _Walk(named).of(schema, "the schema", ())


def parsed_schema(definition: Definition) -> Any:
    """Parse a schema for fastavro's writer. Dates and times in it become plain integers."""
    return _parsed(definition, {}, times=False)


def named_types(node: Any, into: dict[str, Any]) -> None:
    """Add to `into` all named types that a parsed schema defines or refers to."""
    if isinstance(node, list):
        for branch in node:
            named_types(branch, into)
    elif isinstance(node, dict):
        into.update(node.get("__named_schemas", {}))
        if "name" in node:
            into[node["name"]] = node
        for key in ("type", "items", "values"):
            named_types(node.get(key), into)
        for field in node.get("fields", ()):
            named_types(field["type"], into)


class AvroDecoder:
    """Decodes a column of records. The driver makes the decoder, and tasks use it. A pickled decoder contains no client."""

    def __init__(self, registry: Registry, definition: Definition, type: ColumnType, mode: str) -> None:  # noqa: A002
        self._registry = registry
        self._definition = definition  # The reader's schema.
        self._type = type  # The types of the reader's schema.
        self._mode = mode

    def __call__(self, values: pa.Array, *position: pa.Array) -> pa.Array:
        """Decode one Arrow batch. The mode decides how a record that can't be decoded is handled; see `decode_avro`.

        `position` consists of three columns for errors: the topic, partition and offset of each record.
        """
        import pyarrow as pa

        rows, bad = self._rows(values)
        array = self._array(rows, bad)
        if bad and self._mode == "FAILFAST":
            first = min(bad)
            raise StoreError("BAD_RECORD", reason=f"{_where(first, position)}: {bad[first]}")
        if self._mode != "ERRORS":
            return array
        errors = pa.array([bad.get(index) for index in range(len(values))], pa.string())
        return pa.StructArray.from_arrays([array, errors], ["value", "error"])

    def _rows(self, values: pa.Array) -> tuple[list[Any], dict[int, str]]:
        """Return the decoded records, and the errors of records that can't be decoded, by their indexes."""
        readers = _readers(self._registry, self._definition)
        rows: list[Any] = []
        bad: dict[int, str] = {}
        missing: dict[int, str] = {}
        for index, payload in enumerate(values.to_pylist()):
            row = None
            if payload is not None:
                try:
                    row = readers.read(payload, missing)
                except _BadRecord as problem:
                    bad[index] = str(problem)
            rows.append(row)
        return rows, bad

    def _array(self, rows: list[Any], bad: dict[int, str]) -> pa.Array:
        import pyarrow as pa

        problems = (pa.ArrowException, ValueError, TypeError, OverflowError)
        try:
            return self._build(rows)
        except problems:
            for index, row in enumerate(rows):
                try:
                    self._build([row])
                except problems as problem:  # noqa: PERF203 - looks for the value that failed the whole batch.
                    bad[index] = f"a value is out of its column's range ({type(problem).__name__})"
                    rows[index] = None
            return self._build(rows)

    def _build(self, rows: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        array = pa.array(rows, self._type.raw)
        return array if self._type.raw.equals(self._type.final) else array.cast(self._type.final)


class _BadRecord(Exception):
    """A record can't be decoded. The error text gives the reason, and never shows the record's bytes."""


class _Readers:
    """Decodes records, and caches their writers' schemas.

    Each Python worker process has one such object for each pair of registry and reader's schema.
    """

    def __init__(self, registry: Registry, definition: Definition) -> None:
        self._registry = registry
        self._named: dict[str, Any] = {}
        self._wanted = _parsed(definition, self._named, times=True)
        defaults: dict[str, Any] = {}
        self._reader = with_default_values(_parsed(definition, defaults, times=True), defaults)
        from fastavro import schemaless_reader
        from fastavro.read import LOGICAL_READERS

        LOGICAL_READERS.update(HOOKS)
        self._decode = schemaless_reader  # here, because an import per record would take as long as a short record
        self._schemas: dict[int, tuple[Any, Any]] = {}  # id → the writer's schema, and the reader's if it differs

    def read(self, payload: bytes, missing: dict[int, str]) -> Any:
        """Decode one record. If its schema can't be used, add the schema's id and the reason to `missing`.

        Raise `_BadRecord` if the record can't be decoded.
        """
        if len(payload) < MAGIC_BYTES:
            raise _BadRecord(f"{len(payload)} bytes are too few for the registry's wire format")
        magic, number = _HEADER.unpack_from(payload)
        if magic != 0:
            raise _BadRecord(f"it begins with byte {magic}, not 0: it is not in the registry's wire format")
        if number in missing:
            raise _BadRecord(missing[number])
        if number not in self._schemas:
            self._learn(number, missing)
        writer, reader = self._schemas[number]
        stream = io.BytesIO(payload)
        stream.seek(MAGIC_BYTES)
        try:
            row = self._decode(stream, writer, reader)
        except Exception as problem:  # noqa: BLE001 - fastavro raises EOFError, IndexError, UnicodeDecodeError, ...
            raise _BadRecord(
                f"it is not Avro with schema id {number}, or it can't be converted to the column's schema "
                f"({_reason(problem)})"
            ) from None
        left = len(payload) - stream.tell()
        if left:
            raise _BadRecord(f"{left} bytes are left after a record with schema id {number}")
        return row

    def _learn(self, number: int, missing: dict[int, str]) -> None:
        try:
            definition = self._registry.schema(number)
        except UnknownSchemaError:
            missing[number] = f"the registry does not know its schema id {number}"
            raise _BadRecord(missing[number]) from None
        if definition.kind != "AVRO":
            missing[number] = f"its schema (schema id {number}) is of type {definition.kind}, not AVRO"
            raise _BadRecord(missing[number])
        try:
            named: dict[str, Any] = {}
            writer = _parsed(definition, named, times=True)
            hooked = _for_fastavro(writers_schema(writer, self._wanted, named, self._named))
        except (OptionError, SchemaResolutionError) as problem:
            reason = problem.message if isinstance(problem, OptionError) else str(problem)
            missing[number] = f"its schema (schema id {number}) can't be used: {reason}"
            raise _BadRecord(missing[number]) from None
        # If both schemas are equal, fastavro gets no reader's schema, because resolving costs time.
        self._schemas[number] = hooked, None if writer == self._wanted else self._reader


_READERS: dict[tuple[str, Definition], _Readers] = {}
"""The readers of this process, by registry and reader's schema. Queries may share them, because the schema of an id
never changes."""


def _readers(registry: Registry, definition: Definition) -> _Readers:
    key = (registry.identity, definition)
    if key not in _READERS:
        _READERS[key] = _Readers(registry, definition)
    return _READERS[key]


def _parsed(definition: Definition, named: dict[str, Any], *, times: bool) -> Any:
    """Parse a schema for fastavro, and add its named types to `named`.

    If `times` is false, times become plain integers.
    """
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as problem:
        raise missing_extra(problem) from problem
    try:
        for _, text in definition.references:
            parse_schema(_without_times(_json(text), times), named_schemas=named)
        return parse_schema(_without_times(_json(definition.text), times), named_schemas=named)
    except (SchemaParseException, UnknownType, ValueError, KeyError) as problem:
        raise OptionError("UNSUPPORTED_SCHEMA", reason=f"it can't be read: {_reason(problem)}") from None


def _for_fastavro(schema: Any) -> Any:
    from fastavro import parse_schema

    return parse_schema(schema)


def _json(text: str) -> Any:
    """Parse a schema's text, which may be the bare name of a primitive type."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _without_times(schema: Any, times: bool) -> Any:
    """Return the schema. If `times` is false, leave out all logical types except decimals.

    fastavro then expects dates and times as plain integers.
    """
    if isinstance(schema, list):
        return [_without_times(part, times) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _without_times(value, times) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
    }
    if not times and plain.get("logicalType") != "decimal":
        plain.pop("logicalType", None)
    return plain


class _Walk:
    """Finds the Spark and Arrow types of the column for a parsed Avro schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def of(self, node: Any, path: str, inside: tuple[str, ...]) -> ColumnType:
        if isinstance(node, list):
            return self._union(node, path, inside)
        if isinstance(node, str):
            if node in self._named:
                return self.of(self._named[node], path, inside)
            return _primitive(node, path)
        kind = node["type"]
        if not isinstance(kind, str):
            return self.of(kind, path, inside)
        name = str(node.get("name", ""))
        if kind in ("record", "error"):
            if name in inside:
                raise _unsupported(path, f"of the type {name}, which contains itself")
            return self._record(node, path, (*inside, name))
        return self._other(node, kind, path, inside)

    def _record(self, node: Any, path: str, inside: tuple[str, ...]) -> ColumnType:
        import pyarrow as pa
        from pyspark.sql.types import StructField, StructType

        fields = [
            (field["name"], self.of(field["type"], f"{path}.{field['name']}", inside)) for field in node["fields"]
        ]
        return ColumnType(
            StructType([StructField(name, of.spark) for name, of in fields]),
            pa.struct([(name, of.raw) for name, of in fields]),
            pa.struct([(name, of.final) for name, of in fields]),
        )

    def _union(self, node: list[Any], path: str, inside: tuple[str, ...]) -> ColumnType:
        others = [branch for branch in node if _kind(branch) != "null"]
        if not others:
            return _primitive("null", path)
        if len(others) == 1:
            return self.of(others[0], path, inside)
        kinds = {_kind(branch) for branch in others}
        for wide, narrow in (("long", {"int", "long"}), ("double", {"float", "double"})):
            if kinds == narrow and not any(isinstance(branch, dict) and "logicalType" in branch for branch in others):
                return _primitive(wide, path)
        raise _unsupported(path, f"a union of {', '.join(sorted(map(str, kinds)))}")

    def _other(self, node: Any, kind: str, path: str, inside: tuple[str, ...]) -> ColumnType:
        import pyarrow as pa
        from pyspark.sql import types

        logical = node.get("logicalType")
        if kind == "array":
            item = self.of(node["items"], f"{path}[]", inside)
            return ColumnType(types.ArrayType(item.spark), pa.list_(item.raw), pa.list_(item.final))
        if kind == "map":
            value = self.of(node["values"], f"{path}{{}}", inside)
            return ColumnType(
                types.MapType(types.StringType(), value.spark),
                pa.map_(pa.string(), value.raw),
                pa.map_(pa.string(), value.final),
            )
        if kind == "enum":
            return _primitive("string", path)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision, scale = int(node["precision"]), int(node.get("scale", 0))
            if precision > MOST_DIGITS:
                raise _unsupported(path, f"a decimal of {precision} digits, but Spark allows at most {MOST_DIGITS}")
            exact = pa.decimal128(precision, scale)
            return ColumnType(types.DecimalType(precision, scale), exact, exact)
        if kind == "long" and logical in _TIMES:
            unit, zone = _TIMES[logical]
            spark = types.TimestampType() if zone else types.TimestampNTZType()
            return ColumnType(spark, pa.timestamp(unit, zone), pa.timestamp("us", zone))
        if kind == "int" and logical == "date":
            return ColumnType(types.DateType(), pa.date32(), pa.date32())
        if kind == "fixed":
            return _primitive("bytes", path)
        return _primitive(kind, path)


def _primitive(name: str, path: str) -> ColumnType:
    import pyarrow as pa
    from pyspark.sql import types

    known: dict[str, tuple[DataType, pa.DataType]] = {
        "null": (types.NullType(), pa.null()),
        "boolean": (types.BooleanType(), pa.bool_()),
        "int": (types.IntegerType(), pa.int32()),
        "long": (types.LongType(), pa.int64()),
        "float": (types.FloatType(), pa.float32()),
        "double": (types.DoubleType(), pa.float64()),
        "bytes": (types.BinaryType(), pa.binary()),
        "string": (types.StringType(), pa.string()),
    }
    if name not in known:
        raise _unsupported(path, f"of the type {name}")
    spark, arrow = known[name]
    return ColumnType(spark, arrow, arrow)


def _kind(node: Any) -> Any:
    return node["type"] if isinstance(node, dict) else node


def _unsupported(path: str, what: str) -> OptionError:
    return OptionError("UNSUPPORTED_SCHEMA", reason=f"{path} is {what}; this can't become a column", path=path)


def _where(index: int, position: Sequence[pa.Array]) -> str:
    topic, partition, offset = (column[index].as_py() for column in position)
    if topic is None and offset is None:
        return "a record (set position= to see which one)"
    return f"the record of {topic}-{partition} at offset {offset}"


def _reason(problem: Exception) -> str:
    """Return an error's text if it is about a schema. If it could show a record's content, return only the error's name."""
    name = type(problem).__name__
    return (
        f"{name}: {str(problem)[:300]}"
        if name in ("SchemaParseException", "UnknownType", "SchemaResolutionError")
        else name
    )
