"""Print what a read_committed reader sees of a topic, or count it: ``python examples/read.py TOPIC [--count]``.

With ``--wait``, read nothing: wait until the topic has rows that are not committed yet, for at most two minutes.
"""

import os
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

topic = sys.argv[1]
brokers = os.environ.get("BROKERS", "localhost:9092")
reader = Consumer(
    {
        "bootstrap.servers": brokers,
        "group.id": "read",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
)
partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions

if "--wait" in sys.argv:
    admin = AdminClient({"bootstrap.servers": brokers})
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}

    def ends(level: IsolationLevel) -> list[int]:
        return [found.result().offset for found in admin.list_offsets(latest, isolation_level=level).values()]

    deadline = time.monotonic() + 120
    while ends(IsolationLevel.READ_UNCOMMITTED) == ends(IsolationLevel.READ_COMMITTED):
        if time.monotonic() > deadline:
            sys.exit(f"{topic} has had no uncommitted rows for two minutes")
        time.sleep(0.05)
    print(topic, "has rows that are not committed yet")
    sys.exit()

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
