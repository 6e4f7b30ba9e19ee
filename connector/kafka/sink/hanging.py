"""Hanging transactions of a query: ended at their coordinator, and open in a partition for ever.

If a coordinator leaves a marker out (KAFKA-20734), the partition's readers wait. Worse, the transactional id's next
transaction takes over the rows that hang: aborted rows become readable with its commit. So they are ended before any task
starts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import NONE, Description, KafkaAdmin
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.errors import refusal, skipped_marker
from connector.kafka.sink.handles import Key
from connector.kafka.sink.transactional_ids import BUSY, TransactionalId

__all__ = ["HangingTransaction", "end_hanging", "write_missing_marker"]

log = logging.getLogger(__name__)

ENDED: Final = {"CompleteCommit": True, "CompleteAbort": False}


@dataclass(frozen=True)
class HangingTransaction:
    """A transaction that its coordinator has ended, and that is open in a partition.

    Parameters
    ----------
    partition : Partition
    name : str
        The transactional id.
    producer_id : int
    state, producer_epoch
        As the coordinator describes the producer.
    opened : OpenTransaction
    """

    partition: Partition
    name: str
    producer_id: int
    state: str
    producer_epoch: int
    opened: OpenTransaction

    def __str__(self) -> str:
        return (
            f"{self.name} (producer {self.producer_id}, epoch {self.opened.epoch}) has ended, and "
            f"{self.partition.topic} [{self.partition.number}] has it open from offset {self.opened.start}"
        )


def write_missing_marker(partitions: PartitionAdmin, hanging: HangingTransaction, end_version: int) -> None:
    """Write the marker that the coordinator has left out.

    Parameters
    ----------
    partitions : PartitionAdmin
    hanging : HangingTransaction
    end_version : int
        Version of the EndTxn request with which this cluster's transactions are ended.

    Raises
    ------
    StoreError
        ``MARKERS_SKIPPED``: this user may not write it, or it is unknown whether a commit or an abort is missing.
    """
    above = hanging.producer_epoch - hanging.opened.epoch
    commit = ENDED.get(hanging.state)
    if commit is None or above not in (0, 1) or (commit and above and end_version < 5):
        raise skipped_marker(
            str(hanging),
            "its coordinator does not know any more how it ended. A new transactionalIdPrefix lets the query continue, "
            "and an administrator who knows how it ended can write the marker",
            hanging.name,
            hanging.partition,
            hanging.opened,
        )
    code = partitions.write_marker(
        hanging.partition,
        hanging.producer_id,
        hanging.opened,
        hanging.producer_epoch,
        commit,
        5 if above and end_version >= 5 else 4,
    )
    if code != NONE:
        raise skipped_marker(str(hanging), refusal(code), hanging.name, hanging.partition, hanging.opened)
    log.warning("%s: the coordinator had left its marker out; the marker was written instead", hanging)


def end_hanging(admin: KafkaAdmin, partitions: PartitionAdmin, topic: str, prefix: str, known: Collection[Key]) -> int:
    """Find transactions under a prefix that hang in a topic, write the missing markers, and return how many it wrote.

    If no reader is held back, as nearly always, this costs two questions for offsets.

    Parameters
    ----------
    admin : KafkaAdmin
    partitions : PartitionAdmin
    topic, prefix : str
    known : Collection[Key]
        Transactions that are prepared or decided: they are left alone.

    Raises
    ------
    StoreError
        ``MARKERS_SKIPPED``: this user may not write the marker, or it is unknown whether a commit or an abort is missing.
    """
    held = partitions.held_back(topic)
    hanging = _find(admin, partitions, held, prefix, known) if held else []
    version = admin.end_txn_version() if hanging else 0
    for transaction in hanging:
        write_missing_marker(partitions, transaction, version)
    return len(hanging)


def _find(
    admin: KafkaAdmin, partitions: PartitionAdmin, held: Collection[Partition], prefix: str, known: Collection[Key]
) -> list[HangingTransaction]:
    opened = partitions.open_transactions(held)
    strange = {(producer, record.epoch) for producers in opened.values() for producer, record in producers.items()}
    strange -= {(producer, epoch) for _, producer, epoch in known}
    if not strange:
        return []
    names = admin.transactional_ids(producer_ids=sorted({producer for producer, _ in strange}))
    ours = [name for name in names if (parsed := TransactionalId.parse(name)) and parsed.prefix == prefix]
    ended: Mapping[int, tuple[str, Description]] = {
        record.producer_id: (name, record) for name, record in admin.describe(ours).items() if record.state not in BUSY
    }
    # Asked once more: one that is still open after its coordinator finished with it hangs.
    suspects = [partition for partition, producers in opened.items() if set(producers) & set(ended)]
    return [
        HangingTransaction(
            partition, ended[producer][0], producer, ended[producer][1].state, ended[producer][1].producer_epoch, record
        )
        for partition, producers in sorted(partitions.open_transactions(suspects).items())
        for producer, record in sorted(producers.items())
        if producer in ended and (producer, record.epoch) in strange
    ]
