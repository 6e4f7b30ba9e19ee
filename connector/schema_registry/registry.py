"""Reads and registers schemas in a Schema Registry, with confluent-kafka's client, on the driver and in tasks."""

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

EXTRA: Final = "barrier-kafka[schema-registry]"

MAGIC_BYTES: Final = 5
"""Size of the wire format's header: a zero byte, and the schema's id in 4 bytes, big-endian."""

TIMEOUT_SECONDS: Final = 10.0
"""Maximum time of one request. Without it, the client would wait forever."""

NOT_THERE: Final = frozenset({"40401", "40402", "40403"})
"""The registry's own error codes for an unknown subject, version or schema."""

PASSING: Final = frozenset({404, 408, 425, 429})
"""HTTP status codes below 500 after which a retry may help: the registry is starting or overloaded, or behind a proxy.

A 404 counts only if it has none of the registry's own error codes. Such a 404 comes from a proxy without a backend. If it
counted as the registry's answer, good records would be reported as bad.
"""

ALSO_SECRET: Final = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")
"""Settings whose values are never shown, in addition to those that `hides_value` recognizes by name."""


def wire_header(number: int) -> bytes:
    """Return the wire format's header for values of the schema with this id."""
    return bytes(1) + number.to_bytes(MAGIC_BYTES - 1, "big")


def missing_extra(problem: ImportError) -> ImportError:
    """Return an error for a package that is not installed. It names the extra that contains the package."""
    return ImportError(
        f"{problem}. Values from the Schema Registry need an extra: run pip install '{EXTRA}' on the driver and the executors",
        name=problem.name,
    )


class UnknownSchemaError(LookupError):
    """The registry does not know the schema."""


@dataclass(frozen=True)
class Definition:
    """A schema, and the schemas that it refers to."""

    text: str  # The schema's text.
    kind: str  # ``AVRO``, ``JSON`` or ``PROTOBUF``.
    # The name and text of every schema that this one refers to, directly or indirectly. Each schema comes after the schemas
    # that it refers to.
    references: Sequence[tuple[str, str]] = ()
    id: int = 0  # The schema's id in the registry.


class Registry:
    """A connection to a Schema Registry, made from `settings`. A pickled `Registry` has no client, and its repr no secret.

    Raises
    ------
    OptionError
        ``MISSING_OPTION``: there is no ``url``. ``INVALID_OPTION``: the client rejects the settings (raised
        by the first request).
    ImportError
        The extra ``barrier-kafka[schema-registry]`` is not installed (raised by the first request).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if not str(settings.get("url") or "").strip():
            raise OptionError(
                "MISSING_OPTION",
                owner="The registry",
                option="url",
                reason="it is the registry's address, as in {'url': 'http://registry:8081'}",
            )
        # Settings of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``, ``ssl.ca.location``, ...
        self._settings = {"timeout": TIMEOUT_SECONDS, **settings}
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"Registry({self.url})"

    @property
    def url(self) -> str:
        """The registry's address, without user name and password."""
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
        """Return one version of a subject's schema. Raise if its type is not `wanted` (``AVRO`` or ``JSON``)."""
        try:
            answer = self._ask(lambda client: client.get_version(subject, version))
        except UnknownSchemaError:
            raise OptionError(
                "INVALID_OPTION",
                owner="The registry",
                option="subject=",
                value=subject,
                expectation=f"a subject that exists at {self.url} in version {version}. If you set topic= or record=, "
                "the subject's name is made from them",
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
        """Return the schema with this id, from the client's cache or from the registry.

        Raise if the registry lacks it.
        """
        return replace(self._definition(self._ask(lambda client: client.get_schema(number))), id=number)

    def register(self, subject: str, text: str, kind: str) -> Definition:
        """Register a schema under a subject, unless it is registered already. Return the schema with its id."""
        self._connected()
        from confluent_kafka.schema_registry import Schema

        number = self._ask(lambda client: client.register_schema(subject, Schema(text, kind)))
        return Definition(text, kind, id=int(number))

    def scrub(self, text: str) -> str:
        """Return the text with all secrets from the settings masked."""
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
                "REGISTRY_REFUSED",
                url=self.url,
                status=200,
                reason="the answer contains no schema, so this is probably not a Schema Registry",
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
        except Exception as error:  # noqa: BLE001 - errors of httpx and authlib, some of which show an address with a password.
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
                    expectation=f"settings that SchemaRegistryClient accepts: {reason}",
                ) from None
        return self._client
