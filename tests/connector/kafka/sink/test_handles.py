from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from connector.kafka.client.partition_log import Witness
from connector.kafka.client.topics import Partition
from connector.kafka.sink.handles import FORMAT, KafkaHandle, parse_handle
from connector.kafka.sink.kafka_sink import KafkaSink
from transactional.errors import OptionError, StoreError
from transactional.sink import Options

SCHEMA = pa.schema([("value", pa.string())])
GOOD = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "out", "transactionalIdPrefix": "q"}

TOPIC = "00000000-0000-0000-0000-000000000001"
HANDLE = KafkaHandle(
    format=FORMAT,
    transactionalId="q.0.1",
    producerId=2**40,
    producerEpoch=0,
    endTxnVersion=5,
    clusterId="c",
    topics={"out": TOPIC},
    written={"out": [[0, 5, 2], [3, 7, 2]]},
    startedAt=1,
    preparedAt=1,
    timeoutMs=900_000,
)


def test_a_handle_is_the_same_after_json() -> None:
    assert json.loads(json.dumps(HANDLE)) == HANDLE
    prepared = parse_handle(json.loads(json.dumps(HANDLE)))
    assert prepared.written == (Witness(Partition("out", 0), TOPIC, 5, 2), Witness(Partition("out", 3), TOPIC, 7, 2))
    assert prepared.handle == HANDLE
    assert prepared.key == ("q.0.1", 2**40, 0)


@pytest.mark.parametrize(("version", "epoch"), [(5, 1), (4, 0), (2, 0)])
def test_only_version_5_ends_a_transaction_at_the_next_epoch(version: int, epoch: int) -> None:
    assert parse_handle({**HANDLE, "endTxnVersion": version}).ended_epoch == epoch


@pytest.mark.parametrize("version", [0, 1, 3, None])
def test_a_handle_of_another_format_is_refused_by_name(version: int | None) -> None:
    with pytest.raises(StoreError, match="FORMAT_UNKNOWN"):
        parse_handle({**HANDLE, "format": version})


def test_the_sink_is_made_offline_and_shows_no_option() -> None:
    sink = KafkaSink(Options({**GOOD, "kafka.security.protocol": "PLAINTEXT", "kafka.sasl.password": "hush"}), SCHEMA)
    assert KafkaSink.name() == "2pc-kafka"
    assert "hush" not in repr(sink._settings)
    sink.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
        ({"topc": "x"}, "did you mean topic"),
        ({"topic": "a b"}, "topic"),
        ({"kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms"),
        ({"kafka.transaction.timeout.ms": "999"}, "1000"),
        ({"deliveryGuarantee": "twice"}, "exactly-once or at-least-once"),
        ({"kafka.transactional.id": "mine"}, "transactionalIdPrefix"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence"),
        ({"kafka.acks": "1"}, "kafka.acks"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit"),
        ({"commitTimeoutMs": "0"}, "commitTimeoutMs"),
    ],
)
def test_bad_options_are_refused_by_name(change: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        KafkaSink(Options({**GOOD, **change}), SCHEMA)


def test_importing_the_sink_imports_no_client() -> None:
    program = (
        "import sys, connector.kafka.sink.kafka_sink; "
        "print([name for name in ('kafka', 'confluent_kafka', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
