"""Topics and partitions: names, what brokers say of them, and ids, which the two client libraries write differently."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.kafka.client.errors import missing_right

__all__ = [
    "SHOWN",
    "TOPIC_FORM",
    "UNKNOWN_EPOCH",
    "Partition",
    "TopicInfo",
    "is_topic_name",
    "lineage_namespace",
    "listed",
    "short_id",
]

SHOWN: Final = 10
"""Partitions that an error names; a topic may have thousands."""

TOPIC_FORM: Final = "at most 249 letters, digits, '.', '_' and '-'"
"""How Kafka lets a topic be named."""

OPERATIONS: Final[Mapping[str, int]] = {"READ": 3, "WRITE": 4}
"""Codes of what a user may do with a topic."""

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


UNKNOWN_EPOCH: Final = -1
"""A leader epoch that no broker reported: nothing is compared with it."""


class Partition(NamedTuple):
    """A partition of a topic; partitions sort by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True)
class TopicInfo:
    """Id and partition leaders of a topic; `operations` are the codes of what this user may do, None if unknown.

    `replicas` says of each partition how many it has, and how many of them are in sync; `epochs` its leader's epoch.
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
        """Return whether this user may do this: ``READ`` or ``WRITE``; None if the brokers do not say."""
        return None if self.operations is None else OPERATIONS[operation] in self.operations

    def check_rights(self, topic: str, *operations: str) -> None:
        """Check that the brokers refuse this user none of these."""
        for operation in operations:
            if self.allows(operation) is False:
                raise missing_right(operation, f"topic {topic}")


def listed(partitions: Sequence[Partition]) -> str:
    """Return the first names of a list of partitions, for a message."""
    return ", ".join(map(str, partitions[:SHOWN])) + (", ..." if len(partitions) > SHOWN else "")


def lineage_namespace(servers: str) -> str:
    """Return what OpenLineage calls the cluster of these brokers (``host:port``, commas between): by the first of them."""
    return f"kafka://{servers.partition(',')[0].strip()}"


def is_topic_name(text: str) -> bool:
    """Return whether Kafka lets a topic have this name: see `TOPIC_FORM`."""
    return _NAME.fullmatch(text) is not None


def short_id(identity: uuid.UUID | str) -> str:
    """Return a topic's id as librdkafka writes it, which is the form that a source's offsets keep.

    Parameters
    ----------
    identity : UUID or str
        As kafka-python returns it; as text, with hyphens.

    Examples
    --------
    >>> short_id("4cd641bd-9ac3-4d38-9279-9b04cbfe826d")
    'TNZBvZrDTTiSeZsEy/6CbQ'
    """
    raw = uuid.UUID(str(identity)).bytes
    return base64.b64encode(raw).decode().rstrip("=")
