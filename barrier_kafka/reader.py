"""Finds the end offsets of the newest whole checkpoint, for consumers that don't use Spark.

The module needs only confluent-kafka.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

__all__ = ["complete_offsets"]

TAIL = 64
"""The size of the first read at the end of a barrier topic, in offsets. If it finds no mark, for example because log
compaction has removed the records there, a longer range is read."""


def complete_offsets(
    consumer: Consumer, barrier_topic: str, timeout: float = 30.0, admin: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Return the end offsets of the newest whole checkpoint that a query has published to a barrier topic.

    All rows of that checkpoint and of earlier ones are before these offsets. All rows of later checkpoints come after them. A
    consumer that stops at these offsets sees only whole checkpoints.

    Parameters
    ----------
    consumer : confluent_kafka.Consumer
        A consumer with ``isolation.level=read_committed`` (the default) that you use for nothing else during this call. The
        function assigns the barrier topic to the consumer, and unassigns it at the end.
    barrier_topic : str
        The topic with the query's marks: the value of the sink's option ``barrierTopic``.
    timeout : float
        Seconds to wait for the brokers.
    admin : confluent_kafka.admin.AdminClient, optional
        Used to compare the id of each topic with the id in the mark. Without `admin`, the function notices that a topic was
        created again only while the new topic is shorter than the old one.

    Returns
    -------
    dict[str, dict[int, int]]
        For each topic and partition, the first offset after the checkpoint. Empty if there is no mark yet.

    Raises
    ------
    ValueError
        A record is not a mark, or is a mark of a newer release. Also raised if a topic in the mark was deleted or created
        again, because the offsets then refer to other rows.
    TimeoutError
        The brokers did not answer in time.
    confluent_kafka.KafkaException
        The brokers rejected a request.
    """
    deadline, length = time.monotonic() + timeout, TAIL
    low, high = consumer.get_watermark_offsets(TopicPartition(barrier_topic, 0), timeout=timeout)
    while high > low:
        begin = max(low, high - length)
        newest = _newest(consumer, TopicPartition(barrier_topic, 0, begin), high, deadline)
        if newest is not None:
            topics = newest["topics"].items()
            ends = {name: {int(number): end for number, end in topic["ends"].items()} for name, topic in topics}
            for name, topic in topics:
                if not _is_there(consumer, admin, name, topic["id"], ends[name], deadline):
                    raise ValueError(
                        f"{name} was deleted or created again after the newest mark in {barrier_topic}, so the offsets "
                        "now mean other rows. Read a barrier topic that has marks of the new topic"
                    )
            return ends
        if begin == low:
            break
        length *= 16
    return {}


def _is_there(
    consumer: Consumer, admin: AdminClient | None, name: str, identity: str, ends: dict[int, int], deadline: float
) -> bool:
    """Return whether a topic in the mark still exists, and was not deleted and created again.

    With `admin`, compare the topic ids. Without it, only check that no partition ends before its offset in the mark.
    """
    left = max(1.0, deadline - time.monotonic())
    if admin is not None:
        found = admin.describe_topics(TopicCollection([name]), request_timeout=left)[name]
        try:
            now = found.result().topic_id
        except KafkaException as problem:
            if problem.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                return False
            raise
        bits = (now.get_most_significant_bits(), now.get_least_significant_bits())
        return uuid.UUID(identity) == uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in bits))
    found_numbers = consumer.list_topics(name, timeout=left).topics[name].partitions
    return all(
        number in found_numbers and consumer.get_watermark_offsets(TopicPartition(name, number), timeout=left)[1] >= end
        for number, end in ends.items()
    )


def _newest(consumer: Consumer, begin: TopicPartition, high: int, deadline: float) -> dict[str, Any] | None:
    """Return the mark of the newest whole checkpoint, from offset `begin` up to `high`; None if there is none.

    A checkpoint is whole if `exact` is true in its mark. The newest checkpoint's mark is not always the last one,
    because a process that was frozen may have written the mark of an older checkpoint late.
    """
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
                raise ValueError(f"the record at offset {message.offset()} of {begin.topic} is not a mark of version 1")
            if mark["exact"] and (newest is None or mark["checkpoint"] > newest["checkpoint"]):
                newest = mark
    finally:
        consumer.unassign()
    return newest
