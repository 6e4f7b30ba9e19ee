"""Real Kafka in KRaft mode as child processes: a node, and a cluster of one or three of them.

``python -m integration.broker`` runs one until Ctrl-C and prints its address.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from integration.jars import KAFKA_VERSION
from integration.node import JVM_OPTIONS, Broker, BrokerError, random_id
from integration.ports import HOST, Ports
from integration.proxy import KafkaProxy
from integration.session import until_interrupted

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from integration.faults.network import Network

__all__ = ["DEFAULT_PROPERTIES", "JVM_OPTIONS", "Broker", "BrokerError", "Cluster", "Listener"]

START_TIMEOUT_SECONDS = 180.0
"""A node is up in 2 s, 4 s after a kill; three at once on two busy cores take several times that."""

STOP_TIMEOUT_SECONDS = 20.0
"""A clean stop takes 0.3 s. A node that lost its quorum can wait for minutes: it is killed after this."""

POLL_SECONDS = 0.02

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    # Index files have their full size from their first record on: 10 MB each by default.
    "log.index.size.max.bytes": "524288",
    # 128 MB of heap by default, half of what the process has.
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # A killed node may register again only when its old session has ended: 9 s by default, most of a restart's time.
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "2000",
}


@dataclass(frozen=True)
class Listener:
    """A listener with rules of its own."""

    protocol: str  # ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
    properties: Mapping[str, str] = field(default_factory=dict)  # Its properties, without ``listener.name.<name>.``.


class Cluster:
    """A Kafka cluster of one node, or of three, on the loopback address, or each at a host of its own.

    A context manager. Ports and data survive `stop`, `kill` and `restart`, and end with the ``with`` block. Its
    processes die with this one, however that dies.

    Parameters
    ----------
    nodes : int
        How many, each a broker and a controller.
    properties : Mapping[str, str]
        Broker properties over `DEFAULT_PROPERTIES`. May be changed between `stop` and `start`.
    data : Path, optional
        Keep the data there; otherwise it lives in a temporary folder that the end of the ``with`` block removes.
    proxy : bool
        Put a `KafkaProxy` before every node, reached through ``cluster.proxy.bootstrap_servers``: the nodes advertise
        its ports to who comes through it, so all of a client's connections pass it.
    features : Mapping[str, int]
        Feature levels other than Kafka's defaults, such as ``{"transaction.version": 1}``.
    jvm_options : Sequence[str]
        The JVM's options, heap included.
    listeners : Mapping[str, Listener]
        More listeners on every node, by their names (upper case); `servers` has their addresses.
    version : str
        Kafka's, such as ``4.3.1``; its jars are resolved when they are not there yet.
    port : int, optional
        The one of the only node; any free one by default.
    network : Network, optional
        Node number n is its host n, from 1, and all of its listeners are there.

    Examples
    --------
    >>> with Cluster(properties={"transaction.max.timeout.ms": "5000"}) as kafka:
    ...     kafka.create_topic("flights", partitions=4)
    ...     kafka.kill()
    ...     kafka.restart()
    """

    def __init__(
        self,
        nodes: int = 1,
        properties: Mapping[str, str] | None = None,
        data: Path | None = None,
        *,
        proxy: bool = False,
        features: Mapping[str, int] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        listeners: Mapping[str, Listener] | None = None,
        version: str = KAFKA_VERSION,
        port: int | None = None,
        network: Network | None = None,
    ) -> None:
        self._network = network
        self.properties = dict(properties or {})
        self.data = data.absolute() if data else Path(tempfile.mkdtemp(prefix="barrier-kafka-"))
        self._keeps_data = data is not None
        self._ports = Ports()
        self._brokers_ports = [port] if port else [self._ports.reserve() for _ in range(nodes)]
        self._controller_ports = [self._ports.reserve() for _ in range(nodes)]
        self._behind_proxy = [self._ports.reserve() for _ in range(nodes)] if proxy else []
        self._proxy = KafkaProxy({self._ports.reserve(): port for port in self._behind_proxy}) if proxy else None
        self._listeners = dict(listeners or {})
        self._listener_ports = {name: [self._ports.reserve() for _ in range(nodes)] for name in self._listeners}
        self._features = dict(features or {})
        self._jvm_options = tuple(jvm_options)
        self._version = version
        self._cluster_id = self._remembered_id()
        self.brokers: list[Broker] = []

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, past the proxy: ``127.0.0.1:15001,127.0.0.1:15002``."""
        return ",".join(map(self._server, range(len(self._brokers_ports))))

    def servers(self, listener: str) -> str:
        """The addresses of all nodes at one of the further listeners."""
        ports = enumerate(self._listener_ports[listener])
        return ",".join(f"{self._host(index)}:{port}" for index, port in ports)

    def add_scram_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Let a user log in, and wait until every running node knows."""
        from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        kind = ScramMechanism[mechanism.replace("-", "_")]
        upsertion = UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 4096), password.encode())
        admin = self._admin()
        admin.alter_user_scram_credentials([upsertion])[name].result(START_TIMEOUT_SECONDS)
        for server in self._live():
            self._await(f"node at {server} knows {name}", partial(_knows_user, server, name))

    @property
    def proxy(self) -> KafkaProxy:
        """The proxy before the nodes. Raises `BrokerError` when the cluster was made without ``proxy=True``."""
        if self._proxy is None:
            raise BrokerError("This cluster has no proxy: make it with Cluster(proxy=True).")
        return self._proxy

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, node: int | None = None) -> None:
        """Start all nodes that do not run, or node number `node` from 0, and wait until the cluster can be used.

        Raises
        ------
        BrokerError
            When a node ends instead, or after 60 s; the message ends with its log.
        """
        if not self.brokers:
            self.brokers = [self._broker(index) for index in range(len(self._brokers_ports))]
        if self._proxy is not None:
            self._proxy.start()
        for index in self._chosen(node):
            if not self.brokers[index].alive:
                self.brokers[index] = self._broker(index)
                self.brokers[index].spawn()
        self.wait_until_ready()

    def stop(self, node: int | None = None) -> None:
        """Stop all nodes, or one, cleanly; a paused one is woken for it. Data and ports are kept."""
        chosen = [self.brokers[index] for index in self._chosen(node)] if self.brokers else []
        for broker in chosen:
            broker.terminate()
        for broker in chosen:
            broker.wait(STOP_TIMEOUT_SECONDS)

    def kill(self, node: int | None = None) -> None:
        """Kill all nodes, or one, with SIGKILL. Data and ports are kept."""
        for index in self._chosen(node):
            if self.brokers[index].alive:
                self.brokers[index].kill()

    def pause(self, node: int | None = None) -> None:
        """Stop all nodes, or one, where they are (SIGSTOP)."""
        for index in self._chosen(node):
            self.brokers[index].pause()

    def resume(self, node: int | None = None) -> None:
        """Let all nodes, or one, run on (SIGCONT), and wait until the cluster can be used."""
        for index in self._chosen(node):
            self.brokers[index].resume()
        self.wait_until_ready()

    def restart(self) -> None:
        """Stop what still runs cleanly, start all nodes with data and ports kept, and wait until they can be used."""
        self.stop()
        self.start()

    def upgrade(self, node: int, version: str) -> None:
        """Stop one node cleanly, and start it with another version of Kafka, as in a rolling upgrade."""
        self._version = version
        self.stop(node)
        self.start(node)

    def raise_features(self, *names: str) -> None:
        """Raise features to the highest level that the nodes support, as an operator does after an upgrade."""
        from kafka import KafkaAdminClient

        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))) as admin:
            for name in names:
                highest = admin.describe_features()[name]["supported"][1]
                answer = admin.update_features({name: highest})[name]
                if answer != "OK":
                    raise BrokerError(f"{name} {highest}: {answer}")

    def close(self) -> None:
        """Stop everything, give the ports back and remove the data, unless its folder was given."""
        if self._keeps_data:
            self.stop()
        else:
            # Nobody reads this data again: there is nothing to stop cleanly for.
            for broker in self.brokers:
                if broker.alive:
                    broker.kill()
        if self._proxy is not None:
            self._proxy.stop()
        self._ports.release()
        if not self._keeps_data:
            shutil.rmtree(self.data, ignore_errors=True)

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until every running node knows a leader for each of its partitions."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
        admin = self._admin()
        admin.create_topics([topic])[name].result(START_TIMEOUT_SECONDS)
        self._await(f"topic {name} has its leaders", lambda: self._all_know(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no running node knows it any more."""
        admin = self._admin()
        admin.delete_topics([name])[name].result(START_TIMEOUT_SECONDS)
        self._await(f"topic {name} is gone", lambda: self._all_know(name, 0))

    def wait_for_markers(self, topic: str, partitions: Iterable[int]) -> None:
        """Wait until readers of committed rows reach the end of the partitions.

        A producer's commit and abort return when the coordinator has decided. The markers that let readers pass come after.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin, question = self._admin(), {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}

        def ends(level: IsolationLevel) -> dict[TopicPartition, int]:
            asked = admin.list_offsets(question, isolation_level=level)
            return {at: answer.result(START_TIMEOUT_SECONDS).offset for at, answer in asked.items()}

        self._await(
            f"the markers of {topic} are written",
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        )

    def wait_until_ready(self) -> None:
        """Wait until every running node answers, and all of them know all running nodes and every partition's leader.

        Raises
        ------
        BrokerError
            After 60 s, or when a node has ended.
        """
        running = [broker for broker in self.brokers if broker.alive and not broker.paused]
        for broker in running:
            self._await(f"node {broker.node_id} answers", partial(self._answers, broker), running)
        self._await("all running nodes know each other", lambda: self._is_whole(len(running)), running)

    def _chosen(self, node: int | None) -> range:
        return range(len(self._brokers_ports)) if node is None else range(node, node + 1)

    def _answers(self, broker: Broker) -> bool:
        # A node takes connections before it serves requests: only an answer counts. ApiVersions, version 0.
        request = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
        try:
            with socket.create_connection(self._at(broker.node_id - 1), timeout=1) as connection:
                connection.sendall(len(request).to_bytes(4, "big") + request)
                return len(connection.recv(4)) > 0
        except OSError:
            return False

    def _is_whole(self, running: int) -> bool:
        for server in self._live():
            seen = _metadata(server)
            if seen is None or len(seen.brokers) < running:
                return False
            if len(self._live()) < len(self._brokers_ports):
                # With a node down, partitions that only it has cannot have a leader.
                continue
            if any(part.leader < 0 for topic in seen.topics.values() for part in topic.partitions.values()):
                return False
        return True

    def _all_know(self, name: str, partitions: int) -> bool:
        for server in self._live():
            seen = _metadata(server)
            if seen is None:
                return False
            known = seen.topics[name].partitions.values() if name in seen.topics else []
            if len(known) != partitions or any(part.leader < 0 for part in known):
                return False
        return True

    def _live(self) -> list[str]:
        running = (broker for broker in self.brokers if broker.alive and not broker.paused)
        return [self._server(broker.node_id - 1) for broker in running]

    def controller_port(self, node: int) -> int:
        """The port at which node number `node`, from 0, is a controller."""
        return self._controller_ports[node]

    def _host(self, index: int) -> str:
        return HOST if self._network is None else self._network.address(index + 1)

    def _at(self, index: int) -> tuple[str, int]:
        return self._host(index), self._brokers_ports[index]

    def _server(self, index: int) -> str:
        host, port = self._at(index)
        return f"{host}:{port}"

    def _await(self, what: str, holds: Callable[[], bool], needed: Sequence[Broker] = ()) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not holds():
            ended = [broker for broker in needed if not broker.alive]
            if ended:
                raise BrokerError(f"Node {ended[0].node_id} ended. The end of its log:\n{ended[0].log_tail()}")
            if time.monotonic() > deadline:
                tails = "\n".join(f"node {broker.node_id}:\n{broker.log_tail()}" for broker in self.brokers)
                raise BrokerError(f"Not after {START_TIMEOUT_SECONDS:.0f} s: {what}. The ends of the logs:\n{tails}")
            time.sleep(POLL_SECONDS)

    def _admin(self) -> AdminClient:
        return _admin_client(",".join(self._live()))

    def _remembered_id(self) -> str:
        remembered = self.data / "cluster.id"
        if not remembered.exists():
            self.data.mkdir(parents=True, exist_ok=True)
            remembered.write_text(random_id())
        return remembered.read_text()

    def _broker(self, index: int) -> Broker:
        nodes = len(self._brokers_ports)
        host = self._host(index)
        listeners = [f"PLAINTEXT://{self._server(index)}"]
        advertised = list(listeners)
        if self._proxy is not None:
            listeners.append(f"PROXY://{HOST}:{self._behind_proxy[index]}")
            advertised.append(f"PROXY://{HOST}:{self._proxy.ports[index]}")
        protocols = {"PLAINTEXT": "PLAINTEXT", "PROXY": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        further: dict[str, str] = {}
        for name, listener in self._listeners.items():
            listeners.append(f"{name}://{host}:{self._listener_ports[name][index]}")
            advertised.append(listeners[-1])
            protocols[name] = listener.protocol
            further.update({f"listener.name.{name.lower()}.{key}": text for key, text in listener.properties.items()})
        listeners.append(f"CONTROLLER://{host}:{self._controller_ports[index]}")
        controllers = enumerate(self._controller_ports)
        voters = ",".join(f"{number + 1}@{self._host(number)}:{port}" for number, port in controllers)
        copies = {
            "offsets.topic.replication.factor": str(nodes),
            "transaction.state.log.replication.factor": str(nodes),
            "transaction.state.log.min.isr": str(min(2, nodes)),
            "share.coordinator.state.topic.replication.factor": str(nodes),
            "share.coordinator.state.topic.min.isr": str(min(2, nodes)),
        }
        fixed = {
            "process.roles": "broker,controller",
            "node.id": str(index + 1),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        }
        return Broker(
            index + 1,
            self.data / f"node-{index + 1}",
            {**DEFAULT_PROPERTIES, **copies, **fixed, **further, **self.properties},
            self._cluster_id,
            self._features,
            self._jvm_options,
            self._version,
            [] if self._network is None else self._network.entrance(index + 1),
        )


def _admin_client(servers: str) -> AdminClient:
    import logging

    from confluent_kafka.admin import AdminClient

    # librdkafka prints every refused connection on stderr, and refused connections are normal here.
    silent = logging.getLogger("integration.broker.librdkafka")
    silent.addHandler(logging.NullHandler())
    silent.propagate = False
    config: dict[str, Any] = {"bootstrap.servers": servers, "socket.timeout.ms": 10000, "logger": silent}
    return AdminClient(config)


def _metadata(server: str) -> Any | None:
    from confluent_kafka import KafkaException

    try:
        return _admin_client(server).list_topics(timeout=5)
    except KafkaException:
        return None


def _knows_user(server: str, name: str) -> bool:
    from confluent_kafka import KafkaException

    try:
        admin = _admin_client(server)
        asked: Any = admin.describe_user_scram_credentials([name])
        asked[name].result(5)
    except KafkaException:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a cluster until Ctrl-C or SIGTERM; print its address."""
    parser = argparse.ArgumentParser(prog="python -m integration.broker", description="Run a Kafka broker for tests.")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", dest="properties")
    parser.add_argument("--port", type=int, help="of a single node; any free one by default")
    parser.add_argument("--data", type=Path, help="keep the data in this folder")
    chosen = parser.parse_args(arguments)
    malformed = [entry for entry in chosen.properties if "=" not in entry]
    if malformed:
        parser.error(f"--property wants key=value, not {malformed[0]!r}")
    if chosen.port and chosen.nodes > 1:
        parser.error("--port is for one node")
    if chosen.port:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, chosen.port)) == 0:
                parser.error(f"something listens on port {chosen.port} already")
    properties = dict(entry.split("=", 1) for entry in chosen.properties)
    with until_interrupted() as wait, Cluster(chosen.nodes, properties, chosen.data, port=chosen.port) as cluster:
        print(cluster.bootstrap_servers, flush=True)
        print(f"Kafka {KAFKA_VERSION}, data in {cluster.data}. Ctrl-C ends it.", file=sys.stderr, flush=True)
        wait()


if __name__ == "__main__":
    main()
