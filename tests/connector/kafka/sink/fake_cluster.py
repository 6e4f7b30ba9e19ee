"""A coordinator and partition leaders in memory: what they say of transactions is set by the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from connector.kafka.client.admin import Description
from connector.kafka.client.partition_admin import OpenTransaction, StableEnd
from connector.kafka.client.partition_log import Ending, Verdict, Witness
from connector.kafka.client.topics import Partition
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.fates import Fate
from connector.kafka.sink.handles import FORMAT, KafkaHandle, Prepared, parse_handle
from transactional.testing import FakeClock

__all__ = ["CLUSTER", "TOPIC_ID", "FakeCluster", "described", "prepared"]

CLUSTER = "c"
TOPIC_ID = "f3b8a1de-2222-4444-8888-0123456789ab"
PRODUCER, EPOCH = 7, 3
NONE, INVALID_STATE, UNMAPPED = 0, 48, 49


def prepared(name: str = "q.0.1", version: int = 5, partitions: int = 1, producer: int = PRODUCER) -> Prepared:
    """A transaction that wrote into partitions 0 and on of ``t``, up to offset 10."""
    handle = KafkaHandle(
        format=FORMAT,
        transactionalId=name,
        producerId=producer,
        producerEpoch=EPOCH,
        endTxnVersion=version,
        clusterId=CLUSTER,
        topics={"t": TOPIC_ID},
        written={"t": [[number, 10, 0] for number in range(partitions)]},
        startedAt=0,
        preparedAt=0,
        timeoutMs=60_000,
    )
    return parse_handle(handle)


def described(state: str, above: int = 0, producer: int = PRODUCER) -> Description:
    """What a coordinator says, at the transaction's epoch or so many above."""
    return Description(state, producer, EPOCH + above, 60_000, 1_700_000_000_000, ())


@dataclass
class FakeCluster:
    """Stands for a `KafkaAdmin` and a `PartitionAdmin`."""

    # By transactional id; an id that is not there is unknown to its coordinator.
    states: dict[str, Description] = field(default_factory=dict)
    fates: dict[tuple[int, int], Fate] = field(default_factory=dict)  # By producer id and partition.
    # To the next EndTxn requests; when they are used up, the states answer.
    answers: deque[Any] = field(default_factory=deque)
    marker_code: int = NONE  # The answer to WriteTxnMarkers.
    clock: FakeClock = field(default_factory=FakeClock)
    limit: Any = None
    ended: list[Any] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    initialised: list[str] = field(default_factory=list)
    markers: list[tuple[Partition, int, int, bool, int]] = field(default_factory=list)
    described_leaders: int = 0
    probes: list[Witness] = field(default_factory=list)
    when_described: Callable[[], None] = lambda: None
    when_probed: Callable[[], None] = lambda: None
    when_marked: Callable[[], None] = lambda: None  # What happens when one is answered.

    def ender(self) -> TransactionEnder:
        """What is tested."""
        return TransactionEnder(self, CLUSTER, self)  # type: ignore[arg-type]

    # -- the coordinator --------------------------------------------------------------------------------------------------

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        self.when_described()
        return {name: self.states[name] for name in ids if name in self.states}

    def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(ids, 1)

    def forget_coordinator(self, name: str) -> None:
        self.forgotten.append(name)

    def init_producer_id(self, name: str, timeout_ms: int) -> None:
        self.initialised.append(name)
        self._end(name, False, 1)

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        return [self._answer(request) for _, request in requests]

    def _answer(self, request: Any) -> Any:
        self.ended.append(request)
        answer = self.answers.popleft() if self.answers else self._from_state(request)
        return answer if isinstance(answer, Exception) else SimpleNamespace(error_code=answer)

    def _from_state(self, request: Any) -> int:
        """What a broker answers, by the table in FACTS."""
        found = self.states.get(request.transactional_id)
        if found is None:
            return UNMAPPED
        above = 1 if request.API_VERSION >= 5 else 0
        if (found.state, found.producer_epoch) == ("Ongoing", EPOCH):
            self._end(request.transactional_id, request.committed, above)
            return NONE
        wanted = "CompleteCommit" if request.committed else "CompleteAbort"
        return NONE if (found.state, found.producer_epoch) == (wanted, EPOCH + above) else INVALID_STATE

    def _end(self, name: str, commit: bool, above: int) -> None:
        found = self.states.get(name)
        if found is None or found.state != "Ongoing":
            return
        self.states[name] = described("CompleteCommit" if commit else "CompleteAbort", above, found.producer_id)
        for (producer, partition), fate in self.fates.items():
            if producer == found.producer_id and fate is Fate.OPEN:
                self.fates[producer, partition] = Fate.COMMITTED if commit else Fate.ABORTED

    # -- the partitions ---------------------------------------------------------------------------------------------------

    def open_transactions(self, places: Collection[Partition]) -> dict[Partition, dict[int, OpenTransaction]]:
        self.described_leaders += bool(places)
        return {
            place: {
                producer: OpenTransaction(EPOCH, 4, -1)
                for (producer, partition), fate in self.fates.items()
                if partition == place.number and fate is Fate.OPEN
            }
            for place in places
        }

    def stable_ends(self, probes: Sequence[Witness]) -> list[StableEnd]:
        self.when_probed()
        self.probes += probes
        return [self._end_of(probe) for probe in probes]

    def _end_of(self, probe: Witness) -> StableEnd:
        of_place = {producer: fate for (producer, part), fate in self.fates.items() if part == probe.partition.number}
        if Fate.GONE in of_place.values():
            return StableEnd(gone=f"{probe}: the topic does not exist")
        if Fate.CUT in of_place.values():
            return StableEnd(cut_at=6)
        if {Fate.OPEN, Fate.PENDING, Fate.UNKNOWN} & set(of_place.values()):
            return StableEnd(stable=4)
        return StableEnd(stable=99, aborted={p: (4,) for p, fate in of_place.items() if fate is Fate.ABORTED})

    def search(self, producer_id: int, epoch: int, part: Witness) -> Verdict:
        fate = self.fates[producer_id, part.partition.number]
        endings = {Fate.COMMITTED: Ending.COMMIT, Fate.ABORTED: Ending.ABORT, Fate.PENDING: Ending.NOT_YET}
        ending = endings.get(fate, Ending.UNKNOWN)
        return Verdict(ending, f"{part} has its {ending.value} marker at 11")

    def write_marker(
        self, place: Partition, producer: int, found: OpenTransaction, epoch: int, commit: bool, end_version: int
    ) -> int:
        self.markers.append((place, producer, epoch, commit, end_version))
        if self.marker_code == NONE:
            self.fates[producer, place.number] = Fate.COMMITTED if commit else Fate.ABORTED
        self.when_marked()
        return self.marker_code
