"""Write orders as JSON, numbered from 0: ``python examples/feed.py [ROWS] [FIRST] [TOPIC]``. Topics are created."""

import json
import os
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

brokers = os.environ.get("BROKERS", "localhost:9092")
topics = [
    "orders",
    "orders-upper",
    "minutes",
    "small",
    "large",
    "dead",
    "dead-orders",
    "payments",
    "paid",
    "numbered",
    "copies",
    "counts",
    "kept",
]
rows, first, topic = [*sys.argv[1:], *["10", "0", "orders"][len(sys.argv) - 1 :]][:3]

admin = AdminClient({"bootstrap.servers": brokers})
missing = set(topics) - set(admin.list_topics(timeout=30).topics)
for created in admin.create_topics([NewTopic(name, num_partitions=4) for name in missing]).values() if missing else ():
    created.result()

producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "partitioner": "murmur2_random"})
for number in range(int(first), int(first) + int(rows)):
    order = {
        "id": number,
        "customer": f"c{number % 7}",
        "amount": number % 50 + 0.5,
        "time": f"2026-01-01 {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}",
    }
    producer.produce(topic, key=order["customer"], value=json.dumps(order))
    while len(producer) > 50_000:
        producer.poll(0.1)
producer.flush()
print(rows, "rows written to", topic)
