"""Requests to partition leaders: whether a transaction is open in a partition, and which of its rows still exist.

A coordinator answers EndTxn when it has decided. But each partition's own log decides what readers see. In a partition, a
marker can be missing (KAFKA-20734). Another program can also have written a marker (WriteTxnMarkers, ``kafka-transactions.sh
abort``), or an unclean leader election can have cut off rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import (
    CLUSTER_DENIED,
    MOVING,
    NONE,
    TOPIC_DENIED,
    UNKNOWN_TOPIC,
    latest_request,
)
from connector.kafka.client.errors import error_name, missing_right
from connector.kafka.client.partition_log import (
    GONE,
    OFFSET_OUT_OF_RANGE,
    Verdict,
    Witness,
    is_behind,
    search_marker,
    why_gone,
)
from connector.kafka.client.topics import UNKNOWN_EPOCH, Partition, TopicInfo
from transactional.errors import StoreError

K = TypeVar("K")
ResultT = TypeVar("ResultT")

FRESH_SECONDS: Final = 0.2
"""The time for which two brokers' view of a topic's leaders is reused. One commit of a checkpoint needs this view
several times in a row. A second check (`SECOND_LOOK_SECONDS` later) asks the brokers again.
"""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition, as the partition's leader describes it."""

    epoch: int
    start: int
    coordinator_epoch: int


@dataclass(frozen=True)
class StableEnd:
    """A leader's answer about the rows before an offset: whether they still exist, and how their transactions ended."""

    # Why the leader can't answer; empty if it can. If it can't, ignore `stable`, `cut_at` and `aborted`.
    gone: str = ""
    stable: int = -1  # The last stable offset. Every transaction with rows before this offset has ended.
    # If the log was replaced from an offset on that is before the witness's offset: that first offset. Else None.
    cut_at: int | None = None
    # Producer id → the first offset of each of its transactions that were aborted at or after the witness's offset. If `stable`
    # is after the witness's offset, no such transaction that began before the witness's offset is missing. If the leader sent
    # no list, this is None, which does not prove a commit. That can happen if the offset is only in remote storage.
    aborted: Mapping[int, tuple[int, ...]] | None = field(default_factory=dict)
    # The leader's epoch that the request named. A broker that knows of a newer leader refuses such a request.
    leader_epoch: int = UNKNOWN_EPOCH


class PartitionAdmin:
    """Sends requests to partition leaders: one request per leader for all of its partitions, repeated while leaders move."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._seen: dict[str, tuple[TopicInfo, float]] = {}  # by topic: what the brokers last answered, and when

    def open_transactions(self, partitions: Collection[Partition]) -> dict[Partition, dict[int, OpenTransaction]]:
        """Return, for each partition, its open transactions by producer id. Partitions that do not exist are omitted.

        A leader's answer has an entry for every producer that wrote in the last day, even if no transaction is open. Reading
        an entry takes 0.7 microseconds.
        """
        left = set(partitions)
        opened: dict[Partition, dict[int, OpenTransaction]] = {}

        def attempt() -> dict[Partition, dict[int, OpenTransaction]] | None:
            by_leader = _by_leader(self._topics(left), left)
            left.intersection_update(member for of_leader in by_leader.values() for member in of_leader)
            for _, answer in self._answers((node, _describe(asked), node) for node, asked in by_leader.items()):
                for topic in answer.topics:
                    for part in topic.partitions:
                        partition = Partition(topic.name, part.partition_index)
                        if part.error_code == NONE:
                            opened[partition] = _open_producers(part)
                            left.discard(partition)
                        elif not _passes(part.error_code, partition, "DescribeProducers"):
                            left.discard(partition)
            return self._complete(opened, not left)

        return self._admin.until(attempt, "the open transactions of partitions") if left else {}

    def stable_ends(self, witnesses: Sequence[Witness]) -> list[StableEnd]:
        """Ask the partition leaders about the rows before the offset of each witness. Return the answers in the same order.

        A witness is a partition, and an offset after a transaction's rows. One `read_committed` fetch returns the stable
        offset and the aborted transactions. If the log has changed since the witness was recorded, the leader epoch in the
        request makes the broker also report the offset of the change. The request asks for no bytes, but each answer still
        contains one batch, of one partition. Witnesses of the same partition are sent in separate requests, without waiting
        in between.
        """
        ends: dict[int, StableEnd] = {}
        asked = dict(enumerate(witnesses))

        def attempt() -> list[StableEnd] | None:
            left = {index: witness for index, witness in asked.items() if index not in ends}
            topics = self._topics({witness.partition for witness in left.values()})
            gone = {index: reason for index, witness in left.items() if (reason := why_gone(topics, witness))}
            ends.update((index, StableEnd(gone=reason)) for index, reason in gone.items())
            layers = _layers(
                {
                    index: witness
                    for index, witness in left.items()
                    if index not in gone and not is_behind(topics[witness.partition.topic], witness)
                }
            )
            sent = (
                (node, _fetch([asked[layer[member]] for member in of_leader], topics), layer)
                for layer in layers
                for node, of_leader in _by_leader(topics, layer).items()
            )
            for layer, answer in self._answers(sent):
                for place, part in _fetched(answer, {topics[name].topic_id: name for name, _ in layer}):
                    self._take(ends, asked, layer[place], part, topics[place.topic].epoch(place.number))
            done = len(ends) == len(witnesses)
            return self._complete([ends[index] for index in range(len(witnesses))] if done else [], done)

        return self._admin.until(attempt, "the stable offsets of partitions") if witnesses else []

    @staticmethod
    def _take(ends: dict[int, StableEnd], asked: dict[int, Witness], index: int, part: Any, epoch: int) -> None:
        witness = asked[index]
        cut = part.diverging_epoch
        start = f"{witness} from {witness.offset}"
        if cut is not None and 0 <= cut.end_offset < witness.offset:
            ends[index] = StableEnd(cut_at=cut.end_offset, leader_epoch=epoch)
        elif cut is not None and cut.end_offset >= witness.offset:
            # The leader changed before a row was written at that epoch, so all rows before the offset still exist.
            asked[index] = replace(witness, leader_epoch=UNKNOWN_EPOCH)
        elif part.error_code == OFFSET_OUT_OF_RANGE:
            ends[index] = StableEnd(gone=f"{start}: the log no longer has this offset", leader_epoch=epoch)
        elif part.error_code != NONE:
            if not _passes(part.error_code, witness.partition, "Fetch"):
                ends[index] = StableEnd(gone=f"{start}: {error_name(part.error_code)}")
        elif part.log_start_offset > witness.offset:
            ends[index] = StableEnd(gone=f"{start}: the log now begins at {part.log_start_offset}", leader_epoch=epoch)
        elif part.aborted_transactions is None:
            ends[index] = StableEnd(stable=part.last_stable_offset, aborted=None, leader_epoch=epoch)
        else:
            aborted: dict[int, tuple[int, ...]] = {}
            for transaction in part.aborted_transactions:
                aborted[transaction.producer_id] = (*aborted.get(transaction.producer_id, ()), transaction.first_offset)
            ends[index] = StableEnd(stable=part.last_stable_offset, aborted=aborted, leader_epoch=epoch)

    def held_back(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic whose readers are blocked: the stable offset is below the high watermark."""

        def attempt() -> list[Partition] | None:
            info = self._infos([topic], ()).get(topic)
            ends = self._ends(topic, info)
            held = [partition for partition, (stable, high) in ends.items() if stable != high]
            return self._complete(held, info is None or len(ends) == len(info.leaders))

        return self._admin.until(attempt, f"the end offsets of {topic}")

    def ends(self, topic: str) -> dict[Partition, tuple[int, int]]:
        """Return each partition's stable offset and high watermark. Omit partitions whose leaders do not answer."""
        return self._ends(topic, self._admin.topics([topic], ()).get(topic))

    def _ends(self, topic: str, info: TopicInfo | None) -> dict[Partition, tuple[int, int]]:
        leaders = {Partition(topic, number): leader for number, leader in (info.leaders if info else {}).items()}
        by_leader: dict[int, list[Partition]] = {}
        for partition, leader in sorted(leaders.items()):
            if leader >= 0:
                by_leader.setdefault(leader, []).append(partition)
        # First the stable offsets. A partition whose transaction ends in between seems blocked, which only costs a check.
        requests = [
            (node, latest_request(asked, {topic: info} if info else {}, committed=committed))
            for committed in (True, False)
            for node, asked in by_leader.items()
        ]
        seen: dict[Partition, list[int]] = {}
        for answer in self._admin.send_all(requests):
            for part in () if isinstance(answer, Exception) else answer.topics[0].partitions:
                if part.error_code == NONE:
                    seen.setdefault(Partition(topic, part.partition_index), []).append(part.offset)
        return {place: (offsets[0], offsets[1]) for place, offsets in sorted(seen.items()) if len(offsets) == 2}

    def write_marker(
        self,
        partition: Partition,
        producer_id: int,
        opened: OpenTransaction,
        epoch: int,
        commit: bool,
        end_version: int,
    ) -> int:
        """Write a marker that a coordinator left out, as the coordinator would have written it. Return the error code."""
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

        kind = WriteTxnMarkersRequest.WritableTxnMarker
        marker = kind(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[kind.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.number])],
            # The epoch that the partition saw last. With a higher one, the partition would refuse the coordinator's markers.
            coordinator_epoch=max(0, opened.coordinator_epoch),
            transaction_version=2 if end_version >= 5 else 0,
        )

        def attempt() -> int | None:
            leader = self._topics({partition})[partition.topic].leaders[partition.number]
            for _, answer in self._answers([(leader, WriteTxnMarkersRequest(markers=[marker]), leader)]):
                code = int(answer.markers[0].topics[0].partitions[0].error_code)
                return self._complete(code, code not in MOVING)
            return self._complete(NONE, False)

        return self._admin.until(attempt, "an answer to WriteTxnMarkers")

    def search(self, producer_id: int, epoch: int, witness: Witness) -> Verdict:
        """Search a partition's log for the marker that ended a transaction there. See `search_marker`."""
        return search_marker(self._admin, producer_id, epoch, witness)

    def _topics(self, partitions: Collection[Partition]) -> dict[str, TopicInfo]:
        return self._infos({partition.topic for partition in partitions}, partitions)

    def _infos(self, names: Collection[str], awaited: Collection[Partition]) -> dict[str, TopicInfo]:
        """Return descriptions of topics: those of the last call if they are fresh (`FRESH_SECONDS`), else new ones."""
        now = self._admin.clock.monotonic()
        fresh = {name: info for name, (info, at) in self._seen.items() if name in names and now - at <= FRESH_SECONDS}
        if len(fresh) == len(names) and all(fresh[each.topic].leaders.get(each.number, -1) >= 0 for each in awaited):
            return fresh
        found = self._admin.topics(names, awaited)
        self._seen.update((name, (info, now)) for name, info in found.items())
        return found

    def _complete(self, found: ResultT, done: bool) -> ResultT | None:
        """Return `found` if `done`. Otherwise forget the leaders, so that they are looked up again, and return None."""
        if done:
            return found
        self._seen.clear()
        return None

    def _answers(self, requests: Iterable[tuple[int, Any, K]]) -> Iterator[tuple[K, Any]]:
        """Send requests to their nodes, and yield each answer with the key of its request. Missing answers are skipped."""
        sent = list(requests)
        answers = self._admin.send_all([(node, request) for node, request, _ in sent])
        for (_, _, key), answer in zip(sent, answers, strict=True):
            if isinstance(answer, Exception):
                self._admin.pass_over(answer)
            else:
                yield key, answer


def _open_producers(part: Any) -> dict[int, OpenTransaction]:
    return {
        producer.producer_id: OpenTransaction(
            producer.producer_epoch, producer.current_txn_start_offset, producer.coordinator_epoch
        )
        for producer in part.active_producers
        if producer.current_txn_start_offset >= 0
    }


def _by_leader(topics: Mapping[str, TopicInfo], partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
    """Group partitions by their leaders, and omit partitions that do not exist."""
    grouped: dict[int, list[Partition]] = {}
    for partition in sorted(partitions):
        info = topics.get(partition.topic)
        if info is not None and partition.number in info.leaders:
            grouped.setdefault(info.leaders[partition.number], []).append(partition)
    return grouped


def _layers(witnesses: Mapping[int, Witness]) -> list[dict[Partition, int]]:
    """Split witnesses into groups with different partitions, because one request can ask about a partition only once."""
    layers: list[dict[Partition, int]] = []
    times: dict[Partition, int] = {}
    for index, witness in witnesses.items():
        layer = times.get(witness.partition, 0)
        times[witness.partition] = layer + 1
        if layer == len(layers):
            layers.append({})
        layers[layer][witness.partition] = index
    return layers


def _passes(code: int, partition: Partition, request: str) -> bool:
    """Return whether to repeat the request after an error: False if the partition is gone. Raise unexpected errors."""
    if code in (TOPIC_DENIED, CLUSTER_DENIED):
        raise missing_right("READ", f"topic {partition.topic}")
    if code in MOVING or code == UNKNOWN_TOPIC:  # also from a broker that does not know the partition yet
        return True
    if code in GONE:
        return False
    raise StoreError("KAFKA_REFUSED", reason=f"{request} of {partition}: {error_name(code)}")


def _describe(partitions: Sequence[Partition]) -> Any:
    from kafka.protocol.admin.transactions import DescribeProducersRequest

    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    kind = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[kind(name=topic, partition_indexes=indexes) for topic, indexes in numbers.items()]
    )


def _fetched(answer: Any, names: Mapping[str, str]) -> Iterator[tuple[Partition, Any]]:
    """Yield the partitions in a Fetch response. Since version 13, it has only topic ids; `names` maps ids to names."""
    if answer.error_code not in (NONE, *MOVING):
        raise StoreError("KAFKA_REFUSED", reason=f"Fetch: {error_name(answer.error_code)}")
    for topic in answer.responses if answer.error_code == NONE else ():
        name = topic.topic or names[str(topic.topic_id)]
        for part in topic.partitions:
            yield Partition(name, part.partition_index), part


def _fetch(witnesses: Sequence[Witness], topics: Mapping[str, TopicInfo]) -> Any:
    from kafka.protocol.consumer import FetchRequest

    kind = FetchRequest.FetchTopic
    by_topic: dict[tuple[str, str], list[Any]] = {}
    for witness in witnesses:
        asked = kind.FetchPartition(
            partition=witness.partition.number,
            current_leader_epoch=topics[witness.partition.topic].epoch(witness.partition.number),
            fetch_offset=witness.offset,
            last_fetched_epoch=witness.leader_epoch,
            # 0, not 1: an answer that contains only a part of a batch does not list the aborted transactions.
            partition_max_bytes=0,
        )
        by_topic.setdefault((witness.partition.topic, witness.topic_id), []).append(asked)
    wanted = [
        kind(topic=name, topic_id=uuid.UUID(identity), partitions=asked) for (name, identity), asked in by_topic.items()
    ]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=1, topics=wanted, max_version=17)
