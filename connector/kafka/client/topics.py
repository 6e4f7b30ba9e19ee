"""Topics and partitions: names, brokers' descriptions, and topic ids, which the two client libraries write differently."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.kafka.client.errors import missing_right

SHOWN: Final = 10
"""The maximum number of partitions that an error names; a topic may have thousands."""

TOPIC_FORM: Final = "at most 249 letters, digits, '.', '_' and '-'"
"""The form of a valid topic name, for messages."""

OPERATIONS: Final[Mapping[str, int]] = {"READ": 3, "WRITE": 4}
"""Kafka's codes of the operations that a user may do on a topic."""

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


UNKNOWN_EPOCH: Final = -1
"""The value for a leader epoch that no broker reported. It is never compared with other epochs."""


class Partition(NamedTuple):
    """A partition of a topic; partitions sort by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True)
class TopicInfo:
    """A topic's id, and the node id of each partition's leader.

    `operations` are the codes of the operations that this user may do, or None if unknown. `replicas` has, for each
    partition, the number of replicas and the number of those in sync. `epochs` has each partition's leader epoch.
    """

    topic_id: str
    leaders: Mapping[int, int]
    operations: frozenset[int] | None
    replicas: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)

    def epoch(self, number: int) -> int:
        """Return the epoch of a partition's leader; `UNKNOWN_EPOCH` if no broker reported it."""
        return self.epochs.get(number, UNKNOWN_EPOCH)

    def allows(self, operation: str) -> bool | None:
        """Return whether this user may do an operation (``READ`` or ``WRITE``); None if the brokers do not report it."""
        return None if self.operations is None else OPERATIONS[operation] in self.operations

    def check_rights(self, topic: str, *operations: str) -> None:
        """Raise `MissingRightError` if the brokers deny this user any of these operations."""
        for operation in operations:
            if self.allows(operation) is False:
                raise missing_right(operation, f"topic {topic}")


def listed(partitions: Sequence[Partition]) -> str:
    """Return the names of the first ten partitions as text for a message, with ``...`` if there are more."""
    return ", ".join(map(str, partitions[:SHOWN])) + (", ..." if len(partitions) > SHOWN else "")


def lineage_namespace(servers: str) -> str:
    """Return a cluster's OpenLineage namespace, which contains the first address in `servers` (``host:port,...``)."""
    return f"kafka://{servers.partition(',')[0].strip()}"


def is_topic_name(text: str) -> bool:
    """Return whether Kafka accepts this topic name; see `TOPIC_FORM`."""
    return _NAME.fullmatch(text) is not None


def short_id(identity: uuid.UUID | str) -> str:
    """Return a topic's id in base64, as librdkafka writes it and the source's offsets store it.

    Parameters
    ----------
    identity : UUID or str
        The topic's id from kafka-python, as a UUID or as its text with hyphens.

    Examples
    --------
    >>> short_id("4cd641bd-9ac3-4d38-9279-9b04cbfe826d")
    'TNZBvZrDTTiSeZsEy/6CbQ'
    """
    raw = uuid.UUID(str(identity)).bytes
    return base64.b64encode(raw).decode().rstrip("=")
