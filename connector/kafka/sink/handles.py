"""What it takes to end a prepared Kafka transaction, and to find out later what became of its rows.

A *handle* is the JSON mapping that travels to the journal. It is parsed once, where it comes in, into a `Prepared`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

from transactional.errors import StoreError

__all__ = ["FORMAT", "KafkaHandle", "Key", "Place", "Prepared", "WrittenPartition", "parse_handle"]

FORMAT: Final = 2
"""Version of `KafkaHandle`. Format 1, of journals of earlier releases, is still read; another one is refused by name."""

UNKNOWN_EPOCH: Final = -1
"""A leader epoch that no broker reported, or that format 1 did not keep: nothing is compared with it."""

Key = tuple[str, int, int]
"""Transactional id, producer id and epoch."""

Place = tuple[str, int]
"""A topic's name and the number of a partition."""


class KafkaHandle(TypedDict):
    """A prepared transaction, as the journal keeps it.

    `topics` maps each written topic's name to its id. `written` maps the name to a list of its partitions, each
    ``[partition, offset, leader epoch]``; see `WrittenPartition`. `startedAt` is the coordinator's time, in milliseconds.
    """

    format: int
    transactionalId: str
    producerId: int
    producerEpoch: int
    endTxnVersion: int
    clusterId: str
    topics: dict[str, str]
    written: dict[str, list[list[int]]]
    startedAt: int
    preparedAt: int
    timeoutMs: int


@dataclass(frozen=True)
class WrittenPartition:
    """A partition that a transaction wrote into.

    Parameters
    ----------
    topic, topic_id : str
    partition : int
    offset : int
        The witness: the high watermark after every row was delivered and before the transaction ended. All of its rows
        lie before it, and whatever marker ends it lies at it or behind.
    leader_epoch : int
        Of the partition's leader at that moment. A log in which this epoch ends before `offset` has lost rows.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic} [{self.partition}]"


@dataclass(frozen=True)
class Prepared:
    """A handle, parsed.

    Parameters
    ----------
    handle : KafkaHandle
        What it was parsed from: what the protocol knows it by.
    name : str
        The transactional id.
    producer_id, producer_epoch : int
        No other transaction has both: every task initialises its id before its first row.
    end_version : int
        Of the EndTxn request that ends it.
    cluster_id : str
    timeout_ms : int
    written : tuple[WrittenPartition, ...]
    """

    handle: KafkaHandle
    name: str
    producer_id: int
    producer_epoch: int
    end_version: int
    cluster_id: str
    timeout_ms: int
    written: tuple[WrittenPartition, ...]

    @property
    def key(self) -> Key:
        """What no other transaction has."""
        return self.name, self.producer_id, self.producer_epoch

    @property
    def ended_epoch(self) -> int:
        """The epoch at which the coordinator shows this transaction once it has ended: EndTxn 5 raises it."""
        return self.producer_epoch + 1 if self.end_version >= 5 else self.producer_epoch

    def __str__(self) -> str:
        return f"{self.name} (producer {self.producer_id}, epoch {self.producer_epoch})"


def parse_handle(handle: Mapping[str, Any]) -> Prepared:
    """Parse a handle of this format or of an earlier one.

    Raises
    ------
    StoreError
        ``UNKNOWN_HANDLE_FORMAT``.
    """
    version = handle.get("format")
    if version == FORMAT:
        written = tuple(
            WrittenPartition(name, handle["topics"][name], *entry)
            for name, entries in sorted(handle["written"].items())
            for entry in entries
        )
    elif version == 1:
        written = tuple(
            WrittenPartition(each["topic"], each["topicId"], each["partition"], each["offset"])
            for each in handle["witnesses"]
        )
    else:
        raise StoreError(
            "UNKNOWN_HANDLE_FORMAT",
            f"The handle of {handle.get('transactionalId')} has format {version}; this release reads 1 and {FORMAT}. "
            "Finish the query with the release that wrote it.",
            format=version,
        )
    return Prepared(
        cast("KafkaHandle", handle),
        handle["transactionalId"],
        handle["producerId"],
        handle["producerEpoch"],
        handle["endTxnVersion"],
        handle["clusterId"],
        handle["timeoutMs"],
        written,
    )
