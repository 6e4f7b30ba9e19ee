"""What only the leaders of partitions can tell of a transaction: whether it is open there, and which of its rows are left.

A coordinator answers EndTxn when it has decided. What readers see is decided by each partition's own log: markers can be
missing there (KAFKA-20734), or were written by others (WriteTxnMarkers, ``kafka-transactions.sh abort``), and an unclean
leader election cuts rows off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connector.kafka.client.admin import CLUSTER_DENIED, MOVING, NONE, TOPIC_DENIED, KafkaAdmin, TopicInfo, topic_uuid
from connector.kafka.client.connection import error_name, missing_right
from connector.kafka.client.partition_log import Verdict, search_marker
from connector.kafka.sink.handles import UNKNOWN_EPOCH, Place, Prepared, WrittenPartition
from transactional.errors import StoreError

__all__ = ["OpenTransaction", "PartitionAdmin", "Probe", "StableEnd"]

OFFSET_OUT_OF_RANGE: Final = 1
GONE: Final = frozenset({3, 100, 103, 104})
"""Codes that say: not this topic any more."""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition, as the partition's leader describes it."""

    epoch: int
    start: int
    coordinator_epoch: int


@dataclass(frozen=True)
class Probe:
    """A question to a partition: is everything before `offset` there, and decided?

    Parameters
    ----------
    place : Place
    topic_id : str
    offset : int
    leader_epoch : int
        Of the leader that gave `offset` out; -1 if it is not known.
    """

    place: Place
    topic_id: str
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True)
class StableEnd:
    """The answer to a `Probe`.

    Parameters
    ----------
    gone : str
        Why this partition can't tell; empty if it can. Nothing else counts then.
    stable : int
        The last stable offset. Every transaction with rows before it has ended.
    cut_at : int or None
        The log does not hold what stood before the probe's offset: from here on it was replaced.
    aborted : Mapping[int, tuple[int, ...]] or None
        By producer, first offsets of aborted transactions that ended at the probe's offset or behind it. Complete for
        those that began before the probe's offset, if `stable` lies behind it. None if the leader left the list out, as it
        may for an offset that only its remote tier holds: that is no evidence of a commit.
    """

    gone: str = ""
    stable: int = -1
    cut_at: int | None = None
    aborted: Mapping[int, tuple[int, ...]] | None = field(default_factory=dict)


class PartitionAdmin:
    """Questions to the leaders of partitions, one request a leader for all of them, repeated while leaders move.

    Parameters
    ----------
    admin : KafkaAdmin
    """

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin

    def open_transactions(self, places: Collection[Place]) -> dict[Place, dict[int, OpenTransaction]]:
        """Describe the open transactions of partitions, by producer id; partitions that do not exist are not in the answer.

        An answer has an entry for every producer that wrote in the last day, open or not: 0.7 microseconds each to read.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        RetriableError
            ``KAFKA_TIMEOUT``: a leader does not answer. That is no evidence of anything.
        """
        left = set(places)
        found: dict[Place, dict[int, OpenTransaction]] = {}

        def attempt() -> dict[Place, dict[int, OpenTransaction]] | None:
            by_leader = _by_leader(self._topics(left), left)
            left.intersection_update(place for places in by_leader.values() for place in places)
            requests = [(node, _describe(places)) for node, places in by_leader.items()]
            for answer in self._admin.send_all(requests):
                if isinstance(answer, Exception):
                    self._admin.pass_over(answer)
                    continue
                for topic in answer.topics:
                    for part in topic.partitions:
                        place = (topic.name, part.partition_index)
                        if part.error_code == NONE:
                            found[place] = {
                                each.producer_id: OpenTransaction(
                                    each.producer_epoch, each.current_txn_start_offset, each.coordinator_epoch
                                )
                                for each in part.active_producers
                                if each.current_txn_start_offset >= 0
                            }
                            left.discard(place)
                        elif not _passes(part.error_code, place, "DescribeProducers"):
                            left.discard(place)
            return None if left else found

        return self._admin.until(attempt, "the open transactions of partitions") if left else {}

    def stable_ends(self, probes: Sequence[Probe]) -> list[StableEnd]:
        """Answer probes, in order. Several of one partition go out one request after the other, without waiting.

        One `read_committed` fetch without data tells all of it: the stable offset, the aborted transactions, and (by the
        leader epoch) where the log differs from the one that the probe's offset was taken of. No bytes are asked for; the
        broker gives one batch all the same, of one partition in each answer.

        Raises
        ------
        StoreError
            ``MISSING_RIGHT``.
        RetriableError
            ``KAFKA_TIMEOUT``: a leader does not answer. That is no evidence of anything.
        """
        ends: dict[int, StableEnd] = {}
        asked = dict(enumerate(probes))

        def attempt() -> list[StableEnd] | None:
            left = {index: probe for index, probe in asked.items() if index not in ends}
            topics = self._topics({probe.place for probe in left.values()})
            for index, probe in left.items():
                reason = _why_gone(topics, probe)
                if reason:
                    ends[index] = StableEnd(gone=reason)
            left = {index: probe for index, probe in left.items() if index not in ends}
            sent = [
                (node, {place: layer[place] for place in places})
                for layer in _layers(left)
                for node, places in _by_leader(topics, layer).items()
            ]
            requests = [(node, _fetch([asked[index] for index in layer.values()])) for node, layer in sent]
            for (_, layer), answer in zip(sent, self._admin.send_all(requests), strict=True):
                if isinstance(answer, Exception):
                    self._admin.pass_over(answer)
                elif answer.error_code == NONE:
                    names = {topics[name].topic_id: name for name, _ in layer}
                    for topic in answer.responses:
                        # Versions below 13 name the topic, those from there on its id.
                        name = topic.topic or names[str(topic.topic_id)]
                        for part in topic.partitions:
                            self._take(ends, asked, layer[name, part.partition_index], part)
                elif answer.error_code not in MOVING:
                    raise StoreError("KAFKA_REFUSED", f"Fetch: {error_name(answer.error_code)}")
            return [ends[index] for index in range(len(probes))] if len(ends) == len(probes) else None

        return self._admin.until(attempt, "the stable offsets of partitions") if probes else []

    @staticmethod
    def _take(ends: dict[int, StableEnd], asked: dict[int, Probe], index: int, part: Any) -> None:
        probe = asked[index]
        cut = part.diverging_epoch
        if cut is not None and 0 <= cut.end_offset < probe.offset:
            ends[index] = StableEnd(cut_at=cut.end_offset)
        elif cut is not None and cut.end_offset >= probe.offset:
            # The leader changed without a row at that epoch: all that stood before the offset is there.
            asked[index] = Probe(probe.place, probe.topic_id, probe.offset)
        elif part.error_code == OFFSET_OUT_OF_RANGE:
            ends[index] = StableEnd(gone=f"{_text(probe)}: the log does not hold this offset any more")
        elif part.error_code != NONE:
            if not _passes(part.error_code, probe.place, "Fetch"):
                ends[index] = StableEnd(gone=f"{_text(probe)}: {error_name(part.error_code)}")
        elif part.log_start_offset > probe.offset:
            ends[index] = StableEnd(gone=f"{_text(probe)}: the log now begins at {part.log_start_offset}")
        elif part.aborted_transactions is None:
            ends[index] = StableEnd(stable=part.last_stable_offset, aborted=None)
        else:
            aborted: dict[int, tuple[int, ...]] = {}
            for each in part.aborted_transactions:
                aborted[each.producer_id] = (*aborted.get(each.producer_id, ()), each.first_offset)
            ends[index] = StableEnd(stable=part.last_stable_offset, aborted=aborted)

    def held_back(self, topic: str) -> list[Place]:
        """Partitions of a topic whose stable offset is behind the high watermark. Those that do not answer are left out."""
        found = self._admin.topics([topic], ()).get(topic)
        leaders = {number: leader for number, leader in (found.leaders if found else {}).items() if leader >= 0}
        by_leader: dict[int, list[int]] = {}
        for number, leader in sorted(leaders.items()):
            by_leader.setdefault(leader, []).append(number)
        # First the stable offsets: a transaction that ends in between seems to hold its partition back, which costs a look.
        requests = [(node, _latest(topic, of_node, 1)) for node, of_node in by_leader.items()]
        requests += [(node, _latest(topic, of_node, 0)) for node, of_node in by_leader.items()]
        seen: dict[int, set[int]] = {}
        for answer in self._admin.send_all(requests):
            for part in () if isinstance(answer, Exception) else answer.topics[0].partitions:
                if part.error_code == NONE:
                    seen.setdefault(part.partition_index, set()).add(part.offset)
        return [(topic, number) for number, offsets in sorted(seen.items()) if len(offsets) > 1]

    def write_marker(
        self, place: Place, producer_id: int, found: OpenTransaction, epoch: int, commit: bool, end_version: int
    ) -> int:
        """Write the marker that a coordinator has left out, as it would have written it; returns the answer's code.

        Parameters
        ----------
        place : Place
        producer_id : int
        found : OpenTransaction
            What hangs there.
        epoch : int
            The epoch at which the coordinator ended it: that of the transaction, or the next one from EndTxn 5 on.
        commit : bool
        end_version : int
            Of EndTxn: it says by which rules the partition compares the epochs.

        Raises
        ------
        RetriableError
            ``KAFKA_TIMEOUT``.
        """
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

        kind = WriteTxnMarkersRequest.WritableTxnMarker
        marker = kind(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[kind.WritableTxnMarkerTopic(name=place[0], partition_indexes=[place[1]])],
            # The one that the partition saw last: a higher one would shut out the coordinator itself.
            coordinator_epoch=max(0, found.coordinator_epoch),
            transaction_version=2 if end_version >= 5 else 0,
        )

        def attempt() -> int | None:
            leader = self._topics({place})[place[0]].leaders[place[1]]
            answer = self._admin.send_all([(leader, WriteTxnMarkersRequest(markers=[marker]))])[0]
            if isinstance(answer, Exception):
                self._admin.pass_over(answer)
                return None
            code = int(answer.markers[0].topics[0].partitions[0].error_code)
            return None if code in MOVING else code

        return self._admin.until(attempt, "an answer to a transaction's marker")

    def search(self, transaction: Prepared, part: WrittenPartition) -> Verdict:
        """Search a partition's log for the marker that ended a transaction there; see `search_marker`."""
        return search_marker(self._admin, transaction.producer_id, transaction.producer_epoch, part)

    def _topics(self, places: Collection[Place]) -> dict[str, TopicInfo]:
        return self._admin.topics({name for name, _ in places}, places)


def _by_leader(topics: Mapping[str, TopicInfo], places: Iterable[Place]) -> dict[int, list[Place]]:
    """Group partitions by their leaders; those that do not exist are left out."""
    grouped: dict[int, list[Place]] = {}
    for place in sorted(places):
        found = topics.get(place[0])
        if found is not None and place[1] in found.leaders:
            grouped.setdefault(found.leaders[place[1]], []).append(place)
    return grouped


def _layers(probes: Mapping[int, Probe]) -> list[dict[Place, int]]:
    """Split probes so that no partition is twice in one request: a broker would answer one of the two."""
    layers: list[dict[Place, int]] = []
    times: dict[Place, int] = {}
    for index, probe in probes.items():
        layer = times.get(probe.place, 0)
        times[probe.place] = layer + 1
        if layer == len(layers):
            layers.append({})
        layers[layer][probe.place] = index
    return layers


def _why_gone(topics: Mapping[str, TopicInfo], probe: Probe) -> str:
    found = topics.get(probe.place[0])
    if found is None:
        return f"{_text(probe)}: the topic does not exist"
    if found.topic_id != probe.topic_id:
        return f"{_text(probe)}: the topic was created again ({probe.topic_id} is now {found.topic_id})"
    if probe.place[1] not in found.leaders:
        return f"{_text(probe)}: the partition does not exist"
    return ""


def _passes(code: int, place: Place, request: str) -> bool:
    """Whether to ask again; False if the partition is gone."""
    if code in (TOPIC_DENIED, CLUSTER_DENIED):
        raise missing_right("READ", f"topic {place[0]}")
    if code in GONE and code != 3:
        return False
    if code in MOVING or code == 3:  # 3 is also what a broker says of a partition that it does not know yet
        return True
    raise StoreError("KAFKA_REFUSED", f"{request} of {place[0]} [{place[1]}]: {error_name(code)}")


def _text(probe: Probe) -> str:
    return f"{probe.place[0]} [{probe.place[1]}] from {probe.offset}"


def _describe(places: Sequence[Place]) -> Any:
    from kafka.protocol.admin.transactions import DescribeProducersRequest

    numbers: dict[str, list[int]] = {}
    for name, partition in places:
        numbers.setdefault(name, []).append(partition)
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[topic(name=name, partition_indexes=indexes) for name, indexes in numbers.items()]
    )


def _latest(topic: str, partitions: Sequence[int], isolation: int) -> Any:
    from kafka.protocol.consumer import ListOffsetsRequest

    kind = ListOffsetsRequest.ListOffsetsTopic
    asked = [kind.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in partitions]
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[kind(name=topic, partitions=asked)], max_version=7
    )


def _fetch(probes: Sequence[Probe]) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic
    by_topic: dict[tuple[str, str], list[Probe]] = {}
    for probe in probes:
        by_topic.setdefault((probe.place[0], probe.topic_id), []).append(probe)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=1,
        topics=[
            topic(
                topic=name,
                topic_id=topic_uuid(identity),
                partitions=[
                    topic.FetchPartition(
                        partition=probe.place[1],
                        fetch_offset=probe.offset,
                        last_fetched_epoch=probe.leader_epoch,
                        # Not 1: an answer with part of a batch comes without the aborted transactions.
                        partition_max_bytes=0,
                    )
                    for probe in of_topic
                ],
            )
            for (name, identity), of_topic in by_topic.items()
        ],
        max_version=17,
    )
