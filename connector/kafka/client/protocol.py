"""The requests of Kafka's protocol that brokers have to support. Kafka's own brokers support all of them; others may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.kafka.client.connection import KafkaConnection
from transactional.errors import StoreError


@dataclass(frozen=True)
class Needed:
    """A request that is needed."""

    name: str
    key: int  # Its number in the protocol.
    version: int  # The lowest version that is enough.
    purpose: str


EXACTLY_ONCE: Final = (
    Needed("Produce", 0, 3, "to write rows in transactions"),
    Needed("Fetch", 1, 4, "to see whether rows can be read"),
    Needed("ListOffsets", 2, 2, "to see the last stable offset"),
    Needed("Metadata", 3, 10, "to notice that a topic was deleted and created again"),
    Needed("FindCoordinator", 10, 1, "to find the coordinators of transactions"),
    Needed("InitProducerId", 22, 0, "to fence older runs"),
    Needed("AddPartitionsToTxn", 24, 0, "to write rows in transactions"),
    Needed("EndTxn", 26, 0, "to commit and abort transactions"),
    Needed("DescribeProducers", 61, 0, "to see how a transaction of a partition ended"),
    Needed("DescribeTransactions", 65, 0, "to see the state of a transaction"),
    Needed("ListTransactions", 66, 0, "to find the transactions of older runs"),
)
"""What an exactly-once sink needs. Kafka has all of it since release 3.0."""


def check_protocol(connection: KafkaConnection, bootstrap_servers: str) -> None:
    """Check that a broker supports the requests of an exactly-once sink. Nothing is sent: the client knows a broker's versions.

    Raises
    ------
    StoreError
        ``KAFKA_REFUSED``: some are not supported. The error names each of them.
    """
    supported = connection.supported_versions()
    missing = [each for each in EXACTLY_ONCE if supported.get(each.key, (0, -1))[1] < each.version]
    if missing:
        named = ", ".join(f"{each.name} version {each.version} {each.purpose}" for each in missing)
        raise StoreError("KAFKA_REFUSED", reason=f"the brokers at {bootstrap_servers} do not support {named}")
