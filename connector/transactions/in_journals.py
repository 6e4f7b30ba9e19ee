"""Transactions as the journals of queries know them: whose they are, and whether they are decided."""

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

__all__ = ["Claim", "Owner", "owners_of"]


@dataclass(frozen=True)
class Claim:
    """What a journal says of a transaction.

    Parameters
    ----------
    batch, partition : int
        Whose rows it has.
    rows : int
    checkpoint : int or None
        Which has decided it; None while it is prepared only.
    verdict : str or None
        ``committed``, ``lost``, ``accepted``; None while it is open.
    """

    batch: int
    partition: int
    rows: int
    checkpoint: int | None
    verdict: str | None


@dataclass(frozen=True)
class Owner:
    """A query, or batch writes, with a Kafka sink.

    Parameters
    ----------
    location : str
    prefixes : frozenset[str]
        Of all runs that the journal knows, but for those of the location of which this one is a copy.
    cluster : str
        The id of the newest run's cluster; empty if the journal does not know it.
    is_batch : bool
        Its writes are ``df.write``, and not a streaming query's.
    is_open : bool
        Something is prepared, or decided and not settled.
    run : int
    ended : str or None
        How the newest run ended, if it did.
    process : Mapping[str, Any]
        Its driver's process.
    alive : bool or None
        Whether that runs; None if that can't be seen from here.
    sink : KafkaSink or None
        As the journal has recorded it; None if the query has another sink.
    claims : Mapping[Key, Claim]
        By transaction.
    written : frozenset[Partition]
        What the journal's transactions have written into.
    """

    location: str
    prefixes: frozenset[str]
    cluster: str
    is_batch: bool
    is_open: bool
    run: int
    ended: str | None
    process: Mapping[str, Any]
    alive: bool | None
    sink: KafkaSink | None
    claims: Mapping[Key, Claim] = field(repr=False)
    written: frozenset[Partition] = field(repr=False)

    @property
    def may_run(self) -> bool:
        """Whether its run may still write or commit: it has not ended, and its driver is not known to be gone."""
        return self.ended is None and self.alive is not False

    @property
    def is_done(self) -> bool:
        """Whether the query was stopped and has left nothing open that its journal knows."""
        return self.ended == EntryKind.STOPPED and not self.is_open


def owners_of(location: CheckpointLocation, ledger: Ledger, given: Mapping[str, str]) -> list[Owner]:
    """Read a journal: one owner, or of several sinks one for each that is a Kafka sink."""
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
