"""A million random rows and a thousand random ranges on both ways of the source."""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.native.columns import native_columns
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import fetch
from connector.kafka.source.rows import all_columns, arrow_schema
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.test_data_plane import config_of, way

ROWS, RANGES = 1_000_000, 1_000
LARGE = 10 << 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COLUMNS = all_columns(True)


def fill(kafka: Cluster, topic: str, chance: random.Random, keyed: bool) -> None:
    """Write rows of every shape in transactions of every codec, a third of them aborted; all with keys, if `keyed`."""
    shapes = [chance.randbytes(chance.randrange(200)) for _ in range(500)]
    written = 0
    while written < ROWS:
        codec = chance.choice(CODECS)
        settings = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"{topic}-{codec}-{written}",
            "compression.type": codec,
            "message.max.bytes": 2 * LARGE,
            "queue.buffering.max.messages": 200_000,
        }
        producer = Producer(settings)
        producer.init_transactions(60)
        for _ in range(4):
            producer.begin_transaction()
            for _ in range(chance.randrange(40_000)):
                value, key = chance.choice(shapes), chance.choice(shapes)[:9]
                more: dict[str, Any] = (
                    {"headers": [("a", None), (key[:3].hex(), value[:5])]} if chance.random() < 0.05 else {}
                )
                kept = chance.random()
                producer.produce(
                    topic, None if kept < 0.02 else value, None if kept > 0.9 and not keyed else key, 0, **more
                )
                written += 1
            if chance.random() < 0.2:
                producer.produce(topic, bytes(LARGE), b"large", 0)
            producer.flush(120)
            producer.commit_transaction(60) if chance.random() < 0.66 else producer.abort_transaction(60)


def read(config: ClientConfig, wanted: OffsetRange, objects: bool) -> pa.Table:
    with way(objects), borrow_consumer(config) as consumer:
        batches = [records.to_batch(COLUMNS) for records in fetch(consumer, [wanted])]
    return pa.Table.from_batches(batches, arrow_schema(COLUMNS)).combine_chunks()


def same(config: ClientConfig, wanted: OffsetRange) -> int:
    """Fail unless both ways read the same; returns the number of rows. The cleaner may take rows between the two."""
    for _ in range(5):
        rows = read(config, wanted, True)
        if rows == read(config, wanted, False):
            return int(rows.num_rows)
    raise AssertionError(f"{wanted} differs")


def clean_often(kafka: Cluster) -> None:
    """Let the cleaner of compacted topics not rest for its usual 15 s."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    asked = admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])])
    for answer in asked.values():
        answer.result(30)


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.skipif(native_columns() is None, reason="no C compiler was present during installation")
@pytest.mark.parametrize("compacted", [False, True], ids=["whole", "compacted"])
def test_any_range_of_a_million_random_rows_is_the_same_on_both_ways(
    kafka: Cluster, topic_name: str, compacted: bool
) -> None:
    chance = random.Random(os.environ.get("SEED", "20261122"))
    quick = {"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.0001"}
    clean_often(kafka)
    kafka.create_topic(topic_name, config={"max.message.bytes": str(3 * LARGE), **(quick if compacted else {})})
    fill(kafka, topic_name, chance, compacted)
    at, config = Partition(topic_name, 0), config_of(kafka)
    with borrow_consumer(config) as consumer:
        marks = consumer.watermarks(at)
    assert marks is not None
    whole = OffsetRange(at, 0, marks[1])
    if compacted:
        wait_until(lambda: read(config, whole, False).num_rows < ROWS // 4, "the cleaner has run")
    assert same(config, whole) > (500 if compacted else ROWS // 3)
    for _ in range(RANGES):
        start = chance.randrange(marks[1])
        same(config, OffsetRange(at, start, min(marks[1], start + 1 + int(chance.paretovariate(0.5)) % 20_000)))
