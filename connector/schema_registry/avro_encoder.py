"""Encodes columns as Avro in the Schema Registry's wire format."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from connector.schema_registry.avro_values import column_type, named_types, parsed_schema
from connector.schema_registry.registry import Definition, wire_header
from transactional.errors import RowRefusedError

if TYPE_CHECKING:
    import pyarrow as pa


class AvroEncoder:
    """Encodes a column of records with one schema. The driver makes the encoder, and tasks use it.

    Raises
    ------
    OptionError
        ``UNSUPPORTED_SCHEMA``: no column can hold a field of the schema. The error names the field.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition  # The schema, with its id in the registry.
        self._type = column_type(definition).raw
        self._schema: Any = None
        self._named: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_schema": None}

    def __call__(self, values: pa.Array) -> pa.Array:
        """Encode one Arrow batch; null stays null. Raise if a value does not fit the schema exactly."""
        import pyarrow as pa

        target = _target(values.type, self._type, "the column")
        numbers = _numbers(target)
        try:
            exact = values.cast(target).cast(numbers)
        except pa.ArrowInvalid:
            raise self._refused("a time or a decimal has digits that the schema does not keep") from None
        if self._schema is None:
            self._schema = parsed_schema(self._definition)
            self._named = {}
            named_types(self._schema, self._named)
        if null := self._null(
            exact.drop_null(), self._schema, "the column"
        ):  # fastavro would write false, or a default
            raise self._refused(f"{null} is null, which the schema does not allow")
        try:
            rows = exact.to_pylist()
        except UnicodeDecodeError:
            raise self._refused("a string is not UTF-8") from None
        return pa.array(self._encoded(rows, _plain(numbers)), pa.binary())

    def _null(self, values: pa.Array, node: Any, path: str) -> str | None:
        """Return the path of a null that the schema does not allow; None if there is none.

        `values` itself has no nulls, but its fields and elements may have some. `node` is its type in the schema.
        """
        found = self._named.get(node, node) if isinstance(node, str) else node
        if isinstance(found, list):
            found = next((branch for branch in found if branch != "null"), "null")
            return self._null(values, found, path) if isinstance(found, (dict, str)) else None
        if not isinstance(found, dict) or not len(values):
            return None
        kind = found["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self._null(values, kind, path)
        for each, of, where in _inside(values, found, path):
            if each.null_count and not self._nullable(of):
                return where
            if deeper := self._null(each.drop_null(), of, where):
                return deeper
        return None

    def _nullable(self, node: Any) -> bool:
        if isinstance(node, list):
            return any(self._nullable(branch) for branch in node)
        if isinstance(node, dict) and not isinstance(node["type"], str):
            return self._nullable(node["type"])
        return bool((node["type"] if isinstance(node, dict) else node) == "null")

    def _encoded(self, rows: list[Any], plain: Callable[[Any], Any]) -> list[bytes | None]:
        from fastavro import schemaless_writer

        header = wire_header(self._definition.id)
        found: list[bytes | None] = []
        for row in rows:
            if row is None:
                found.append(None)
                continue
            out = io.BytesIO()
            out.write(header)
            try:
                record = plain(row)
            except ValueError as problem:
                raise self._refused(str(problem)) from None
            try:
                schemaless_writer(out, self._schema, record)
            except Exception:  # noqa: BLE001 - fastavro's text could show the row; the field's name is enough
                raise self._refused(f"{self._culprit(record)} does not fit the schema") from None
            found.append(out.getvalue())
        return found

    def _culprit(self, record: Any) -> str:
        from fastavro.validation import ValidationError, validate

        try:
            validate(record, self._schema)
        except ValidationError as problem:
            named = [each.field for each in problem.errors if getattr(each, "field", None)]
            return f"field {named[0]}" if named else "a value"
        except Exception:  # noqa: BLE001 - as above
            return "a value"
        return "a value"

    def _refused(self, reason: str) -> RowRefusedError:
        return RowRefusedError("ROW_NOT_ENCODED", schema=self._definition.id, reason=reason)


def _inside(values: pa.Array, node: Mapping[str, Any], path: str) -> list[tuple[pa.Array, Any, str]]:
    """Return the columns directly inside a column of records, arrays or maps.

    Each comes with its type in the schema and its path.
    """
    if node["type"] in ("record", "error"):
        places = {field.name: at for at, field in enumerate(values.type)}
        flat = values.flatten()
        return [(flat[places[field["name"]]], field["type"], f"{path}.{field['name']}") for field in node["fields"]]
    if node["type"] == "array":
        return [(values.flatten(), node["items"], f"{path}[]")]
    if node["type"] == "map":
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return [(values.items[first:last], node["values"], f"{path}{{}}")]
    return []


def _target(found: pa.DataType, wanted: pa.DataType, path: str) -> pa.DataType:
    """Return the schema's type `wanted`, with its fields in the order of the column's type `found`.

    A cast to this type keeps every value or fails. Raise if there is no such cast; `path` names the column in the
    error.
    """
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_struct(found) and t.is_struct(wanted):
        names = _same_fields(found, wanted, path)
        fields = ((name, found.field(name).type, wanted.field(name).type) for name in names)
        return pa.struct([(name, _target(of, into, f"{path}.{name}")) for name, of, into in fields])
    if (t.is_list(found) or t.is_large_list(found)) and t.is_list(wanted):
        return pa.list_(_target(found.value_type, wanted.value_type, f"{path}[]"))
    if t.is_map(found) and t.is_map(wanted) and t.is_string(found.key_type):
        return pa.map_(pa.string(), _target(found.item_type, wanted.item_type, f"{path}{{}}"))
    if not any(are(found) and are(wanted) and fits(found, wanted) for are, fits in _alike()):
        raise _differs(path, f"it is {found} in the column, but {wanted} in the schema")
    return wanted


def _same_fields(found: pa.DataType, wanted: pa.DataType, path: str) -> list[str]:
    """Check that two structs have the same fields, in any order. Return their names, in the order of `found`."""
    there, asked = [field.name for field in found], [field.name for field in wanted]
    if len({*there}) != len(there):
        raise _differs(path, "two fields have the same name")
    for names, others, whose in ((asked, there, "the column"), (there, asked, "the schema")):
        missing = [name for name in names if name not in others]
        if missing:
            raise _differs(f"{path}.{missing[0]}", f"{whose} does not have this field")
    return there


def _numbers(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers instead of dates and timestamps, because Python's end with the year 9999."""
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_struct(kind):
        return pa.struct([(field.name, _numbers(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(_numbers(kind.value_type))
    if t.is_map(kind):
        return pa.map_(pa.string(), _numbers(kind.item_type))
    return pa.int64() if t.is_timestamp(kind) else pa.int32() if t.is_date(kind) else kind


def _alike() -> list[tuple[Callable[[Any], bool], Callable[[Any, Any], bool]]]:
    """Return two tests for each kind of type.

    The first test is true for a type of this kind. The second is true for two such types if a cast keeps every value or
    fails.
    """
    from pyarrow import types as t

    def text(kind: Any) -> bool:
        return bool(t.is_string(kind) or t.is_large_string(kind))

    def octets(kind: Any) -> bool:
        return bool(t.is_binary(kind) or t.is_large_binary(kind))

    return [
        (t.is_signed_integer, lambda found, wanted: found.bit_width <= wanted.bit_width),
        (t.is_floating, lambda found, wanted: found.bit_width <= wanted.bit_width),
        (t.is_timestamp, lambda found, wanted: (found.tz is None) == (wanted.tz is None)),
        *(
            (are, lambda found, wanted: True)
            for are in (text, octets, t.is_decimal, t.is_boolean, t.is_date, t.is_null)
        ),
    ]


def _differs(path: str, reason: str) -> RowRefusedError:
    return RowRefusedError("COLUMNS_MISMATCH", owner="encode_avro", reason=f"{path}: {reason}")


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts the maps in a value of this type to dicts.

    Arrow returns maps as lists of pairs.
    """
    from pyarrow import types as t

    if not _has_map(kind):
        return lambda value: value
    if t.is_struct(kind):
        parts: Mapping[str, Callable[[Any], Any]] = {field.name: _plain(field.type) for field in kind}
        return lambda value: None if value is None else {name: part(value[name]) for name, part in parts.items()}
    if t.is_list(kind):
        item = _plain(kind.value_type)
        return lambda value: None if value is None else [item(each) for each in value]
    of = _plain(kind.item_type)

    def pairs(value: Any) -> Any:
        if value is None:
            return None
        found = {key: of(each) for key, each in value}
        if len(found) != len(value):
            raise ValueError("a map has the same key twice")
        return found

    return pairs


def _has_map(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    return t.is_map(kind) or any(_has_map(kind.field(at).type) for at in range(kind.num_fields))
