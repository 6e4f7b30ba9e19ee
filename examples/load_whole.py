"""Load whole checkpoints of a topic into a table, each row once: ``python examples/load_whole.py TOPIC MARKS``.

It needs no Spark. Rows and positions are in one database transaction: killed at any moment, it goes on where it was. SQLite
stands for a warehouse.
"""

import os
import sqlite3
import sys

from barrier_kafka.reader import complete_offsets
from confluent_kafka import Consumer, TopicPartition

topic, barrier_topic = sys.argv[1:]
brokers = os.environ.get("BROKERS", "localhost:9092")
settings = {"bootstrap.servers": brokers, "group.id": "loader", "enable.auto.commit": False}
database = sqlite3.connect("/tmp/barrier/warehouse.db")
database.execute("CREATE TABLE IF NOT EXISTS loaded (value TEXT)")
database.execute("CREATE TABLE IF NOT EXISTS positions (part INTEGER PRIMARY KEY, next INTEGER)")

marks = Consumer(settings)
ends = complete_offsets(marks, barrier_topic).get(topic, {})  # where the newest whole checkpoint ends
marks.close()
begins = dict(database.execute("SELECT part, next FROM positions"))

reader = Consumer({**settings, "isolation.level": "read_committed"})
loaded = 0
for part, end in ends.items():
    place = TopicPartition(topic, part, begins.get(part, 0))
    if place.offset >= end:
        continue
    reader.assign([place])
    while reader.position([place])[0].offset < end:
        for message in reader.consume(1000, timeout=0.1):
            if message.error() is None and message.offset() < end:
                database.execute("INSERT INTO loaded VALUES (?)", [message.value().decode()])
                loaded += 1
    database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", [part, end])
reader.close()
database.commit()
print(f"{loaded} rows of whole checkpoints")
