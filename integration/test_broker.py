"""The embedded broker and its proxy do what the other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from integration.broker import BrokerError, Cluster
from integration.proxy import END_TXN, Action, Fault, KafkaProxy

DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def proxied() -> Iterator[Cluster]:
    with Cluster(proxy=True) as cluster:
        yield cluster


@pytest.fixture
def proxy(proxied: Cluster) -> Iterator[KafkaProxy]:
    yield proxied.proxy
    proxied.proxy.clear()


def test_a_cluster_makes_topics_and_deletes_them(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=3, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert len(admin.list_topics(timeout=60).topics[topic_name].partitions) == 3
    kafka.delete_topic(topic_name)
    assert topic_name not in admin.list_topics(timeout=60).topics


def test_topics_are_not_made_by_asking_for_them(kafka: Cluster, topic_name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.list_topics(topic_name, timeout=60)
    assert topic_name not in admin.list_topics(timeout=60).topics


def test_data_and_ports_survive_kill_9_and_a_clean_restart() -> None:
    with Cluster() as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic("kept")
        _write(servers, "kept", [b"before"])
        cluster.kill()
        assert not cluster.brokers[0].alive
        cluster.start()
        _write(servers, "kept", [b"between"])
        cluster.restart()
        assert cluster.bootstrap_servers == servers
        assert _read(servers, "kept", 2) == [b"before", b"between"]


def test_a_paused_broker_answers_nothing_until_it_is_resumed() -> None:
    with Cluster() as cluster:
        cluster.pause()
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=0.5)
        cluster.resume()
        assert AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=60).brokers


@pytest.mark.matrix
def test_three_nodes_serve_a_replicated_topic_while_one_is_dead() -> None:
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("copied", partitions=3, replication=3, config={"min.insync.replicas": "2"})
        cluster.kill(1)
        _write(cluster.bootstrap_servers, "copied", [b"%d" % number for number in range(30)])
        cluster.start(1)
        assert len(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=60).brokers) == 3


def test_data_in_a_given_folder_stays_and_is_found_again(tmp_path: Path) -> None:
    with Cluster(data=tmp_path) as cluster:
        cluster.create_topic("kept")
        _write(cluster.bootstrap_servers, "kept", [b"row"])
    with Cluster(data=tmp_path) as cluster:
        assert _read(cluster.bootstrap_servers, "kept", 1) == [b"row"]


def test_a_broker_that_cannot_start_shows_the_end_of_its_log() -> None:
    cluster = Cluster(properties={"log.segment.bytes": "none"})
    with pytest.raises(BrokerError, match=r"(?s)Node 1 ended.*log\.segment\.bytes"), cluster:
        pass
    assert not cluster.data.exists()


def test_an_older_transaction_version_can_be_had(topic_name: str) -> None:
    from kafka import KafkaAdminClient

    with Cluster(features={"transaction.version": 1}) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        described = admin.describe_features()
        admin.close()
    assert described["transaction.version"]["finalized"] == (1, 1)


def test_brokers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from integration.broker import Cluster\n"
        "cluster = Cluster(data=Path(sys.argv[1]))\n"
        "cluster.start()\n"
        "print(cluster.brokers[0].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    broker = int(parent.stdout.readline())
    assert _exists(broker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _await(lambda: not _exists(broker))


def test_the_command_prints_an_address_and_ends_at_ctrl_c() -> None:
    command = [sys.executable, "-m", "integration.broker", "--property", "message.max.bytes=1000"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert program.stdout is not None
    servers = program.stdout.readline().strip()
    assert AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).brokers
    program.send_signal(signal.SIGINT)
    assert program.wait(DEADLINE_SECONDS) == 0
    program.stdout.close()


def test_clients_of_the_proxy_never_pass_it(proxied: Cluster, proxy: KafkaProxy) -> None:
    brokers = AdminClient({"bootstrap.servers": proxy.bootstrap_servers}).list_topics(timeout=60).brokers
    assert [broker.port for broker in brokers.values()] == proxy.ports
    assert proxy.bootstrap_servers != proxied.bootstrap_servers


def test_a_commit_whose_answer_is_lost_is_committed(proxied: Cluster, proxy: KafkaProxy, topic_name: str) -> None:
    fault = proxy.lose_answer(END_TXN)
    _commit_one_row(proxied, topic_name)
    fault.wait_until_hit()
    assert fault.hits == 1
    assert _read(proxied.bootstrap_servers, topic_name, 1) == [b"row"]


def test_a_held_answer_comes_when_it_is_released(proxied: Cluster, proxy: KafkaProxy, topic_name: str) -> None:
    fault = proxy.hold_answer(END_TXN)
    producer = _prepared(proxied, topic_name)
    with pytest.raises(KafkaException) as late:
        producer.commit_transaction(1.0)
    assert late.value.args[0].retriable()
    fault.wait_until_hit()
    assert _read(proxied.bootstrap_servers, topic_name, 1) == [b"row"]
    fault.release()
    producer.commit_transaction(DEADLINE_SECONDS)


def test_a_delayed_request_reaches_the_broker_only_when_released(
    proxied: Cluster, proxy: KafkaProxy, topic_name: str
) -> None:
    fault = proxy.delay_request(END_TXN)
    producer = _prepared(proxied, topic_name)
    with pytest.raises(KafkaException):
        producer.commit_transaction(1.0)
    del producer
    assert _read_committed_end(proxied, topic_name) == 0
    fault.release()
    fault.wait_until_sent()
    assert _read(proxied.bootstrap_servers, topic_name, 1) == [b"row"]


@pytest.mark.parametrize("action", [Action.REPEAT_REQUEST, Action.REPEAT_LATE])
def test_a_repeated_commit_is_answered_once(
    proxied: Cluster, proxy: KafkaProxy, topic_name: str, action: Action
) -> None:
    arm: dict[Action, Callable[[int], Fault]] = {
        Action.REPEAT_REQUEST: proxy.repeat_request,
        Action.REPEAT_LATE: proxy.repeat_late,
    }
    fault = arm[action](END_TXN)
    _commit_one_row(proxied, topic_name)
    fault.release()
    fault.wait_until_sent()
    assert _read(proxied.bootstrap_servers, topic_name, 1) == [b"row"]


def _write(servers: str, topic: str, values: list[bytes]) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not failed


def _read(servers: str, topic: str, rows: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(rows, DEADLINE_SECONDS)
    consumer.close()
    return [message.value() for message in messages if message.error() is None]


def _read_committed_end(cluster: Cluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test"})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_SECONDS, cached=False)[1]
    consumer.close()
    return int(end)


def _prepared(cluster: Cluster, topic: str) -> Producer:
    cluster.create_topic(topic)
    producer = Producer({"bootstrap.servers": cluster.proxy.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(DEADLINE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"row")
    assert producer.flush(DEADLINE_SECONDS) == 0
    return producer


def _commit_one_row(cluster: Cluster, topic: str) -> None:
    _prepared(cluster, topic).commit_transaction(DEADLINE_SECONDS)


def _exists(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        # A dead process whose parent has not asked for it yet can still be signalled.
        state = Path(f"/proc/{process}/stat")
        return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def _await(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
