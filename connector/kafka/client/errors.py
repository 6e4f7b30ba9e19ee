"""Errors for wrong settings, failed logins and missing rights, for both client libraries."""

from __future__ import annotations

from connector.kafka.client.kafka_python import import_kafka
from transactional.errors import OptionError, StoreError, StoreUnreachableError


def error_name(code: int) -> str:
    """Return the name and number of a protocol error, for example ``PRODUCER_FENCED (90)``."""
    import_kafka()
    from kafka.errors import for_code

    return f"{getattr(for_code(code), 'message', 'UNKNOWN')} ({code})"


def forbidden_option(name: str, key: str, way: str) -> OptionError:
    """Return the error for a setting that the format does not accept.

    `key` is the setting's name without ``kafka.``; `way` says why, or what to do instead.
    """
    return OptionError("FORBIDDEN_OPTION", owner=name, option=f"kafka.{key}", reason=way)


def invalid_option(name: str, key: str, value: str, expectation: str) -> OptionError:
    """Return the error for a setting with a wrong value. The error shows `value`; `key` is a name without ``kafka.``."""
    return OptionError("INVALID_OPTION", owner=name, option=f"kafka.{key}", value=value, expectation=expectation)


class UnknownTopicError(StoreError):
    """A topic does not exist."""


class TopicChangedError(StoreError):
    """A topic was deleted or created again between two requests about it."""


def unreachable_brokers(name: str, servers: str, reason: str) -> StoreUnreachableError:
    """Return the error to raise if none of a cluster's brokers can be used."""
    return StoreUnreachableError(
        "BROKERS_UNREACHABLE", owner=name, servers=servers, reason=reason, option="kafka.bootstrap.servers"
    )


class MissingRightError(StoreError):
    """The user lacks the right to do an operation."""


def missing_right(operation: str, resource: str) -> MissingRightError:
    """Return the error for a user who lacks the right to do an operation."""
    return MissingRightError("MISSING_RIGHT", operation=operation, resource=resource)


def login_failed(name: str, servers: str, reason: str) -> StoreError:
    """Return the error for brokers that reject this user's login."""
    return StoreError("AUTHENTICATION_FAILED", owner=name, servers=servers, reason=reason)
