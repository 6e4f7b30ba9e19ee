"""Write events of orders into the topic shop: ``python feed.py [ORDERS] [FIRST]``.

Each order is paid, and shipped 30 seconds later. Every 25th order also has an event that is broken.
"""

import json
import sys
from datetime import datetime, timedelta, timezone

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from settings import BROKERS

count, first = [int(word) for word in [*sys.argv[1:], *["1000", "0"][len(sys.argv) - 1 :]]]

admin = AdminClient({"bootstrap.servers": BROKERS})
missing = {"shop", "shop-orders", "shop-dead"} - set(admin.list_topics(timeout=30).topics)
for created in admin.create_topics([NewTopic(name, num_partitions=4) for name in missing]).values() if missing else ():
    created.result()

producer = Producer({"bootstrap.servers": BROKERS, "enable.idempotence": True, "linger.ms": 20})
broken = 0
for number in range(first, first + count):
    paid_at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=number)
    for status, time in (("paid", paid_at), ("shipped", paid_at + timedelta(seconds=30))):
        order = {
            "id": number,
            "customer": f"c{number % 7}",
            "amount": f"{number % 50}.50",
            "status": status,
            "time": f"{time:%Y-%m-%d %H:%M:%S}",
        }
        text = json.dumps(order)
        producer.produce("shop", key=str(number), value=text)
        if number % 25 == 0 and status == "paid":
            producer.produce("shop", key=str(number), value=text[: len(text) // 2])
            broken += 1
    if number % 10_000 == 0:
        producer.flush()
producer.flush()
print(f"{count} orders: {2 * count + broken} events, {broken} of them broken")
