"""The requests of Kafka's protocol that brokers have to support. Kafka's own brokers support all of them; others may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.kafka.client.connection import KafkaConnection
from transactional.errors import StoreError

NO_ID: Final = "00000000-0000-0000-0000-000000000000"
"""The topic id that a broker reports if it does not support topic ids."""


@dataclass(frozen=True)
class Needed:
    """A request that brokers must support."""

    name: str
    key: int  # Its number in the protocol.
    version: int  # The lowest version that is enough.
    purpose: str


EXACTLY_ONCE: Final = (
    Needed("Produce", 0, 3, "to write rows in transactions"),
    Needed("Fetch", 1, 12, "to notice rows that a partition has lost"),
    Needed("ListOffsets", 2, 4, "to notice that a partition's leader was replaced"),
    Needed("Metadata", 3, 10, "to notice that a topic was deleted and created again"),
    Needed("FindCoordinator", 10, 1, "to find the coordinators of transactions"),
    Needed("ApiVersions", 18, 3, "to know which transaction protocol is in effect"),
    Needed("InitProducerId", 22, 0, "to fence older runs"),
    Needed("AddPartitionsToTxn", 24, 0, "to write rows in transactions"),
    Needed("EndTxn", 26, 0, "to commit and abort transactions"),
    Needed("DescribeConfigs", 32, 0, "to know the longest timeout of a transaction"),
    Needed("DescribeProducers", 61, 0, "to see which transactions are open in a partition"),
    Needed("DescribeTransactions", 65, 0, "to see the state of a transaction"),
    Needed("ListTransactions", 66, 0, "to find the transactions of older runs"),
)
"""The requests that an exactly-once sink needs. Kafka has supported all of them since release 3.0. With lower versions
of these requests, the sink would miss some losses, because the fields that show the losses are left out."""


def check_protocol(connection: KafkaConnection, bootstrap_servers: str) -> None:
    """Check that a broker supports the requests of an exactly-once sink. This sends no request.

    Raises
    ------
    StoreError
        ``KAFKA_REFUSED``: some requests are not supported. The error names each of them.
    """
    supported = connection.supported_versions()
    missing = [each for each in EXACTLY_ONCE if supported.get(each.key, (0, -1))[1] < each.version]
    if missing:
        named = ", ".join(f"{each.name} version {each.version} ({each.purpose})" for each in missing)
        raise StoreError("KAFKA_REFUSED", reason=f"the brokers at {bootstrap_servers} do not support {named}")


def check_topic_id(topic: str, topic_id: str) -> None:
    """Check that a topic has an id. If it has none, raise `StoreError` ``KAFKA_REFUSED``."""
    if topic_id == NO_ID:
        reason = f"the brokers give {topic} no id, so the query could not notice that the topic was re-created"
        raise StoreError("KAFKA_REFUSED", reason=reason)
