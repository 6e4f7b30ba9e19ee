"""Transactions of ours that hang: ended at their coordinator, and open in a partition for ever.

A coordinator that leaves a marker out (KAFKA-20734) leaves the partition's readers waiting. Worse, the transactional id's
next transaction takes the rows that hang into its own: what was aborted becomes readable with its commit. So no task may
start before they are ended.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import CLUSTER_DENIED, NONE, Description, KafkaAdmin
from connector.kafka.client.connection import error_name
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.sink.handles import Key, Place
from connector.kafka.sink.transactional_ids import BUSY, TransactionalId
from transactional.errors import StoreError

__all__ = ["end_hanging", "refusal", "skipped_marker"]

log = logging.getLogger(__name__)

ENDED: Final = {"CompleteCommit": True, "CompleteAbort": False}


@dataclass(frozen=True)
class _Hanging:
    place: Place
    name: str
    description: Description
    found: OpenTransaction

    def __str__(self) -> str:
        return (
            f"{self.name} (producer {self.description.producer_id}, epoch {self.found.epoch}) has ended, and "
            f"{self.place[0]} [{self.place[1]}] has it open from offset {self.found.start}"
        )


def end_hanging(admin: KafkaAdmin, partitions: PartitionAdmin, topic: str, prefix: str, known: Collection[Key]) -> int:
    """Find transactions under a prefix that hang in a topic, and write the markers that are missing; returns how many.

    Two questions for offsets if no reader is held back, which is nearly always so.

    Parameters
    ----------
    admin : KafkaAdmin
    partitions : PartitionAdmin
    topic, prefix : str
    known : Collection[Key]
        Transactions that are prepared or decided: their end is not judged here.

    Raises
    ------
    StoreError
        ``MARKERS_SKIPPED``: this user may not write the marker, or nobody knows any more which one is missing.
    """
    held = partitions.held_back(topic)
    hanging = _find(admin, partitions, held, prefix, known) if held else []
    version = admin.end_txn_version() if hanging else 0
    for each in hanging:
        above = each.description.producer_epoch - each.found.epoch
        commit = ENDED.get(each.description.state)
        if commit is None or above not in (0, 1) or (commit and above and version < 5):
            raise skipped_marker(
                str(each),
                "Its coordinator does not know any more how it ended. A new prefix (transactionalIdPrefix) lets the query "
                "go on; an administrator who knows how it ended can write the marker",
                each.name,
                each.place,
                each.found,
            )
        code = partitions.write_marker(
            each.place,
            each.description.producer_id,
            each.found,
            each.description.producer_epoch,
            commit,
            5 if above and version >= 5 else 4,
        )
        if code != NONE:
            raise skipped_marker(str(each), refusal(code), each.name, each.place, each.found)
        log.warning("%s: the coordinator had left its marker out, it was written in its place", each)
    return len(hanging)


def _find(
    admin: KafkaAdmin, partitions: PartitionAdmin, held: Collection[Place], prefix: str, known: Collection[Key]
) -> list[_Hanging]:
    opened = partitions.open_transactions(held)
    strange = {(producer, found.epoch) for of_place in opened.values() for producer, found in of_place.items()}
    strange -= {(producer, epoch) for _, producer, epoch in known}
    if not strange:
        return []
    names = admin.transactional_ids(producer_ids=sorted({producer for producer, _ in strange}))
    ours = [name for name in names if (parsed := TransactionalId.parse(name)) and parsed.prefix == prefix]
    ended: Mapping[int, tuple[str, Description]] = {
        found.producer_id: (name, found) for name, found in admin.describe(ours).items() if found.state not in BUSY
    }
    # Asked once more: what is still open after its coordinator was through with it hangs.
    again = partitions.open_transactions([place for place, of_place in opened.items() if set(of_place) & set(ended)])
    return [
        _Hanging(place, *ended[producer], found)
        for place, of_place in sorted(again.items())
        for producer, found in sorted(of_place.items())
        if producer in ended and (producer, found.epoch) in strange
    ]


def refusal(code: int) -> str:
    """Say what to do about a marker that was refused."""
    if code == CLUSTER_DENIED:
        return (
            "This user lacks CLUSTER_ACTION on the cluster (ALTER is enough from Kafka 3.8 on): grant it for one start of the "
            "query, which writes the marker"
        )
    return f"Its leader refused the marker: {error_name(code)}. Start the query again"


def skipped_marker(what: str, remedy: str, name: str, place: Place, found: OpenTransaction) -> StoreError:
    """Make the error of a marker that is missing, and that can't be written."""
    return StoreError(
        "MARKERS_SKIPPED",
        f"{what}: the coordinator left its marker out (KAFKA-20734, brokers 4.3.0 and 4.3.1), and read_committed readers of "
        f"the partition wait. {remedy}. `kafka-transactions.sh abort` is no remedy: it would lose the rows of a commit.",
        transactionalId=name,
        partition=f"{place[0]} [{place[1]}]",
        offset=found.start,
    )
