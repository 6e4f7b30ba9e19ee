"""The yardstick: confluent-kafka alone, consume and produce in transactions, one process a slot."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["run_bare_loops"]

BATCH = 10_000  # messages a consume() call, as the source asks for
PER_TRANSACTION = 250_000  # rows: as many as one task of a micro-batch of 1 M rows on 4 partitions


def run_bare_loops(bootstrap: str, source: str, target: str, partitions: int, processes: int) -> tuple[float, int]:
    """Copy a topic with bare loops.

    Parameters
    ----------
    bootstrap, source, target : str
    partitions : int
        Of `source`; shared out over the processes.
    processes : int

    Returns
    -------
    tuple[float, int]
        Seconds from the moment at which all processes are ready, and rows.
    """
    context = multiprocessing.get_context("spawn")
    ready, go = context.Barrier(processes + 1), context.Event()
    counts = context.Queue()
    workers = [
        context.Process(
            target=_copy,
            args=(
                bootstrap,
                source,
                target,
                range(slot, partitions, processes),
                f"bare-{target}-{slot}",
                ready,
                go,
                counts,
            ),
        )
        for slot in range(processes)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.monotonic()
    go.set()
    rows = sum(counts.get(timeout=600) for _ in workers)
    seconds = time.monotonic() - begin
    for worker in workers:
        worker.join()
    return seconds, rows


def _copy(
    bootstrap: str, source: str, target: str, partitions: Sequence[int], name: str, ready: Any, go: Any, counts: Any
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(60)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(source, p))[1] for p in partitions}
    ready.wait()
    go.wait()
    total = 0
    for partition, end in ends.items():
        consumer.assign([TopicPartition(source, partition, 0)])
        position, open_rows = 0, 0
        while position < end:
            messages = consumer.consume(BATCH, 1.0)
            if not messages:
                continue
            if not open_rows:
                producer.begin_transaction()
            rows = [{"key": m.key(), "value": m.value()} for m in messages]
            while producer.produce_batch(target, rows) < len(rows):
                producer.poll(0.1)
                rows = [row for row in rows if row.get("_error") is not None]
            open_rows += len(messages)
            position = (messages[-1].offset() or 0) + 1
            if open_rows >= PER_TRANSACTION or position >= end:
                producer.commit_transaction()
                total, open_rows = total + open_rows, 0
    counts.put(total)
