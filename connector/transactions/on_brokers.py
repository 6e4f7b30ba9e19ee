"""Open transactions as the brokers show them, and the partitions whose readers wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.handles import Key
from connector.kafka.sink.transactional_ids import BUSY

__all__ = ["ClusterView", "HeldPartition", "OpenOnBrokers", "look"]


@dataclass(frozen=True)
class OpenOnBrokers:
    """A transaction that its coordinator calls open, or that is open in a partition.

    Parameters
    ----------
    name : str
        The transactional id; empty if no coordinator knows the producer any more.
    producer_id, producer_epoch : int
    state : str
        As its coordinator describes it: ``Ongoing``, ``PrepareCommit``, ``CompleteAbort``, ...; empty if none does.
    coordinator_epoch : int
        The producer's epoch at the coordinator: that of the transaction, or a later one if it has ended there.
    started_ms, timeout_ms : int
        When it began, by the coordinator's clock, in milliseconds since 1970, and how long it may take; 0 if unknown.
    partitions : tuple[Partition, ...]
        What it has written into, as far as the coordinator knows.
    opened : Mapping[Partition, OpenTransaction]
        Where it is open, of the partitions that were asked.
    """

    name: str
    producer_id: int
    producer_epoch: int
    state: str
    coordinator_epoch: int = -1
    started_ms: int = 0
    timeout_ms: int = 0
    partitions: tuple[Partition, ...] = ()
    opened: Mapping[Partition, OpenTransaction] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Transactional id, producer id and epoch."""
        return self.name, self.producer_id, self.producer_epoch

    @property
    def hangs(self) -> bool:
        """Whether a partition has it open, and its coordinator does not."""
        return self.state not in BUSY

    @property
    def ends_ms(self) -> int | None:
        """When its coordinator aborts it, in milliseconds since 1970; None if it does not, or is ending it."""
        return self.started_ms + self.timeout_ms if self.state == "Ongoing" and self.started_ms > 0 else None

    def __str__(self) -> str:
        return f"{self.name or 'a transactional id that no coordinator knows'} ({self.producer})"

    @property
    def producer(self) -> str:
        """Producer id and epoch, in words."""
        return f"producer {self.producer_id}, epoch {self.producer_epoch}"


@dataclass(frozen=True)
class HeldPartition:
    """A partition whose ``read_committed`` readers can't read to its end.

    Parameters
    ----------
    partition : Partition
    stable : int
        The last stable offset: they stop there.
    high : int
        The high watermark: ``read_uncommitted`` readers stop there.
    holders : tuple[OpenOnBrokers, ...]
        The transactions that are open there, the one that holds it back first.
    """

    partition: Partition
    stable: int
    high: int
    holders: tuple[OpenOnBrokers, ...] = ()

    @property
    def waiting(self) -> int:
        """Offsets that these readers can't reach yet, rows of open transactions among them."""
        return self.high - self.stable


@dataclass(frozen=True)
class ClusterView:
    """What a cluster shows.

    Parameters
    ----------
    transactions : tuple[OpenOnBrokers, ...]
        The oldest first.
    held : tuple[HeldPartition, ...]
        Of the topics that were looked at.
    topics : tuple[str, ...]
        Those that were looked at, and exist.
    """

    transactions: tuple[OpenOnBrokers, ...]
    held: tuple[HeldPartition, ...]
    topics: tuple[str, ...]


def look(admin: KafkaAdmin, topics: Collection[str] = ()) -> ClusterView:
    """Ask every broker for its open transactions, and leaders for what is open in partitions.

    Parameters
    ----------
    admin : KafkaAdmin
    topics : Collection[str], optional
        Beside those into which an open transaction has written. Transactions that hang are found in these only: no
        coordinator lists them.

    Raises
    ------
    StoreError
        ``MISSING_RIGHT``.
    RetriableError
        ``KAFKA_TIMEOUT``: a broker does not answer.
    """
    partitions = PartitionAdmin(admin)
    described = admin.describe(admin.transactional_ids(sorted(BUSY)))
    busy = {name: each for name, each in described.items() if each.state in BUSY}
    written = {partition for each in busy.values() for partition in each.partitions}
    wanted = sorted({*topics, *(partition.topic for partition in written)})
    there = tuple(admin.topics(wanted, ()))
    ends = {place: end for topic in there for place, end in partitions.held_back(topic).items()}
    opened = partitions.open_transactions({*ends, *(place for place in written if place.topic in there)})
    found = {(each.producer_id, each.producer_epoch): _open(name, each) for name, each in busy.items()}
    strange = _producers(opened) - set(found)
    if strange:
        found |= _hanging(admin, partitions, opened, strange)
    by_producer = _by_producer(opened)
    transactions = [replace(each, opened=by_producer.get(producer, {})) for producer, each in found.items()]
    transactions.sort(key=lambda each: (each.started_ms or _LATE, each.key))
    return ClusterView(tuple(transactions), tuple(_held(ends, transactions)), there)


_LATE = 1 << 62
"""Sorts what has no time behind what has one."""

Producer = tuple[int, int]


def _open(name: str, found: Description) -> OpenOnBrokers:
    return OpenOnBrokers(
        name,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.producer_epoch,
        max(found.started_ms, 0),
        found.timeout_ms,
        found.partitions,
    )


def _producers(opened: Mapping[Partition, Mapping[int, OpenTransaction]]) -> set[Producer]:
    return {(identity, each.epoch) for producers in opened.values() for identity, each in producers.items()}


def _by_producer(
    opened: Mapping[Partition, Mapping[int, OpenTransaction]],
) -> dict[Producer, dict[Partition, OpenTransaction]]:
    found: dict[Producer, dict[Partition, OpenTransaction]] = {}
    for partition, producers in sorted(opened.items()):
        for identity, each in producers.items():
            found.setdefault((identity, each.epoch), {})[partition] = each
    return found


def _hanging(
    admin: KafkaAdmin,
    partitions: PartitionAdmin,
    opened: dict[Partition, dict[int, OpenTransaction]],
    strange: set[Producer],
) -> dict[Producer, OpenOnBrokers]:
    """Return transactions of these producers that are open in a partition after their coordinator was asked about them.

    One may have begun, or ended, since the coordinators were listed. `opened` is brought up to date.
    """
    names = admin.transactional_ids(producer_ids=sorted({identity for identity, _ in strange}))
    owners = {each.producer_id: (name, each) for name, each in admin.describe(names).items()}
    places = [
        place for place, producers in opened.items() if any((p, o.epoch) in strange for p, o in producers.items())
    ]
    opened.update(partitions.open_transactions(places))
    found: dict[Producer, OpenOnBrokers] = {}
    for identity, epoch in strange & _producers(opened):
        name, owner = owners.get(identity, ("", None))
        if owner is None:
            found[identity, epoch] = OpenOnBrokers("", identity, epoch, "")
        elif owner.state in BUSY and owner.producer_epoch == epoch:
            found[identity, epoch] = _open(name, owner)
        else:
            state = owner.state if owner.state not in BUSY else ""  # a later transaction of this id is open
            found[identity, epoch] = OpenOnBrokers(name, identity, epoch, state, owner.producer_epoch)
    return found


def _held(ends: Mapping[Partition, tuple[int, int]], transactions: Iterable[OpenOnBrokers]) -> Iterable[HeldPartition]:
    transactions = list(transactions)
    for partition, (stable, high) in sorted(ends.items()):
        there = [each for each in transactions if partition in each.opened]
        there.sort(key=lambda each: each.opened[partition].start)
        yield HeldPartition(partition, stable, high, tuple(there))
