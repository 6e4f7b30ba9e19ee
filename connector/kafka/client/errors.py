"""Errors of settings, of logins and of rights, for both client libraries."""

from __future__ import annotations

from transactional.errors import OptionError, StoreError

__all__ = ["error_name", "forbidden_option", "invalid_option", "login_failed", "missing_right"]


def error_name(code: int) -> str:
    """Return the name and number of a protocol error: ``PRODUCER_FENCED (90)``."""
    from kafka.errors import for_code

    return f"{getattr(for_code(code), 'message', 'UNKNOWN')} ({code})"


def forbidden_option(name: str, key: str, way: str) -> OptionError:
    """Return the error of a setting (without ``kafka.``) that the format does not take; `way` says what to do instead."""
    return OptionError("FORBIDDEN_OPTION", f"{name} does not take the option kafka.{key}: {way}", option=f"kafka.{key}")


def invalid_option(name: str, key: str, problem: str) -> OptionError:
    """Return the error of a setting (without ``kafka.``); `problem` is the rest of the sentence that names it."""
    return OptionError("INVALID_OPTION", f"{name}: the option kafka.{key} {problem}", option=f"kafka.{key}")


def missing_right(operation: str, resource: str) -> StoreError:
    """Return the error of a user who lacks a right."""
    return StoreError(
        "MISSING_RIGHT",
        f"This user lacks {operation} on {resource}. Grant it: kafka-acls.sh --add --operation {operation.title()} ...",
        operation=operation,
        resource=resource,
    )


def login_failed(name: str, servers: str, reason: str) -> StoreError:
    """Return the error of brokers that refuse to log this user in."""
    return StoreError(
        "AUTHENTICATION_FAILED",
        f"{name}: the brokers at {servers} refused to log this user in: {reason.rstrip('.')}. Check kafka.sasl.username, "
        "kafka.sasl.password (or kafka.sasl.oauthbearer.*), and kafka.sasl.mechanism.",
        servers=servers,
        reason=reason,
    )
