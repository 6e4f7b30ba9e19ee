"""The clients of the simulated brokers: the product's own admin over another network, and a producer in librdkafka's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.protocol import EXACTLY_ONCE
from tests.simulation.auditor import KEYS
from tests.simulation.kafka_answers import Answers, Box
from tests.simulation.kafka_cluster import BROKERS, TOPIC, Broker, Cluster
from transactional.clock import Deadline, SystemClock

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["TIMEOUT_MS", "SimulatedKafka"]

TIMEOUT_MS = 100_000
"""kafka.transaction.timeout.ms"""

ANSWER_SECONDS = 30.0  # that a client waits for one
PRODUCER_PAUSE = 0.1
CHANGES = ("EndTxnRequest", "InitProducerIdRequest", "WriteTxnMarkersRequest", "AddPartition", "Produce")
REFUSED_CHANGE = ("refused", "refused", "answer lost", "late")
PASSING = frozenset({-1, 3, 5, 6, 7, 14, 15, 16, 19, 20, 51})
FENCED = frozenset({47, 49, 90})


class SimulatedKafka:
    """The store of a world whose sink writes into Kafka."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cluster = Cluster(world)
        self._answers = Answers(self.cluster)
        world.remedies |= dict.fromkeys(("MARKERS_SKIPPED", "OUTCOME_UNKNOWN"), lambda _: self.cluster.write_skipped())

    # -- what a world does with its store ---------------------------------------------------------------------------------

    def open(self) -> list[str]:
        """Return the transactional ids of open transactions."""
        self.cluster.advance()
        return sorted(self.cluster.open_ids())

    def expire(self, name: str) -> None:
        """Let a transaction's time be over."""
        self.cluster.expire(name)
        self.cluster.advance()

    def acts(self) -> Mapping[str, Callable[[], object]]:
        """Brokers are hurt."""
        return {"store is hurt": self._disturb}

    def _disturb(self) -> None:
        """Hurt a broker, or let another lead."""
        choices, cluster = self._world.choices, self.cluster
        broker = choices.one_of(cluster.brokers)
        kind = choices.one_of(("elect", "freeze", "freeze", "freeze", "slow", "kill"))
        seconds = choices.one_of((0.5, 3.0, 5.0, 12.0, 40.0))
        self._world.see(f"broker: {kind}")
        self._world.did["fault"] += 1
        self._world.note(f"broker {broker.number}: {kind} {seconds}")
        cluster.advance()
        if kind == "elect":
            cluster.elect(choices.one_of(list(cluster.places.values())))
        elif kind == "freeze":
            cluster.freeze(broker, seconds)
        elif kind == "slow":
            cluster.slow(broker, seconds)
        elif not broker.down:
            cluster.kill(broker, seconds + 2.0)

    def well(self) -> None:
        """Nothing hurts a broker any more, and the cluster comes to rest."""
        for broker in self.cluster.brokers:
            broker.until = broker.slow_until = 0.0
        for _ in range(600):
            self._world.scheduler.time += 0.1
            self.cluster.advance()

    # -- requests ---------------------------------------------------------------------------------------------------------

    def ask(self, node: int, request: Any) -> Any:
        """Send one request to a broker and return its answer.

        Raises
        ------
        OSError
            It may be done or not.
        """
        kind = type(request).__name__ if type(request) is not SimpleNamespace else request.kind
        kinds = {"kinds": REFUSED_CHANGE} if kind in CHANGES else {}
        return self._world.faults.request(f"{kind} to {node}", partial(self._served, node, kind, request), **kinds)

    def _served(self, node: int, kind: str, request: Any) -> Any:
        broker, act = self.cluster.brokers[node], getattr(self._answers, kind)
        self.cluster.advance()
        left = broker.until - self.cluster.now
        if left > 0 and not broker.down:
            self._world.see("request: a broker that stands still")
            self._world.sleep(min(left, ANSWER_SECONDS))
            self.cluster.advance()
            if broker.until > self.cluster.now:
                self.cluster.at(broker.until, lambda: None if broker.down else act(broker, request))
        if broker.down or broker.until > self.cluster.now:
            self._world.see("request: no broker")
            raise OSError(f"no answer to {kind} from {node}")
        return self._awaited(broker, kind, act(broker, request))

    def _awaited(self, broker: Broker, kind: str, box: Box) -> Any:
        self.cluster.advance()
        end = self.cluster.now + ANSWER_SECONDS
        pause = 0.002
        while not box:
            if broker.down or self.cluster.now > end:
                raise OSError(f"no answer to {kind} from {broker.number}")
            self._world.sleep(pause)
            pause = min(pause * 2, 1.0)
            self.cluster.advance()
        return box[0]

    # -- clients ----------------------------------------------------------------------------------------------------------

    def admin(self, config: ClientConfig, clock: Any = None) -> _Admin:
        """Make an admin."""
        return _Admin(self, config)

    def producer(self, settings: Any, transaction: Any, more: dict[str, Any]) -> _Producer:
        """Make a producer."""
        return _Producer(self, self._world, more.get("transactional.id", ""), transaction.deliveries.report)


class _Network:
    """In the place of kafka-python's connections."""

    def __init__(self, kafka: SimulatedKafka) -> None:
        self._kafka = kafka
        self.cluster = self
        self.broker_version_data = self
        self.api_versions = {each.key: (0, each.version) for each in EXACTLY_ONCE}

    def brokers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=node) for node in range(BROKERS)]

    def request_update(self) -> None:
        """All brokers are known for good."""

    def least_loaded_node(self) -> int:
        return self._kafka._world.choices.below(BROKERS)

    def api_version(self, request: Any, max_version: int = 99) -> int:
        return max_version

    def run(self, _: Any, requests: Sequence[tuple[int, Any]], enough: int = 0) -> list[Any]:
        answers: list[Any] = []
        for node, request in requests:
            try:
                answers.append(self._kafka.ask(node, request))
            except OSError as problem:
                answers.append(problem)
            if enough and sum(not isinstance(answer, Exception) for answer in answers) >= enough:
                break
        return answers


class _Admin(KafkaAdmin):
    def __init__(self, kafka: SimulatedKafka, config: ClientConfig) -> None:
        self.clock = SystemClock()
        self.limit, self.config, self.intact, self.life = None, config, True, Deadline(60.0)
        self._manager = _Network(kafka)
        self._coordinators: dict[str, int] = {}
        self._longest_ms = None
        self._cluster_id, self._end_version = "", 0

    def close(self) -> None:
        """It has no connection."""


class _Producer:
    """What a sink uses of `confluent_kafka.Producer`, with a transaction."""

    def __init__(self, kafka: SimulatedKafka, world: World, name: str, report: Callable[..., None]) -> None:
        self._kafka, self._world, self._name, self._report = kafka, world, name, report
        self._queue: list[list[int]] = [[] for _ in range(KEYS)]
        self._added: set[int] = set()
        self._producer = self._epoch = -1

    def list_topics(self, topic: str, timeout: float) -> None:
        """The connection is there."""

    def init_transactions(self, timeout: float) -> None:
        request = SimpleNamespace(
            kind="InitProducerIdRequest", transactional_id=self._name, transaction_timeout_ms=TIMEOUT_MS
        )
        answer = self._coordinated(request, timeout)
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def begin_transaction(self) -> None:
        """The broker hears of it with the first row."""

    def produce_batch(self, topic: str, messages: list[dict[str, Any]]) -> int:
        for message in messages:
            row = int(message["value"])
            self._queue[row % KEYS].append(row)
        return len(messages)

    def __len__(self) -> int:
        return sum(map(len, self._queue))

    def poll(self, timeout: float) -> int:
        if timeout and len(self):
            self._world.sleep(timeout)
        return 0

    def purge(self, **_: Any) -> None:
        self._queue = [[] for _ in range(KEYS)]

    def flush(self, timeout: float) -> int:
        for place, rows in enumerate(self._queue):
            if rows:
                self._deliver(place, rows)
        left = len(self)
        if left:
            self._world.sleep(timeout)
        return left

    def _deliver(self, place: int, rows: list[int]) -> None:
        same = {"producer": self._producer, "epoch": self._epoch, "place": place}
        try:
            if place not in self._added:
                self._coordinated(SimpleNamespace(kind="AddPartition", name=self._name, **same), 5.0)
                self._added.add(place)
            leader = self._leader(place)
            answer = self._kafka.ask(leader, SimpleNamespace(kind="Produce", rows=list(rows), **same))
        except KafkaException as problem:
            self._report(problem.args[0], TOPIC, place, 1)
            self.purge()
            return
        except OSError:
            return
        if answer.error_code in FENCED:
            self._report(KafkaError(KafkaError._FENCED), TOPIC, place, 1)
            self.purge()
        elif answer.error_code == 0:
            rows.clear()

    def _leader(self, place: int) -> int:
        answer = self._kafka.ask(
            self._world.choices.below(BROKERS),
            SimpleNamespace(kind="MetadataRequest", topics=[SimpleNamespace(name=TOPIC)]),
        )
        leader: int = answer.topics[0].partitions[place].leader_id
        if leader < 0:
            raise OSError("no leader")
        return leader

    def _coordinated(self, request: Any, timeout: float) -> Any:
        """Ask the coordinator until it decides."""
        end = self._world.time + timeout
        while True:
            try:
                asked = SimpleNamespace(kind="FindCoordinatorRequest", coordinator_keys=[self._name])
                found = self._kafka.ask(self._world.choices.below(BROKERS), asked).coordinators[0]
                if found.error_code == 0:
                    answer = self._kafka.ask(found.node_id, request)
                    if answer.error_code in FENCED:
                        raise KafkaException(KafkaError(KafkaError._FENCED))
                    if answer.error_code not in PASSING:
                        return answer
            except OSError:
                pass
            if self._world.time > end:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            self._world.sleep(PRODUCER_PAUSE)

    def abort_transaction(self, timeout: float) -> None:
        if self._added:
            request = SimpleNamespace(
                kind="EndTxnRequest",
                API_VERSION=1,
                transactional_id=self._name,
                producer_id=self._producer,
                producer_epoch=self._epoch,
                committed=False,
            )
            self._coordinated(request, timeout)
