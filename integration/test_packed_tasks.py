"""Tasks that read many partitions, beside a plain consumer that reads each partition by itself."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from connector.kafka.client.topics import Partition
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.planning.tasks import divide
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import fetch
from connector.kafka.source.task_limits import TaskLimits
from integration.broker import Cluster
from integration.driver_process import Faults, Place
from integration.live_query import LiveQuery
from integration.test_data_plane import config_of, way
from integration.topic_jobs import produce, topic_to_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[int, bytes | None, bytes | None]
COLUMNS = ("topic", "partition", "offset", "key", "value")


def fill(kafka: Cluster, partitions: Sequence[Partition], rows: int, chance: random.Random) -> None:
    """Write rows into the partitions, unevenly, in transactions of which a third is aborted."""
    weights = [chance.paretovariate(0.8) for _ in partitions]
    weights[0] = 0.0  # one stays empty
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "transactional.id": partitions[0].topic,
        "queue.buffering.max.messages": 300_000,
    }
    producer = Producer(settings)
    producer.init_transactions(60)
    for start in range(0, rows, max(1, rows // 5)):
        producer.begin_transaction()
        for number, at in enumerate(chance.choices(partitions, weights, k=min(rows // 5, rows - start))):
            key = None if chance.random() < 0.3 else chance.randbytes(chance.randrange(9))
            value = None if chance.random() < 0.05 else b"%d-%d" % (start, number) + bytes(chance.randrange(60))
            producer.produce(at.topic, value, key, at.number)
        producer.flush(120)
        producer.commit_transaction(60) if chance.random() < 0.7 else producer.abort_transaction(60)


def plain(kafka: Cluster, partitions: Sequence[Partition]) -> tuple[dict[Partition, list[Row]], dict[Partition, int]]:
    """Read every partition up to its end; return its rows, and its end."""
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "plain",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    rows: dict[Partition, list[Row]] = {at: [] for at in partitions}
    ends: dict[Partition, int] = {}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(at.topic, at.number, OFFSET_BEGINNING) for at in partitions])
    while len(ends) < len(partitions):
        for message in consumer.consume(10_000, 1.0):
            at = Partition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                ends[at] = message.offset() or 0
            else:
                rows[at].append((message.offset() or 0, message.key(), message.value()))
    consumer.close()
    return rows, ends


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[Partition, Row]]:
    found: list[tuple[Partition, Row]] = []
    for batch in batches:
        batch.validate(full=True)
        topics, numbers, *rest = (column.to_pylist() for column in batch.columns)
        places = map(Partition, topics, numbers)
        found += zip(places, zip(*rest, strict=True), strict=True)
    return found


@pytest.mark.parametrize("objects", [False, True], ids=["native", "objects"])
@pytest.mark.parametrize(
    ("rows", "most", "rounds"),
    [(20_000, 40, 12), pytest.param(1_000_000, 300, 40, marks=[pytest.mark.matrix, pytest.mark.timeout(1800)])],
)
def test_packed_tasks_read_what_a_plain_consumer_reads_range_by_range(
    kafka: Cluster, topic_name: str, rows: int, most: int, rounds: int, objects: bool
) -> None:
    chance = random.Random(os.environ.get("SEED", "20261127"))
    sizes = [chance.randint(most // 2, most), chance.randint(1, most // 4)]
    topics = [f"{topic_name}-{number}" for number in range(len(sizes))]
    partitions = [Partition(topic, number) for topic, size in zip(topics, sizes, strict=True) for number in range(size)]
    for topic, size in zip(topics, sizes, strict=True):
        kafka.create_topic(topic, partitions=size)
    fill(kafka, partitions, rows, chance)
    expected, ends = plain(kafka, partitions)
    checked = 0
    with way(objects):
        for _ in range(rounds):
            begin = {at: chance.choice((0, chance.randint(0, ends[at]))) for at in partitions}
            until = {at: chance.choice((ends[at], chance.randint(begin[at], ends[at]))) for at in partitions}
            ranges = [OffsetRange(at, begin[at], until[at]) for at in partitions if until[at] > begin[at]]
            limits = TaskLimits(
                least=chance.choice((None, chance.randint(1, most))),
                longest=chance.choice((None, chance.randint(rows // 50, rows))),
                most=chance.choice((1, 2, 3, chance.randint(1, most))),
            )
            for task in divide(ranges, limits):
                with borrow_consumer(config_of(kafka)) as consumer:
                    found = rows_of(records.to_batch(COLUMNS) for records in fetch(consumer, task))
                wanted = [
                    (part.partition, row)
                    for part in task
                    for row in expected[part.partition]
                    if part.start <= row[0] < part.end
                ]
                assert found == wanted, f"{limits}: {task}"
                checked += len(found)
    assert checked > rows


# -- a lost part of a packed micro-batch ------------------------------------------------------------------------------


def forget_tasks(place: Place) -> None:
    """Leave out of the first offset what an older release did not write."""
    file = place.location / "offsets" / "0"
    *lines, line = file.read_text().splitlines()
    offset: dict[str, Any] = json.loads(line)
    assert offset.pop("tasks") == {"maxPartitions": PARTITIONS}
    (file.parent / ".0.crc").unlink(missing_ok=True)
    file.write_text("\n".join([*lines, json.dumps(offset, separators=(",", ":"))]))


PARTITIONS = 6


@pytest.mark.parametrize(
    ("first", "then", "older"),
    [
        pytest.param({"maxPartitions": "2"}, {"maxPartitions": "1"}, False, id="fewer"),
        pytest.param(
            {"maxPartitions": "2"},
            {"maxPartitions": "6", "minPartitions": "6", "allowReordering": "true"},
            False,
            id="more",
            marks=pytest.mark.matrix,
        ),
        pytest.param({"maxPartitions": "6"}, {"maxPartitions": "2"}, True, id="upgrade"),
    ],
)
def test_a_lost_part_is_written_again_by_the_tasks_that_the_offset_records(
    kafka: Cluster,
    spark: SparkSession,
    topic_name: str,
    tmp_path: Path,
    faults: Faults,
    first: dict[str, str],
    then: dict[str, str],
    older: bool,
) -> None:
    """One transaction of a decided micro-batch is lost; the next run has other options."""
    job, output = topic_to_topic(kafka, topic_name, PARTITIONS)
    rows = job.batches * job.rows
    produce(kafka, f"{topic_name}-in", range(rows), partitions=PARTITIONS)
    faults.arm("commit.one", "raise")
    with LiveQuery(spark, tmp_path, job, output) as query:
        query.job = replace(job, location=query.job.location, source={**job.source, **first})
        assert "InjectedFault" in query.start().wait_failed()
        open_now = output.open_transactions()
        assert len(open_now) == int(first["maxPartitions"]) - 1
        output.lose(open_now[:1])
        if older:
            forget_tasks(query.place)
        query.job = replace(query.job, source={**job.source, **then})
        assert query.finish() == []
        query.place.check_whole(rows)
        assert "repair" in query.place.kinds()
