"""Resolves a record's schema to the reader's schema, so that no value changes silently.

fastavro follows Avro's rules, which ignore the reader's logical types. Avro's Java library, for example, follows the same
rules, and reads a time in milliseconds as if it were in microseconds. So each pair of types in which a value could change
gets a *hook*: a function that converts the value exactly, or rejects the record. To make fastavro call the hook with each
value, the copy of the writer's schema gets a logical type whose reader function is the hook.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import MAX_PREC, Context, Decimal
from typing import Any, Final

_EXACT: Final = Context(prec=MAX_PREC)

_NAMED: Final = ("record", "error", "enum", "fixed")

_TIMES: Final[Mapping[tuple[str, str], tuple[str, int]]] = {
    ("int", "date"): ("date", 1),
    ("int", "time-millis"): ("time", 10**3),
    ("long", "time-micros"): ("time", 10**6),
    **{
        ("long", f"{family}-{unit}"): (family, per_second)
        for family in ("timestamp", "local-timestamp")
        for unit, per_second in (("millis", 10**3), ("micros", 10**6), ("nanos", 10**9))
    },
}
"""Type and logical type of a time → the kind of time, and its units per second (for ``date``, per day)."""


class SchemaResolutionError(Exception):
    """The reader's type can't hold a value exactly. The error text names only the schemas' types, never the value."""


def writers_schema(writer: Any, reader: Any, written: Mapping[str, Any], read: Mapping[str, Any]) -> Any:
    """Return the writer's schema for fastavro, with hooks that convert values to the reader's types.

    `written` and `read` are the named types of the two schemas.
    """
    return _Pairs(written, read).of(writer, reader, "the record")


def with_default_values(schema: Any, named: Mapping[str, Any]) -> Any:
    """Convert each default of a parsed schema from JSON to its Avro value, in place.

    For example, JSON writes bytes and decimals as strings. `named` contains the schema's named types. A default that does
    not fit its field's type is removed. A record that needs this default then counts as bad.
    """
    for each in [schema, *named.values()]:
        _set_defaults(each, named)
    return schema


def _set_defaults(node: Any, named: Mapping[str, Any]) -> None:
    if isinstance(node, list):
        for branch in node:
            _set_defaults(branch, named)
    elif isinstance(node, dict):
        for key in ("type", "items", "values"):
            _set_defaults(node.get(key), named)
        for each in node.get("fields", ()):
            _set_defaults(each["type"], named)
            if "default" in each and not isinstance(each["default"], _Value):
                try:
                    each["default"] = _Value.of(_default(each["type"], each["default"], named))
                except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
                    del each["default"]


class _Value:
    """Marks a default that is already converted. Schemas can share a named type, so a default may be visited twice."""

    @staticmethod
    def of(value: Any) -> Any:
        kind = _MARKED.get(type(value))
        return kind(value) if kind else value


class _Bytes(bytes, _Value):
    pass


class _Decimal(Decimal, _Value):
    pass


class _List(list[Any], _Value):
    pass


class _Dict(dict[str, Any], _Value):
    pass


_MARKED: Final[Mapping[type, Callable[[Any], Any]]] = {bytes: _Bytes, Decimal: _Decimal, list: _List, dict: _Dict}


def _default(node: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """Return the Avro value for a default that is written in JSON. `node` is the type of the default's field."""
    if isinstance(value, _Value):
        return value
    if isinstance(node, list):
        return _default_of_union(node, value, named)
    node = named.get(node, node) if isinstance(node, str) else node
    kind = _kind(node)
    if isinstance(kind, (list, dict)):
        return _default(kind, value, named)
    if kind in ("bytes", "fixed"):
        return _default_bytes(node, value)
    if kind == "array":
        return [_default(node["items"], each, named) for each in value]
    if kind == "map":
        return {key: _default(node["values"], each, named) for key, each in value.items()}
    if kind in ("record", "error"):
        return {
            each["name"]: _default(each["type"], value.get(each["name"], each.get("default", _ABSENT)), named)
            for each in node["fields"]
        }
    if kind in ("float", "double"):
        return _default_float(value, kind)
    if type(value) is not _IN_JSON[kind] or (kind == "enum" and value not in node["symbols"]):
        raise ValueError
    return value


def _default_of_union(branches: Sequence[Any], value: Any, named: Mapping[str, Any]) -> Any:
    for branch in branches:
        try:
            return _default(branch, value, named)
        except (ValueError, TypeError, KeyError, AttributeError):  # noqa: PERF203 - the next branch may fit
            continue
    raise ValueError


def _default_float(value: Any, kind: str) -> float:
    if isinstance(value, (bool, str)) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError
    return _as_float(value, kind) if isinstance(value, int) else float(value)


def _default_bytes(node: Any, value: str) -> bytes | Decimal:
    raw = value.encode("latin-1")
    if _kind(node) == "fixed" and len(raw) != node["size"]:
        raise ValueError
    return _decimal(raw, node) if _is_decimal(node) else raw


_ABSENT: Final = object()

_IN_JSON: Final[Mapping[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "string": str,
    "enum": str,
}
"""Avro type → the Python type of a default of this type, as read from JSON."""


@dataclass
class _Pairs:
    written: Mapping[str, Any]
    read: Mapping[str, Any]
    met: dict[str, str | None] = field(default_factory=dict)
    """Name of a type in the copy of the writer's schema → name of the reader's type for it; None if there is none."""

    def of(self, writer: Any, reader: Any, path: str) -> Any:
        """Return a copy of a node of the writer's schema, with hooks: functions that convert a value, or reject the record.

        Without a node in the reader's schema, add no hooks.
        """
        if isinstance(writer, list):
            return [self.of(branch, reader, path) for branch in writer]
        if isinstance(writer, str) and writer in self.written:
            writer = self.written[writer]
        kind = _kind(writer)
        if isinstance(kind, (list, dict)) or kind in self.written:
            return self.of(kind, reader, path)
        reader = self._readers_type(reader)
        if kind in _NAMED:
            return self._of_named(writer, reader, path)
        same = reader if _kind(reader) == kind else None
        if kind == "array":
            return {"type": kind, "items": self.of(writer["items"], same and same["items"], f"{path}[]")}
        if kind == "map":
            return {"type": kind, "values": self.of(writer["values"], same and same["values"], f"{path}{{}}")}
        return {"type": kind, **_hook(writer, reader, path)}

    def _of_named(self, writer: Any, reader: Any, path: str) -> Any:
        kind, name = writer["type"], writer["name"]
        if _kind(reader) not in _NAMED:
            reader = None
        pair = reader["name"] if reader else None
        if reader is None:
            name = f"{name}_unread"  # another name, because the same type may be read elsewhere, with hooks
        if name in self.met:
            if self.met[name] != pair:
                raise SchemaResolutionError(f"{path} has the type {name}, but the column's schema has two types for it")
            return name
        self.met[name] = pair
        copy = {"type": kind, "name": name}
        if kind == "enum":
            return {**copy, "symbols": writer["symbols"]}
        if kind == "fixed":
            return {**copy, "size": writer["size"], **_hook(writer, reader, path)}
        into = _types_by_name(writer, reader, path) if reader and reader["type"] == kind else {}
        fields = [
            {"name": each["name"], "type": self.of(each["type"], into.get(each["name"]), f"{path}.{each['name']}")}
            for each in writer["fields"]
        ]
        return {**copy, "fields": fields}

    def _readers_type(self, reader: Any) -> Any:
        """Return the type that the column gets for a node of the reader's schema, which may be a union or a name."""
        if isinstance(reader, list):
            others = [branch for branch in reader if _kind(branch) != "null"]
            wide = [branch for branch in others if _kind(branch) in ("long", "double")]
            reader = others[0] if len(others) == 1 else (wide or others or [None])[0]
        if isinstance(reader, str) and reader in self.read:
            reader = self.read[reader]
        kind = _kind(reader)
        return self._readers_type(kind) if isinstance(kind, (list, dict)) or kind in self.read else reader


def _types_by_name(writer: Any, reader: Any, path: str) -> dict[str, Any]:
    """Return the types of the fields of the reader's record, by the fields' names and aliases.

    Raise if the writer's record has the same field twice: under its name and under an alias.
    """
    aliases = {alias: each for each in reader["fields"] for alias in each.get("aliases", ())}
    names = [aliases[each["name"]]["name"] if each["name"] in aliases else each["name"] for each in writer["fields"]]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SchemaResolutionError(f"{path}.{twice} was written twice, under its name and under an alias")
    found = {alias: each["type"] for alias, each in aliases.items()}
    found.update((each["name"], each["type"]) for each in reader["fields"])
    return found


def _hook(writer: Any, reader: Any, path: str) -> dict[str, Any]:
    """Return the schema keys that let fastavro convert or reject the writer's values; empty if no value can change."""
    if reader is None:
        return {}
    kind, wanted = _kind(writer), _kind(reader)
    if kind in ("bytes", "fixed", "string") and (_is_decimal(writer) or _is_decimal(reader)):
        if kind == "string" or wanted == "string":
            return _refusing(path, writer, reader)
        if not _is_decimal(reader):
            return {}  # the bytes are read unchanged, like the number of a time
        of = writer if _is_decimal(writer) else reader
        return {"logicalType": "barrier-decimal", "digits_behind": int(of.get("scale", 0))}
    if kind not in ("int", "long"):
        return {}
    count, asked = _time(writer), _time(reader)
    if count and asked:
        if count[0] != asked[0]:
            return _refusing(path, writer, reader)
        if count == asked:
            return {}
        return {"logicalType": "barrier-unit", "units": [asked[1], count[1]], "why": _pair(path, writer, reader)}
    if wanted in ("float", "double"):
        return {"logicalType": f"barrier-{wanted}", "why": _pair(path, writer, reader)}
    return {}


def _refusing(path: str, writer: Any, reader: Any) -> dict[str, Any]:
    return {"logicalType": "barrier-refused", "why": _pair(path, writer, reader)}


def _pair(path: str, writer: Any, reader: Any) -> str:
    return (
        f"{path} was written as {_told(writer)}, which can't be converted exactly to {_told(reader)}, the type in the column's "
        "schema"
    )


def _told(node: Any) -> str:
    return str(node.get("logicalType", node["type"]) if isinstance(node, dict) else node)


def _kind(node: Any) -> Any:
    return node["type"] if isinstance(node, dict) else node


def _is_decimal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("logicalType") == "decimal" and node["type"] in ("bytes", "fixed")


def _time(node: Any) -> tuple[str, int] | None:
    return _TIMES.get((str(node["type"]), str(node.get("logicalType")))) if isinstance(node, dict) else None


def _decimal(data: bytes, node: Any) -> Decimal:
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-int(node.get("scale", 0)), _EXACT)


def _as_float(number: int, kind: str) -> float:
    found = float(number)
    if kind == "float":
        found = struct.unpack("f", struct.pack("f", found))[0]
    if int(found) != number:
        raise ValueError
    return found


def _read_decimal(data: bytes, writer: Any, _: Any) -> Decimal:
    return _decimal(data, {"scale": writer["digits_behind"]})


def _read_unit(number: int, writer: Any, _: Any) -> int:
    into, of = writer["units"]
    found, left = divmod(number * into, of)
    if left:
        raise SchemaResolutionError(writer["why"])
    return int(found)


def _read_float(number: int, writer: Any, _: Any) -> float:
    try:
        return _as_float(number, writer["logicalType"].removeprefix("barrier-"))
    except ValueError:
        raise SchemaResolutionError(writer["why"]) from None


def _read_refused(value: Any, writer: Any, _: Any) -> Any:
    raise SchemaResolutionError(writer["why"])


HOOKS: Final[Mapping[str, Callable[[Any, Any, Any], Any]]] = {
    **{f"{kind}-barrier-decimal": _read_decimal for kind in ("bytes", "fixed")},
    **{f"{kind}-barrier-refused": _read_refused for kind in ("int", "long", "string", "bytes", "fixed")},
    **{f"{kind}-barrier-unit": _read_unit for kind in ("int", "long")},
    **{f"{kind}-barrier-{wanted}": _read_float for kind in ("int", "long") for wanted in ("float", "double")},
}
"""The hooks, to be added to ``fastavro.read.LOGICAL_READERS``."""
