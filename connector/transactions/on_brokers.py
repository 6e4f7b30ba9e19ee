"""Open transactions as the brokers show them, and the partitions whose readers wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.errors import MissingRightError
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.transactional_ids import BUSY

__all__ = ["ClusterView", "HeldPartition", "OpenOnBrokers", "look"]


@dataclass(frozen=True)
class OpenOnBrokers:
    """A transaction that its coordinator calls open, or that is open in a partition.

    Parameters
    ----------
    name : str
        The transactional id; empty if no coordinator names the producer to this user.
    producer_id, producer_epoch : int
        Of the transaction: while it ends, its coordinator may show the next epoch already.
    state : str
        As its coordinator describes it: ``Ongoing``, ``PrepareCommit``, ``CompleteAbort``, ...; empty if that is unknown, or
        another transaction's.
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
    started_ms: int = 0
    timeout_ms: int = 0
    partitions: tuple[Partition, ...] = ()
    opened: Mapping[Partition, OpenTransaction] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        """Whether a partition has it open, and its coordinator does not."""
        return self.state not in BUSY

    @property
    def ends_ms(self) -> int | None:
        """When its coordinator aborts it, in milliseconds since 1970; None if it does not, or is ending it."""
        return self.started_ms + self.timeout_ms if self.state == "Ongoing" and self.started_ms > 0 else None

    @property
    def shown_name(self) -> str:
        """The transactional id, for people: without control characters."""
        return "".join(letter if letter.isprintable() else "?" for letter in self.name) or "(unknown)"

    def __str__(self) -> str:
        return f"{self.shown_name} (producer {self.producer_id}, epoch {self.producer_epoch})"


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
    silent : tuple[Partition, ...]
        Partitions of them that have no leader, or whose leader did not answer.
    denied : tuple[str, ...]
        Topics that this user may not look at.
    """

    transactions: tuple[OpenOnBrokers, ...]
    held: tuple[HeldPartition, ...]
    topics: tuple[str, ...]
    silent: tuple[Partition, ...] = ()
    denied: tuple[str, ...] = ()


def look(admin: KafkaAdmin, topics: Collection[str] = (), also_written: bool = True) -> ClusterView:
    """Ask every broker for its open transactions, and leaders for what is open in partitions."""
    busy = _busy(admin)
    written = {partition.topic for each in busy.values() for partition in each.partitions} if also_written else set()
    places = _Places(admin)
    there = [topic for topic in sorted({*topics, *written}) if places.take(topic)]
    # The coordinators again, after the partitions: what has begun or ended in between is not taken for one that hangs.
    after = _busy(admin)
    found: dict[Producer, OpenOnBrokers] = {}
    for name, each in {**busy, **after}.items():
        shown = _open(name, each, places.producers())
        found[shown.producer_id, shown.producer_epoch] = shown
    strange = places.producers() - set(found)
    if strange:
        found |= _hanging(admin, places, strange)
    by_producer = places.by_producer()
    transactions = [
        replace(each, opened=by_producer.get(producer, {}))
        for producer, each in found.items()
        if producer in by_producer or each.name in after
    ]
    transactions.sort(key=lambda each: (each.started_ms or _LATE, each.name, each.producer_id, each.producer_epoch))
    held = tuple(_held(places.ends, transactions))
    return ClusterView(tuple(transactions), held, tuple(there), tuple(places.silent), tuple(places.denied))


_LATE = 1 << 62
"""Sorts what has no time behind what has one."""

Producer = tuple[int, int]


def _busy(admin: KafkaAdmin) -> dict[str, Description]:
    described = admin.describe(admin.transactional_ids(sorted(BUSY)))
    return {name: each for name, each in described.items() if each.state in BUSY}


def _open(name: str, found: Description, there: Collection[Producer]) -> OpenOnBrokers:
    epoch = found.producer_epoch
    # An end by EndTxn 5 or by fencing raises the epoch before the markers are written.
    if found.state != "Ongoing" and (found.producer_id, epoch) not in there:
        epoch = epoch - 1 if (found.producer_id, epoch - 1) in there else epoch
    started = max(found.started_ms, 0)
    return OpenOnBrokers(name, found.producer_id, epoch, found.state, started, found.timeout_ms, found.partitions)


class _Places:
    """The partitions that were looked at, and what is open in them."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._partitions = PartitionAdmin(admin)
        self.ends: dict[Partition, tuple[int, int]] = {}
        self.opened: dict[Partition, dict[int, OpenTransaction]] = {}
        self.silent: list[Partition] = []
        self.denied: list[str] = []

    def take(self, topic: str) -> bool:
        """Look at a topic; return whether it exists, and this user may."""
        try:
            info = self._admin.topics([topic], ()).get(topic)
            if info is None:
                return False
            ends = self._partitions.ends(topic)
            led = [Partition(topic, number) for number, leader in sorted(info.leaders.items()) if leader >= 0]
            answered = [place for place in led if place in ends]
            opened = self._partitions.open_transactions(answered)
        except MissingRightError:
            self.denied.append(topic)
            return False
        self.silent += [p for n in sorted(info.leaders) if (p := Partition(topic, n)) not in opened]
        self.ends.update({place: end for place, end in ends.items() if end[0] != end[1]})
        self.opened.update(opened)
        return True

    def again(self, producers: Collection[Producer]) -> None:
        """Look once more where one of these is open."""
        where = [place for place, open_here in self.opened.items() if _producers(open_here) & set(producers)]
        self.opened.update(self._partitions.open_transactions(where))

    def producers(self) -> set[Producer]:
        """Return who has a transaction open."""
        return {producer for opened in self.opened.values() for producer in _producers(opened)}

    def by_producer(self) -> dict[Producer, dict[Partition, OpenTransaction]]:
        """Return where each has one open."""
        found: dict[Producer, dict[Partition, OpenTransaction]] = {}
        for partition, producers in sorted(self.opened.items()):
            for identity, each in producers.items():
                found.setdefault((identity, each.epoch), {})[partition] = each
        return found


def _producers(opened: Mapping[int, OpenTransaction]) -> set[Producer]:
    return {(identity, each.epoch) for identity, each in opened.items()}


def _hanging(admin: KafkaAdmin, places: _Places, strange: set[Producer]) -> dict[Producer, OpenOnBrokers]:
    """Return transactions of these producers that no coordinator had open, before and after the partitions had them."""
    names = sorted(admin.owners({identity for identity, _ in strange}).values())
    before = admin.describe(names)
    places.again(strange)
    after = admin.describe(names)
    owners = {each.producer_id: (name, each) for name, each in after.items()}
    found: dict[Producer, OpenOnBrokers] = {}
    for identity, epoch in strange & places.producers():
        name, owner = owners.get(identity, ("", None))
        if owner is None:
            found[identity, epoch] = OpenOnBrokers("", identity, epoch, "")
        elif owner.state in BUSY:
            shown = _open(name, owner, {(identity, epoch)})
            # Else a later transaction of the id is open, and what became of this one is not known.
            found[identity, epoch] = (
                shown if shown.producer_epoch == epoch else OpenOnBrokers(name, identity, epoch, "")
            )
        elif before.get(name) != owner:
            continue  # its producer is running: the next look shows how it stands
        else:
            own = owner.producer_epoch - epoch in (0, 1)
            found[identity, epoch] = OpenOnBrokers(name, identity, epoch, owner.state if own else "")
    return found


def _held(ends: Mapping[Partition, tuple[int, int]], transactions: Iterable[OpenOnBrokers]) -> Iterable[HeldPartition]:
    transactions = list(transactions)
    for partition, (stable, high) in sorted(ends.items()):
        there = [each for each in transactions if partition in each.opened]
        there.sort(key=lambda each: each.opened[partition].start)
        yield HeldPartition(partition, stable, high, tuple(there))
