"""Transfers between accounts: A books debits, B books credits, C brings both into a table, each version at one barrier.

A version is a read of both lists of bookings, a transfer an append to both at once: `integration.cycles` says whether one order
explains all of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from barrier_kafka import inject_barriers
from integration.broker import Cluster
from integration.cycles import Anomaly, Transaction, check_serializable
from integration.faults.query import Query
from integration.faults.workloads import PARTITIONS, Feed, Workload
from integration.transfers.judge import judge, versions

__all__ = ["Transfers", "make_transfers"]

ACCOUNTS = 20
BARRIER_SECONDS = 1.0


class Transfers(Workload):
    """The queries, with the table of the last."""

    table: Path
    marks: str

    def feed(self) -> Feed:
        """See `Workload`; barriers are injected behind the rows."""
        feed = _MarkedFeed(self.servers, self.source, _transfer)
        feed.mark(self.marks)
        return feed

    def fed(self) -> int:
        """See `Workload`."""
        return len(self.values())

    def is_whole(self, rows: int) -> bool:
        """See `Workload`."""
        return judge(self.table).transfers >= rows

    def wrong(self) -> list[str]:
        """See `Workload`: no version is torn, no transfer is missing or booked twice, and one order explains all."""
        found, fed = judge(self.table), self.fed()
        problems = [] if found.transfers == fed else [f"{found.transfers} transfers of {fed} are there"]
        if found.torn or found.off_by or found.doubled:
            problems.append(f"versions are torn: {found}")
        try:
            check_serializable(self._transactions(fed))
        except Anomaly as anomaly:
            problems.append(str(anomaly))
        return [*problems, *self.left_open()]

    def _transactions(self, fed: int) -> Sequence[Transaction]:
        """Transfers in any order, and versions as they saw them: each list grows by what a version adds."""
        seen: dict[str, list[str]] = {"debits": [], "credits": []}
        reads = []
        for number, bookings in enumerate(versions(self.table)):
            for transfer, _, amount in sorted(bookings):
                seen["debits" if amount < 0 else "credits"].append(str(transfer))
            reads.append(Transaction(f"version {number}", reads={name: [*rows] for name, rows in seen.items()}))
        names = ("debits", "credits")
        return [*(Transaction(f"transfer {n}", {name: str(n) for name in names}) for n in range(fed)), *reads]


class _MarkedFeed(Feed):
    def mark(self, barriers: str) -> None:
        """Inject a barrier now and then, until the feed has ended, and once more."""
        self._ended = threading.Event()
        options = {"kafka.bootstrap.servers": self.servers}
        words = (self.topic, barriers, options)
        more = {"interval_seconds": BARRIER_SECONDS, "stop": self._ended.is_set}
        self._marking = threading.Thread(target=inject_barriers, args=words, kwargs=more, daemon=True)
        self._marking.start()

    def finish(self) -> None:
        """See `Feed`."""
        super().finish()
        if not self._ended.wait(3 * BARRIER_SECONDS):  # so that the last rows have a barrier behind them
            self._ended.set()
        self._marking.join(60)


def _transfer(number: int) -> Sequence[tuple[str, int]]:
    chance = random.Random(number)
    source, target = chance.sample(range(ACCOUNTS), 2)
    return [
        (
            f'{{"id":{number},"source":{source},"target":{target},"amount":{chance.randint(1, 1000)}}}',
            number % PARTITIONS,
        )
    ]


def make_transfers(cluster: Cluster, folder: Path, name: str) -> Transfers:
    """Make the topics, and say what the queries are."""
    brokers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}

    def topic(suffix: str, partitions: int = PARTITIONS) -> str:
        config = {"min.insync.replicas": "2", "cleanup.policy": "delete"}
        cluster.create_topic(f"{name}-{suffix}", partitions, replication=3, config=config)
        return f"{name}-{suffix}"

    def reads(topics: str, marks: str) -> Mapping[str, str]:
        return {**brokers, "subscribe": topics, "alignOn": marks, "startingOffsets": "earliest"}

    def field(key: str, kind: str) -> str:
        return f"CAST(get_json_object(CAST(value AS STRING), '$.{key}') AS {kind})"

    source, marks = topic("in"), topic("marks", 1)
    queries = []
    for side, account, sign in (("debits", "source", "-"), ("credits", "target", "")):
        target, own = topic(side), topic(f"{side}-marks", 1)
        sink = {**brokers, "format": "2pc-kafka", "topic": target, "barrierTopic": own}
        parts = f"'id', {field('id', 'BIGINT')}, 'account', {field(account, 'INT')}"
        booking = f"to_json(named_struct({parts}, 'amount', {sign}{field('amount', 'BIGINT')})) AS value"
        key = f"CAST({field(account, 'INT')} AS STRING) AS key"
        queries.append(Query(str(folder / side), reads(source, marks), sink, (key, booking)))
    both = (f"{name}-debits,{name}-credits", f"{name}-debits-marks,{name}-credits-marks")
    columns = [
        f"{field(key, kind)} AS {key}" for key, kind in (("id", "BIGINT"), ("account", "INT"), ("amount", "BIGINT"))
    ]
    table = folder / "table"
    queries.append(Query(str(folder / "tables"), reads(*both), {"format": "2pc-delta", "path": str(table)}, columns))
    made = Transfers(cluster.bootstrap_servers, source, queries, {}, {}, ordered=True)
    made.table, made.marks = table, marks
    return made
