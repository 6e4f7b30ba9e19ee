"""Finds the Spark type for a JSON Schema that is in the Schema Registry.

Spark's own ``from_json`` decodes the values in the JVM, because JSON needs no writer's schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connector.schema_registry.registry import Definition
from transactional.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def json_type(definition: Definition) -> StructType:
    """Return the Spark struct type for a JSON Schema.

    Raise if the schema does not describe an object with properties.
    """
    from pyspark.sql.types import StructType

    schemas = {name: _loaded(text) for name, text in definition.references}
    root = _loaded(definition.text)
    root_type = _Walk(schemas).of(root, root, "the schema", ())
    if not isinstance(root_type, StructType):
        raise _unsupported("the schema", f"of the type {root_type.simpleString()}, not an object with properties")
    return root_type


class _Walk:
    """Turns a JSON Schema into a Spark type. In its methods, `root` is the document that contains the node."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def of(self, node: Any, root: Any, path: str, inside: tuple[str, ...]) -> DataType:
        if not isinstance(node, dict):
            raise _unsupported(path, "a schema that allows any value")
        if "$ref" in node:
            return self._reference(str(node["$ref"]), root, path, inside)
        for word in ("oneOf", "anyOf"):
            if word in node:
                return self._alternatives(node[word], root, path, inside)
        if "allOf" in node:
            if len(node["allOf"]) == 1:
                return self.of(node["allOf"][0], root, path, inside)
            raise _unsupported(path, "a combination (allOf) of several schemas")
        kinds = node.get("type") or _implied(node)
        kinds = [kinds] if isinstance(kinds, str) else list(kinds or [])
        named = [kind for kind in kinds if kind != "null"]
        if sorted(named) == ["integer", "number"]:
            named = ["number"]
        if len(named) > 1:
            raise _unsupported(path, f"of several types ({', '.join(named)})")
        return self._kind(named[0] if named else "null", node, root, path, inside) if kinds else self._any(path)

    def _kind(self, kind: str, node: Mapping[str, Any], root: Any, path: str, inside: tuple[str, ...]) -> DataType:
        from pyspark.sql import types

        if kind == "object":
            return self._object(node, root, path, inside)
        if kind == "array":
            items = node.get("items")
            if not isinstance(items, dict):
                raise _unsupported(path, "an array whose items do not all have the same schema")
            return types.ArrayType(self.of(items, root, f"{path}[]", inside))
        simple: dict[str, DataType] = {
            "string": types.StringType(),
            "integer": types.LongType(),
            "number": types.DoubleType(),
            "boolean": types.BooleanType(),
            "null": types.StringType(),
        }
        if kind not in simple:
            raise _unsupported(path, f"of the type {kind}")
        return simple[kind]

    def _object(self, node: Mapping[str, Any], root: Any, path: str, inside: tuple[str, ...]) -> DataType:
        from pyspark.sql.types import MapType, StringType, StructField, StructType

        properties, more = node.get("properties"), node.get("additionalProperties")
        if properties:
            fields = [
                StructField(name, self.of(schema, root, f"{path}.{name}", inside))
                for name, schema in properties.items()
            ]
            return StructType(fields)
        if isinstance(more, dict):
            return MapType(StringType(), self.of(more, root, f"{path}{{}}", inside))
        raise _unsupported(path, "an object without named properties")

    def _reference(self, name: str, root: Any, path: str, inside: tuple[str, ...]) -> DataType:
        if name in inside:
            raise _unsupported(path, f"{name}, which contains itself")
        address, _, pointer = name.partition("#")
        document = self._schemas.get(address) if address else root
        if document is None:
            raise _unsupported(
                path, f"a reference to {address}, which the registry does not list as a reference of the schema"
            )
        node = document
        for step in filter(None, pointer.split("/")):
            step = step.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901 - RFC 6901
            if not isinstance(node, dict) or step not in node:
                raise _unsupported(path, f"a reference to {name}, which does not exist")
            node = node[step]
        return self.of(node, document, path, (*inside, name))

    def _alternatives(self, nodes: Any, root: Any, path: str, inside: tuple[str, ...]) -> DataType:
        named = [node for node in nodes if not (isinstance(node, dict) and node.get("type") == "null")]
        if len(named) == 1:
            return self.of(named[0], root, path, inside)
        raise _unsupported(path, "one of several schemas (oneOf or anyOf)")

    def _any(self, path: str) -> DataType:
        raise _unsupported(path, "of any type")


def _implied(node: Mapping[str, Any]) -> str | None:
    """Return the JSON type of a node that does not name its type; None if nothing shows it."""
    if "properties" in node:
        return "object"
    if "items" in node:
        return "array"
    values = [*node.get("enum", []), *([node["const"]] if "const" in node else [])]
    return "string" if values and all(isinstance(value, str) for value in values) else None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError("UNSUPPORTED_SCHEMA", reason="it is not JSON") from None


def _unsupported(path: str, what: str) -> OptionError:
    return OptionError("UNSUPPORTED_SCHEMA", reason=f"{path} is {what}; this can't become a column", path=path)
