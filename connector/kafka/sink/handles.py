"""Prepared Kafka transactions: the facts with which any process can end a transaction, or find out later how it ended.

A *handle* is the JSON mapping that is stored in the journal. `parse_handle` converts it into a `Prepared`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

from connector.kafka.client.partition_log import Witness
from connector.kafka.client.topics import Partition
from transactional.errors import StoreError

FORMAT: Final = 2
"""The version of the format of `KafkaHandle`. Handles with any other version are rejected."""

Key = tuple[str, int, int]
"""The identity of a transaction: its transactional id, producer id and producer epoch."""


class KafkaHandle(TypedDict):
    """A prepared transaction, as the journal stores it.

    `topics` maps the name of each written topic to the topic's id. `written` maps the name to a list with an entry
    ``[partition, offset, leader epoch]`` for each written partition; see `Witness`. `startedAt` is when
    the transaction began, by the clock of Kafka's transaction coordinator, in milliseconds since the epoch.
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
class Prepared:
    """A prepared Kafka transaction, parsed from its handle."""

    handle: KafkaHandle  # The mapping that was parsed. The journal identifies the transaction by this mapping.
    name: str  # The transactional id.
    # No other transaction has the same pair, because every task initializes its id before its first row.
    producer_id: int
    producer_epoch: int
    end_version: int  # Version of the EndTxn request that ends the transaction.
    cluster_id: str
    timeout_ms: int
    written: tuple[Witness, ...]

    @property
    def key(self) -> Key:
        """The transaction's identity: its transactional id, producer id and producer epoch."""
        return self.name, self.producer_id, self.producer_epoch

    @property
    def ended_epoch(self) -> int:
        """The epoch that the coordinator reports after this transaction has ended. EndTxn version 5 raises the epoch by one."""
        return self.producer_epoch + 1 if self.end_version >= 5 else self.producer_epoch

    def __str__(self) -> str:
        return f"{self.name} (producer {self.producer_id}, epoch {self.producer_epoch})"


def parse_handle(handle: Mapping[str, Any]) -> Prepared:
    """Parse a handle from the journal. If its format is not supported, raise ``FORMAT_UNKNOWN``."""
    version = handle.get("format")
    if version != FORMAT:
        raise StoreError(
            "FORMAT_UNKNOWN",
            what=f"The handle of {handle.get('transactionalId')}",
            found=f"format {version}",
            known=f"format {FORMAT}",
        )
    written = tuple(
        Witness(Partition(name, number), handle["topics"][name], offset, epoch)
        for name, entries in sorted(handle["written"].items())
        for number, offset, epoch in entries
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
