"""Judge the result: every order once in PostgreSQL, every event once in the Delta table, every broken event in shop-dead."""

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable

from settings import BROKERS, DATABASE, PLACE

with psycopg.connect(DATABASE) as database:
    orders, shipped, amount = database.execute(
        "SELECT count(*), count(*) FILTER (WHERE status = 'shipped'), sum(amount) FROM orders"
    ).fetchone()
events = DeltaTable(f"{PLACE}/events").to_pyarrow_table(columns=["id", "status"])
different = events.group_by(["id", "status"]).aggregate([]).num_rows

reader = Consumer({"bootstrap.servers": BROKERS, "group.id": "judge", "enable.partition.eof": True})
reader.assign([TopicPartition("shop-dead", number, 0) for number in range(4)])
dead, ended = 0, set()
while len(ended) < 4:
    for message in reader.consume(1000, timeout=1):
        if message.error() is None:
            dead += 1
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
reader.close()

print(f"PostgreSQL: {orders} orders, {shipped} of them shipped, {amount} in total")
print(f"Delta: {events.num_rows} events, {different} different ones")
print(f"shop-dead: {dead} broken events")
