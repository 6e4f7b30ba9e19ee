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
from connector.kafka.sink.transactional_ids import BUSY, ids_under

__all__ = ["end_hanging"]

log = logging.getLogger(__name__)

ENDED: Final = {"CompleteCommit": True, "CompleteAbort": False}


@dataclass(frozen=True)
class _Hanging:
    partition: Partition
    name: str
    description: Description
    opened: OpenTransaction

    def __str__(self) -> str:
        return (
            f"{self.name} (producer {self.description.producer_id}, epoch {self.opened.epoch}) has ended, and "
            f"{self.partition.topic} [{self.partition.number}] has it open from offset {self.opened.start}"
        )


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
        above = transaction.description.producer_epoch - transaction.opened.epoch
        commit = ENDED.get(transaction.description.state)
        if commit is None or above not in (0, 1) or (commit and above and version < 5):
            raise skipped_marker(
                str(transaction),
                "its coordinator does not know any more how it ended. A new transactionalIdPrefix lets the query continue, "
                "and an administrator who knows how it ended can write the marker",
                transaction.name,
                transaction.partition,
                transaction.opened,
            )
        code = partitions.write_marker(
            transaction.partition,
            transaction.description.producer_id,
            transaction.opened,
            transaction.description.producer_epoch,
            commit,
            5 if above and version >= 5 else 4,
        )
        if code != NONE:
            raise skipped_marker(
                str(transaction), refusal(code), transaction.name, transaction.partition, transaction.opened
            )
        log.warning("%s: the coordinator had left its marker out; the marker was written instead", transaction)
    return len(hanging)


def _find(
    admin: KafkaAdmin, partitions: PartitionAdmin, held: Collection[Partition], prefix: str, known: Collection[Key]
) -> list[_Hanging]:
    opened = partitions.open_transactions(held)
    strange = {(producer, record.epoch) for producers in opened.values() for producer, record in producers.items()}
    strange -= {(producer, epoch) for _, producer, epoch in known}
    if not strange:
        return []
    names = admin.transactional_ids(producer_ids=sorted({producer for producer, _ in strange}))
    ended: Mapping[int, tuple[str, Description]] = {
        record.producer_id: (name, record)
        for name, record in admin.describe(ids_under(prefix, names)).items()
        if record.state not in BUSY
    }
    # Asked once more: one that is still open after its coordinator finished with it hangs.
    suspects = [partition for partition, producers in opened.items() if set(producers) & set(ended)]
    return [
        _Hanging(partition, *ended[producer], record)
        for partition, producers in sorted(partitions.open_transactions(suspects).items())
        for producer, record in sorted(producers.items())
        if producer in ended and (producer, record.epoch) in strange
    ]
