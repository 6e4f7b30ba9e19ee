"""Find the open transactions that the brokers report, and the partitions whose readers they block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.errors import MissingRightError
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.transactional_ids import BUSY


@dataclass(frozen=True)
class OpenOnBrokers:
    """A transaction that is open at its coordinator or in a partition."""

    name: str  # The transactional id; empty if no coordinator shows it to this user.
    # The id and epoch of the producer that wrote the transaction. While the transaction ends, its coordinator may already show
    # the next epoch.
    producer_id: int
    producer_epoch: int
    # The state at the coordinator: ``Ongoing``, ``PrepareCommit``, ``CompleteAbort``, ... Empty if it is unknown, or if the
    # coordinator shows a later transaction.
    state: str
    # `started_ms` is the time when the transaction began, by the coordinator's clock, in milliseconds since the epoch.
    # `timeout_ms` is the transaction's timeout in milliseconds. Both are 0 if unknown.
    started_ms: int = 0
    timeout_ms: int = 0
    # The partitions to which the transaction has written, as far as the coordinator knows.
    partitions: tuple[Partition, ...] = ()
    # The examined partitions in which the transaction is open.
    opened: Mapping[Partition, OpenTransaction] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        """True if the transaction is open in a partition, but not at its coordinator."""
        return self.state not in BUSY

    @property
    def ends_ms(self) -> int | None:
        """The time when the transaction times out, in milliseconds since the epoch.

        None if the time is unknown, or if the transaction is already ending.
        """
        return self.started_ms + self.timeout_ms if self.state == "Ongoing" and self.started_ms > 0 else None

    @property
    def shown_name(self) -> str:
        """The transactional id for display, without control characters."""
        return "".join(letter if letter.isprintable() else "?" for letter in self.name) or "(unknown)"

    def __str__(self) -> str:
        return f"{self.shown_name} (producer {self.producer_id}, epoch {self.producer_epoch})"


@dataclass(frozen=True)
class HeldPartition:
    """A partition that ``read_committed`` readers can't read to the end."""

    partition: Partition
    stable: int  # The last stable offset, where ``read_committed`` readers stop.
    high: int  # The high watermark, where ``read_uncommitted`` readers stop.
    # The transactions that are open in the partition. The first one blocks the readers.
    holders: tuple[OpenOnBrokers, ...] = ()


@dataclass(frozen=True)
class ClusterView:
    """The open transactions of a cluster, and the partitions whose readers they block."""

    transactions: tuple[OpenOnBrokers, ...]  # The open transactions, oldest first.
    held: tuple[HeldPartition, ...]  # The blocked partitions of the examined topics.
    topics: tuple[str, ...]  # The topics that were examined and exist.
    # Partitions of the examined topics that have no leader, or whose leader did not answer.
    silent: tuple[Partition, ...] = ()
    denied: tuple[str, ...] = ()  # Topics that this user has no right to examine.


def look(admin: KafkaAdmin, topics: Collection[str] = (), also_written: bool = True) -> ClusterView:
    """Ask every broker for its open transactions, and partition leaders for the transactions open in their partitions.

    Parameters
    ----------
    admin : KafkaAdmin
    topics : Collection[str]
        Topics whose partitions are examined.
    also_written : bool
        True to also examine the topics to which the open transactions have written.
    """
    busy = _busy(admin)
    written = {partition.topic for each in busy.values() for partition in each.partitions} if also_written else set()
    places = _Places(admin)
    there = [topic for topic in sorted({*topics, *written}) if places.take(topic)]
    # Ask the coordinators again after the partitions. So a transaction that began or ended in between is not called hanging.
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
"""The sort key of a transaction without a start time, which comes after all others."""

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
    """The examined partitions, and the transactions that are open in them."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._partitions = PartitionAdmin(admin)
        self.ends: dict[Partition, tuple[int, int]] = {}
        self.opened: dict[Partition, dict[int, OpenTransaction]] = {}
        self.silent: list[Partition] = []
        self.denied: list[str] = []

    def take(self, topic: str) -> bool:
        """Examine a topic's partitions. Return False if the topic does not exist, or this user lacks the right."""
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
        """Re-examine the partitions in which one of these producers had an open transaction."""
        where = [place for place, open_here in self.opened.items() if _producers(open_here) & set(producers)]
        self.opened.update(self._partitions.open_transactions(where))

    def producers(self) -> set[Producer]:
        """Return the producers that have a transaction open in a partition."""
        return {producer for opened in self.opened.values() for producer in _producers(opened)}

    def by_producer(self) -> dict[Producer, dict[Partition, OpenTransaction]]:
        """Return, for each producer, the partitions in which it has a transaction open."""
        found: dict[Producer, dict[Partition, OpenTransaction]] = {}
        for partition, producers in sorted(self.opened.items()):
            for identity, each in producers.items():
                found.setdefault((identity, each.epoch), {})[partition] = each
        return found


def _producers(opened: Mapping[int, OpenTransaction]) -> set[Producer]:
    return {(identity, each.epoch) for identity, each in opened.items()}


def _hanging(admin: KafkaAdmin, places: _Places, strange: set[Producer]) -> dict[Producer, OpenOnBrokers]:
    """Ask again about transactions that are open in a partition, but at no coordinator. Return those that are still open."""
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
            # If the epochs differ, a later transaction of the id is open, and it is unknown how this one ended.
            found[identity, epoch] = (
                shown if shown.producer_epoch == epoch else OpenOnBrokers(name, identity, epoch, "")
            )
        elif before.get(name) != owner:
            continue  # the producer is running: the next call shows the transaction's state
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
