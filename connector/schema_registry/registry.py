"""A Schema Registry, over confluent-kafka's own client. *Used on the driver when a query is planned, and in tasks*."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from connector.options import hides_value
from transactional.errors import OptionError, StoreError
from transactional.secrets import masked

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

__all__ = ["EXTRA", "MAGIC_BYTES", "Definition", "Registry", "UnknownSchemaError", "missing_extra", "wire_header"]

EXTRA: Final = "barrier-kafka[schema-registry]"

MAGIC_BYTES: Final = 5
"""Header of the wire format: a zero, and the schema's id in 4 bytes, the highest first."""

TIMEOUT_SECONDS: Final = 10.0
"""Limit of one request; by default the client waits for ever."""

NOT_THERE: Final = frozenset({"40401", "40402", "40403"})
"""A registry's own codes for an unknown subject, version or schema."""

PASSING: Final = frozenset({404, 408, 425, 429})
"""HTTP status codes below 500 of a registry that is starting or overloaded, or of a proxy in front of it.

A bare 404 is among them: a proxy without a backend answers so. Taken for the registry's own answer, it would make good records
bad.
"""

ALSO_SECRET: Final = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")
"""Settings whose values are never shown, besides those that `hides_value` knows by their names."""


def wire_header(number: int) -> bytes:
    """Return the header of a value that is written with the schema of this id."""
    return bytes(1) + number.to_bytes(MAGIC_BYTES - 1, "big")


def missing_extra(problem: ImportError) -> ImportError:
    """Return the error of a package that is not installed."""
    return ImportError(
        f"{problem}. The Schema Registry's values need an extra: pip install '{EXTRA}', on the driver and the executors",
        name=problem.name,
    )


class UnknownSchemaError(LookupError):
    """The registry does not know the schema."""


@dataclass(frozen=True)
class Definition:
    """A schema, and the schemas that it refers to.

    Parameters
    ----------
    text : str
    kind : str
        ``AVRO``, ``JSON`` or ``PROTOBUF``.
    references : Sequence[tuple[str, str]]
        Name and text of each, in the order in which they need one another.
    id : int
        At the registry.
    """

    text: str
    kind: str
    references: Sequence[tuple[str, str]] = ()
    id: int = 0


class Registry:
    """One registry, as its settings name it; pickles without its client, and shows no secret.

    Parameters
    ----------
    settings : Mapping[str, Any]
        Settings of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``, ``ssl.ca.location``, ...

    Raises
    ------
    OptionError
        ``MISSING_OPTION``, ``INVALID_OPTION``: the client refuses the settings.
    ImportError
        Names the extra.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if not str(settings.get("url") or "").strip():
            raise OptionError(
                "MISSING_OPTION",
                owner="The registry",
                option="url",
                reason="its address, {'url': 'http://registry:8081'}",
            )
        self._settings = {"timeout": TIMEOUT_SECONDS, **settings}
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"Registry({self.url})"

    @property
    def url(self) -> str:
        """Its address, without user name and password."""
        shown = []
        for address in str(self._settings["url"]).split(","):
            parts = urlsplit(address.strip())
            shown.append(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
        return ",".join(shown)

    @property
    def identity(self) -> str:
        """A digest of the settings, which reveals none of them."""
        text = json.dumps({key: str(value) for key, value in self._settings.items()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def subject(self, subject: str, version: int | str, wanted: str) -> Definition:
        """Return a subject's schema."""
        try:
            answer = self._ask(lambda client: client.get_version(subject, version))
        except UnknownSchemaError:
            raise OptionError(
                "INVALID_OPTION",
                owner="The registry",
                option="subject=",
                value=subject,
                expectation=f"a subject that {self.url} has in version {version}, or the topic= and record= that "
                "its name is made of",
                version=version,
            ) from None
        definition = replace(self._definition(answer.schema), id=int(answer.schema_id))
        if definition.kind != wanted:
            hint = {"AVRO": "; use decode_avro", "JSON": "; use decode_json"}.get(definition.kind, "")
            raise OptionError(
                "UNSUPPORTED_SCHEMA",
                reason=f"subject {subject} at {self.url} has a schema of type {definition.kind}, not {wanted}{hint}",
                subject=subject,
                found=definition.kind,
            )
        return definition

    def schema(self, number: int) -> Definition:
        """Return a schema by its id; each client asks for it once."""
        return replace(self._definition(self._ask(lambda client: client.get_schema(number))), id=number)

    def register(self, subject: str, text: str, kind: str) -> Definition:
        """Register a schema under a subject, unless it is there already; return it with its id."""
        self._connected()
        from confluent_kafka.schema_registry import Schema

        number = self._ask(lambda client: client.register_schema(subject, Schema(text, kind)))
        return Definition(text, kind, id=int(number))

    def scrub(self, text: str) -> str:
        """Return the text without any secret of the settings."""
        return masked(text, self._secrets())

    def _secrets(self) -> set[str]:
        secrets = {
            str(value) for key, value in self._settings.items() if key in ALSO_SECRET or hides_value(key) if value
        }
        for item in [*secrets]:
            secrets.add(item.partition(":")[2] or item)
        for item in str(self._settings["url"]).split(","):
            if password := urlsplit(item.strip()).password:
                secrets |= {password, unquote(password)}
        return secrets

    def _definition(self, schema: Schema) -> Definition:
        if not schema.schema_str:
            raise StoreError(
                "REGISTRY_REFUSED", url=self.url, status=200, reason="its answer holds no schema: is it a registry?"
            )
        references: dict[str, str] = {}
        self._collect(schema, references)
        return Definition(schema.schema_str, schema.schema_type or "AVRO", tuple(references.items()))

    def _collect(self, schema: Schema, into: dict[str, str]) -> None:
        for reference in schema.references or ():
            if reference.name in into:
                continue
            subject, version = str(reference.subject), int(reference.version or 0)
            answer = self._ask(lambda client, s=subject, v=version: client.get_version(s, v, deleted=True))
            self._collect(answer.schema, into)
            into[str(reference.name)] = answer.schema.schema_str

    def _ask(self, ask: Any) -> Any:
        client = self._connected()
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return ask(client)
        except SchemaRegistryError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - httpx's and authlib's errors, some of which show an address with a password.
            reason = self.scrub(f"{type(error).__name__}: {error}")
            raise StoreError("REGISTRY_UNREACHABLE", url=self.url, reason=reason) from None
        reason, status = self.scrub(str(problem)), problem.http_status_code
        if status == 404 and str(problem.error_code) in NOT_THERE:
            raise UnknownSchemaError(reason)
        if status >= 500 or status in PASSING:
            raise StoreError("REGISTRY_UNREACHABLE", url=self.url, status=status, reason=f"HTTP {status}, {reason}")
        raise StoreError("REGISTRY_REFUSED", url=self.url, status=status, reason=reason)

    def _connected(self) -> Any:
        if self._client is None:
            try:
                from confluent_kafka.schema_registry import SchemaRegistryClient
            except ImportError as problem:
                raise missing_extra(problem) from problem
            try:
                self._client = SchemaRegistryClient(dict(self._settings))
            except (ValueError, TypeError, OSError) as problem:
                reason = self.scrub(f"{type(problem).__name__}: {problem}")
                raise OptionError(
                    "INVALID_OPTION",
                    owner="The registry",
                    option="registry",
                    value=sorted(self._settings),
                    expectation=f"settings that its client accepts: {reason}",
                ) from None
        return self._client
