"""Print what a read_committed reader sees of a topic, or count it: ``python examples/read.py TOPIC [--count]``."""

import os
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

topic = sys.argv[1]
reader = Consumer(
    {
        "bootstrap.servers": os.environ.get("BROKERS", "localhost:9092"),
        "group.id": "read",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
)
partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions
reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])

rows, ended = [], set()
while len(ended) < len(partitions):
    for message in reader.consume(1000, timeout=1):
        if message.error() is None:
            rows.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
reader.close()
if "--count" in sys.argv:
    print(f"{len(rows)} rows, {len(set(rows))} different ones")
else:
    for row in rows:
        print(row)
