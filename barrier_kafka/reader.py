"""For readers without Spark: up to where a topic holds whole checkpoints. It needs confluent-kafka only."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

__all__ = ["complete_offsets"]

TAIL = 64
"""Offsets before the end of a barrier topic in which the newest mark is looked for first: some may be compacted."""


def complete_offsets(consumer: Consumer, barrier_topic: str, timeout: float = 30.0) -> dict[str, dict[int, int]]:
    """Return where the newest whole checkpoint ends, of the query that writes its marks to this barrier topic.

    Below these offsets are all rows of the query's checkpoints up to that one, and none of a later one. A reader that stops
    there sees whole checkpoints only.

    Parameters
    ----------
    consumer : confluent_kafka.Consumer
        With ``isolation.level=read_committed`` (the default), and used for nothing else meanwhile: it is assigned the barrier
        topic, and nothing afterwards.
    barrier_topic : str
        As the sink's option ``barrierTopic`` names it.
    timeout : float
        In seconds.

    Returns
    -------
    dict[str, dict[int, int]]
        For each topic and partition the first offset that is not part of it. Empty if there is no mark yet.

    Raises
    ------
    ValueError
        A record is no mark, or one of a newer release.
    TimeoutError
        The brokers did not answer in time.
    confluent_kafka.KafkaException
    """
    deadline, length = time.monotonic() + timeout, TAIL
    low, high = consumer.get_watermark_offsets(TopicPartition(barrier_topic, 0), timeout=timeout)
    while high > low:
        begin = max(low, high - length)
        newest = _newest(consumer, TopicPartition(barrier_topic, 0, begin), high, deadline)
        if newest is not None:
            topics = newest["topics"].items()
            return {name: {int(number): end for number, end in topic["ends"].items()} for name, topic in topics}
        if begin == low:
            break
        length *= 16
    return {}


def _newest(consumer: Consumer, begin: TopicPartition, high: int, deadline: float) -> dict[str, Any] | None:
    """Return the mark of the newest checkpoint: a process that was frozen may have written an earlier one after it."""
    newest: dict[str, Any] | None = None
    consumer.assign([begin])
    try:
        while consumer.position([begin])[0].offset < high:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{begin.topic} could not be read up to offset {high}")
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            mark = json.loads(message.value() or b"null")
            if not isinstance(mark, dict) or mark.get("version") != 1:
                raise ValueError(f"the record at offset {message.offset()} of {begin.topic} is no mark of version 1")
            if mark["exact"] and (newest is None or mark["checkpoint"] > newest["checkpoint"]):
                newest = mark
    finally:
        consumer.unassign()
    return newest
