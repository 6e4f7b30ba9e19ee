"""Releases of Kafka's brokers beside the suite's own, as parameters of tests: the version, and the levels of features."""

from __future__ import annotations

import pytest

__all__ = ["BROKERS", "RELEASES", "on_broker"]

BROKERS = "Kafka brokers"


def on_broker(version: str) -> pytest.MarkDecorator:
    """Return the marker of a test of other brokers."""
    return pytest.mark.version(BROKERS, version)


RELEASES = [
    pytest.param(version, features, marks=on_broker(name), id=name)
    for name, version, features in (
        ("3.9.1", "3.9.1", {}),
        ("4.2.1, transaction.version 1", "4.2.1", {"transaction.version": 1}),
        ("4.3.1", "4.3.1", {}),
    )
]
"""They differ in how a transaction is ended."""
