"""What a simulated broker answers to each request, by the rules of Kafka 4.2."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace as Answer
from typing import Any

from tests.simulation.kafka_cluster import (
    BROKERS,
    FENCED_EPOCH,
    INVALID_STATE,
    NONE,
    NOT_LEADER,
    TOPIC,
    TRANSACTION_LOG,
    Broker,
    Cluster,
    Place,
    Transaction,
)
from tests.simulation.kafka_log import Record, RowLog, packed

__all__ = ["CLUSTER_ID", "TOPIC_ID", "Answers", "Box"]

CLUSTER_ID = "simulated"
TOPIC_ID = "f3b8a1de-2222-4444-8888-0123456789ab"
LONGEST_TIMEOUT_MS = 900_000
OUT_OF_RANGE, NO_COORDINATOR, NO_PRODUCER, CONCURRENT = 1, 15, 49, 51
FENCED_LEADER, UNKNOWN_LEADER, NOT_AVAILABLE = 74, 75, 78
PRODUCER_FENCED, UNKNOWN_ID, UNKNOWN_TOPIC = 90, 105, 3

Box = list[Any]
"""Empty until the answer is there."""


class Answers:
    """The requests that brokers answer; each returns a `Box`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- the cluster ------------------------------------------------------------------------------------------------------

    def MetadataRequest(self, broker: Broker, request: Any) -> Box:
        """Tell who leads, as this broker has heard."""
        topics = [self._topic(broker, topic.name) for topic in request.topics or ()]
        brokers = [Answer(node_id=each.number) for each in self._cluster.brokers]
        return [Answer(cluster_id=CLUSTER_ID, brokers=brokers, topics=topics)]

    def _topic(self, broker: Broker, name: str) -> Answer:
        parts = [
            Answer(
                partition_index=place.number,
                leader_id=broker.view[place.name, place.number][0],
                leader_epoch=broker.epoch(place),
                replica_nodes=range(BROKERS),
                isr_nodes=sorted(place.in_sync),
            )
            for place in self._cluster.places.values()
            if place.name == name
        ]
        code = NONE if parts else UNKNOWN_TOPIC
        return Answer(name=name, error_code=code, topic_id=TOPIC_ID, authorized_operations=None, partitions=parts)

    def ApiVersionsRequest(self, broker: Broker, request: Any) -> Box:
        """Tell the features."""
        level = Answer(name="transaction.version", max_version_level=self._cluster.level, max_version=2)
        return [Answer(finalized_features=[level], supported_features=[level])]

    def DescribeConfigsRequest(self, broker: Broker, request: Any) -> Box:
        """Tell the longest timeout."""
        config = Answer(name="transaction.max.timeout.ms", value=str(LONGEST_TIMEOUT_MS))
        return [Answer(results=[Answer(error_code=NONE, configs=[config])])]

    # -- coordinators -----------------------------------------------------------------------------------------------------

    def FindCoordinatorRequest(self, broker: Broker, request: Any) -> Box:
        """Name the coordinators, as this broker has heard."""
        found = []
        for name in request.coordinator_keys:
            leader, _ = broker.view[TRANSACTION_LOG, self._cluster.coordination_of(name).number]
            found.append(Answer(key=name, node_id=leader, error_code=NONE if leader >= 0 else NO_COORDINATOR))
        return [Answer(coordinators=found)]

    def DescribeTransactionsRequest(self, broker: Broker, request: Any) -> Box:
        """Describe transactional ids."""
        return [Answer(transaction_states=[self._described(broker, name) for name in request.transactional_ids])]

    def _described(self, broker: Broker, name: str) -> Answer:
        place = self._cluster.coordination_of(name)
        code = self._cluster.coordinated(broker, place)
        found = broker.known[place.number].get(name) if code == NONE else None
        if found is None:
            return Answer(transactional_id=name, error_code=code or UNKNOWN_ID)
        return Answer(
            transactional_id=name,
            error_code=NONE,
            transaction_state=found.state,
            producer_id=found.producer,
            producer_epoch=found.epoch,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=int(found.started * 1000),
            topics=[Answer(topic=TOPIC, partitions=sorted(found.places))] if found.places else [],
        )

    def ListTransactionsRequest(self, broker: Broker, request: Any) -> Box:
        """List what it coordinates."""
        states, producers = request.state_filters, request.producer_id_filters
        found: list[Any] = []
        for place in self._cluster.coordination:
            if not broker.leads(place):
                continue
            code = self._cluster.coordinated(broker, place)
            if code != NONE:
                return [Answer(error_code=code, transaction_states=[])]
            for name, each in broker.known[place.number].items():
                if (not states or each.state in states) and (not producers or each.producer in producers):
                    found.append(Answer(transactional_id=name, producer_id=each.producer))
        return [Answer(error_code=NONE, transaction_states=found)]

    def InitProducerIdRequest(self, broker: Broker, request: Any) -> Box:
        """Give an id a newer epoch, after the end of its open transaction."""
        name, box = request.transactional_id, Box()
        found, code = self._known(broker, name)

        def fail(code: int) -> Box:
            return [Answer(error_code=code, producer_id=-1, producer_epoch=-1)]

        if code != NONE:
            return fail(code)
        if name in broker.pending or (found is not None and found.state.startswith("Prepare")):
            return fail(CONCURRENT)
        if found is not None and found.state == "Ongoing":
            self._cluster.note_if_late()
            becomes = found.ending(False, 1, self._cluster.now)
            self._cluster.change(broker, name, becomes, lambda _: box.append(fail(CONCURRENT)[0]))
            return box
        if found is None:
            self._cluster.last_producer += 1
            becomes = Transaction(self._cluster.last_producer, 0, "Empty", request.transaction_timeout_ms)
        else:
            becomes = Transaction(found.producer, found.epoch + 1, "Empty", request.transaction_timeout_ms)

        def done(code: int) -> None:
            box.append(Answer(error_code=code, producer_id=becomes.producer, producer_epoch=becomes.epoch))

        self._cluster.change(broker, name, becomes, done)
        return box

    def EndTxnRequest(self, broker: Broker, request: Any) -> Box:
        """Decide a transaction."""
        box = Box()
        found, loading = self._known(broker, request.transactional_id)
        raising = request.API_VERSION >= 5
        code = loading if loading != NONE else self._may_end(broker, request, found, raising)
        if code is not None or found is None:
            return [Answer(error_code=code)]
        becomes = found.ending(request.committed, int(raising), self._cluster.now)
        self._cluster.change(
            broker, request.transactional_id, becomes, lambda code: box.append(Answer(error_code=code))
        )
        return box

    def _known(self, broker: Broker, name: str) -> tuple[Transaction | None, int]:
        place = self._cluster.coordination_of(name)
        code = self._cluster.coordinated(broker, place)
        return (broker.known[place.number].get(name) if code == NONE else None), code

    @staticmethod
    def _may_end(broker: Broker, request: Any, found: Transaction | None, raising: bool) -> int | None:
        """Return the code of a request that changes nothing; None if it ends the transaction."""
        if found is None or found.producer != request.producer_id:
            return NO_PRODUCER
        again = raising and found.epoch == request.producer_epoch + 1 and found.state not in ("Empty", "Ongoing")
        if found.epoch != request.producer_epoch and not again:
            return PRODUCER_FENCED if request.API_VERSION >= 2 else FENCED_EPOCH
        if request.transactional_id in broker.pending:
            return CONCURRENT
        wanted = "Commit" if request.committed else "Abort"
        if found.state.startswith("Prepare"):
            return CONCURRENT if found.state == f"Prepare{wanted}" else INVALID_STATE
        if found.state == "Ongoing":
            return None
        if again or not raising:
            return NONE if found.state == f"Complete{wanted}" else INVALID_STATE
        return INVALID_STATE if request.committed else None  # an abort of nothing fences the producer

    # -- a producer's -----------------------------------------------------------------------------------------------------

    def AddPartition(self, broker: Broker, request: Any) -> Box:
        """Note that a transaction writes into a partition; the first begins it."""
        box = Box()
        found, loading = self._known(broker, request.name)
        code = loading if loading != NONE else self._may_add(broker, request, found)
        if code != NONE or found is None:
            return [Answer(error_code=code)]
        ongoing = found.state == "Ongoing"
        if ongoing and request.place in found.places:
            log = self._cluster.coordination_of(request.name).logs[broker.number]
            # A coordinator loads what its log has, also what an election may take away: then nobody ends the transaction.
            if log.high < log.end:
                what = f"{request.name} is perhaps in no other coordinator's log"
                self._cluster.skip(what, request.place, request.producer)
                self._cluster.forget()
            return [Answer(error_code=NONE)]
        places = frozenset((*found.places, request.place)) if ongoing else frozenset((request.place,))
        started = found.started if ongoing else self._cluster.now
        becomes = Transaction(found.producer, found.epoch, "Ongoing", found.timeout_ms, started, places)
        self._cluster.change(broker, request.name, becomes, lambda code: box.append(Answer(error_code=code)))
        return box

    @staticmethod
    def _may_add(broker: Broker, request: Any, found: Transaction | None) -> int:
        if found is None or found.producer != request.producer:
            return NO_PRODUCER
        if found.epoch != request.epoch:
            return PRODUCER_FENCED
        return CONCURRENT if request.name in broker.pending or found.state.startswith("Prepare") else NONE

    def Produce(self, broker: Broker, request: Any) -> Box:
        """Append rows, each once."""
        place, box = self._cluster.rows[request.place], Box()
        if not broker.leads(place):
            return [Answer(error_code=NOT_LEADER)]
        log: RowLog = place.logs[broker.number]
        known = log.producers.get(request.producer)
        if known is not None and known.epoch > request.epoch:
            return [Answer(error_code=FENCED_EPOCH)]
        if known is None or known.start < 0:
            code = self._cluster.verified(request)
            if code != NONE:
                return [Answer(error_code=code)]
        epoch = broker.epoch(place)
        records = [
            Record(epoch, request.producer, request.epoch, row)
            for row in request.rows
            if (request.producer, request.epoch, row) not in log.written
        ]
        self._cluster.append_all(broker, place, records, lambda code: box.append(Answer(error_code=code)))
        return box

    # -- leaders ----------------------------------------------------------------------------------------------------------

    def _led(self, broker: Broker, place: Place, epoch: int = -1) -> int:
        if not broker.leads(place):
            return NOT_LEADER
        own = broker.epoch(place)
        return NONE if epoch in (-1, own) else FENCED_LEADER if epoch < own else UNKNOWN_LEADER

    def ListOffsetsRequest(self, broker: Broker, request: Any) -> Box:
        """Tell where partitions end."""

        def end(part: Any) -> Answer:
            place = self._cluster.rows[part.partition_index]
            log: RowLog = place.logs[broker.number]
            code = self._led(broker, place, part.current_leader_epoch)
            if code == NONE and log.high < next(
                (at for at_epoch, at in log.epochs if at_epoch == broker.epoch(place)), 0
            ):
                code = NOT_AVAILABLE  # a new leader that does not know yet what readers have seen
            offset = log.stable() if request.isolation_level else log.high
            return Answer(
                partition_index=place.number, error_code=code, offset=offset, leader_epoch=broker.epoch(place)
            )

        return [Answer(topics=_each(request.topics, "name", end))]

    def DescribeProducersRequest(self, broker: Broker, request: Any) -> Box:
        """Tell the producers of partitions, up to the end of the leader's log."""

        def producers(number: int) -> Answer:
            place = self._cluster.rows[number]
            log: RowLog = place.logs[broker.number]
            active = [
                Answer(
                    producer_id=producer,
                    producer_epoch=known.epoch,
                    current_txn_start_offset=known.start,
                    coordinator_epoch=known.coordinator_epoch,
                )
                for producer, known in log.producers.items()
            ]
            return Answer(partition_index=number, error_code=self._led(broker, place), active_producers=active)

        return [
            Answer(
                topics=[
                    Answer(name=topic.name, partitions=[producers(number) for number in topic.partition_indexes])
                    for topic in request.topics
                ]
            )
        ]

    def FetchRequest(self, broker: Broker, request: Any) -> Box:
        """Tell what a reader sees from an offset on."""

        def fetched(part: Any) -> Answer:
            place = self._cluster.rows[part.partition]
            log: RowLog = place.logs[broker.number]
            code = self._led(broker, place, part.current_leader_epoch)
            begin, diverging = part.fetch_offset, None
            if code == NONE and part.last_fetched_epoch >= 0:
                epoch, end = log.end_of(part.last_fetched_epoch)
                if epoch < part.last_fetched_epoch or end < begin:
                    diverging = Answer(epoch=epoch, end_offset=end)
            if code == NONE and diverging is None and begin > log.end:
                code = OUT_OF_RANGE
            stable = log.stable()
            aborted = [
                Answer(producer_id=producer, first_offset=first)
                for producer, first, marker, commits in log.ended
                if not commits and marker >= begin and first < stable
            ]
            return Answer(
                partition_index=part.partition,
                error_code=code,
                diverging_epoch=diverging,
                log_start_offset=0,
                last_stable_offset=stable,
                high_watermark=log.high,
                aborted_transactions=aborted,
                records=b"" if request.isolation_level else packed(log, begin),
            )

        return [Answer(error_code=NONE, responses=_each(request.topics, "topic", fetched))]

    def WriteTxnMarkersRequest(self, broker: Broker, request: Any) -> Box:
        """Append a marker that an administrator sends."""
        (marker,) = request.markers
        (number,) = marker.topics[0].partition_indexes
        place, box = self._cluster.rows[number], Box()

        def done(code: int) -> None:
            parts = [Answer(partition_index=number, error_code=code)]
            box.append(Answer(markers=[Answer(topics=[Answer(partitions=parts)])]))

        if not broker.leads(place):
            done(NOT_LEADER)
        else:
            record = Record(
                broker.epoch(place),
                marker.producer_id,
                marker.producer_epoch,
                commits=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
            )
            self._cluster.mark(broker, place, record, done)
        return box


def _each(topics: Iterable[Any], name: str, of_part: Callable[[Any], Answer]) -> list[Answer]:
    return [
        Answer(**{name: getattr(topic, name), "topic_id": TOPIC_ID}, partitions=list(map(of_part, topic.partitions)))
        for topic in topics
    ]
