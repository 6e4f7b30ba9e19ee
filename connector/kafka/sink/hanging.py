"""Find and end a query's hanging transactions, which have ended at their coordinator, but are still open in a partition.

If a coordinator leaves out a marker (KAFKA-20734), the partition's readers are stuck. The hanging rows also become part of
the transactional id's next transaction: when that transaction commits, aborted rows become readable. So hanging transactions
are ended before any task starts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import NEWER_WAS_THERE, Description, KafkaAdmin
from connector.kafka.client.cluster_admin import NONE
from connector.kafka.client.connection import backing_off
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.errors import refusal, skipped_marker
from connector.kafka.sink.handles import Key
from connector.kafka.sink.second_look import LOOK_SECONDS, SecondLook
from connector.kafka.sink.transactional_ids import BUSY, ids_under
from transactional.clock import Deadline
from transactional.errors import RetriableError, StoreError

log = logging.getLogger(__name__)

ENDING: Final = sorted(BUSY - {"Ongoing"})
"""States in which a coordinator is still writing a transaction's markers."""

ENDED: Final = {"CompleteCommit": True, "CompleteAbort": False}


@dataclass(frozen=True)
class _Hanging:
    partition: Partition
    name: str
    description: Description
    opened: OpenTransaction

    @property
    def where(self) -> tuple[Partition, str]:
        """The partition and the transactional id."""
        return self.partition, self.name

    def __str__(self) -> str:
        return (
            f"{self.name} (producer {self.description.producer_id}, epoch {self.opened.epoch}) has ended, but "
            f"it is still open in {self.partition.topic} [{self.partition.number}] from offset {self.opened.start}"
        )


def end_hanging(
    admin: KafkaAdmin, partitions: PartitionAdmin, topic: str, prefix: str, known: Collection[Key], over: bool
) -> int:
    """Find a prefix's transactions that hang in a topic, write their missing markers, and return the number of markers.

    Usually no reader is stuck, and the search costs only two requests for offsets to each leader. A hanging transaction
    must be seen twice, one second apart, because a leader that was paused and replaced may show transactions that ended
    long ago. If a coordinator is still writing a transaction's markers, the function waits, because the coordinator may
    leave out one of them. Until the coordinator has finished, the leaders' answers prove nothing: a marker that is not
    replicated yet is lost if its leader is replaced.

    Parameters
    ----------
    admin : KafkaAdmin
    partitions : PartitionAdmin
    topic, prefix : str
    known : Collection[Key]
        Transactions that are not touched, and not waited for.
    over : bool
        True if the caller knows that no other transaction of the prefix is open or ending.
    """
    spared = {name for name, _, _ in known}
    second = SecondLook(admin.clock)
    written = 0
    refused: StoreError | None = None

    def look() -> int | None:
        nonlocal written, refused, over
        over = over or not {*ids_under(prefix, admin.transactional_ids(ENDING))} - spared
        if not over:
            return None
        held = partitions.held_back(topic)
        hanging, ending = _find(admin, partitions, held, prefix, known) if held else ([], False)
        sure = [each for each in hanging if second.confirms(each.where, each)]
        for each in sure:
            refused = _end(admin, partitions, each)
            if refused is not None:
                second.forget(each.where)
                return None
            written += 1
        return written if len(sure) == len(hanging) and not ending else None

    ended: int | None = backing_off(Deadline(LOOK_SECONDS, admin.clock), admin.clock)(look)
    if ended is None:
        raise refused or RetriableError(
            "KAFKA_TIMEOUT",
            reason=f"the brokers' answers about transactions in {topic} kept changing, or some transactions did not end",
        )
    return ended


def _end(admin: KafkaAdmin, partitions: PartitionAdmin, transaction: _Hanging) -> StoreError | None:
    """Write the marker of a hanging transaction. If the leader has newer information, return an error (for a retry)."""
    version = admin.end_txn_version()
    above = transaction.description.producer_epoch - transaction.opened.epoch
    commit = ENDED.get(transaction.description.state)
    if commit is None or above not in (0, 1) or (commit and above and version < 5):
        raise _stopped(
            transaction,
            "the coordinator no longer knows how the transaction ended. If you know the outcome, let an administrator "
            "write the marker. If not, set a new transactionalIdPrefix: the query then continues without the marker",
        )
    code = partitions.write_marker(
        transaction.partition,
        transaction.description.producer_id,
        transaction.opened,
        transaction.description.producer_epoch,
        commit,
        5 if above and version >= 5 else 4,
    )
    if code in NEWER_WAS_THERE:
        return _stopped(transaction, refusal(code))
    if code != NONE:
        raise _stopped(transaction, refusal(code))
    log.warning(
        "%s: the coordinator did not write the transaction's marker, so the query wrote the marker", transaction
    )
    return None


def _stopped(transaction: _Hanging, reason: str) -> StoreError:
    return skipped_marker(str(transaction), reason, transaction.name, transaction.partition, transaction.opened)


def _find(
    admin: KafkaAdmin, partitions: PartitionAdmin, held: Collection[Partition], prefix: str, known: Collection[Key]
) -> tuple[list[_Hanging], bool]:
    """Return the prefix's hanging transactions in these partitions, and whether markers are still being written."""
    opened = partitions.open_transactions(held)
    # Readers are stuck, but no transaction is open: its leader has a marker that is not replicated yet.
    ending = any(not producers for producers in opened.values())
    strange = {(producer, record.epoch) for producers in opened.values() for producer, record in producers.items()}
    strange -= {(producer, epoch) for _, producer, epoch in known}
    if not strange:
        return [], ending
    names = admin.owners({producer for producer, _ in strange}).values()
    ours = admin.describe(ids_under(prefix, names))
    ended: Mapping[int, tuple[str, Description]] = {
        record.producer_id: (name, record) for name, record in ours.items() if record.state not in BUSY
    }
    ending = ending or any(record.ending for record in ours.values())
    # Ask the leaders again: a transaction that is still open after its coordinator has finished with it hangs.
    suspects = [partition for partition, producers in opened.items() if set(producers) & set(ended)]
    hanging = [
        _Hanging(partition, *ended[producer], record)
        for partition, producers in sorted(partitions.open_transactions(suspects).items())
        for producer, record in sorted(producers.items())
        if producer in ended and (producer, record.epoch) in strange
    ]
    return hanging, ending
