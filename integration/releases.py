"""Releases of Spark and of Kafka's brokers beside the suite's own, as markers and parameters of tests."""

from __future__ import annotations

import pytest

__all__ = ["BROKERS", "RELEASES", "SPARK_4_1", "SPARK_4_3", "on_broker", "on_spark_4_1", "on_spark_4_3"]

SPARK_4_1, SPARK_4_3 = "4.1.4", "4.3.0"
on_spark_4_1, on_spark_4_3 = (pytest.mark.version("PySpark", version) for version in (SPARK_4_1, SPARK_4_3))

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
        ("4.4.0", "4.4.0", {}),
    )
]
"""Versions of brokers, with the levels of their features. They differ in how a transaction is ended."""
