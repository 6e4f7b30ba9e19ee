"""Deeds that are done to a running query's world, and undone after a while. Each is a context: what it does ends with it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import ElectionType, TopicPartition
from kafka.protocol.admin import DescribeQuorumRequest

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from integration.broker import Broker, Cluster
from integration.demo.driver import Driver
from integration.faults.network import Link, Network
from integration.jars import KAFKA_VERSION

__all__ = ["DEEDS", "KILLS", "Nemesis", "World"]

NEWER = "4.3.1"
"""To which brokers are upgraded, one after the other, and from which they go back."""

BROKERS = (1, 2, 3)
DRIVER_HOST = 4
HOSTS = (*BROKERS, DRIVER_HOST)

DROP = Link(drop=True)


class World(Protocol):
    """What a deed finds."""

    cluster: Cluster
    network: Network
    database: Any
    clock: Path
    disks: dict[str, Path]
    topic: str
    """An output topic, or else the input: its leader is hit."""

    @property
    def driver(self) -> Driver:
        """The one that runs."""


class Nemesis:
    """Does deeds."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance

    def do(self, deed: str) -> AbstractContextManager[None]:
        """Return the context of a deed of `DEEDS` or `KILLS`."""
        return {**KILLS, **DEEDS}[deed](self)

    # -- whom -------------------------------------------------------------------------------------------------------

    def _node(self) -> int:
        """A broker's number, from 1: the output's leader, the coordinator of a transaction, or any."""
        whom: Callable[[], int] = self._chance.choice([self._leader, self._coordinator, self._any])
        return whom()

    def _any(self) -> int:
        return self._chance.choice(BROKERS)

    def _leader(self) -> int:
        with self._admin() as admin:
            place = Partition(self._world.topic, 0)
            return admin.topics([place.topic], [place])[place.topic].leaders[0]

    def _coordinator(self) -> int:
        with self._admin() as admin:
            ids = admin.transactional_ids()
            chosen = self._chance.choice(sorted(ids)) if ids else "none"
            return admin.coordinators([chosen])[chosen]

    def _controller(self) -> int:
        topic = DescribeQuorumRequest.TopicData
        partitions = [topic.PartitionData(partition_index=0)]
        request = DescribeQuorumRequest(topics=[topic(topic_name="__cluster_metadata", partitions=partitions)])
        with self._admin() as admin:
            answer = admin.ask(lambda: request)
            return int(answer.topics[0].partitions[0].leader_id)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdmin]:
        admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": self._world.cluster.bootstrap_servers}))
        try:
            yield admin
        finally:
            admin.close()

    # -- brokers ----------------------------------------------------------------------------------------------------

    def _broker(self) -> Broker:
        return self._world.cluster.brokers[self._node() - 1]

    @contextmanager
    def pause_broker(self) -> Iterator[None]:
        """SIGSTOP."""
        broker = self._broker()
        broker.pause()
        try:
            yield
        finally:
            broker.resume()

    @contextmanager
    def kill_broker(self) -> Iterator[None]:
        """SIGKILL; it is started again."""
        broker = self._broker()
        broker.kill()
        try:
            yield
        finally:
            broker.spawn()

    @contextmanager
    def stop_broker(self) -> Iterator[None]:
        """SIGTERM; it is started again."""
        broker = self._broker()
        broker.terminate()
        broker.wait(20)
        try:
            yield
        finally:
            broker.spawn()

    @contextmanager
    def rolling_restart(self) -> Iterator[None]:
        """Restart one broker after the other."""
        self._restart_each(self._world.cluster.brokers[0].version)
        yield

    @contextmanager
    def upgrade(self) -> Iterator[None]:
        """Restart one broker after the other with the other version: up to `NEWER`, or back."""
        self._restart_each(NEWER if self._world.cluster.brokers[0].version == KAFKA_VERSION else KAFKA_VERSION)
        yield

    def _restart_each(self, version: str) -> None:
        for broker in self._world.cluster.brokers:
            broker.terminate()
            broker.wait(20)
            broker.version = version
            broker.spawn()
            self._world.cluster.wait_until_ready()

    @contextmanager
    def elect(self) -> Iterator[None]:
        """Elect the preferred leaders: those that were moved go back."""
        admin = self._world.cluster._admin()
        found = admin.list_topics(timeout=20).topics
        places = [TopicPartition(name, number) for name, topic in found.items() for number in topic.partitions]
        with contextlib.suppress(Exception):  # an answer that says "not needed" for some is an error here
            admin.elect_leaders(ElectionType.PREFERRED, places).result(20)
        yield

    @contextmanager
    def fill_broker_s_disk(self) -> Iterator[None]:
        """A broker's disk is full: it gives up, and is started again when there is room."""
        broker = self._broker()
        try:
            with _full(self._world.disks[f"broker-{broker.node_id}"]):
                yield
        finally:
            if broker.alive:
                broker.kill()
            broker.spawn()

    # -- network ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _links(self, links: Mapping[tuple[int, int], Link]) -> Iterator[None]:
        self._world.network.set(links)
        try:
            yield
        finally:
            self._world.network.heal()

    def _between(self, some: Iterable[int], others: Iterable[int], link: Link = DROP) -> AbstractContextManager[None]:
        """Change all links between some hosts and others, both ways."""
        pairs = [(a, b) for a, b in product(some, others) if a != b]
        return self._links({way: link for a, b in pairs for way in ((a, b), (b, a))})

    def isolate_broker(self) -> AbstractContextManager[None]:
        """Cut a broker off from everybody."""
        return self._between([self._node()], HOSTS)

    def split_brokers(self) -> AbstractContextManager[None]:
        """Two brokers can't see each other, and everybody else sees both."""
        a, b = self._chance.sample(BROKERS, 2)
        return self._between([a], [b])

    def mute_broker(self) -> AbstractContextManager[None]:
        """Nothing that a broker sends arrives: one way."""
        node = self._node()
        return self._links({(node, each): DROP for each in HOSTS if each != node})

    def deafen_broker(self) -> AbstractContextManager[None]:
        """Nothing that is sent to a broker arrives: one way."""
        node = self._node()
        return self._links({(each, node): DROP for each in HOSTS if each != node})

    def cut_coordinator(self) -> AbstractContextManager[None]:
        """The driver can't reach the coordinator of a transaction."""
        return self._between([self._coordinator()], [DRIVER_HOST])

    def cut_leader(self) -> AbstractContextManager[None]:
        """The driver can't reach a leader."""
        return self._between([self._leader()], [DRIVER_HOST])

    def cut_controller(self) -> AbstractContextManager[None]:
        """Other nodes can't reach the active controller, as a controller."""
        node = self._controller()
        port = Link(drop=True, port=self._world.cluster.controller_port(node - 1))
        return self._between([node], BROKERS, port)

    def cut_driver(self) -> AbstractContextManager[None]:
        """The driver reaches no broker."""
        return self._between([DRIVER_HOST], BROKERS)

    def slow_network(self) -> AbstractContextManager[None]:
        """Everything takes 0.1 to 0.3 s."""
        return self._between(HOSTS, HOSTS, Link(delay=0.1, jitter=0.2))

    def slow_broker(self) -> AbstractContextManager[None]:
        """What goes to a broker and comes from it takes 0.5 to 1.5 s."""
        return self._between([self._node()], HOSTS, Link(delay=0.5, jitter=1.0))

    def lossy_network(self) -> AbstractContextManager[None]:
        """A fifth of all packets is lost."""
        return self._between(HOSTS, HOSTS, Link(loss=0.2))

    # -- the driver -------------------------------------------------------------------------------------------------

    @contextmanager
    def kill_driver(self) -> Iterator[None]:
        """SIGKILL to all of its processes; who runs the trial starts another."""
        self._world.driver.kill()
        yield

    @contextmanager
    def kill_jvm(self) -> Iterator[None]:
        """SIGKILL to the JVM alone; who runs the trial starts another driver when this one has ended."""
        for member in _named(self._world.driver, "java"):
            _signal(member, signal.SIGKILL)
        yield

    @contextmanager
    def kill_worker(self) -> Iterator[None]:
        """SIGKILL to one of Spark's Python workers, or to their parent."""
        workers = self._workers()
        if workers:
            _signal(self._chance.choice(workers), signal.SIGKILL)
        yield

    def _workers(self) -> list[int]:
        return [each for each in _named(self._world.driver, "python") if each != self._world.driver.pid]

    @contextmanager
    def pause_driver(self) -> Iterator[None]:
        """SIGSTOP to the program and its JVM; the workers live on."""
        self._world.driver.freeze()
        try:
            yield
        finally:
            self._world.driver.thaw()

    @contextmanager
    def pause_workers(self) -> Iterator[None]:
        """SIGSTOP to Spark's Python workers."""
        workers = self._workers()
        for each in workers:
            _signal(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in workers:
                _signal(each, signal.SIGCONT)

    @contextmanager
    def _clock(self, seconds: float) -> Iterator[None]:
        _write_in_place(self._world.clock, struct.pack("d", seconds))
        try:
            yield
        finally:
            _write_in_place(self._world.clock, struct.pack("d", 0.0))

    def clock_forward(self) -> AbstractContextManager[None]:
        """The driver's clock jumps ahead, and back again."""
        return self._clock(self._chance.choice([2.0, 60.0, 3600.0]))

    def clock_back(self) -> AbstractContextManager[None]:
        """The driver's clock jumps back, and ahead again."""
        return self._clock(-self._chance.choice([2.0, 60.0, 3600.0]))

    @contextmanager
    def fill_location_s_disk(self) -> Iterator[None]:
        """No byte can be written to the checkpoint location."""
        with _full(self._world.disks["location"]):
            yield

    # -- the database -----------------------------------------------------------------------------------------------

    @contextmanager
    def kill_database(self) -> Iterator[None]:
        """SIGKILL; it is started again."""
        self._world.database.kill()
        try:
            yield
        finally:
            self._world.database.start()

    def cut_database(self) -> AbstractContextManager[None]:
        """The driver can't reach the database."""
        return self._between([DRIVER_HOST], [0])

    def mute_database(self) -> AbstractContextManager[None]:
        """No answer of the database arrives."""
        return self._links({(0, DRIVER_HOST): DROP})

    @contextmanager
    def fail_over(self) -> Iterator[None]:
        """The database's stand-by, which had every commit, takes over."""
        self._world.database.fail_over()
        yield


def _named(driver: Driver, word: str) -> list[int]:
    return [each for each, name in driver.members.items() if word in name]


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _write_in_place(file: Path, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.write(content)


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    """Fill a file system to its last byte; what is deleted meanwhile makes no room."""
    filler = disk / "filler"
    end = time.monotonic() + 30.0
    with filler.open("wb", buffering=0) as opened:
        try:
            while time.monotonic() < end:
                opened.write(b"\0" * 65536)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            while True:
                opened.write(b"\0" * 64)
    try:
        yield
    finally:
        filler.unlink()


Context = Callable[[Nemesis], AbstractContextManager[None]]

KILLS: Mapping[str, Context] = {
    "kill driver": Nemesis.kill_driver,
    "kill JVM": Nemesis.kill_jvm,
    "kill worker": Nemesis.kill_worker,
    "kill broker": Nemesis.kill_broker,
    "kill database": Nemesis.kill_database,
}
"""SIGKILL."""

DEEDS: Mapping[str, Context] = {
    "pause broker": Nemesis.pause_broker,
    "stop broker": Nemesis.stop_broker,
    "rolling restart": Nemesis.rolling_restart,
    "elect leaders": Nemesis.elect,
    "full disk of a broker": Nemesis.fill_broker_s_disk,
    "isolate broker": Nemesis.isolate_broker,
    "split brokers": Nemesis.split_brokers,
    "mute broker": Nemesis.mute_broker,
    "deafen broker": Nemesis.deafen_broker,
    "cut coordinator": Nemesis.cut_coordinator,
    "cut leader": Nemesis.cut_leader,
    "cut controller": Nemesis.cut_controller,
    "cut driver": Nemesis.cut_driver,
    "slow network": Nemesis.slow_network,
    "slow broker": Nemesis.slow_broker,
    "lossy network": Nemesis.lossy_network,
    "pause driver": Nemesis.pause_driver,
    "pause workers": Nemesis.pause_workers,
    "clock forward": Nemesis.clock_forward,
    "clock back": Nemesis.clock_back,
    "full disk of the location": Nemesis.fill_location_s_disk,
    "cut database": Nemesis.cut_database,
    "mute database": Nemesis.mute_database,
    "fail over of the database": Nemesis.fail_over,
    "rolling upgrade": Nemesis.upgrade,
}
"""Everything else."""
