"""Print the rows of a topic as a Kafka client for Python returns them: ``python_clients.py CLIENT SERVERS TOPIC ISOLATION``.

A line has the partition, the offset and the value. ISOLATION is ``read_committed``, ``read_uncommitted``, or ``default``. When
no row has arrived for some seconds, the consumer group CLIENT-ISOLATION commits its position, and the program ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

SECONDS = 3


def show(partition: int | None, offset: int | None, value: bytes | None) -> None:
    """Print a row."""
    print(partition, offset, (value or b"").decode(), sep="\t")


def confluent_kafka(servers: str, topic: str, group: str, isolation: str | None) -> None:
    """Librdkafka."""
    from confluent_kafka import Consumer

    chosen = {"isolation.level": isolation} if isolation else {}
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, **chosen})
    consumer.subscribe([topic])
    wait = 4.0 * SECONDS
    while (message := consumer.poll(wait)) is not None:
        if message.error():
            raise RuntimeError(message.error())
        show(message.partition(), message.offset(), message.value())
        wait = SECONDS
    consumer.commit(asynchronous=False)
    consumer.close()


def kafka_python(servers: str, topic: str, group: str, isolation: str | None) -> None:
    """The package kafka-python."""
    from kafka import KafkaConsumer

    chosen = {"isolation_level": isolation} if isolation else {}
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=4000 * SECONDS,
        **chosen,
    )
    for message in consumer:
        show(message.partition, message.offset, message.value)
    consumer.commit()
    consumer.close()


def aiokafka(servers: str, topic: str, group: str, isolation: str | None) -> None:
    """The package aiokafka."""
    asyncio.run(_aiokafka(servers, topic, group, {"isolation_level": isolation} if isolation else {}))


async def _aiokafka(servers: str, topic: str, group: str, chosen: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **chosen,
    )
    await consumer.start()
    try:
        wait = 4000 * SECONDS
        while found := await consumer.getmany(timeout_ms=wait):
            wait = 1000 * SECONDS
            for messages in found.values():
                for message in messages:
                    show(message.partition, message.offset, message.value)
        await consumer.commit()
    finally:
        await consumer.stop()


if __name__ == "__main__":
    client, servers, topic, isolation = sys.argv[1:]
    programs = {"confluent-kafka": confluent_kafka, "kafka-python": kafka_python, "aiokafka": aiokafka}
    programs[client](servers, topic, f"{client}-{isolation}", None if isolation == "default" else isolation)
