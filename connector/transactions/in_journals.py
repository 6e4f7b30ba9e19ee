"""Find transactions in the journals of queries: which query owns a transaction, and whether it has been decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.kafka.client.topics import Partition
from connector.kafka.sink.handles import Key, parse_handle
from connector.location.location import CheckpointLocation
from connector.multi.names import under_route
from connector.spark.location_owner import refuse_elsewhere
from connector.spark.process import is_alive
from connector.spark.recorded_sink import naming_secrets, recorded_run, recorded_sink
from transactional.entry import EntryKind
from transactional.ledger import Ledger, RunRecord

if TYPE_CHECKING:
    from connector.kafka.sink.kafka_sink import KafkaSink


@dataclass(frozen=True)
class Claim:
    """A journal's record of one transaction."""

    # The micro-batch that wrote the transaction, and the partition id of its task.
    batch: int
    partition: int
    rows: int  # The number of the transaction's rows.
    checkpoint: int | None  # The checkpoint that has decided the transaction; None while it is only prepared.
    verdict: str | None  # The journal's verdict: ``committed``, ``lost`` or ``accepted``; None if there is no verdict.


@dataclass(frozen=True)
class Owner:
    """A writer of transactions: a streaming query, or the batch writes at one location."""

    location: str  # The checkpoint location.
    # The transactional-id prefixes of all runs in the journal. If the location is a copy, the original's prefixes are left out.
    prefixes: frozenset[str]
    cluster: str  # The id of the cluster to which the newest run writes; empty if the journal does not know it.
    is_batch: bool  # True for batch writes (``df.write``), False for a streaming query.
    is_open: bool  # True if the journal has rows that are prepared, or decided but not settled.
    run: int  # The token of the newest run.
    ended: str | None  # How the newest run ended; None if it has not ended.
    process: Mapping[str, Any]  # The process of the newest run's driver.
    alive: bool | None  # True if this process is running, False if it has ended; None if that can't be seen from here.
    sink: KafkaSink | None  # The Kafka sink, built from the journal's record; None if the sink writes to another store.
    claims: Mapping[Key, Claim] = field(repr=False)  # The journal's record of each transaction.
    # The partitions to which the transactions in the journal have written.
    written: frozenset[Partition] = field(repr=False)

    @property
    def may_run(self) -> bool:
        """True if the newest run may still write or commit: it has not ended, and its driver is not known to be dead."""
        return self.ended is None and self.alive is not False

    @property
    def is_done(self) -> bool:
        """True if the query was stopped, and its journal contains no open transaction."""
        return self.ended == EntryKind.STOPPED and not self.is_open


def owners_of(location: CheckpointLocation, ledger: Ledger, given: Mapping[str, str]) -> list[Owner]:
    """Return the owner of a journal's transactions; for ``2pc-multi``, one owner for each Kafka sink that it combines."""
    from connector.kafka.sink.kafka_sink import KafkaSink
    from connector.multi.sink import MultiSink

    refuse_elsewhere(location, ledger)
    run = recorded_run(ledger)
    with naming_secrets(run, given):
        sink = recorded_sink(run, location, given)
    sinks = {"": sink}
    if isinstance(sink, MultiSink):
        sinks = {route: each for route, each in sink.sinks() if isinstance(each, KafkaSink)} or sinks
    return [
        _owner(location, ledger, run, route, each if isinstance(each, KafkaSink) else None)
        for route, each in sinks.items()
    ]


def _owner(
    location: CheckpointLocation,
    ledger: Ledger,
    run: RunRecord,
    route: str,
    kafka: KafkaSink | None,
) -> Owner:
    from connector.spark.batch_writer import WHOSE

    prefixes = frozenset(each.prefix for each in ledger.runs.values()) - set(ledger.originals)
    claims, written = _claims(ledger, route) if kafka else ({}, frozenset())
    return Owner(
        location.path,
        frozenset(under_route(prefix, route) for prefix in prefixes),
        run.identified("cluster", route) or "",
        location.files.exists(f"barrier/{WHOSE}"),
        bool(ledger.undecided() or ledger.unsettled()),
        run.token,
        run.ended,
        run.process,
        is_alive(run.process),
        kafka,
        claims,
        written,
    )


def _claims(ledger: Ledger, route: str) -> tuple[dict[Key, Claim], frozenset[Partition]]:
    claims: dict[Key, Claim] = {}
    written: set[Partition] = set()
    for record in ledger.batches.values():
        for part in (each for each in record.parts if each.route == route):
            for handle, verdict in zip(part.handles, part.verdicts, strict=True):
                prepared = parse_handle(handle["handle"] if route else handle)
                claims[prepared.key] = Claim(part.batch, part.partition, part.rows, record.checkpoint, verdict)
                written.update(witness.partition for witness in prepared.written)
    return claims, frozenset(written)
