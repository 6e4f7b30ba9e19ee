"""Errors that both client libraries' answers lead to."""

from __future__ import annotations

from transactional.errors import StoreError

__all__ = ["error_name", "login_failed", "missing_right"]


def error_name(code: int) -> str:
    """Return the name and number of a protocol error: ``PRODUCER_FENCED (90)``."""
    from kafka.errors import for_code

    return f"{getattr(for_code(code), 'message', 'UNKNOWN')} ({code})"


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
