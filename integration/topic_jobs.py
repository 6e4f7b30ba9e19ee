"""Jobs of real Spark that read a topic, and what fills it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from integration.broker import Cluster
from integration.delta_output import DeltaOutput
from integration.driver_process import Output
from integration.jobs import Job
from integration.topic_output import TopicOutput

__all__ = ["PILE", "ROWS", "interval_job", "produce", "produce_keyed", "topic_to_topic"]

ROWS = 10
"""Of a micro-batch."""

PILE = 5
"""Micro-batches that are prepared before something fails."""


def produce(kafka: Cluster, topic: str, values: Iterable[int], partitions: int = 2, **extra: Any) -> None:
    """Rows in turn into the partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions, **extra)
    assert producer.flush(30) == 0


def produce_keyed(kafka: Cluster, topic: str, values: Iterable[int]) -> None:
    """Rows with a key each, in turn into two partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, str(value).encode(), key=f"key-{value}".encode(), partition=value % 2)
    assert producer.flush(30) == 0


def topic_to_topic(
    kafka: Cluster, name: str, partitions: int = 2, replication: int = 1, **source: str
) -> tuple[Job, TopicOutput]:
    """A job that copies ``<name>-in`` into `name`, which has four partitions, in micro-batches of ten rows."""
    kafka.create_topic(f"{name}-in", partitions=partitions, replication=replication)
    kafka.create_topic(name, partitions=4, replication=replication)
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    job = Job(
        "",
        name,
        name="kafka",
        source={
            **servers,
            "subscribe": f"{name}-in",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "10",
            **source,
        },
        sink={**servers, "transactionalIdPrefix": name},
    )
    return job, TopicOutput(kafka.bootstrap_servers, name, prefix=name)


def interval_job(
    kafka: Cluster, name: str, sink: str, folder: Path, interval: str = "5 min", batches: int = PILE + 2
) -> tuple[Job, Output]:
    """``<name>-in``, two partitions, into a topic or a table, in checkpoints of many micro-batches.

    As the default is, none waits for the clock: a checkpoint closes after `batches` of them.
    """
    kafka.create_topic(f"{name}-in", partitions=2)
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    source = {"subscribe": f"{name}-in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS)}
    source |= {**servers, "barrierInterval": interval}
    if sink == "2pc-delta":
        output: Output = DeltaOutput(folder / "table")
        target, options = str(folder / "table"), {"format": sink}
    else:
        kafka.create_topic(name, partitions=2)
        output = TopicOutput(kafka.bootstrap_servers, name, prefix=name)
        target, options = name, {**servers, "transactionalIdPrefix": name}
    options["maxBatchesPerCheckpoint"] = str(batches)
    return Job("", target, name="kafka", rows=ROWS, source=source, sink=options), output
