"""A Schema Registry, asked through confluent-kafka's own client. *On the driver when a query is planned, and in tasks*."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from connector.options import hides_value
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

__all__ = ["EXTRA", "MAGIC_BYTES", "Definition", "Registry", "UnknownSchemaError", "missing_extra"]

EXTRA: Final = "barrier-kafka[schema-registry]"

MAGIC_BYTES: Final = 5
"""Of the wire format: a zero, and the schema's id in 4 bytes, the highest first."""

TIMEOUT_SECONDS: Final = 10.0
"""The client waits for ever by default."""

NOT_THERE: Final = frozenset({"40401", "40402", "40403"})
"""A registry's own codes of a subject, a version, a schema that it does not know."""

PASSING: Final = frozenset({404, 408, 425, 429})
"""HTTP's codes below 500 of who stands before a registry that is started, or has too much to do.

A bare 404 is one of them: a proxy that knows no backend says so. Taken for a registry's it would make good records bad ones.
"""

ALSO_SECRET: Final = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")
"""Settings whose values are never shown, beside those whose names say so."""


def missing_extra(problem: ImportError) -> ImportError:
    """The error of a package that is not installed."""
    return ImportError(
        f"{problem}. The Schema Registry's values need an extra: pip install '{EXTRA}', on the driver and the executors",
        name=problem.name,
    )


class UnknownSchemaError(StoreError):
    """The registry does not know the schema."""


@dataclass(frozen=True)
class Definition:
    """A schema, and those that it refers to.

    Parameters
    ----------
    text : str
    kind : str
        ``AVRO``, ``JSON`` or ``PROTOBUF``.
    references : Sequence[tuple[str, str]]
        Name and text of each, those that others need before them.
    """

    text: str
    kind: str
    references: Sequence[tuple[str, str]] = ()


class Registry:
    """One registry, as its settings name it; pickles without its client, and shows no secret.

    Parameters
    ----------
    settings : Mapping[str, Any]
        Of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``, ``ssl.ca.location``, ...

    Raises
    ------
    OptionError
        ``MISSING_OPTION``, ``INVALID_OPTION``: the client refuses the settings.
    ImportError
        Naming the extra.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if not str(settings.get("url") or "").strip():
            raise OptionError(
                "MISSING_OPTION", "the registry needs its url: {'url': 'http://registry:8081'}", option="url"
            )
        self._settings = {"timeout": TIMEOUT_SECONDS, **settings}
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"Registry({self.url})"

    @property
    def url(self) -> str:
        """Where it is, without name and password."""
        shown = []
        for each in str(self._settings["url"]).split(","):
            parts = urlsplit(each.strip())
            shown.append(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
        return ",".join(shown)

    @property
    def identity(self) -> str:
        """The same for the same settings; nothing can be read from it."""
        told = json.dumps({key: str(value) for key, value in self._settings.items()}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def subject(self, subject: str, version: int | str, wanted: str) -> Definition:
        """A subject's schema.

        Parameters
        ----------
        subject : str
        version : int or str
            ``latest``, or a number.
        wanted : str
            ``AVRO`` or ``JSON``.

        Raises
        ------
        OptionError
            ``UNKNOWN_SUBJECT``, ``OTHER_SCHEMA_TYPE``.
        StoreError
            ``REGISTRY_UNREACHABLE``, ``REGISTRY_REFUSED``.
        """
        try:
            found = self._ask(lambda client: client.get_version(subject, version))
        except UnknownSchemaError:
            raise OptionError(
                "UNKNOWN_SUBJECT",
                f"the registry at {self.url} has no version {version} of subject {subject}. Name another subject=, or the "
                "topic= and record= that its name is made of",
                subject=subject,
                version=version,
            ) from None
        definition = self._definition(found.schema)
        if definition.kind != wanted:
            raise OptionError(
                "OTHER_SCHEMA_TYPE",
                f"subject {subject} at {self.url} has a schema of type {definition.kind}, not {wanted}"
                + {"AVRO": ": use decode_avro", "JSON": ": use decode_json"}.get(definition.kind, ""),
                subject=subject,
                found=definition.kind,
            )
        return definition

    def schema(self, number: int) -> Definition:
        """A schema by its id; asked once per client.

        Raises
        ------
        UnknownSchemaError
        StoreError
        """
        return self._definition(self._ask(lambda client: client.get_schema(number)))

    def scrub(self, text: str) -> str:
        """The text without any secret of the settings."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "(hidden)")
        return text

    def _secrets(self) -> set[str]:
        found = {str(value) for key, value in self._settings.items() if key in ALSO_SECRET or hides_value(key) if value}
        for each in [*found]:
            found.add(each.partition(":")[2] or each)
        for each in str(self._settings["url"]).split(","):
            if password := urlsplit(each.strip()).password:
                found |= {password, unquote(password)}
        return found

    def _definition(self, schema: Schema) -> Definition:
        references: dict[str, str] = {}
        self._collect(schema, references)
        return Definition(schema.schema_str or "", schema.schema_type or "AVRO", tuple(references.items()))

    def _collect(self, schema: Schema, into: dict[str, str]) -> None:
        for reference in schema.references or ():
            if reference.name in into:
                continue
            subject, version = str(reference.subject), int(reference.version or 0)
            found = self._ask(lambda client, s=subject, v=version: client.get_version(s, v, deleted=True))
            self._collect(found.schema, into)
            into[str(reference.name)] = found.schema.schema_str

    def _ask(self, ask: Any) -> Any:
        client = self._connected()
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return ask(client)
        except SchemaRegistryError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - httpx's and authlib's, some of which show an address with a password.
            reason = self.scrub(f"{type(error).__name__}: {error}")
            raise StoreError(
                "REGISTRY_UNREACHABLE", f"the Schema Registry at {self.url} can't be asked: {reason}", url=self.url
            ) from None
        reason, status = self.scrub(str(problem)), problem.http_status_code
        if status == 404 and str(problem.error_code) in NOT_THERE:
            raise UnknownSchemaError("UNKNOWN_SCHEMA", f"the registry at {self.url}: {reason}", reason=reason)
        if status >= 500 or status in PASSING:
            raise StoreError(
                "REGISTRY_UNREACHABLE",
                f"the Schema Registry at {self.url} can't be asked: HTTP {status}, {reason}",
                url=self.url,
                status=status,
            )
        way = {401: ". Check basic.auth.user.info", 403: ". It needs the right to read the subject"}
        raise StoreError(
            "REGISTRY_REFUSED",
            f"the Schema Registry at {self.url} refused: {reason}{way.get(status, '')}",
            url=self.url,
            status=status,
        )

    def _connected(self) -> Any:
        if self._client is None:
            try:
                from confluent_kafka.schema_registry import SchemaRegistryClient
            except ImportError as problem:
                raise missing_extra(problem) from problem
            try:
                self._client = SchemaRegistryClient(dict(self._settings))
            except (ValueError, TypeError, OSError) as problem:
                raise OptionError(
                    "INVALID_OPTION",
                    f"the registry's client refuses its settings: {self.scrub(f'{type(problem).__name__}: {problem}')}",
                    option="registry",
                ) from None
        return self._client
