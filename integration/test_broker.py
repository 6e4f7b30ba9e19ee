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
from integration.proxy import END_TXN, KafkaProxy

DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def proxied() -> Iterator[Cluster]:
    with Cluster(proxy=True) as cluster:
        yield cluster


@pytest.fixture
def proxy(proxied: Cluster) -> Iterator[KafkaProxy]:
    yield proxied.proxy
    proxied.proxy.clear()


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
