"""The doctor's check of a Schema Registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from connector.schema_registry.registry import Registry, UnknownSchemaError
from transactional.errors import OptionError
from transactional.finding import Finding, good


def check_registry(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Check that a registry accepts this user's requests.

    If `settings` has a ``subject``, also check that the type of its latest schema is Avro or JSON.
    """
    subject = settings.get("subject")
    registry = Registry({key: value for key, value in settings.items() if key != "subject"})
    if subject is None:
        with suppress(UnknownSchemaError):
            registry.schema(1)
        yield good("registry", f"{registry.url} answers")
        return
    try:
        kind = registry.subject(subject, "latest", "AVRO").kind
    except OptionError as error:
        if error.condition != "UNSUPPORTED_SCHEMA" or error.parameters.get("found") != "JSON":
            raise
        kind = "JSON"
    yield good("registry", f"{registry.url} has a schema of type {kind} for the subject {subject}")
