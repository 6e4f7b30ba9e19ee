"""Input for benchmarks."""

from __future__ import annotations

from confluent_kafka import Producer

from integration.broker import Cluster

__all__ = ["fill"]

QUEUED = 64 << 20
"""Bytes that wait in the client at most."""


def fill(cluster: Cluster, topic: str, rows: int, size: int) -> None:
    """Write rows into a topic; random-looking keys, so that the partitions get equal shares.

    Parameters
    ----------
    cluster : Cluster
    topic : str
    rows : int
    size : int
        Bytes of a row, about.
    """
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "queue.buffering.max.messages": 2_000_000,
        "linger.ms": 20,
    }
    producer = Producer(settings)
    value, most = b"x" * (size - 10), max(10_000, QUEUED // size)
    for begin in range(0, rows, 10_000):
        end = min(begin + 10_000, rows)
        producer.produce_batch(topic, [{"key": b"%d" % n, "value": b"%010d" % n + value} for n in range(begin, end)])
        producer.poll(0)
        while len(producer) > most:
            producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the input was not delivered")
