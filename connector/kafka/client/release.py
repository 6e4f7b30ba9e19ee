"""Check the brokers' release, and the transaction protocol of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from connector.kafka.client.admin import KafkaAdmin
from transactional.finding import Finding, good, warning

SKIPS_MARKERS: Final = 30
"""The highest metadata.version that brokers of release 4.3 support. Brokers 4.3.0, 4.3.1 and 4.4.0 may leave out markers."""


def check_release(admin: KafkaAdmin) -> Iterator[Finding]:
    """Check which transaction protocol the cluster uses, and whether its brokers may leave out commit markers."""
    levels, highest = admin.feature_levels()
    level = levels.get("transaction.version", 0)
    if level < 2:
        yield warning(
            "transaction-version",
            f"transaction.version is {level}, so each commit and abort has to ask the coordinator first.",
            "If all brokers run release 4.0 or newer, run kafka-features.sh upgrade --feature transaction.version=2.",
        )
    if highest.get("metadata.version", 0) >= SKIPS_MARKERS:
        yield warning(
            "transaction-version",
            "The brokers run release 4.3 or newer. Versions 4.3.0, 4.3.1 and 4.4.0 may skip commit markers (KAFKA-20734). "
            "The sink writes such a marker itself if this user has the right.",
            "Grant this user ClusterAction on the cluster, or use brokers of release 4.2.",
        )
    elif level >= 2:
        yield good("transaction-version", f"transaction.version {level}")
