"""The brokers' release, and the transaction protocol that the cluster speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from connector.kafka.client.admin import KafkaAdmin
from transactional.finding import Finding, good, warning

__all__ = ["check_release"]

SKIPS_MARKERS: Final = 30
"""The highest metadata.version that brokers of the releases 4.3 know, of which 4.3.0 and 4.3.1 may leave markers out."""


def check_release(admin: KafkaAdmin) -> Iterator[Finding]:
    """Check which transaction protocol the cluster speaks."""
    levels, highest = admin.feature_levels()
    level = levels.get("transaction.version", 0)
    if level < 2:
        yield warning(
            "transaction-version",
            f"transaction.version is {level}: each commit and abort has to ask the coordinator first.",
            "kafka-features.sh upgrade --feature transaction.version=2, on brokers from 4.0 on.",
        )
    if highest.get("metadata.version", 0) == SKIPS_MARKERS:
        yield warning(
            "transaction-version",
            "The brokers run a release 4.3. Releases 4.3.0 and 4.3.1 may skip commit markers (KAFKA-20734). The sink "
            "writes such a marker itself if this user has the right to.",
            "Grant this user ClusterAction on the cluster, or use 4.2.",
        )
    elif level >= 2:
        yield good("transaction-version", f"transaction.version {level}")
